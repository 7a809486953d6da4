#pragma once

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "core/compute_engine.h"

namespace nvshare::core {

// The product's own policy: a limit is a share of GPU time, billed as metered.
//
// Each limited tenant has an allowance that refills continuously at its limit and is spent by the
// GPU time its work occupied. Below zero it waits; the debt is carried in full, so the long-run
// share is exact whatever the length of its kernels. Limits above 100 % in sum shrink in
// proportion. Tenants with a limit and allowance go before those without a limit, who share what is
// left and are kept best_effort_percent of the time; within either tier the one that has used least
// of what it asked for is next (virtual time). docs/policies.md has the reasons.
//
// Refill runs on a *refill clock* that slows down while limits are over-committed, so that a
// tenant's allowance becomes positive at a fixed point of that clock: O(log n) a step.
class MeteredEngine final : public ComputeEngine {
 public:
  MeteredEngine(const Config& config, Time now);

  void attach(Share& share, Time now) override;
  void detach(Share& share) override;
  void before_limits_change(Share& share, Time now) override;
  void after_limits_change(Share& share, bool cores_changed, Time now) override;
  void make_ready(Client& client, Time now) override;
  void make_unready(Client& client, Time now) override;
  void stop(Client& client, const Reason& why, Time now, Decisions& out) override;
  void mark_overdue(Client& client, Time now) override;
  void release(Client& client, Duration used, Duration gaps, Time now) override;
  void read_meter(Client& client, Duration used, Time now) override;
  void park(Client& client, bool parked, Time now) override;
  void set_overlap(bool possible) override { overlap_ = possible; }
  void set_billing(bool on, Time now) override;
  void grant_now(Client& client, const Reason& why, Time now, Decisions& out) override;
  void decide(Time now, Decisions& out) override;
  std::optional<Time> next_wakeup() const override;
  Reason explain(const Client& client, Time now) const override;

 private:
  static constexpr int kLevels = kHighestPriority - kLowestPriority + 1;
  static constexpr Fixed kOne = static_cast<Fixed>(1) << kFixedBits;
  static constexpr std::int64_t kFull = 1'000'000;  // parts per million
  static constexpr Duration kDutyMemory = 200ms;    // how far back the duty looks
  // A turn is this many times as long as handing over, or longer.
  static constexpr int kTurnsPerHandOver = 100;

  enum Tier : std::size_t { kLimited, kBestEffort, kTiers };

  // The tenants of one priority that could run, by virtual time.
  struct Level {
    std::array<std::set<std::tuple<VirtualTime, std::uint64_t, Share*>>, kTiers> queue;
    std::array<VirtualTime, kTiers> floor{};  // where who joins starts
    Time waiting_since{};                     // when it was last served or became non-empty
    Time emptied_at = Time::min();            // who is back in the same moment was never away
    Duration balance{};  // what best effort is owed ahead of limits, up to date at `balance_at`
    Time balance_at{};
    bool best_effort_was_ahead = false;  // so limits are next, however much is owed by now

    bool empty() const { return queue[kLimited].empty() && queue[kBestEffort].empty(); }
  };

  void catch_up(Time now);
  void apply_load();
  Duration cap_of(const Share& share) const;
  bool calm() const;
  Duration worth(int hand_overs, int most_turns, bool calm) const;
  Duration worth_coming_back(bool calm) const;
  Duration resume_level(const Share& share) const;
  Duration level_afresh(const Share& share) const;
  Duration worth_a_turn() const;
  Duration allowance_now(const Share& share) const;
  Duration lasts(const Share& share) const;
  Duration until_refilled(Fixed refill) const;
  static Tier tier_of(const Share& share) { return share.limited() ? kLimited : kBestEffort; }
  static VirtualTime virtual_time(const Share& share, Duration used);
  Duration best_effort_owed(const Level& level) const;
  void charge_best_effort(const Client& client, Duration used, Time now);
  void charge_pauses(const Client& client, Duration gaps, Time now);
  Duration unlimited_time(const Share& share) const;
  static int level_of(const Share& share) {
    return share.tenant->limits.priority - kLowestPriority;
  }
  Duration in_turns(Duration lately) const;
  static Duration charged_unread(const Client& client);
  void raise_floor(const Share& holder);
  void join_siblings(Client& client);
  void add_virtual_time(Share& share, Duration used);
  void charge_ahead(Client& client);
  void charge_lone_runner();
  Fixed unkept(const Share& share) const;
  void settle(Share& share);
  void deactivate_idle();
  void activate(Share& share);
  void deactivate(Share& share);
  void enqueue_if_runnable(Share& share);
  void dequeue(Share& share);
  void note_allowance(Share& share);
  void resume_refilled();
  void bill(Client& client, Duration used, Time now);
  void note_duty(Client& client, Duration used, Time now);
  void note_binding(Share& share, Duration at_work, Time now);

  bool anyone_runnable() const { return runnable_ > 0; }
  bool contended(const Share& holder) const;
  bool wants_turns() const;
  int level_to_serve(Time now) const;
  Share* next_to_serve(Time now) const;
  bool other_limits_wait(const Share& share) const;
  Duration stays_first(const Share& share, Duration unread) const;
  Duration turn_of(const Client& client) const;
  bool has_turn(const Client& client) const {
    return client.run.budget && *client.run.budget <= client.meter.turn;
  }
  void note_hand_over(const Client& client, Duration used, Duration gaps, Time now);
  void note_burst(Client& client, Time now);
  bool outranked(const Client& holder) const;
  std::optional<Time> turn_end(const Client& holder) const;
  bool gives_way(const Client& holder) const;
  Reason why_over(const Client& holder) const;
  void take_turns(Time now, Decisions& out);
  void run_together(Time now, Decisions& out);
  void start(Client& client, std::optional<Duration> budget, const Reason& why, Time now,
             Decisions& out);
  void grant_next_of(Share& share, bool in_turns, Time now, Decisions& out);

  const Config& config_;
  Time now_;
  Fixed refill_clock_ = 0;
  Fixed refill_rate_;  // of the clock, per nanosecond; 1.0 unless limits are over-committed
  // On the refill clock: when somebody without a limit held the GPU, by its priority, and when
  // whoever held it did not use it.
  std::array<Fixed, kLevels> unlimited_held_{};
  Fixed held_unused_ = 0;
  std::optional<int> unlimited_holder_;  // its level
  int limited_sum_ = 0;                  // limits of active limited tenants
  int unlimited_active_ = 0;
  int active_ = 0;
  std::uint64_t went_idle_ = 0;  // the last one with a limit
  Time went_idle_at_{};
  std::int64_t duty_sum_ppm_ = 0;  // of clients that are not Off
  bool turns_ = false;
  Time turns_since_{};
  bool overlap_ = false;
  Time limits_bind_until_{};  // as far as is known; kept where clients can overlap
  Duration hand_over_{};      // what a turn takes beyond what is used of it, lately
  Time long_bursts_until_{};  // as far as is known
  Time bursts_at_{};          // when the last one was over
  bool billing_ = true;
  Time sample_due_{};

  std::uint64_t next_seq_ = 1;
  int runnable_ = 0;
  int slots_ = 0;  // clients that hold a grant and are waited for
  std::array<Level, kLevels> levels_;
  std::set<std::tuple<Fixed, std::uint64_t, Share*>> throttled_;
  ClientOrder running_;  // Running, by grant
  ShareOrder relimited_;
  ShareOrder maybe_idle_;
};

}  // namespace nvshare::core
