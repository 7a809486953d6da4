#include "softgpu/config.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#ifdef NVSHARE_HAVE_TOML
#include <toml++/toml.h>
#endif

namespace nvshare::softgpu {
namespace {

using Member = std::function<Result<void>(Config&, std::string_view)>;

Member text(std::string Config::*member, std::size_t longest) {
  return [=](Config& config, std::string_view value) -> Result<void> {
    if (value.size() > longest) return Error{fmt::format("longer than {} characters", longest)};
    config.*member = std::string(value);
    return {};
  };
}

Member size(Bytes Config::*member, Bytes low, Bytes high) {
  return [=](Config& config, std::string_view value) -> Result<void> {
    auto bytes = parse_bytes(value);
    if (!bytes) return bytes.error();
    if (*bytes < low || *bytes > high) {
      return Error{fmt::format("'{}' is not from {} to {}", value, to_text(low), to_text(high))};
    }
    config.*member = *bytes;
    return {};
  };
}

Member time(Duration Config::*member, Duration low, Duration high) {
  return [=](Config& config, std::string_view value) -> Result<void> {
    auto duration = parse_duration(value);
    if (!duration) return duration.error();
    if (*duration < low || *duration > high) {
      return Error{fmt::format("'{}' is not from {} to {}", value, to_text(low), to_text(high))};
    }
    config.*member = *duration;
    return {};
  };
}

Member number(std::int64_t Config::*member, std::int64_t low, std::int64_t high) {
  return [=](Config& config, std::string_view value) -> Result<void> {
    auto parsed = parse_integer(value, low, high);
    if (!parsed) return parsed.error();
    config.*member = *parsed;
    return {};
  };
}

Member yes_or_no(bool Config::*member) {
  return [=](Config& config, std::string_view value) -> Result<void> {
    const bool yes = value == "1" || value == "true";
    if (!yes && value != "0" && value != "false") {
      return Error{fmt::format("'{}' is not true or false", value)};
    }
    config.*member = yes;
    return {};
  };
}

constexpr std::int64_t kAny = 1'000'000'000'000;

#ifdef NVSHARE_HAVE_TOML

// A value as it would stand in the environment; nothing when it is of a kind no setting has.
std::optional<std::string> as_text(const toml::node& node) {
  if (auto value = node.value_exact<std::string>()) return *value;
  if (auto value = node.value_exact<std::int64_t>()) return std::to_string(*value);
  if (auto value = node.value_exact<bool>()) return *value ? "true" : "false";
  return std::nullopt;
}

std::string place(const std::string& origin, const toml::source_position& position) {
  return fmt::format("{}:{}:{}", origin, position.line, position.column);
}

#endif

const Setting* find_setting(std::string_view key) {
  const auto& all = settings();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Setting& one) { return one.key == key; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all{
      {"card", "up to 40 letters, digits, '.', '_', '-'",
       "name of the card; programs that name "
       "the same card share it",
       text(&Config::card, 40)},
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
      {"trace", "a path", "file that every call is appended to", text(&Config::trace, 4096)},
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
      {"nvml_unavailable", "true or false", "NVML does not initialise",
       yes_or_no(&Config::nvml_unavailable)},
  };
  return all;
}

std::string environment_name(std::string_view key) {
  std::string name = "NVSHARE_SOFTGPU_";
  for (const char c : key) name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

Result<Config> parse_config(std::string_view toml, const std::string& origin, Config base) {
#ifdef NVSHARE_HAVE_TOML
  const toml::parse_result parsed = toml::parse(toml);
  if (!parsed) {
    return Error{std::string(parsed.error().description())}.with_context(
        place(origin, parsed.error().source().begin));
  }
  std::string errors;
  for (const auto& [key, node] : parsed.table()) {
    const std::string where = place(origin, node.source().begin);
    const Setting* setting = find_setting(key.str());
    const auto value = as_text(node);
    std::string wrong;
    if (setting == nullptr) {
      wrong = "no such setting";
    } else if (!value) {
      wrong = "neither text nor a whole number nor true or false";
    } else if (auto set = setting->set(base, *value); !set) {
      wrong = set.error().message;
    }
    if (!wrong.empty()) {
      errors += fmt::format("{}{}: {}: {}", errors.empty() ? "" : "; ", where, key.str(), wrong);
    }
  }
  if (!errors.empty()) return Error{errors};
  return base;
#else
  (void)toml;
  (void)base;
  return Error{fmt::format("{}: this build reads no TOML files", origin)};
#endif
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
  std::string errors;
  for (const Setting& setting : settings()) {
    const std::string name = environment_name(setting.key);
    const char* value = environment(name);
    if (value == nullptr) continue;
    if (auto set = setting.set(config, value); !set) {
      errors += fmt::format("{}{}: {}", errors.empty() ? "" : "; ", name, set.error().message);
    }
  }
  if (!errors.empty()) return Error{errors};
  if (config.card.empty()) config.card = "default";
  return config;
}

}  // namespace nvshare::softgpu
