#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/declared.h"
#include "daemon/log.h"
#include "daemon/state_file.h"

namespace nvshare::daemon {

// What outlasts a restart of the scheduler: the changes of people, and the runs that are open. Says
// which limits tenants have by it. Where and how it is written is handed in.
class Kept {
 public:
  using Write = std::function<Result<void>(const State&, Durable)>;
  using WallClock = std::function<WallTime()>;

  // `log` outlives it. Without `write`, nothing outlasts anything.
  Kept(Log& log, Declared declared = {}, Write write = {}, WallClock clock = {});

  // Takes what a scheduler before this one has written. `boot` is the machine's present one.
  // `lives` says whether the process of a run is still there; a run without it is dropped.
  using Lives = std::function<bool(const KeptRun&)>;
  void restore(State state, const std::string& boot, const Lives& lives);

  // --- limits
  // Of a tenant that is no run, or of a run that is known here.
  DeclaredLimits limits_of(const TenantName& name, const core::Limits& defaults) const;
  bool paused(const TenantName& name) const { return declared_.paused(name); }
  bool limited_live(const TenantName& name) const { return declared_.limited_live(name); }
  // The users, pods, containers and cgroups with declared limits, whether they are there or not.
  std::vector<TenantName> declared() const { return declared_.all(); }
  // A tenant that is no run begins.
  void begins(const TenantName& name) { declared_.begins(name); }
  // The tenants that people have changed.
  std::vector<LiveTenant> live() const { return declared_.live(); }

  // --- what people change
  void set_limits(const TenantName& name, const Declaration& limits);
  void reset_limits(const TenantName& name);
  void set_paused(const TenantName& name, bool paused);
  // `value` counts instead of `original`, which the file and the environment say.
  void set_setting(const std::string& name, const std::string& value, std::string_view original);
  void set_scheduling(bool on);
  bool scheduling() const { return scheduling_; }
  const std::map<std::string, std::string>& settings() const { return settings_; }

  // --- runs
  // A run begins, or has another keeper.
  void run_begins(KeptRun run);
  // What was told of a run of that name is forgotten, and with the next write_some() also in the
  // file.
  void forget_run(const TenantName& name);
  // Of a run that asks for `asked`. What `nvshare limit` has said of it goes before.
  core::Limits limits_of_run(const TenantName& run, const core::Limits& asked) const {
    return declared_.limits_of(run, {}, declare_all(asked)).limits;
  }
  // What a run that is known here has asked for. Nothing for another one.
  std::optional<core::Limits> asked_by(const TenantName& run) const;
  // A run that is known here is begun again and asks for these limits.
  void run_asks(const TenantName& run, const core::Limits& limits);
  const std::vector<KeptRun>& runs() const { return runs_; }

  // --- leases
  // Where the active leases are. Each change of them is told with leases_changed().
  using Leases = std::function<std::vector<KeptLease>()>;
  void use_leases(Leases leases) { leases_ = std::move(leases); }
  void leases_changed() { changed_ = true; }
  // Those that a scheduler before this one has written.
  std::vector<KeptLease> take_leases() { return std::exchange(restored_leases_, {}); }

  // About once a second. `lives`: the tenant is there now; `busy`: it has a process on a GPU.
  // `boxes` answers with the names of the pods and containers that have any process, or nothing
  // when that cannot be told. It is asked at most once in Declared::kSeenEvery, and only for a pod
  // or container with a change. Forgets runs that are gone. Answers with the tenants of which the
  // changes of people have expired.
  using Is = std::function<bool(const TenantName&)>;
  using Boxes = std::function<std::optional<std::set<std::string>>()>;
  std::vector<TenantName> look(const Is& lives, const Is& busy, const Boxes& boxes = {});

  // --- writing
  // At once, and durable: before a person is told that a change is done. False: it could not be
  // written, and is tried again.
  bool write_now();
  // At the end of a turn: writes what has changed, at most every kEvery. When to be called again.
  std::optional<Time> write_some(Time now);
  // Why the last write failed; empty when it did not.
  const std::string& write_problem() const { return problem_; }
  State state() const;

  static constexpr Duration kEvery = 250ms;
  // Seconds for which a change outlasts a restart at least: pods and containers may still be there.
  static constexpr WallTime kAfterRestart = 3600;
  static constexpr Duration kSoon = 20ms;      // what must not be in the file for long
  static constexpr Duration kAgainAfter = 1s;  // a failed write

 private:
  const KeptRun* find_run(const TenantName& name) const;
  void look_for_boxes(const Boxes& boxes);
  bool write(Durable durable);

  Log& log_;
  Declared declared_;
  Write write_;
  WallClock clock_;
  WallTime next_boxes_ = 0;
  std::string boot_;
  bool scheduling_ = true;
  std::map<std::string, std::string> settings_;
  std::vector<KeptRun> runs_;
  Leases leases_;
  std::vector<KeptLease> restored_leases_;
  bool changed_ = false;
  Durable owed_ = Durable::No;  // of the next write
  std::string problem_;
  Time next_write_{};
  Time written_{};
};

}  // namespace nvshare::daemon
