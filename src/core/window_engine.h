#pragma once

#include <set>
#include <tuple>

#include "core/compute_engine.h"
#include "core/policy/window_rules.h"

namespace nvshare::core {

// The policies of the requirement's windows: in every window a tenant may be billed limit x window,
// and is then stopped until the window ends. How time turns into a bill and whether clients run
// together is what WindowRules say.
//
// Everything is kept on a *bill clock* that advances by 1 for each nanosecond, or by 1/n while n
// clients run and share the bill. A running tenant's quota ends at a fixed point of that clock, so
// a step costs O(log n) however many run.
//
// A tenant that has parts has one account for all of them, which stops all of them. Each part has
// its own beside that.
class WindowEngine final : public ComputeEngine {
 public:
  WindowEngine(const Config& config, WindowPolicy policy, Time now);

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
  void park(Client&, bool, Time) override {}  // windows begin anew by themselves
  void set_billing(bool on, Time now) override;
  void grant_now(Client& client, const Reason& why, Time now, Decisions& out) override;
  void decide(Time now, Decisions& out) override;
  std::optional<Time> next_wakeup() const override;
  Reason explain(const Client& client, Time now) const override;

 private:
  Time window_end() const { return window_start_ + config_.window; }
  std::optional<Fixed> quota_of(const Share& share) const;
  Fixed quota_at(int limit) const;
  Fixed billed_until_now(const Share& share) const;

  void catch_up(Time now);
  void advance_clock(Time now);
  void settle(Share& share);
  void index(Share& share);
  void unindex(Share& share);
  void enter_window(Share& share) const;
  void enter_window(WindowAccount& account, Fixed quota) const;
  void enter_window(std::vector<LeftAccount>& left) const;
  void take_over(Share& share);
  void leave_account(const Share& share) const;
  void start_window(Time start, std::int64_t steps);
  bool waits_for_round() const;

  static Share& top_of(Share& share);
  void add_up_limits();
  void wanting_changed(Share& share, int before);
  void offer_all_in(Share& share);
  void withdraw_all_in(const Share& share);
  Fixed carry(Fixed used, Fixed quota) const;
  Duration until_quota(const Share& share, Fixed used, Time now) const;
  void offer(Share& share);
  void throttle(Share& share, Time now);
  void unthrottle(Share& share);
  void unthrottle_if_possible(Share& share);
  void unthrottle_where_possible();
  void collect_exhausted(Time now);
  void apply_load();
  void drop_exhausted(Time now, Decisions& out);
  void stop_all_in(Share& share, const Reason& why, Time now, Decisions& out);
  void keep_one_running(Time now, Decisions& out);
  void grant_what_may_run(Time now, Decisions& out);

  const Config& config_;
  WindowPolicy policy_;
  WindowRules rules_;
  Load load_;          // in force
  Load load_changed_;  // as told since; takes effect in decide()

  Fixed clock_ = 0;
  bool billing_ = true;
  Time clock_at_;
  Time window_start_;
  std::int64_t window_no_ = 0;

  std::uint64_t next_seq_ = 1;
  int running_ = 0;              // clients that hold or have not given back a grant
  int slots_ = 0;                // of these, the ones others wait for
  ReadyOrder eligible_;          // ready, and their tenants have quota left
  ClientOrder running_clients_;  // Running, by grant
  ShareOrder running_shares_;
  ShareOrder wanting_;          // shares of parts whose clients have work
  int parts_sum_ = 0;           // what those count in the load
  bool parts_changed_ = false;  // their limits have: that must be counted anew
  ShareOrder throttled_;
  std::set<std::tuple<Fixed, std::uint64_t, Share*>> exhaustion_;
  ShareOrder newly_exhausted_;
};

}  // namespace nvshare::core
