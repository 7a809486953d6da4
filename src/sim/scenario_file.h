#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sim/scenario.h"

namespace nvshare::sim {

// A scenario, or everything that is wrong with it, one line each: "FILE:LINE:COLUMN: KEY: what".
struct ParsedScenario {
  Scenario scenario;
  std::vector<std::string> errors;  // empty: the scenario is good
};

// Reads a scenario from TOML text. `source` names it in messages. docs/simulator.md has the format.
ParsedScenario parse_scenario(std::string_view toml, const std::string& source);

struct BuiltIn {
  std::string_view name;
  std::string_view toml;
};
// The scenarios that come with the program, by name.
const std::vector<BuiltIn>& built_in_scenarios();
// By name; nothing when there is none.
const BuiltIn* find_built_in(std::string_view name);

}  // namespace nvshare::sim
