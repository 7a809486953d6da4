#include "daemon/kept.h"

#include <algorithm>
#include <utility>

namespace nvshare::daemon {
namespace {

bool is_box(const TenantName& name) {
  return name.kind == TenantKind::Container || name.kind == TenantKind::Pod;
}

}  // namespace

Kept::Kept(Log& log, Declared declared, Write write, WallClock clock)
    : log_(log),
      declared_(std::move(declared)),
      write_(std::move(write)),
      clock_(clock ? std::move(clock) : [] { return WallTime{0}; }) {}

void Kept::restore(State state, const std::string& boot, const Lives& lives) {
  scheduling_ = state.scheduling;
  settings_ = std::move(state.settings);
  for (KeptRun& run : state.runs) {
    if (state.boot == boot && lives(run)) runs_.push_back(std::move(run));
  }
  if (state.boot == boot) restored_leases_ = std::move(state.leases);
  boot_ = boot;
  for (LiveTenant& tenant : state.tenants) {
    const bool is_known = tenant.is.kind != TenantKind::Run ||
                          std::any_of(runs_.begin(), runs_.end(), [&](const KeptRun& run) {
                            return run.name == tenant.is.name && run.uid == tenant.is.uid;
                          });
    if (!is_known) continue;
    // The scheduler may have been away for long, and programs need time to come back to it.
    tenant.seen = std::max(tenant.seen, clock_() - Declared::kLasts + kAfterRestart);
    declared_.restore(tenant);
  }
  changed_ = true;
}

DeclaredLimits Kept::limits_of(const TenantName& name, const core::Limits& defaults) const {
  if (name.kind != TenantKind::Run) return declared_.limits_of(name, defaults);
  const KeptRun* run = find_run(name);
  DeclaredLimits all = declared_.limits_of(
      name, defaults, run != nullptr ? declare_all(run->limits) : Declaration{});
  const bool by_variable = run != nullptr && (run->flags & wire::kMemoryOfVariable) != 0;
  if (by_variable && all.from.memory == Source::Run) all.from.memory = Source::Variable;
  return all;
}

// --- what people change ------------------------------------------------------------------------

void Kept::set_limits(const TenantName& name, const Declaration& limits) {
  declared_.declare(name, Source::Limit, limits, clock_());
  changed_ = true;
}

void Kept::reset_limits(const TenantName& name) {
  changed_ = declared_.withdraw(name, Source::Limit) || changed_;
}

void Kept::set_paused(const TenantName& name, bool paused) {
  declared_.set_paused(name, paused, clock_());
  changed_ = true;
}

void Kept::set_setting(const std::string& name, const std::string& value,
                       std::string_view original) {
  if (value == original) {
    settings_.erase(name);
  } else {
    settings_[name] = value;
  }
  changed_ = true;
}

void Kept::set_scheduling(bool on) {
  scheduling_ = on;
  changed_ = true;
}

// --- runs --------------------------------------------------------------------------------------

// A part stays behind its parent.
void Kept::run_begins(KeptRun run) {
  changed_ = true;
  const auto known = std::ranges::find(runs_, run.name, &KeptRun::name);
  if (known == runs_.end()) return runs_.push_back(std::move(run));
  // Limits as they were asked for first: what was changed since is in `declared_`.
  if (known->uid == run.uid) run.limits = known->limits;
  *known = std::move(run);
}

void Kept::forget_run(const TenantName& name) {
  declared_.forget(name);
  changed_ = true;
  const auto known =
      std::erase_if(runs_, [&](const KeptRun& one) { return one.name == name.name; });
  // The cgroup of the next run of that name has the same path. A restart would take it for the run
  // in the file, and give it the limits of that one.
  if (known > 0 && problem_.empty()) next_write_ = std::min(next_write_, written_ + kSoon);
}

const KeptRun* Kept::find_run(const TenantName& name) const {
  for (const KeptRun& one : runs_) {
    if (one.name == name.name && one.uid == name.uid) return &one;
  }
  return nullptr;
}

std::optional<core::Limits> Kept::asked_by(const TenantName& run) const {
  const KeptRun* found = find_run(run);
  return found == nullptr ? std::nullopt : std::optional(found->limits);
}

void Kept::run_asks(const TenantName& run, const core::Limits& limits) {
  for (KeptRun& one : runs_) {
    if (one.name == run.name && one.uid == run.uid) one.limits = limits;
  }
  changed_ = true;
}

// A container may use no GPU for days. Its limit must be there when the next program comes.
void Kept::look_for_boxes(const Boxes& boxes) {
  const WallTime now = clock_();
  if (!boxes || now < next_boxes_) return;
  const auto live = declared_.live();
  const bool unseen = std::ranges::any_of(live, [&](const LiveTenant& one) {
    return is_box(one.is) && now - one.seen >= Declared::kSeenEvery;
  });
  if (!unseen) return;
  next_boxes_ = now + Declared::kSeenEvery;
  const auto there = boxes();
  for (const LiveTenant& one : live) {
    if (!is_box(one.is) || (there && there->count(one.is.name) == 0)) continue;
    changed_ = declared_.saw(one.is, now) || changed_;
  }
}

// A run's limits hold for programs that outlive its process, so the run is known until they end.
std::vector<TenantName> Kept::look(const Is& lives, const Is& busy, const Boxes& boxes) {
  const auto ended = std::erase_if(runs_, [&](const KeptRun& run) {
    return !lives({TenantKind::Run, run.name, run.uid});
  });
  changed_ = ended > 0 || changed_;
  for (const LiveTenant& tenant : declared_.live()) {
    if (tenant.is.kind == TenantKind::Run && !lives(tenant.is)) {
      declared_.forget(tenant.is);
      changed_ = true;
    } else if (busy(tenant.is) && declared_.saw(tenant.is, clock_())) {
      changed_ = true;
    }
  }
  look_for_boxes(boxes);
  auto gone = declared_.expire(clock_());
  for (const TenantName& name : gone) log_.info("declaration_expired", {{"tenant", name.name}});
  if (!gone.empty()) changed_ = true;
  return gone;
}

// --- writing -----------------------------------------------------------------------------------

State Kept::state() const {
  return {boot_,     scheduling_,
          settings_, declared_.live(),
          runs_,     leases_ ? leases_() : restored_leases_};
}

bool Kept::write(Durable durable) {
  if (!write_) return true;
  const auto written = write_(state(), durable);
  if (!written) {
    if (problem_.empty()) {
      log_.error("state_not_written", {{"reason", written.error().message},
                                       {"effect", "changes may not outlast a restart"}});
    }
    problem_ = written.error().message;
    changed_ = true;
    // The change of a person may be in it.
    if (durable == Durable::Yes) owed_ = Durable::Yes;
    return false;
  }
  if (!problem_.empty()) log_.info("state_written_again");
  problem_.clear();
  changed_ = false;
  owed_ = Durable::No;
  return true;
}

bool Kept::write_now() {
  return write(Durable::Yes);
}

std::optional<Time> Kept::write_some(Time now) {
  if (!changed_ || !write_) return std::nullopt;
  if (now < next_write_) return next_write_;
  written_ = now;
  next_write_ = now + (write(owed_) ? kEvery : kAgainAfter);
  return changed_ ? std::optional(next_write_) : std::nullopt;
}

}  // namespace nvshare::daemon
