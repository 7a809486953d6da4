#pragma once

#include <map>
#include <optional>

#include "core/arbiter/pressure.h"
#include "core/snapshot.h"

namespace nvshare::core {

// How busy one GPU is, and with which work: what its tenants were billed since the last reading, by
// their priorities.
class UsageMeter {
 public:
  // `seen` is NVML's usage in percent at the time `at`; without it the bills alone say. Nothing
  // when neither says anything. The bills are as of `now`.
  std::optional<UsageSample> read(const Snapshot& snapshot, GpuId gpu, std::optional<int> seen,
                                  Time at, Time now);

 private:
  std::optional<Time> read_at_;
  std::map<TenantId, Duration> billed_;
};

}  // namespace nvshare::core
