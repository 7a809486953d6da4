#pragma once

#include <optional>

#include "config/reader.h"
#include "sim/scenario.h"

namespace nvshare::sim {

// Reads [arbiter] and [classes], and reports them where no client asks for leases.
void read_arbiter(config::TableReader& root, config::Problems& problems, Scenario& scenario);
// Reads a client's `lease`, of one of the arbiter's classes.
std::optional<LeaseSpec> read_lease(config::TableReader& client, const ClientSpec& spec,
                                    const core::ArbiterConfig& arbiter);

}  // namespace nvshare::sim
