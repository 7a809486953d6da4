#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nvshare::cli {

// This process's environment: entries are "NAME=VALUE".
std::vector<std::string> own_environment();

// A variable that a program is to have, or (no value) not to have.
struct Variable {
  std::string name;
  std::optional<std::string> value;

  friend bool operator==(const Variable&, const Variable&) = default;
};
// This process's environment with these changes.
std::vector<std::string> changed_environment(const std::vector<Variable>& changes);

}  // namespace nvshare::cli
