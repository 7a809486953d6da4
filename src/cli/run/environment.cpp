#include "cli/run/environment.h"

#include <unistd.h>

namespace nvshare::cli {

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** one = environ; *one != nullptr; ++one) entries.emplace_back(*one);
  return entries;
}

std::vector<std::string> changed_environment(const std::vector<Variable>& changes) {
  std::vector<std::string> entries = own_environment();
  for (const Variable& one : changes) {
    const std::string beginning = one.name + "=";
    std::erase_if(entries, [&](const std::string& entry) { return entry.starts_with(beginning); });
    if (one.value) entries.push_back(beginning + *one.value);
  }
  return entries;
}

}  // namespace nvshare::cli
