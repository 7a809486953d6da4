#pragma once

#include <vector>

#include "config/reader.h"
#include "sim/scenario.h"

namespace nvshare::sim {

// Reports the clients whose memory the scheduler would refuse, by their own limit or because they
// do not fit on a GPU, as far as the file tells who is there at the same time. `tables[i]` is what
// scenario.clients[i] was read from. Settings that are wrong are taken to have their defaults.
void check_memory(const Scenario& scenario, std::vector<config::TableReader>& tables);

}  // namespace nvshare::sim
