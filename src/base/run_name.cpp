#include "base/run_name.h"

#include <fmt/format.h>

#include <algorithm>

namespace nvshare {

bool is_name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

bool is_schedulers_own(std::string_view name) {
  return name.starts_with(kUserPrefix) || name.starts_with(kPodPrefix) ||
         name.starts_with(kContainerPrefix) || name.starts_with(kCgroupPrefix);
}

Result<void> check_run_name(std::string_view name) {
  if (name.empty() || name.size() > kLongestName ||
      !std::all_of(name.begin(), name.end(), is_name_letter)) {
    return Error{
        fmt::format("a name has 1 to {} letters, digits, '.', '_' or '-': give another with --name",
                    kLongestName)};
  }
  if (name.front() == '-') {
    return Error{
        fmt::format("a name does not begin with '-' as '{}' does: give another with --name", name)};
  }
  if (is_schedulers_own(name)) {
    return Error{
        fmt::format("names that begin with '{}' are the scheduler's own: "
                    "give another with --name",
                    name.substr(0, name.find('-') + 1))};
  }
  return {};
}

}  // namespace nvshare
