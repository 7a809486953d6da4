#pragma once

#include <stdint.h>

namespace nvshare {

// Which pauses of a turn are free. The library keeps its grant through them, and the scheduler does
// not charge them. Both include this header, because a pause that only one of them tolerates would
// cost the tenant GPU time or a hand-over. Nothing of the C++ library is needed here.

// In nanoseconds. The library keeps its grant for as long with nothing to do. A longer pause leaves
// the GPU idle while others wait; a shorter one ends turns between two launches.
constexpr uint64_t kShortPause = 200'000;

// Nanoseconds of further pauses that are free in a turn whose work used the GPU for `used`.
constexpr uint64_t free_pauses(uint64_t used) {
  return used / 8;
}

}  // namespace nvshare
