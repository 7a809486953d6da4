#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "base/units.h"

namespace nvshare::daemon {

struct ArenaClient {
  Bytes movable{};  // what may have to leave
  Bytes made{};     // the host memory that it has, with what is being made
};

// One GPU as far as its clients' host memory goes.
struct ArenaGpu {
  Bytes total{};
  Bytes safe{};    // what clients can have on it together
  Bytes demand{};  // what they have allocated, together
  std::vector<ArenaClient> clients;

  // The client has so much more.
  void grow(std::size_t client, Bytes by, bool movable);
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

// What a client needs that sleeps: a place for all that it can move, also when it is alone, and a
// unit more because chunks do not fill units. Nobody is promised that, so no allocation is refused
// for it; where there is less, less leaves.
Bytes sleep_need(const ArenaGpu& gpu, Bytes movable);

// What all of its clients must have, or have already.
Bytes arena_held(const ArenaGpu& gpu);

// How much more clients of a GPU could have, as far as there is host memory for what has to leave
// then. Many can be asked about: what they have in common is reckoned once.
class ArenaRoom {
 public:
  // `most`: what its clients can have of the host's memory together.
  ArenaRoom(ArenaGpu gpu, Bytes most) : gpu_(std::move(gpu)), most_(most) {}
  // Of `room`, as much as there is host memory for; the client by its place.
  Bytes of(std::size_t client, Bytes room);

 private:
  bool fits(std::size_t client, Bytes more);
  // What all must have or have, when nobody needs more than that.
  Bytes held_with(Bytes most_needed);

  ArenaGpu gpu_;
  Bytes most_;
  std::map<Bytes, Bytes> held_;
};

}  // namespace nvshare::daemon
