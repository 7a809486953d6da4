#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/config.h"

namespace nvshare::properties {

// A tenant with its parts.
struct Node {
  int limit = 100;
  bool works = false;  // has clients of its own that always have work
  std::vector<std::string> parts;
};
// By name. The machine is "".
using Tree = std::map<std::string, Node>;

// Percent of the GPU that clients of each tenant have over a long time, without those of its parts.
// Reckoned by another way than the core's: from the top, once, without a clock. All tenants have
// one priority.
using Due = std::map<std::string, double>;
Due dues_of(const Tree& tree, int best_effort_percent = core::Config{}.best_effort_percent);

}  // namespace nvshare::properties
