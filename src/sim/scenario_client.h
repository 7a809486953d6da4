#pragma once

#include "config/reader.h"
#include "sim/scenario.h"

namespace nvshare::sim {

// What a scenario may name: far more than makes sense, and little enough that sums never overflow
// and a slip of the pen does not fill the machine.
inline constexpr Duration kLongestTime = std::chrono::hours(24 * 366);
inline constexpr Bytes kLargestMemory = gib(1 << 20);
inline constexpr int kMostGpus = 1024;
inline constexpr int kMostProcesses = 10000;

// Reads one [[tenant]] and reports what is wrong with it, as far as that can be seen from it alone.
TenantSpec read_tenant(config::TableReader& table);
// Reads one [[client]] and reports what is wrong with it, as far as that can be seen from the
// client alone.
ClientSpec read_client(config::TableReader& table);

}  // namespace nvshare::sim
