#pragma once

#include <string>

#include "dice.h"
#include "sim/scenario.h"

namespace nvshare::properties {

// What a random tenant may be like.
struct Mix {
  bool bursts = true;              // else always saturating
  bool come_and_go = true;         // else there from the beginning to the end
  bool limit_changes = true;       // of the core limit, while it runs
  int most_processes = 2;          // of one tenant
  Duration longest_kernel = 50ms;  // of those in kernels_of()
  bool limited = true;             // some of them
};

// One GPU, a few tenants without memory, that behave.
sim::Scenario random_mix(Dice& dice, core::ComputePolicy policy, Duration lasts, const Mix& mix);
// One GPU of 16 GiB that is too small for all of them; tenants without core limits, of one
// priority, that are there all the time and do not grow.
sim::Scenario random_crowd(Dice& dice, Duration lasts);
// Anything: several GPUs, memory that grows, silent clients, every policy.
sim::Scenario random_anything(Dice& dice, Duration lasts);

std::string to_lines(const sim::Scenario& scenario);

}  // namespace nvshare::properties
