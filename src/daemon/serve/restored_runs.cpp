// Runs of a scheduler before this one: their programs may come back before their keepers do.

#include <sys/epoll.h>

#include "base/run_name.h"
#include "daemon/serve/programs.h"

namespace nvshare::daemon {

bool ProgramServer::is_keeper(const KeptRun& run) const {
  return processes_.key_of(run.pid) == ProcessKey{run.pid, run.started};
}

bool ProgramServer::has_processes(const KeptRun& run) const {
  return is_keeper(run) || is_populated(run.cgroup);
}

void ProgramServer::restore_runs(Broker& broker) {
  broker_ = &broker;
  const std::vector<KeptRun> runs = kept_.runs();
  for (const KeptRun& run : runs) restore(run);
}

// The run that the kept run lies in by its keeper or its cgroup, whatever its parent was.
std::optional<TenantId> ProgramServer::run_around(const KeptRun& run) const {
  if (is_keeper(run)) {
    const auto above = runs_.run_of(run.pid, broker_->tenants());
    if (above && *above) return *above;
  }
  return runs_.run_of_group(run.cgroup);
}

// Parents come before their parts; a user, pod or container may have nothing but this run.
Result<std::optional<TenantId>> ProgramServer::restored_parent(const KeptRun& run) {
  using Parent = std::optional<TenantId>;
  if (run.parent.empty()) return Parent{};
  if (const TenantRecord* known = broker_->find_tenant(run.parent)) return Parent{known->id};
  // A run that is gone leaves its parts to the run around it, or else to the tenants outside of
  // runs. Past the run around it they would leave the limits of that run.
  if (!is_schedulers_own(run.parent)) {
    if (const auto around = run_around(run)) return around;
  }
  const auto levels =
      processes_.tenants_around(is_keeper(run) ? run.pid : 0, run.cgroup, run.uid, run.parent);
  if (!levels) return levels.error();
  const auto made = make_tenants(*levels);
  return made ? Result<Parent>(*made) : Result<Parent>(made.error());
}

void ProgramServer::restore(const KeptRun& run) {
  // The descriptor first: from then on the number can only be this process's.
  auto held = processes_.hold(run.pid);
  const bool is_kept = is_keeper(run) && !(held && held->gone);
  if (!is_kept && !is_populated(run.cgroup)) return;
  const TenantName name{TenantKind::Run, run.name, run.uid};
  const bool oversubscribes = (run.flags & wire::kOversubscribeSelf) != 0;
  const auto parent = restored_parent(run);
  const auto tenant = parent ? broker_->begin_run(name, limits_for_new(name), reactor_.now(),
                                                  run.backend, oversubscribes, *parent)
                             : Result<TenantId>(parent.error());
  if (!tenant) {
    return log_.warn("run_not_restored", {{"run", run.name}, {"reason", tenant.error().message}});
  }
  if (kept_.paused(name)) (void)broker_->set_paused(*tenant, true, reactor_.now());
  runs_.begin(*tenant, {run.pid, run.started}, run.cgroup);
  log_.info("run_restored", {{"run", run.name}, {"pid", run.pid}, {"uid", run.uid}});
  if (!is_kept) return keeper_gone(*tenant);
  RestoredRun& restored = restored_[*tenant];
  restored.keeper = {run.pid, run.started};
  if (!held) return no_descriptor(held.error().message);
  restored.process = std::move(held->descriptor);
  if (!restored.process) return no_descriptor();
  const TenantId id = *tenant;
  (void)reactor_.watch(restored.process.get(), EPOLLIN,
                       [this, id](std::uint32_t) { end_restored(id); });
}

// A keeper without a descriptor does not say when it ends.
void ProgramServer::look_after_restored() {
  std::vector<TenantId> ended;
  for (const auto& [tenant, run] : restored_) {
    if (!run.process && processes_.key_of(run.keeper.pid) != run.keeper) ended.push_back(tenant);
  }
  for (const TenantId tenant : ended) end_restored(tenant);
}

// Its keeper has gone without coming back.
void ProgramServer::end_restored(TenantId tenant) {
  const auto at = restored_.find(tenant);
  if (at == restored_.end()) return;
  reactor_.unwatch(at->second.process.get());
  restored_.erase(at);
  keeper_gone(tenant);
}

std::optional<TenantId> ProgramServer::take_restored(const Session& session,
                                                     const std::string& name) {
  const TenantRecord* known = broker_->find_tenant(name);
  const auto at = known == nullptr ? restored_.end() : restored_.find(known->id);
  if (at == restored_.end() || session.key != at->second.keeper) return std::nullopt;
  if (known->is.uid != session.peer.uid) return std::nullopt;
  const TenantId tenant = known->id;
  reactor_.unwatch(at->second.process.get());
  restored_.erase(at);
  return tenant;
}

}  // namespace nvshare::daemon
