#pragma once

#include <optional>
#include <set>
#include <tuple>

#include "base/units.h"

namespace nvshare::sim {

// GPU time in parts of a nanosecond, so that shares of it add up.
__extension__ typedef __int128 Work;
inline constexpr int kWorkBits = 16;
constexpr Work to_work(Duration d) {
  return static_cast<Work>(d.count()) << kWorkBits;
}
constexpr Duration to_duration(Work w) {
  return Duration{static_cast<Duration::rep>((w + (1 << (kWorkBits - 1))) >> kWorkBits)};
}

// The hardware: processes that have work on the GPU at the same time each advance at 1/n. Kept as a
// clock of service received, so that any number of them costs O(log n) a change.
class GpuModel {
 public:
  void advance(Time now) {
    const Duration passed = now - at_;
    at_ = now;
    if (busy_ == 0) return;
    service_ += to_work(passed) / busy_;
    busy_time_ += passed;
  }

  // What each busy process has received since the beginning.
  Work service() const { return service_; }
  int busy() const { return busy_; }
  Duration busy_time() const { return busy_time_; }

  void start() { ++busy_; }
  void stop() { --busy_; }

  // Process `id` wants to be told when it has received `amount` more.
  Work watch(std::size_t id, Work amount) {
    const Work target = service_ + amount;
    targets_.emplace(target, id);
    return target;
  }
  void unwatch(std::size_t id, Work target) { targets_.erase({target, id}); }

  // When the next of them is due, if nobody starts or stops before.
  std::optional<Time> next() const {
    if (targets_.empty()) return std::nullopt;
    Work left = (targets_.begin()->first - service_) * (busy_ > 0 ? busy_ : 1);
    if (left < 0) left = 0;
    return at_ + Duration{static_cast<Duration::rep>((left + (1 << kWorkBits) - 1) >> kWorkBits)};
  }
  // The next that is due now.
  std::optional<std::size_t> due() const {
    if (targets_.empty() || targets_.begin()->first > service_) return std::nullopt;
    return targets_.begin()->second;
  }

 private:
  Time at_{};
  Work service_ = 0;
  int busy_ = 0;
  Duration busy_time_{};
  std::set<std::pair<Work, std::size_t>> targets_;
};

}  // namespace nvshare::sim
