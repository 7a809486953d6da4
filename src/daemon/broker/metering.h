#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"

namespace nvshare::daemon {

// What clients that ran side by side are billed for the last `wall` of time. Each one's own meter
// counts the time in which its work occupied the GPU, and those times overlap: the sum is scaled
// down, in proportion, to the time there was. Never negative, never more than was measured.
std::vector<Duration> share_out(std::span<const Duration> measured, Duration wall);

// What is believed of a client's meter: never less than it said before, never more than the time
// since its grant.
Duration believable(std::uint64_t said, Duration before, Duration since_grant);

}  // namespace nvshare::daemon
