#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "core/core.h"
#include "sim/scenario.h"

namespace nvshare::sim {

// One stretch of time in which a client held a grant on its GPU.
struct Span {
  Time from{};
  Time to{};
};

// A process of the scenario, as it fared. Times are counted from the beginning of the scenario.
struct ClientReport {
  std::string name;  // "train", or "train/2" when the tenant has several processes
  int tenant = 0;    // its place in Scenario::clients
  int gpu = 0;
  Duration run{};       // held a grant
  Duration gpu_time{};  // its work occupied the GPU
  Duration wait{};      // had work and no grant
  Duration longest_wait{};
  double share_percent = 0;  // of the time it was there, occupied the GPU
  std::optional<Time> first_throttle;
  std::optional<Time> finished;
  Bytes moved_in{};
  Bytes moved_out{};
  int switches = 0;  // times it lost memory to another
  std::vector<Span> spans;
};

struct GpuReport {
  Bytes memory{};
  double utilization_percent = 0;
  Bytes highest_resident{};
  Bytes highest_swapped{};  // of what was allocated, not on the GPU
};

struct Report {
  std::string scenario;
  core::ComputePolicy policy = core::ComputePolicy::Metered;
  Duration lasted{};
  std::size_t events = 0;  // taken by the core
  std::vector<ClientReport> clients;
  std::vector<GpuReport> gpus;
};

// Looks at the core between two events; for tests that watch what must always hold.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void after_step(const core::Event& event, Time now, const core::Decisions& decisions,
                          const core::Core& core) = 0;
};

// Plays the scenario in virtual time. An error is a scenario the core refuses to take.
// `keep_spans`: the report carries each client's spans (for pictures; costs memory).
Result<Report> run(const Scenario& scenario, bool keep_spans = false, Observer* observer = nullptr);

}  // namespace nvshare::sim
