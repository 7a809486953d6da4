#include "cli/run/limits.h"

#include <fmt/format.h>

#include "base/run_name.h"
#include "config/memory_limit.h"
#include "core/config.h"
#include "wire/limit_text.h"
#include "wire/messages.h"

namespace nvshare::cli {

static_assert(kLongestName == wire::kNameLength - 1);

namespace {

Result<Bytes> read_memory(const std::string& text) {
  const auto bytes = config::parse_memory_limit(text);
  if (bytes && bytes->count <= 0) {
    return Error{fmt::format("'{}' is not more than nothing (none: no limit)", text)};
  }
  return bytes;
}

std::optional<int> whole_number(const config::Arguments& arguments, std::string_view option,
                                int low, int high, std::string_view hint,
                                std::vector<std::string>& wrong) {
  const auto text = arguments.value(option);
  if (!text) return std::nullopt;
  const auto number = parse_integer(*text, low, high);
  if (!number) {
    wrong.push_back(fmt::format("--{}: {}{}", option, number.error().message, hint));
    return std::nullopt;
  }
  return static_cast<int>(*number);
}

}  // namespace

std::vector<config::Option> limit_options() {
  return {
      {"mem", 'm', "SIZE", "most GPU memory it may have, such as 4Gi; none: no limit"},
      {"cores", 'c', "N", "most of the GPU's time it may have, in percent: 1 to 99; 100: no limit"},
      {"priority", 'p', "N", "who goes first: -10 to 10, default 0"},
  };
}

LimitWish read_limits(const config::Arguments& arguments, std::vector<std::string>& wrong) {
  LimitWish wish;
  if (const auto text = arguments.value("mem"); text == "none") {
    wish.lift_memory = true;
  } else if (text) {
    if (const auto bytes = read_memory(*text)) {
      wish.memory = *bytes;
    } else {
      wrong.push_back(fmt::format("--mem: {}", bytes.error().message));
    }
  }
  wish.cores = whole_number(arguments, "cores", 1, 100, " (100: no limit)", wrong);
  wish.priority = whole_number(arguments, "priority", -10, 10, "", wrong);
  return wish;
}

void lower_to_variable(LimitWish& wish, const char* text) {
  // Of a device without memory, percent are nothing.
  const std::uint64_t bytes = wire::parse_limit(text, 0);
  const Bytes most = wish.memory.value_or(core::kMostMemory);
  if (bytes == 0 || bytes >= static_cast<std::uint64_t>(most.count)) return;
  wish.memory = Bytes{static_cast<std::int64_t>(bytes)};
  wish.memory_of_variable = true;
}

std::string default_name(std::string_view program, long pid) {
  const std::string behind = fmt::format("-{}", pid);
  const std::size_t slash = program.rfind('/');
  std::string name(slash == program.npos ? program : program.substr(slash + 1));
  for (char& c : name) {
    if (!is_name_letter(c)) c = '_';
  }
  if (name.empty()) name = "program";
  if (name.front() == '-' || is_schedulers_own(name + behind)) name = "run-" + name;
  if (name.size() > kLongestName - behind.size()) name.resize(kLongestName - behind.size());
  return name + behind;
}

}  // namespace nvshare::cli
