#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "core/compute_engine.h"
#include "core/meter_domain.h"

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
//
// Tenants nest. The parts of a tenant with a limit compete with each other in a *domain* of their
// own (meter_domain.h), and the tenant for all of them in the domain around it. Of a tenant without
// a limit, parts that have a limit compete for themselves in the domain around it. Its other parts
// compete with each other in a *bundle*, and the bundle in the domain around the tenant. What a
// client uses is charged to its tenant and to all above, so that none of them gets more than its
// own limit.
class MeteredEngine final : public ComputeEngine {
 public:
  MeteredEngine(const Config& config, Time now);

  void attach(Share& share, Time now) override;
  void detach(Share& share) override;
  void become_parent(Share& share, Time now) override;
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
  static constexpr Fixed kOne = kOneFixed;
  static constexpr std::int64_t kFull = 1'000'000;  // parts per million
  static constexpr Duration kDutyMemory = 200ms;    // how far back the duty looks
  // A turn is this many times as long as handing over, or longer.
  static constexpr int kTurnsPerHandOver = 100;

  // The share and the owners of the domains around it, up to the whole GPU.
  template <typename Function>
  static void each_around(Share& share, Function call) {
    for (Share* one = &share; one != nullptr; one = one->meter.domain->owner) call(*one);
  }
  static const Share* throttled_around(const Share& share);
  static bool is_throttled(const Share& share) { return throttled_around(share) != nullptr; }
  static int count_before(const Share& share);
  MeterDomain& domain_for(const Share& share);
  Share& bundle_of(Share& tenant, int priority);
  void close_bundles(Share& share);
  static const Share& best_effort_of(const Share& share);
  void enter_domain(Share& share);
  void leave_domain(Share& share);
  void open_domain(Share& share);
  void close_domain(Share& share);
  static const Share* share_in(const MeterDomain& domain, const Share& share);
  void note_change(MeterDomain& domain);
  void load_changed(MeterDomain& domain);
  static void count_leaf(MeterDomain& domain, int change);
  void leave_account(const Share& share);
  void leave_place(const Share& share);
  void drop_refilled(std::vector<LeftAccount>& left) const;
  void take_over(Share& share, Time now);
  void take_place(Share& share);

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
  static MeterTier tier_of(const Share& share) { return share.limited() ? kLimited : kBestEffort; }
  static VirtualTime virtual_time(const Share& share, Duration used);
  Duration best_effort_owed(const MeterDomain& domain, int level) const;
  void charge_best_effort(const Client& client, Duration used, Time now);
  void charge_pauses(const Client& client, Duration gaps, Time now);
  Duration unlimited_time(const Share& share) const;
  static int level_of(const Share& share) { return share.priority - kLowestPriority; }
  Duration in_turns(Duration lately) const;
  static Duration charged_unread(const Client& client);
  void raise_floor(const Share& holder);
  void join_siblings(Client& client);
  void add_virtual_time(Share& share, Duration used);
  void charge_ahead(Client& client);
  void charge_lone_runner();
  Fixed unkept(const Share& share) const;
  static int unusable_part(const Share& share);
  void settle(Share& share);
  void note_maybe_idle(Share& share);
  void deactivate_idle();
  void activate(Share& share);
  void deactivate(Share& share);
  void enqueue_if_runnable(Share& share);
  void dequeue(Share& share);
  void note_allowance(Share& share);
  void stop_throttling(Share& share);
  void resume_refilled(MeterDomain& domain);
  void charge_limit(Share& share, Duration charge, Duration held, Time now);
  void charge_around(const Client& client, Duration charge, Duration had, Duration held, Time now);
  void bill(Client& client, Duration used, Time now);
  void note_duty(Client& client, Duration used, Time now);
  void note_binding(Share& share, Duration at_work, Time now);

  bool anyone_runnable() const { return whole_.runnable() > 0; }
  bool contended(const Share& holder) const;
  bool wants_turns() const;
  int level_to_serve(const MeterDomain& domain, Time now) const;
  Share* first_in(const MeterDomain& domain, Time now) const;
  Share* next_to_serve(Time now) const;
  static bool other_limits_wait(const Share& share);
  Duration stays_first(const Share& share, Duration unread) const;
  Duration stays_first_around(Share& share) const;
  std::optional<Duration> budget_of(Share& share, Duration first) const;
  Duration turn_of(const Client& client) const;
  bool has_turn(const Client& client) const {
    return client.run.budget && *client.run.budget <= client.meter.turn;
  }
  void note_hand_over(const Client& client, Duration used, Duration gaps, Time now);
  void note_burst(Client& client, Time now);
  static bool outranked(const Client& holder);
  Duration allowed_to_earn(const Client& holder, const Share& share, Duration most) const;
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
  std::uint64_t next_domain_ = 1;
  MeterDomain whole_;
  std::map<std::uint64_t, MeterDomain> domains_;  // of tenants with a limit and parts, and bundles
  std::uint64_t next_bundle_ = std::uint64_t{1} << 40;  // behind every share in the order of shares
  std::vector<MeterDomain*> changed_;
  int best_effort_applied_ = 0;  // percent, in all domains
  Fixed held_unused_ = 0;        // on the refill clock: the GPU was held, and not used
  Share* unlimited_holder_ = nullptr;
  int highest_held_ = 0;         // level on which a tenant without a limit ever held the GPU
  int limited_active_ = 0;       // shares with a limit
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
  int slots_ = 0;        // clients that hold a grant and are waited for
  ClientOrder running_;  // Running, by grant
  std::vector<Share*> relimited_;
  std::vector<Share*> maybe_idle_;
};

}  // namespace nvshare::core
