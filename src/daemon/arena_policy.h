#pragma once

#include <vector>

#include "base/units.h"

namespace nvshare::daemon {

// One GPU as far as its clients' host memory goes.
struct ArenaGpu {
  Bytes total{};
  Bytes safe{};                // what clients can have on it together
  Bytes demand{};              // what they have allocated, together
  std::vector<Bytes> movable;  // of each client: what may have to leave
};

// Host memory is handed out in multiples of this.
Bytes arena_unit(Bytes gpu_total);

// The most that clients can have together while all fits with some room to spare.
Bytes fits_easily(Bytes safe);

// How much host memory a client must have so that it can make room for any other: as much as there
// is too much, and a chunk more, for whole chunks move; but not more than it has. Nothing as long
// as all fits with some room to spare, or as nobody else is there.
//
// What one client was given cannot be used by another. So that everyone's turn comes, everyone
// needs its own.
Bytes arena_need(const ArenaGpu& gpu, Bytes movable);

// Of all of its clients together.
Bytes arena_need(const ArenaGpu& gpu);

}  // namespace nvshare::daemon
