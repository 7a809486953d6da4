#pragma once

#include <string>
#include <vector>

#include "daemon/broker/desk.h"

namespace nvshare::daemon {

// Puts runs on GPUs. The core chooses; a run whose first client has not come counts as a program
// there, because runs that begin at the same moment would all choose the same GPU.
class RunPlacer : private Owner {
 public:
  explicit RunPlacer(Desk& desk) : Owner(desk) {}

  // Places the run as its `begin` asks, and says so in `welcome`. Notes GPUs that a person has
  // chosen. A run that asks for nothing is not placed. The scheduler chooses nothing where it has
  // one GPU, or with `claimed_gpus`, because it may not know all of them then.
  void place(TenantId tenant, const wire::RunBegin& begin, bool claimed_gpus,
             wire::Welcome& welcome);

 private:
  std::vector<GpuId> known(const wire::RunBegin& begin) const;
  std::vector<core::Reservation> reservations() const;
  RunPlacement choose(const TenantRecord& run, const wire::RunBegin& begin) const;
  void say(const RunPlacement& placed, wire::Welcome& welcome) const;
};

// "placed on GPU 1: it was idle"; empty for a run that was not placed.
std::string placement_text(const RunPlacement& placed);

}  // namespace nvshare::daemon
