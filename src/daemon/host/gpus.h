#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/broker/broker.h"
#include "nvml/loader.h"

namespace nvshare::daemon {

struct GpuProcess {
  int pid = 0;
  Bytes memory{};
};

// What NVML says of one GPU at one moment.
struct GpuSample {
  std::optional<int> utilisation;
  std::optional<Bytes> used;
  std::vector<GpuProcess> processes;
  // Percent of the last second in which a process kept the GPU busy, by process; empty where the
  // driver does not tell.
  std::map<int, int> busy;
  bool mps = false;  // processes share it through MPS
};

// NVML, asked once a second by a thread of its own: a call can take many milliseconds, and turns
// are shorter than that.
class GpuSampler {
 public:
  struct Found {
    Uuid uuid{};
    std::string name;
    Bytes total{};
    Bytes used{};
    nvml::nvmlDevice_t device{};
  };

  // Opens the library and looks for GPUs; an error when there are none.
  static Result<std::unique_ptr<GpuSampler>> open(const std::string& library);
  ~GpuSampler();

  const std::vector<Found>& found() const { return found_; }
  Result<void> start();
  // Becomes readable when there is a new sample.
  int ready() const { return ready_.get(); }
  // One for each that was found; empty when there is nothing new.
  std::vector<GpuSample> take();

 private:
  explicit GpuSampler(std::unique_ptr<nvml::Loader> nvml) : nvml_(std::move(nvml)) {}
  Result<void> look();
  GpuSample sample(nvml::nvmlDevice_t device) const;
  void run();

  std::unique_ptr<nvml::Loader> nvml_;
  bool initialised_ = false;
  std::vector<Found> found_;
  UniqueFd ready_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<GpuSample> latest_;
};

// What contexts, libraries and foreign programs hold: what is used beside what clients have
// allocated. The two are not read at the same moment: memory that was just freed looks like
// overhead, memory that was just asked for hides it. Too much would refuse what there is room for;
// too little is found out by the driver. So the least of the last few readings is taken.
class OverheadEstimate {
 public:
  // When the scheduler has started. Memory of programs that are still to come back from before that
  // looks like overhead.
  explicit OverheadEstimate(Time start) : start_(start) {}

  // `booked` is what is counted of the memory of so many clients. As long as programs may still
  // come back, the answer is what the overhead can be at most.
  Overhead add(Bytes used, Bytes booked, int clients, Time now);

  static constexpr Duration kSettles = 3s;

 private:
  static constexpr std::size_t kReadings = 3;
  Time start_;
  std::deque<Overhead> readings_;
};

// What is counted as there of the memory of the clients on a GPU, in whole pages. What they say
// they have is not taken for true: a claim would hide what others hold.
Bytes resident_on(const Broker& broker, GpuId gpu);

// What all clients of the GPU were billed together. The bill of a part is in its parent's already.
Duration billed_on(const Broker& broker, GpuId gpu);

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
  GpuMonitor(GpuSampler& sampler, Broker& broker) : sampler_(sampler), broker_(broker) {}

  // Adds the GPUs that were found.
  Result<void> add_gpus(Time now);
  // When the sampler is ready.
  void update(Time now);
  const std::vector<Foreign>& foreign() const { return foreign_; }
  // Null as long as nothing has been compared.
  const MeterCheck* meter_check(GpuId gpu) const;

 private:
  void update(GpuId id, const GpuSample& sample, Time now);
  void check_meter(GpuId id, const GpuSample& sample, const std::set<int>& clients, Time now);

  GpuSampler& sampler_;
  Broker& broker_;
  std::vector<GpuId> ids_;
  std::map<GpuId, OverheadEstimate> overheads_;
  std::map<GpuId, MoveWatch> moves_;
  std::map<GpuId, MeterCheck> meters_;
  std::vector<Foreign> foreign_;
};

}  // namespace nvshare::daemon
