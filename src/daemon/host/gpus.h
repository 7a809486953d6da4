#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/result.h"
#include "core/arbiter/usage_meter.h"
#include "daemon/broker/broker.h"
#include "daemon/host/gpu_sampler.h"

namespace nvshare::daemon {

// What contexts, libraries and foreign programs hold: what is used beside what clients have
// allocated. The two are not read at the same moment: memory that was just freed looks like
// overhead, memory that was just asked for hides it. Too much would refuse what there is room for;
// too little is found out by the driver. So the least of the last readings is taken.
class OverheadEstimate {
 public:
  // When the scheduler has started. Memory of programs that are still to come back from before that
  // looks like overhead.
  explicit OverheadEstimate(Time start) : start_(start) {}

  // `booked` is what is counted of the memory of so many clients. As long as programs may still
  // come back, the answer is what the overhead can be at most.
  Overhead add(Bytes used, Bytes booked, int clients, Time now);

  static constexpr Duration kSettles = 3s;
  // A reading counts for so long, and as long as it is one of the last few.
  static constexpr Duration kBelieved = 2s;
  static constexpr std::size_t kFewest = 3;

 private:
  Time start_;
  std::deque<std::pair<Time, Overhead>> readings_;
};

// What is counted as there of the memory of the clients on a GPU, in whole pages. What they say
// they have is not taken for true: a claim would hide what others hold.
Bytes resident_on(const Broker& broker, GpuId gpu);

// What all clients of the GPU were billed together. The bill of a part is in its parent's already.
Duration billed_on(const core::Snapshot& snapshot, GpuId gpu);

// While memory moves, what was used a moment ago and what is there now do not belong together: a
// reading that was taken then would be wrong by all that has moved.
class MoveWatch {
 public:
  // Nothing has moved since the last call, and nothing is to.
  bool steady(const Broker& broker, GpuId gpu);

 private:
  Moves before_;
};

// A process on a GPU that has not registered.
struct Foreign {
  int pid = 0;
  GpuId gpu;
  Bytes memory{};
};

// What clients were billed of the last seconds, and how busy NVML saw them, in percent of the GPU's
// time. Two clocks that know nothing of each other: what lies between them says how far either is
// to be believed.
class MeterCheck {
 public:
  // `billed` is of all clients, since the beginning; `seen` of the last second.
  void add(Duration billed, int seen, Time now);
  std::optional<double> metered() const { return metered_; }
  std::optional<double> seen() const { return seen_; }

 private:
  std::optional<Time> at_;
  Duration billed_{};
  std::optional<double> metered_;
  std::optional<double> seen_;
};

// Brings the samples to the broker.
class GpuMonitor {
 public:
  // The usage of a GPU, for those that decide by it.
  using OnUsage = std::function<void(GpuId, const core::UsageSample&)>;

  GpuMonitor(Broker& broker, OnUsage on_usage) : broker_(broker), on_usage_(std::move(on_usage)) {}

  // Adds the GPUs that were found.
  Result<void> add_gpus(const std::vector<FoundGpu>& found, Time now);
  void update(const std::vector<GpuSampler::Taken>& samples, Time now);
  std::vector<Foreign> foreign() const;
  // Null as long as nothing has been compared.
  const MeterCheck* meter_check(GpuId gpu) const;

 private:
  // What is known of one GPU.
  struct Watched {
    explicit Watched(OverheadEstimate estimate) : overhead(std::move(estimate)) {}
    OverheadEstimate overhead;
    MoveWatch moves;
    std::optional<MeterCheck> meter;
    core::UsageMeter usage;
    std::vector<Foreign> foreign;
  };

  void update(GpuId id, const GpuSample& sample, const core::Snapshot& bills, Time now);
  void check_meter(GpuId id, const GpuSample& sample, const core::Snapshot& bills,
                   const std::set<int>& clients, Time now);

  Broker& broker_;
  OnUsage on_usage_;
  std::vector<GpuId> ids_;  // in NVML's order
  std::map<GpuId, Watched> watched_;
};

}  // namespace nvshare::daemon
