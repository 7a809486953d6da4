#pragma once

#include <optional>

#include "sim/gpu_model.h"
#include "sim/scenario.h"
#include "sim/simulator.h"

namespace nvshare::sim {

// One process of the scenario: what it has done and what it is about to do. Knows nothing of the
// core; the simulator moves it.
struct Process {
  const ClientSpec* spec = nullptr;
  std::size_t id = 0;
  core::ClientId client;
  core::TenantId tenant;
  ClientReport report;

  bool present = false;
  Time arrived{};
  Time left{};

  // Compute.
  WorkloadKind kind = WorkloadKind::Saturating;  // now; changes with the phases
  std::size_t phase = 0;
  bool wants = false;
  Time wants_since{};
  bool granted = false;
  std::size_t grants = 0;
  bool on_gpu = false;  // has its grant, and has got its work there
  Time granted_at{};
  bool dropping = false;
  std::optional<Duration> budget;
  Work done = 0;               // GPU time received since it arrived
  Work started_at = 0;         // `done` when the grant began
  Work mark = 0;               // the GPU's service clock when `done` was brought up to date
  Work burst_end = 0;          // `done` at which the present burst is over; bursty only
  std::optional<Work> target;  // on the GPU's service clock

  // Leases.
  std::uint64_t begun = 0;             // bursts, or requests that were refused
  std::optional<core::LeaseId> lease;  // held, or waited for

  // Memory.
  Bytes allocated{};
  Bytes resident{};
  Bytes fresh{};  // of what is not on the GPU: was never there
  Bytes out_left{};
  Bytes in_left{};

  // How much GPU time it will take from now until it does something by itself: its work or its
  // budget ends, or a drop lets it stop. Nothing: it goes on.
  std::optional<Work> until_next_stop() const;
  bool burst_over() const { return kind == WorkloadKind::Bursty && done >= burst_end; }
  bool finished() const { return spec->work.total && done >= to_work(*spec->work.total); }
  // Brings `done` up to date with the GPU's service clock.
  void settle(Work service) {
    done += service - mark;
    mark = service;
  }
  // Enter in its report that it waited, or ran, until now.
  void note_wait(Time now);
  void note_run(Time now, bool keep_span);
  // From now until it begins its next burst.
  Duration until_next_burst(Time now) const;
  // Starts a burst, if its kind has bursts.
  void begin_burst() { burst_end = done + to_work(spec->work.burst); }

 private:
  Work to_kernel_end(Work point) const;
};

}  // namespace nvshare::sim
