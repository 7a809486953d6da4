#pragma once

#include <stdint.h>

#include <atomic>

namespace nvshare::interposer::link {

// When a refused program says why: once after each welcome, and at most one line a minute. A
// refusal that comes sooner is said when the minute is over, if it still holds. Thread-safe.
class Saying {
 public:
  // Whether the line is due at `now`. The caller then says it.
  bool is_due(uint64_t now) {
    constexpr uint64_t kApart = 60'000'000'000;  // nanoseconds
    if (said_.load()) return false;
    uint64_t last = at_.load();
    if (last != 0 && now - last < kApart) return false;
    if (!at_.compare_exchange_strong(last, now)) return false;  // another thread says it
    said_ = true;
    return true;
  }
  void welcome() { said_ = false; }

 private:
  std::atomic<bool> said_{false};
  std::atomic<uint64_t> at_{0};  // the last line; 0: none yet
};

}  // namespace nvshare::interposer::link
