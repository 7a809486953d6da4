#pragma once

#include <string>
#include <vector>

#include "sim/scenario.h"
#include "sim/simulator.h"

namespace nvshare::sim {

// Each takes the reports of one scenario under one or more policies, shown side by side. The table
// has timelines where the reports have spans; without any, several policies are only compared.
std::string to_table(const Scenario& scenario, const std::vector<Report>& reports);
std::string to_json(const Scenario& scenario, const std::vector<Report>& reports);
std::string to_svg(const Scenario& scenario, const std::vector<Report>& reports);

}  // namespace nvshare::sim
