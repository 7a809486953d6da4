#pragma once

#include <stdint.h>

#include "base/pauses.h"

// How much GPU time a client's work has occupied since its grant: the sum of the times in which it
// had something submitted that was not done. Times are handed in; no locks, no clock.
namespace nvshare::interposer::gate {

class Meter {
 public:
  // A grant begins: nothing used, nothing submitted.
  void begin(uint64_t now) {
    used_ = 0;
    gaps_ = 0;
    unseen_ = 0;
    begun_ = false;
    waited_ = false;
    busy_ = false;
    idle_since_ = now;
  }
  // Something was submitted. The time counts from here when nothing was submitted before.
  void submitted(uint64_t now) {
    if (busy_) return;
    if (begun_ && now > idle_since_) gaps_ += now - idle_since_;
    gaps_ += unseen_;
    unseen_ = 0;
    begun_ = true;
    busy_ = true;
    busy_since_ = now;
  }
  // Everything that was submitted is done; that was seen at `at`. `measured` is how long it took by
  // the GPU's own clock, 0 when that is not known: a busy machine sees things late.
  void idle(uint64_t at, uint64_t measured = 0) {
    if (!busy_) return;
    busy_ = false;
    idle_since_ = at > busy_since_ ? at : busy_since_;
    const uint64_t seen = idle_since_ - busy_since_;
    const uint64_t took = measured != 0 && measured < seen ? measured : seen;
    // At first it is also how long the GPU takes to begin.
    unseen_ = waited_ ? seen - took : 0;
    waited_ = true;
    used_ += took;
  }
  bool busy() const { return busy_; }
  uint64_t idle_since() const { return idle_since_; }
  // How long nothing was submitted, or the GPU was done already, between what was.
  uint64_t gaps() const { return gaps_; }
  uint64_t used(uint64_t now) const {
    return used_ + (busy_ && now > busy_since_ ? now - busy_since_ : 0);
  }

 private:
  bool busy_ = false;
  uint64_t busy_since_ = 0;
  uint64_t idle_since_ = 0;
  uint64_t used_ = 0;
  uint64_t gaps_ = 0;
  uint64_t unseen_ = 0;  // how long before `idle_since_` the GPU was done
  bool begun_ = false;   // something was submitted since the grant
  bool waited_ = false;  // and was done
};

// How long a grant is kept with nothing to do. Not long, as others could use it. But who comes back
// sooner than it takes to hand over and back had better have kept it: a program that launches its
// work in a language like Python is often too slow for the GPU, most of all when its turn begins.
// Who did so keeps it longer the next time, until that is in vain; and not in a turn of which it
// has left much unused.
class Grace {
 public:
  static constexpr uint64_t kShort = kShortPause;
  static constexpr uint64_t kLong = 1'500'000;  // nanoseconds

  // In a turn in which so much was used, with nothing to do for so long in between.
  uint64_t lasts(uint64_t used, uint64_t gaps) const {
    return patient_ && gaps <= kLong + free_pauses(used) ? kLong : kShort;
  }
  // It has lasted since then, and the grant is given back.
  void over(uint64_t idle_since) {
    patient_ = false;
    idle_since_ = idle_since;
  }
  // There is work again.
  void asked(uint64_t now) {
    if (idle_since_ != 0 && now - idle_since_ < kLong) patient_ = true;
    idle_since_ = 0;
  }

 private:
  bool patient_ = false;
  uint64_t idle_since_ = 0;  // 0: it was for another reason that the grant was given back
};

// Whether work in flight seems to wait for somebody who waits at the gate. Long kernels look alike:
// so not while any of it gets done. When letting somebody through does not help at once it was one
// kernel more, and the next time it takes twice as long; else only a little longer, as the end of a
// kernel may have come just then.
class Stuck {
 public:
  static constexpr uint64_t kAtOnce = 10'000'000;  // nanoseconds

  explicit Stuck(uint64_t now) : moved_at_(now) {}

  // `done`: when some of it was last seen to be.
  bool seems(uint64_t done, uint64_t now) {
    if (done != done_) {
      done_ = done;
      moved_at_ = now;
      if (now - let_through_at_ < kAtOnce) patience_ = least_ += least_ / 10;
    }
    return now - moved_at_ > patience_;
  }
  void let_through(uint64_t now) {
    moved_at_ = let_through_at_ = now;
    patience_ *= 2;
  }

 private:
  uint64_t least_ = 500'000'000;
  uint64_t patience_ = least_;
  uint64_t done_ = 0;
  uint64_t moved_at_;
  uint64_t let_through_at_ = 0;
};

// How much GPU time work in flight may stand for. Programs do other things between launches, for
// milliseconds in Python, and the GPU is to have work meanwhile; whoever is next waits for it. So
// it is much within a turn, and near the end of that no more than is left of it. 0: no budget is
// known.
class Ahead {
 public:
  static constexpr uint64_t kLeast = 4'000'000;  // nanoseconds
  static constexpr uint64_t kMost = 8'000'000;

  static constexpr uint64_t of(uint64_t budget, uint64_t used) {
    if (budget == 0) return kLeast;
    const uint64_t left = budget > used ? budget - used : 0;
    return left < kLeast ? kLeast : left > kMost ? kMost : left;
  }
};

// How many launches of a stream may be in flight, so that they stand for about as much GPU time as
// they may, whatever a kernel takes. Learns from how long markers take.
class Window {
 public:
  static constexpr uint32_t kFewest = 2;  // keep the GPU busy, however long a kernel is
  static constexpr uint32_t kMost = 1024;
  static constexpr uint32_t kMarkers = 16;  // that may be outstanding
  // Who launches slower than the GPU works never has many in flight. But not every launch is
  // marked.
  static constexpr uint32_t kFew = 64;

  // For so much GPU time.
  uint32_t launches(uint64_t ahead) const {
    const uint64_t part = uint64_t{launches_} * ahead / Ahead::kMost;
    return static_cast<uint32_t>(within(part, launches_ < kFewest ? launches_ : kFewest, kMost));
  }
  // How many launches there are between two markers when so many may be in flight. Single ones are
  // let out while there are enough markers for that, so that a few short kernels behind a long one
  // do not leave the GPU without work. Otherwise markers are few: each takes 2 us of the GPU.
  static uint32_t stride(uint32_t launches) {
    return launches <= kMarkers ? 1 : launches / (kMarkers / 4);
  }
  // Whether so many in flight say what a whole window takes. Few may be of another kind than most,
  // and how long they take is mostly how late one sees that they are done.
  bool is_like_all(uint64_t in_flight, uint64_t ahead) const {
    return 2 * in_flight >= launches(ahead);
  }
  // A marker behind so many launches in flight was done `age` after it was placed.
  void learn(uint64_t age, uint64_t behind, bool like_all) {
    const uint64_t all = age * launches_ / behind;
    uint64_t launches = launches_;
    if (!like_all) {
      if (all > 2 * Ahead::kMost && age > Ahead::kMost / 2) launches /= 2;
      if (all < Ahead::kMost / 2 && launches < kFew) launches *= 2;
    } else if (all > 2 * Ahead::kMost) {
      launches /= 2;
    } else if (all > Ahead::kMost) {
      launches -= launches / 8 + 1;
    } else if (all < Ahead::kMost / 2) {
      launches *= 2;
    } else if (all < 3 * Ahead::kMost / 4) {
      launches += launches / 8 + 1;
    }
    // At the end of a turn there may be as many of the shortest as within it.
    constexpr uint64_t kMany = kMost * (Ahead::kMost / Ahead::kLeast);
    launches_ = static_cast<uint32_t>(within(launches, kFewest, kMany));
  }
  // There are no more markers than so many, and each stands behind one launch.
  void limit(uint32_t markers) {
    if (launches_ > markers) launches_ = markers;
  }

 private:
  static constexpr uint64_t within(uint64_t launches, uint64_t fewest, uint64_t most) {
    return launches < fewest ? fewest : launches > most ? most : launches;
  }

  uint32_t launches_ = kFewest;  // that stand for Ahead::kMost
};

}  // namespace nvshare::interposer::gate
