#pragma once

#include <stdint.h>

// How much GPU time a client's work has occupied since its grant: the sum of the times in which it
// had something submitted that was not done. Times are handed in; no locks, no clock.
namespace nvshare::interposer {

class Meter {
 public:
  // A grant begins: nothing used, nothing submitted.
  void begin(uint64_t now) {
    used_ = 0;
    busy_ = false;
    idle_since_ = now;
  }
  // Something was submitted. The time counts from here when nothing was submitted before.
  void submitted(uint64_t now) {
    if (busy_) return;
    busy_ = true;
    busy_since_ = now;
  }
  // Everything that was submitted is done, since `at`.
  void idle(uint64_t at) {
    if (!busy_) return;
    busy_ = false;
    if (at > busy_since_) used_ += at - busy_since_;
    idle_since_ = at > busy_since_ ? at : busy_since_;
  }
  bool busy() const { return busy_; }
  uint64_t idle_since() const { return idle_since_; }
  uint64_t used(uint64_t now) const {
    return used_ + (busy_ && now > busy_since_ ? now - busy_since_ : 0);
  }

 private:
  bool busy_ = false;
  uint64_t busy_since_ = 0;
  uint64_t idle_since_ = 0;
  uint64_t used_ = 0;
};

// How many launches there may be between two markers in a stream, so that the markers that are not
// done yet (at most `depth()`) stand for about kBound of GPU time, whatever a kernel takes.
class Stride {
 public:
  static constexpr uint64_t kBound = 2'000'000;  // nanoseconds
  static constexpr uint32_t kMost = 256;
  static constexpr uint32_t kDeepest = 4;

  uint32_t launches() const { return launches_; }
  // How many markers may be outstanding. Two keep the GPU busy when each stands for long.
  uint32_t depth() const { return long_kernels_ ? 2 : kDeepest; }

  // The oldest marker was done `age` after it was placed, with `depth()` markers outstanding.
  void learn(uint64_t age) {
    if (age > kBound) {
      long_kernels_ = launches_ == 1 && age > 2 * kBound;
      if (launches_ > 1) launches_ /= 2;
    } else if (age < kBound / 4) {
      long_kernels_ = false;
      if (launches_ < kMost) launches_ *= 2;
    }
  }

 private:
  uint32_t launches_ = 1;
  bool long_kernels_ = false;
};

}  // namespace nvshare::interposer
