#pragma once

#include <map>
#include <optional>

#include "core/arbiter/pressure.h"
#include "core/snapshot.h"

namespace nvshare::daemon {

// How busy one GPU is, and with which work: what its tenants were billed since the last reading, by
// their priorities.
class UsageMeter {
 public:
  // `seen` is NVML's usage in percent at the time `at`; without it the bills alone say. Nothing
  // when neither says anything. The bills are as of `now`.
  std::optional<core::UsageSample> read(const core::Snapshot& snapshot, core::GpuId gpu,
                                        std::optional<int> seen, Time at, Time now);

 private:
  std::optional<Time> read_at_;
  std::map<core::TenantId, Duration> billed_;
};

}  // namespace nvshare::daemon
