#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "core/arbiter/arbiter.h"
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

// A client that asks for leases, all its processes together.
struct ServiceReport {
  std::string name;
  int tenant = 0;  // its place in Scenario::clients
  std::string task_class;
  std::uint64_t requests = 0;  // of work
  std::uint64_t acquired = 0;  // leases
  std::uint64_t timed_out = 0;
  std::uint64_t skipped = 0;  // by the arbiter
  std::uint64_t queue_full = 0;
  std::uint64_t revoked = 0;      // leases
  std::uint64_t asked_again = 0;  // after a refusal
  std::uint64_t fell_back = 0;    // done without the GPU
  std::uint64_t given_up = 0;     // neither done nor to be done
  // In the queue, of the acquired leases. A p-th part of them waited that long at most.
  Duration wait_p50{};
  Duration wait_p99{};
  Duration wait_max{};
  std::vector<Span> leases;
};

// A stretch of time with one admission state, for the least of the classes that wait.
struct PressureSpan {
  Span time;
  core::Admission state = core::Admission::Unknown;
  bool raised = false;  // a hint holds the marks up
};

struct PressureReport {
  Duration high{};
  Duration unknown{};
  Duration raised{};
  int times_high = 0;
  std::vector<PressureSpan> spans;
};

struct GpuReport {
  Bytes memory{};
  double utilization_percent = 0;
  Bytes highest_resident{};
  Bytes highest_swapped{};    // of what was allocated, not on the GPU
  PressureReport pressure{};  // where the scenario has services
};

struct Report {
  std::string scenario;
  core::ComputePolicy policy = core::ComputePolicy::Metered;
  Duration lasted{};
  std::size_t events = 0;  // taken by the core
  std::vector<ClientReport> clients;
  std::vector<ServiceReport> services{};
  std::vector<GpuReport> gpus;
};

// Looks at the core between two events; for tests that watch what must always hold.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void after_step(const core::Event& event, Time now, const core::Decisions& decisions,
                          const core::Core& core) = 0;
  // An answer to a service; the arbiter has given all answers of this moment's call.
  virtual void after_answer(const ClientSpec& /*service*/, const core::Answer& /*answer*/,
                            Time /*now*/, const core::Arbiter& /*arbiter*/) {}
};

// Plays the scenario in virtual time. An error is a scenario the core refuses to take.
// `keep_spans`: the report carries the spans of clients, leases and pressure (for pictures; costs
// memory).
Result<Report> run(const Scenario& scenario, bool keep_spans = false, Observer* observer = nullptr);

}  // namespace nvshare::sim
