#pragma once

#include <array>
#include <set>
#include <tuple>

#include "core/compute_engine.h"

namespace nvshare::core {

// The product's own policy: a limit is a share of GPU time, billed as metered.
//
// Each limited tenant has an allowance that refills continuously at its limit and is spent by the
// GPU time its work occupied. Below zero it waits; the debt is carried in full, so the long-run
// share is exact whatever the length of its kernels. Who of those with allowance runs next is
// decided by virtual time: GPU time used, divided by what the tenant is entitled to. Entitled to:
// its limit; limits above 100 % in sum shrink in proportion; tenants without a limit share what the
// limits leave, and never less than best_effort_percent. docs/policies.md has the reasons.
//
// Refill runs on a *refill clock* that slows down while limits are over-committed, so that a
// tenant's allowance becomes positive at a fixed point of that clock: O(log n) a step.
class MeteredEngine final : public ComputeEngine {
 public:
  MeteredEngine(const Config& config, Time now);

  void attach(Share& share, Time now) override;
  void detach(Share& share) override;
  void before_limits_change(Share& share, Time now) override;
  void after_limits_change(Share& share, Time now) override;
  void make_ready(Client& client, Time now) override;
  void make_unready(Client& client, Time now) override;
  void stop(Client& client, const Reason& why, Time now, Decisions& out) override;
  void mark_overdue(Client& client, Time now) override;
  void release(Client& client, Duration used, Time now) override;
  void read_meter(Client& client, Duration used, Time now) override;
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

  // The tenants of one priority that could run, by virtual time.
  struct Level {
    std::set<std::tuple<std::int64_t, std::uint64_t, Share*>> queue;
    Time waiting_since{};  // when it was last served or became non-empty
  };
  struct BySeq {
    bool operator()(const Share* a, const Share* b) const { return a->seq < b->seq; }
  };

  void catch_up(Time now);
  void apply_load();
  Duration cap_of(const Share& share) const;
  Duration resume_level() const;
  Duration allowance_now(const Share& share) const;
  std::int64_t weight_of(const Share& share) const;
  std::int64_t virtual_time(const Share& share, Duration used) const;
  void add_virtual_time(Share& share, Duration used);
  void charge_ahead(Client& client);
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

  bool anyone_runnable() const { return runnable_ > 0; }
  bool contended(const Share& holder) const;
  bool wants_turns() const;
  int level_to_serve(Time now) const;
  std::optional<Time> turn_end(const Client& holder) const;
  Reason why_over(const Client& holder) const;
  void take_turns(Time now, Decisions& out);
  void run_together(Time now, Decisions& out);
  void start(Client& client, std::optional<Duration> budget, const Reason& why, Time now,
             Decisions& out);
  void grant_next_of(Share& share, bool in_turns, Time now, Decisions& out);

  const Config& config_;
  Time now_;
  Fixed refill_clock_ = 0;
  Fixed refill_rate_;    // of the clock, per nanosecond; 1.0 unless limits are over-committed
  int limited_sum_ = 0;  // limits of active limited tenants
  int unlimited_active_ = 0;
  int active_ = 0;
  std::int64_t duty_sum_ppm_ = 0;  // of clients that are not Off
  bool turns_ = false;
  bool billing_ = true;
  Time sample_due_{};

  std::uint64_t next_seq_ = 1;
  std::int64_t min_vtime_ = 0;
  int runnable_ = 0;
  int slots_ = 0;  // clients that hold a grant and are waited for
  std::array<Level, kLevels> levels_;
  std::set<std::tuple<Fixed, std::uint64_t, Share*>> throttled_;
  ClientOrder running_;  // Running, by grant
  std::set<Share*, BySeq> relimited_;
  std::set<Share*, BySeq> maybe_idle_;
};

}  // namespace nvshare::core
