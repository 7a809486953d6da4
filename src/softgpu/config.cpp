#include "softgpu/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/suggest.h"
#include "config/exact_text.h"
#include "config/reader.h"

namespace nvshare::softgpu {
namespace {

Access text(std::string Config::*member, std::size_t longest) {
  return {[=](Config& config, std::string_view value) -> Result<void> {
            if (value.size() > longest) {
              return Error{fmt::format("longer than {} characters", longest)};
            }
            config.*member = std::string(value);
            return {};
          },
          [=](const Config& config) { return config.*member; }};
}

Access card_name(std::string Config::*member) {
  return {[=](Config& config, std::string_view value) -> Result<void> {
            const bool good = std::all_of(value.begin(), value.end(), [](unsigned char c) {
              return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
            });
            if (!good || value.size() > 40) {
              return Error{"not a card name (up to 40 letters, digits, '.', '_', '-')"};
            }
            config.*member = std::string(value);
            return {};
          },
          [=](const Config& config) { return config.*member; }};
}

template <typename T>
Access between(T Config::*member, T low, T high, Result<T> (*parse)(std::string_view)) {
  return {[=](Config& config, std::string_view value) -> Result<void> {
            auto parsed = parse(value);
            if (!parsed) return parsed.error();
            if (*parsed < low || *parsed > high) {
              return Error{fmt::format("'{}' is not from {} to {}", value, config::exact_text(low),
                                       config::exact_text(high))};
            }
            config.*member = *parsed;
            return {};
          },
          [=](const Config& config) { return config::exact_text(config.*member); }};
}

Access size(Bytes Config::*member, Bytes low, Bytes high) {
  return between<Bytes>(member, low, high, parse_bytes);
}

Access time(Duration Config::*member, Duration low, Duration high) {
  return between<Duration>(member, low, high, parse_duration);
}

Access number(std::int64_t Config::*member, std::int64_t low, std::int64_t high) {
  return {[=](Config& config, std::string_view value) -> Result<void> {
            auto parsed = parse_integer(value, low, high);
            if (!parsed) return parsed.error();
            config.*member = *parsed;
            return {};
          },
          [=](const Config& config) { return std::to_string(config.*member); }};
}

Access yes_or_no(bool Config::*member) {
  return {[=](Config& config, std::string_view value) -> Result<void> {
            const bool yes = value == "1" || value == "true";
            if (!yes && value != "0" && value != "false") {
              return Error{fmt::format("'{}' is not true or false", value)};
            }
            config.*member = yes;
            return {};
          },
          [=](const Config& config) { return config.*member ? "true" : "false"; }};
}

constexpr std::int64_t kAny = 1'000'000'000'000;

Error one_error(const std::vector<std::string>& errors) {
  return Error{join({errors.begin(), errors.end()}, "; ")};
}

}  // namespace

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all{
      {"card", "up to 40 letters, digits, '.', '_', '-'",
       "name of the card; programs that name the same card share it", card_name(&Config::card)},
      {"count", "1 to 8", "how many devices there are", number(&Config::count, 1, 8)},
      {"memory", "16MiB to 4TiB", "device memory", size(&Config::memory, mib(16), gib(4096))},
      {"name", "up to 95 characters", "what the device calls itself", text(&Config::name, 95)},
      {"slice", "10us to 10s", "how long a process runs while others wait",
       time(&Config::slice, 10us, 10s)},
      {"switch_cost", "0ns to 1s", "what a change between processes takes",
       time(&Config::switch_cost, 0ns, 1s)},
      {"link", "1MiB to 1TiB", "bytes per second of the link, in each direction",
       size(&Config::link, mib(1), gib(1024))},
      {"pinned", "1MiB to 1TiB", "bytes per second from and to pinned host memory",
       size(&Config::pinned, mib(1), gib(1024))},
      {"pageable", "1MiB to 1TiB", "bytes per second from and to other host memory",
       size(&Config::pageable, mib(1), gib(1024))},
      {"bandwidth", "1MiB to 100TiB", "bytes per second copied or set within the device",
       size(&Config::bandwidth, mib(1), gib(102400))},
      {"kernel_time", "0ns to 1s", "what every kernel takes at least",
       time(&Config::kernel_time, 0ns, 1s)},
      {"context_memory", "0 to 16GiB", "device memory that a context takes for itself",
       size(&Config::context_memory, Bytes{0}, gib(16))},
      {"module_memory", "0 to 16GiB",
       "device memory that a module takes when the first of its kernels is used",
       size(&Config::module_memory, Bytes{0}, gib(16))},
      {"trace", "a path", "file that every call is appended to", text(&Config::trace, 4096)},
      {"fastest", "0 to 7",
       "the device that CUDA counts first without CUDA_DEVICE_ORDER=PCI_BUS_ID",
       number(&Config::fastest, 0, 7)},
      {"fail_allocation", "0 or n", "the n-th allocation fails: out of memory",
       number(&Config::fail_allocation, 0, kAny)},
      {"fail_copy", "0 or n", "the n-th copy fails, and its context with it",
       number(&Config::fail_copy, 0, kAny)},
      {"hang_kernel", "0 or n", "the n-th kernel never ends",
       number(&Config::hang_kernel, 0, kAny)},
      {"lose_device", "0 or n", "with the n-th piece of work the device falls off",
       number(&Config::lose_device, 0, kAny)},
      {"slow_link", "1 to 1000000", "copies take so many times as long",
       number(&Config::slow_link, 1, 1'000'000)},
      {"hang_nvml", "0 or n", "NVML never answers the n-th question how busy a device is",
       number(&Config::hang_nvml, 0, kAny)},
      {"nvml_unavailable", "true or false", "NVML does not initialise",
       yes_or_no(&Config::nvml_unavailable)},
  };
  return all;
}

const Setting* find_setting(std::string_view key) {
  const auto& all = settings();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Setting& one) { return one.key == key; });
  return found == all.end() ? nullptr : &*found;
}

std::string environment_name(std::string_view key) {
  std::string name = "NVSHARE_SOFTGPU_";
  for (const char c : key) name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

Result<Config> parse_config(std::string_view toml, const std::string& origin, Config base) {
  const auto document = config::parse_toml(toml, origin);
  if (!document) return document.error();
  config::Problems problems(origin);
  config::TableReader reader(*document, "", problems);
  for (const Setting& setting : settings()) {
    const config::Value* value = reader.find(setting.key);
    if (value == nullptr) continue;
    const auto given = config::as_text(*value);
    if (!given) {
      reader.problem(setting.key, fmt::format("is {}, not a text, a whole number, true or false",
                                              config::name_of(value->kind)));
    } else if (auto set = setting.value.set(base, *given); !set) {
      reader.problem(setting.key, set.error().message);
    }
  }
  reader.finish();
  if (!problems.empty()) return one_error(problems.lines());
  return base;
}

Result<Config> load_config(const Environment& environment) {
  Config config;
  if (const char* path = environment("NVSHARE_SOFTGPU_CONFIG"); path != nullptr && *path != 0) {
    std::ifstream file(path);
    if (!file) return Error{fmt::format("{}: cannot be read", path)};
    const std::string content((std::istreambuf_iterator<char>(file)), {});
    auto parsed = parse_config(content, path, config);
    if (!parsed) return parsed.error();
    config = *parsed;
  }
  std::vector<std::string> errors;
  for (const Setting& setting : settings()) {
    const std::string name = environment_name(setting.key);
    const char* value = environment(name);
    if (value == nullptr) continue;
    if (auto set = setting.value.set(config, value); !set) {
      errors.push_back(fmt::format("{}: {}", name, set.error().message));
    }
  }
  if (!errors.empty()) return one_error(errors);
  if (config.card.empty()) config.card = "default";
  return config;
}

}  // namespace nvshare::softgpu
