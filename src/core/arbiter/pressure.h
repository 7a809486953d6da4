#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "core/event.h"

namespace nvshare::core {

// When a GPU counts as under high pressure, and for how long a sample of its usage is believed.
struct UsageRules {
  Duration cache_ttl = 2s;     // an older sample is not believed
  double high_water = 85;      // percent; at or above it the pressure is high
  double low_water = 78;       // percent; at or below it the pressure is normal again
  bool boosts = true;          // whether hints raise both marks for a while
  Duration long_audio = 8s;    // a hint counts from this length of audio on
  double high_boost = 7;       // percent that a hint adds to the high mark
  double low_boost = 7;        // percent that a hint adds to the low mark
  Duration boost_lasts = 15s;  // after the last hint

  friend bool operator==(const UsageRules&, const UsageRules&) = default;
};
std::vector<std::string> problems(const UsageRules& rules);

// One reading of a GPU's usage, in percent of the time since the reading before.
struct UsageSample {
  Time at{};
  double busy = 0;  // of the whole GPU, as NVML and the meter see it
  // busy[p] less what tenants below priority p were billed: what a request of priority p cannot
  // push aside. Index 0 is kLowestPriority.
  std::array<double, kPriorities> in_the_way{};

  // `billed`: percent billed to the tenants of each priority, index 0 is kLowestPriority.
  static UsageSample of(Time at, double busy, const std::array<double, kPriorities>& billed = {});
};

enum class Admission {
  Normal,
  High,     // HIGH_PRESSURE
  Unknown,  // no sample, or too old a one
};
std::string_view name_of(Admission admission);  // "NORMAL", "HIGH_PRESSURE", "UNKNOWN"

struct Marks {
  double high = 0;
  double low = 0;

  friend bool operator==(const Marks&, const Marks&) = default;
};

// The hysteresis of one GPU. Each priority has a state of its own, because work of lower priority
// is in nobody's way. Without nvshare's own work in the samples all states are the same.
class Pressure {
 public:
  // The state for a request of this tenant priority.
  Admission state(int priority, Time now, const UsageRules& rules) const;
  // The marks that hold at `now`.
  Marks marks(Time now, const UsageRules& rules) const;
  const std::optional<UsageSample>& sample() const { return sample_; }
  // Percent of the last sample that a request of this priority cannot push aside.
  std::optional<double> usage(int priority) const;
  std::optional<Time> raised_until() const { return raised_until_; }

  // An older sample than the last one changes nothing.
  void take(const UsageSample& sample, Time now, const UsageRules& rules);
  // A hint: raises both marks until `now` + boost_lasts. Hints extend, they do not add up.
  void raise(Time now, const UsageRules& rules);
  // Looks at the last sample again, after time has passed or the rules have changed.
  void look(Time now, const UsageRules& rules);
  // When a state changes by itself: marks fall back, or the last sample becomes too old.
  std::optional<Time> next_change(Time now, const UsageRules& rules) const;

 private:
  std::optional<UsageSample> sample_;
  std::optional<Time> raised_until_;
  std::array<bool, kPriorities> high_{};
};

}  // namespace nvshare::core
