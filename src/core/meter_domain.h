#pragma once

// What tenants under the metered policy compete in. Only MeteredEngine and its domains see it.

#include <array>
#include <bit>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "core/state.h"

namespace nvshare::core {

enum MeterTier : std::size_t { kLimited, kBestEffort, kTiers };

inline constexpr Fixed kOneFixed = static_cast<Fixed>(1) << kFixedBits;

// Later than any point of a refill clock.
inline constexpr Fixed kNever = ~(static_cast<Fixed>(1) << 127);

// In 64 bits where that is enough, because 128 take many times as long.
constexpr Fixed divided(Fixed value, int by) {
  const auto small = static_cast<std::int64_t>(value);
  return small == value ? small / by : value / by;
}

// Moves an entry to another time. The tree stays as it is where the entry stays between the same
// two others, because taking an entry out and in again touches many nodes.
template <typename Times>
typename Times::iterator moved(Times& times, typename Times::iterator entry, Fixed to) {
  const auto next = std::next(entry);
  const bool stays = to < entry->at ? entry == times.begin() || std::prev(entry)->at < to
                                    : next == times.end() || to < next->at;
  if (stays) {
    entry->at = to;
    return entry;
  }
  auto node = times.extract(entry);
  node.value().at = to;
  return times.insert(next, std::move(node));
}

// The tenants of one priority that could run, by virtual time.
struct MeterLevel {
  std::array<ShareTimes, kTiers> queue;
  std::array<VirtualTime, kTiers> floor{};  // virtual time at which a tenant that joins starts
  Time waiting_since{};                     // when it was last served or became non-empty
  Duration balance{};  // what best effort is owed ahead of limits, up to date at `balance_at`
  Time balance_at{};
  bool best_effort_was_ahead = false;  // so limits are next, however much is owed by now
  Time emptied_at = Time::min();       // a tenant back in the same moment was never away
  Fixed unlimited_held = 0;            // on the refill clock: a tenant without a limit had the GPU

  bool empty() const { return queue[kLimited].empty() && queue[kBestEffort].empty(); }
};

// A run queue and a refill clock: of the whole GPU, of the parts of one tenant with a limit, or of
// one bundle (Share::bundles). In a bundle no limit competes, so its clock has nothing to refill.
//
// The refill clock of the GPU slows down while limits are over-committed. The clock of a tenant's
// parts runs on the clock of the domain that the tenant itself stands in, and slows down further
// while the limits of the parts are more than the tenant's. So what slows down a tenant slows down
// its parts, and no change of a load looks at more than one domain on each level.
struct MeterDomain {
  using Domains = std::set<TimeOf<MeterDomain>>;

  MeterDomain(std::uint64_t number, Share* of, Time now);

  std::uint64_t id;
  Share* owner;                       // null: the whole GPU
  std::array<int, kTiers> waiting{};  // tenants in the run queue
  std::uint32_t occupied = 0;         // a bit for each level that is not empty
  std::uint32_t held = 0;             // a bit for each level with some `unlimited_held`

  Time caught_up_at{};
  Fixed clock = 0;
  Fixed rate = kOneFixed;  // of the clock, to the outer one
  Fixed outer_mark = 0;    // the outer clock when `clock` was brought up to date

  int limited_sum = 0;       // limits of active tenants, in hundredths of a percent
  int unlimited_active = 0;  // active tenants without a limit
  int active = 0;
  int leaves = 0;        // active shares of clients, with those of domains inside
  bool changed = false;  // its load or what is due, since the last apply_load()

  ShareTimes throttled;                  // by when they resume
  Domains inside;                        // by when a tenant in them resumes, on this clock
  std::optional<Domains::iterator> due;  // its place in the outer `inside`

  std::array<std::unique_ptr<MeterLevel>, kPriorities> levels;  // those that were ever used
  Time began;

  // A bundle stands for parts that have no limit at all.
  bool is_bundle() const { return owner != nullptr && !owner->limited(); }
  MeterDomain* outer() const { return owner == nullptr ? nullptr : owner->meter.domain; }
  // Percent of the GPU that all in it may have together.
  int capacity() const { return owner == nullptr ? kNoCoreLimit : owner->limit; }
  // Of an inner domain: brings the clock up to where the outer one stands. That of the whole GPU
  // stands where it does at `now` already.
  void catch_up(Time now) {
    if (caught_up_at != now) follow_outer(now);
  }
  Fixed clock_now() const;
  // The owner leaves the outer domain, or enters one.
  void leave_outer(Time now);
  void enter_outer(Time now);
  // All limits fit, and did so when the load was last applied.
  bool is_at_full_rate(int best_effort_percent) const {
    return rate == kOneFixed && limited_sum <= room(best_effort_percent);
  }
  // Follows the load: limits that do not fit shrink in proportion.
  void apply_load(int best_effort_percent, Time now);
  // What the parts can use of their owner's limit, in hundredths of a percent.
  int entitled() const;
  // Of the clock, to real time.
  Fixed whole_rate() const;
  // The earliest point of the clock at which a tenant in it, or in a domain inside it, resumes;
  // kNever where none waits.
  Fixed first_due() const;
  // Real time until the clock stands there.
  Duration until(Fixed refill) const;
  // What is first due has changed: the outer domains follow. All of them are caught up.
  void note_due();

  void enqueue(Share& share, MeterTier tier, int level, Time now);
  void dequeue(Share& share, MeterTier tier, Time now);
  // Moves the share's virtual time on, in the run queue or outside it.
  void add_virtual_time(Share& share, MeterTier tier, VirtualTime more);
  MeterLevel& level(int number) {
    auto& found = levels[static_cast<std::size_t>(number)];
    return found ? *found : make_level(number);
  }
  // Of one that was used.
  const MeterLevel& level(int number) const { return *levels[static_cast<std::size_t>(number)]; }
  bool is_occupied_above(int number) const { return (occupied >> (number + 1)) != 0; }
  void note_unlimited_held(int number, Fixed refill);
  // Of all levels above.
  Fixed unlimited_held_above(int number) const {
    Fixed all = 0;
    for (std::uint32_t left = held >> (number + 1) << (number + 1); left != 0; left &= left - 1) {
      all += level(std::countr_zero(left)).unlimited_held;
    }
    return all;
  }
  int runnable() const { return waiting[kLimited] + waiting[kBestEffort]; }
  // Calls with each level that is not empty, the highest first.
  template <typename Function>
  void each_occupied(Function call) const {
    for (std::uint32_t left = occupied; left != 0;) {
      const int top = std::bit_width(left) - 1;
      call(top, level(top));
      left &= ~(std::uint32_t{1} << top);
    }
  }

 private:
  // For limits, in hundredths of a percent.
  int room(int best_effort_percent) const {
    return capacity() * (unlimited_active > 0 ? 100 - best_effort_percent : 100);
  }
  void follow_outer(Time now);
  MeterLevel& make_level(int number);
};

}  // namespace nvshare::core
