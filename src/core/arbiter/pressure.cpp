#include "core/arbiter/pressure.h"

#include <fmt/format.h>

#include <algorithm>

namespace nvshare::core {
namespace {

constexpr double kAll = 100;
constexpr double kLeastGap = 1;  // percent between the marks after a boost met 100

std::size_t level_of(int priority) {
  return static_cast<std::size_t>(std::clamp(priority, kLowestPriority, kHighestPriority) -
                                  kLowestPriority);
}

}  // namespace

std::vector<std::string> problems(const UsageRules& rules) {
  std::vector<std::string> found;
  const auto percent = [&](const char* name, double value) {
    // Written so that a NaN is out of range.
    if (!(value >= 0 && value <= kAll)) {
      found.push_back(fmt::format("{}: {} is not from 0 to 100", name, value));
    }
  };
  const auto span = [&](const char* name, Duration value, Duration low, Duration high) {
    if (value < low || value > high) {
      found.push_back(fmt::format("{}: {} is not from {} to {}", name, to_text(value), to_text(low),
                                  to_text(high)));
    }
  };
  percent("usage_high_water", rules.high_water);
  percent("usage_low_water", rules.low_water);
  percent("usage_high_boost", rules.high_boost);
  percent("usage_low_boost", rules.low_boost);
  span("usage_cache_ttl", rules.cache_ttl, 1ms, 1h);
  span("usage_long_audio", rules.long_audio, 0s, 24h);
  span("usage_boost_lasts", rules.boost_lasts, 1ms, 24h);
  if (!found.empty()) return found;
  if (rules.low_water >= rules.high_water) {
    found.push_back(fmt::format("usage_low_water: {} is not below usage_high_water, {}",
                                rules.low_water, rules.high_water));
  } else if (rules.low_water + rules.low_boost >= rules.high_water + rules.high_boost) {
    found.push_back(
        fmt::format("usage_low_boost: with it the low mark, {}, is not below the high one, {}",
                    rules.low_water + rules.low_boost, rules.high_water + rules.high_boost));
  }
  return found;
}

std::string_view name_of(Admission admission) {
  switch (admission) {
    case Admission::Normal:
      return "NORMAL";
    case Admission::High:
      return "HIGH_PRESSURE";
    case Admission::Unknown:
      return "UNKNOWN";
  }
  return "?";
}

UsageSample UsageSample::of(Time at, double busy, const std::array<double, kPriorities>& billed) {
  UsageSample sample{at, std::clamp(busy, 0.0, kAll), {}};
  double below = 0;
  for (std::size_t level = 0; level < billed.size(); ++level) {
    // A meter and NVML read at slightly different times, so a difference may fall below zero.
    sample.in_the_way[level] = std::clamp(sample.busy - below, 0.0, kAll);
    below += std::max(billed[level], 0.0);
  }
  return sample;
}

Admission Pressure::state(int priority, Time now, const UsageRules& rules) const {
  if (!sample_ || now - sample_->at > rules.cache_ttl) return Admission::Unknown;
  return high_[level_of(priority)] ? Admission::High : Admission::Normal;
}

std::optional<double> Pressure::usage(int priority) const {
  return sample_ ? std::optional(sample_->in_the_way[level_of(priority)]) : std::nullopt;
}

Marks Pressure::marks(Time now, const UsageRules& rules) const {
  if (!rules.boosts || !raised_until_ || now >= *raised_until_) {
    return {rules.high_water, rules.low_water};
  }
  // No usage is above 100, so a mark up there would switch the rule off.
  const double high = std::min(rules.high_water + rules.high_boost, kAll);
  const double low = std::min(rules.low_water + rules.low_boost, high - kLeastGap);
  return {high, std::max(low, std::min(rules.low_water, high - kLeastGap))};
}

void Pressure::take(const UsageSample& sample, Time now, const UsageRules& rules) {
  if (sample_ && sample.at <= sample_->at) return;
  sample_ = sample;
  look(now, rules);
}

void Pressure::raise(Time now, const UsageRules& rules) {
  if (!rules.boosts) return;
  const Time until = now + rules.boost_lasts;
  raised_until_ = raised_until_ ? std::max(*raised_until_, until) : until;
  look(now, rules);
}

void Pressure::look(Time now, const UsageRules& rules) {
  if (raised_until_ && now >= *raised_until_) raised_until_.reset();
  if (!sample_ || now - sample_->at > rules.cache_ttl) return;
  const Marks marks = this->marks(now, rules);
  for (std::size_t level = 0; level < high_.size(); ++level) {
    const double usage = sample_->in_the_way[level];
    high_[level] = high_[level] ? usage > marks.low : usage >= marks.high;
  }
}

std::optional<Time> Pressure::next_change(Time now, const UsageRules& rules) const {
  std::optional<Time> next;
  const auto earliest = [&](Time at) {
    if (at > now && (!next || at < *next)) next = at;
  };
  if (raised_until_) earliest(*raised_until_);
  // One tick later: a sample of exactly that age is still believed.
  if (sample_) earliest(sample_->at + rules.cache_ttl + Duration{1});
  return next;
}

}  // namespace nvshare::core
