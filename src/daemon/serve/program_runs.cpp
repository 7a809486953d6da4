// Runs: how they begin, which processes are in them, and when they end.

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/run_name.h"
#include "daemon/serve/programs.h"
#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

// A keeper's connection is closed a moment before its process has left the run's cgroup.
constexpr Duration kKeeperEnds = 500ms;
constexpr Duration kLookClosely = 10ms;
// Between turns that look for programs that came before their run. So it takes a fifth of the time
// at most, however many runs begin.
constexpr Duration kLookAgain = 10ms;

// What the run asks for. 100 cores, no memory and priority 0 ask for nothing.
Result<core::Limits> limits_of(const wire::RunBegin& message, const Settings& settings) {
  core::Limits limits;
  if (message.core_limit < 1 || message.core_limit > core::kNoCoreLimit) {
    return Error{fmt::format("core limit {} is not from 1 to 100", message.core_limit)};
  }
  if (message.memory_limit > static_cast<std::uint64_t>(core::kMostMemory.count)) {
    return Error{"the memory limit is more than any GPU has"};
  }
  if (message.priority < core::kLowestPriority || message.priority > core::kHighestPriority) {
    return Error{fmt::format("priority {} is not from {} to {}", message.priority,
                             core::kLowestPriority, core::kHighestPriority)};
  }
  limits.core_percent = message.core_limit == core::kNoCoreLimit
                            ? core::kNoCoreLimit
                            : std::min(message.core_limit, settings.run_cores_max);
  limits.priority = std::min(message.priority, settings.run_priority_max);
  if (message.memory_limit > 0) {
    limits.memory = Bytes{static_cast<std::int64_t>(message.memory_limit)};
  }
  return limits;
}

bool oversubscribes(const wire::RunBegin& message) {
  return (message.flags & wire::kOversubscribeSelf) != 0;
}

bool has_memory_of_variable(const wire::RunBegin& message) {
  return (message.flags & wire::kMemoryOfVariable) != 0;
}

bool comes_back(const wire::RunBegin& message) {
  return (message.flags & wire::kComesBack) != 0;
}

Result<void> check_backend(const wire::RunBegin& message) {
  if (message.backend > wire::Backend::Managed) {
    return Error{
        fmt::format("there is no memory backend {}", static_cast<std::uint32_t>(message.backend))};
  }
  if (oversubscribes(message) && message.backend != wire::Backend::Managed) {
    return Error{"a program can only be larger than its GPU with the backend 'managed'"};
  }
  return {};
}

}  // namespace

// --- how they begin ----------------------------------------------------------------------------

Result<std::optional<TenantId>> ProgramServer::run_of(int pid, Runs::Asked asked) {
  forget_ended_runs();
  return runs_.run_of(pid, broker_->tenants(), asked);
}

// The tenant that the run is a part of. `inside`: the run that the keeper is in. A keeper that
// comes back for its run is in the run already.
Result<std::optional<TenantId>> ProgramServer::parent_for(const Session& session,
                                                          const std::string& name,
                                                          std::optional<TenantId> inside) {
  if (inside) {
    const TenantRecord& around = broker_->tenants().at(*inside);
    const bool is_it = around.is.name == name && around.is.uid == session.peer.uid && !around.open;
    return is_it ? around.parent : inside;
  }
  const auto outside = tenant_outside_runs(session.peer);
  if (!outside) return outside.error();
  return std::optional(*outside);
}

Result<TenantId> ProgramServer::begin_run(const Session& session, const wire::RunBegin& message) {
  if (const auto spoken = check_version(message.magic, message.major); !spoken)
    return spoken.error();
  if (session.peer.pid <= 0 || !session.key) return Error{"the scheduler cannot see your process"};
  const std::string name(message.name, wire::text_length(message.name, sizeof message.name));
  if (const auto good = check_run_name(name); !good) return good.error();
  auto limits = limits_of(message, settings_);
  if (!limits) return limits.error();
  if (const auto good = check_backend(message); !good) return good.error();
  if (const auto restored = take_restored(session, name)) return *restored;
  // A name is free once the last process is gone.
  if (const TenantRecord* known = broker_->find_tenant(name)) look_after({known->id});
  const auto inside = run_of(session.peer.pid);
  if (!inside) return inside.error();
  const auto parent = parent_for(session, name, *inside);
  if (!parent) return parent.error();
  const TenantName run{TenantKind::Run, name, session.peer.uid};
  // A run whose keeper is gone is begun again: by a new keeper, which asks for the same limits, or
  // by a person, which may ask for others. A process of the run itself gets no more by that, or it
  // would leave its limits.
  const TenantRecord* known = broker_->find_tenant(name);
  const auto before = known != nullptr && !known->open ? kept_.asked_by(run) : std::nullopt;
  const bool is_inside = known != nullptr && *inside == known->id;
  if (before && is_inside) *limits = tightest(*limits, *before);
  if (has_memory_of_variable(message)) {
    const auto most = tightest_limits(broker_->tenants(), **parent).memory;
    if (most && limits->memory) limits->memory = std::min(*limits->memory, *most);
  }
  if (known == nullptr) {
    if (const auto good = check_run_count(**parent); !good) return good.error();
  }
  const core::Limits had = comes_back(message) ? *limits : before.value_or(core::Limits{});
  const auto good = check_part(broker_->tenants(), *parent, *limits, had);
  if (!good) return good.error();
  limits->core_percent = std::min(limits->core_percent, settings_.run_cores_max);
  const auto begun =
      broker_->begin_run(run, before ? kept_.limits_of_run(run, *limits) : *limits, reactor_.now(),
                         message.backend, oversubscribes(message), *parent);
  if (!begun && known != nullptr) return name_taken(*known, run.uid, begun.error());
  if (!begun) return begun;
  before ? kept_.run_asks(run, *limits) : kept_.forget_run(run);
  return begun;
}

// Runs cost the scheduler something also where they have no connection: a keeper that ends may
// leave processes behind.
Result<void> ProgramServer::check_run_count(TenantId parent) const {
  const TenantMap& tenants = broker_->tenants();
  const TenantRecord* top = nullptr;
  for_each_level(tenants, parent, [&](const TenantRecord& level) { top = &level; });
  const auto below = tenants_below(tenants, top->id);
  const auto runs = std::ranges::count_if(
      below, [&](TenantId one) { return tenants.at(one).is.kind == TenantKind::Run; });
  if (runs < settings_.max_clients_per_user) return {};
  return Error{fmt::format("'{}' has {} runs, as many as max_clients_per_user allows: end one",
                           top->is.name, runs)};
}

// The process that keeps a name may be on no GPU, such as an agent that a program has left behind:
// only the scheduler can say which one that is.
Error ProgramServer::name_taken(const TenantRecord& known, std::uint32_t uid,
                                const Error& error) const {
  if (!groups_ || known.is.kind != TenantKind::Run || known.is.uid != uid) return error;
  int keeper = 0;
  for (const auto& [id, session] : sessions_) {
    if (session.run == known.id) keeper = session.peer.pid;
  }
  const int pid = groups_->process_in(runs_.group_of(known.id), keeper);
  if (pid <= 0) return error;
  return Error{fmt::format(
      "the name '{}' is taken by a run that process {} ({}) is in: end that process, or "
      "give another name with --name",
      known.is.name, pid, processes_.name_of(pid))};
}

// For after a restart: a process in the run is known before its keeper is back.
void ProgramServer::keep_run(const Session& session, TenantId run, const wire::RunBegin& message) {
  const TenantRecord& tenant = broker_->tenants().at(run);
  KeptRun kept{tenant.is.name, tenant.is.uid, session.key->pid, session.key->started};
  if (tenant.parent) kept.parent = broker_->tenants().at(*tenant.parent).is.name;
  kept.cgroup = runs_.group_of(run);
  kept.limits = tenant.limits;
  kept.backend = tenant.backend;
  kept.flags = (tenant.oversubscribes ? wire::kOversubscribeSelf : 0) |
               (message.flags & wire::kMemoryOfVariable);
  kept_.run_begins(std::move(kept));
}

// The run's cgroup; empty when it has none. Without one the processes above a program tell its run.
std::string ProgramServer::group_for(const Session& session, TenantId run) {
  if (!groups_) return "";
  const auto present = processes_.group_of(session.peer.pid);
  if (!present) return "";
  const std::string known = runs_.group_of(run);
  if (!known.empty()) {
    // A new keeper joins where it can. Elsewhere it is known by its process alone.
    (void)groups_->move(*present, known, session.peer.pid);
    return known;
  }
  const std::string& name = broker_->tenants().at(run).is.name;
  const auto made = groups_->make(*present, name, session.peer.pid);
  if (made) return *made;
  if (!std::exchange(told_of_groups_, true)) {
    log_.warn("no_run_cgroup", {{"tenant", name}, {"reason", made.error().message}});
  }
  return "";
}

void ProgramServer::run_begin(Session& session, const wire::RunBegin& message) {
  // The number may be another process's by now, and that one would be moved into the run's cgroup.
  if (has_ended(session)) return doom(session);
  const auto tenant = begin_run(session, message);
  if (!tenant) {
    const std::string name(message.name, wire::text_length(message.name, sizeof message.name));
    const TenantRecord* known = broker_->find_tenant(name);
    const bool taken = known != nullptr && (known->open || known->is.uid != session.peer.uid);
    return refuse(session, tenant.error().message, taken ? wire::kRefusedName : 0);
  }
  session.run = *tenant;
  count_for(session, "");  // runs have a bound of their own
  runs_.begin(*tenant, *session.key, group_for(session, *tenant));
  keep_run(session, *tenant, message);
  auto welcome = wire::make<wire::Welcome>();
  welcome.magic = wire::kMagic;
  welcome.major = wire::kMajor;
  welcome.minor = wire::kMinor;
  welcome.client = tenant->value;
  welcome.when_lost = settings_.when_lost;
  const TenantRecord& record = broker_->tenants().at(*tenant);
  welcome.backend =
      record.backend == wire::Backend::Default ? settings_.memory_backend : record.backend;
  welcome.flags = message.flags & (wire::kOversubscribeSelf | wire::kMemoryOfVariable);
  wire::put_text(welcome.tenant, sizeof welcome.tenant,
                 broker_->tenants().at(*tenant).is.name.c_str());
  broker_->place_run(*tenant, message, welcome);
  if (wire::send(session.socket.get(), &welcome.header, false) < 0) return doom(session);
  call_back(*tenant);
}

// --- programs that came before their run -------------------------------------------------------

// The tenant that the process, or the run of this keeper, is a part of.
std::optional<TenantId> ProgramServer::taken_for(const Session& session) const {
  if (session.run) return broker_->tenants().at(*session.run).parent;
  if (session.client) return broker_->clients().at(*session.client).tenant;
  return std::nullopt;
}

// After the scheduler was away, programs and inner runs may be back before their run: they come
// again. Which of them are in the run, the process table says: that takes long, and is left to
// look_again().
void ProgramServer::call_back(TenantId run) {
  std::set<TenantId> around;
  for_each_level(broker_->tenants(), run,
                 [&](const TenantRecord& level) { around.insert(level.id); });
  for (auto& [id, session] : sessions_) {
    if (session.doomed || (session.run && around.contains(*session.run))) continue;
    const auto taken = taken_for(session);
    if (taken && *taken != run && around.contains(*taken)) look_again_later(session);
  }
}

void ProgramServer::look_again_later(Session& session) {
  if (session.look_again != 0) return;
  session.look_again = ++last_place_;
  look_again_.emplace(session.look_again, session.id);
}

void ProgramServer::leave_look_again(Session& session) {
  look_again_.erase({std::exchange(session.look_again, 0), session.id});
}

// Whether the process is in a run, and was taken for one of a tenant around that run.
bool ProgramServer::is_in_an_inner_run(const Session& session) {
  const auto taken = taken_for(session);
  if (!taken) return false;
  const auto in = run_of(session.peer.pid, {.clients = false, .except = session.run});
  if (!in || !*in || **in == *taken) return false;
  const TenantMap& tenants = broker_->tenants();
  return is_below(tenants, **in, *taken) && !(session.run && is_below(tenants, **in, *session.run));
}

// Looks at some of those that may be in a run that began after they came. When to go on.
std::optional<Time> ProgramServer::look_again() {
  const Time now = reactor_.now();
  if (!look_again_.empty() && look_again_due_ <= now) {
    const std::uint64_t before = processes_.reads();
    while (!look_again_.empty() && processes_.reads() - before < kReadsPerTurn) {
      Session& session = sessions_.at(look_again_.begin()->second);
      leave_look_again(session);
      if (session.doomed || !is_in_an_inner_run(session)) continue;
      session.run ? give_up(*session.run) : doom(session);
    }
    look_again_due_ = now + kLookAgain;
  }
  return look_again_.empty() ? std::nullopt : std::optional(look_again_due_);
}

// All of the run come again, and find the tenant around it.
void ProgramServer::give_up(TenantId run) {
  const TenantMap& tenants = broker_->tenants();
  for (auto& [id, session] : sessions_) {
    std::optional<TenantId> tenant = session.run;
    if (session.client) tenant = broker_->clients().at(*session.client).tenant;
    if (tenant && is_below(tenants, *tenant, run)) doom(session);
  }
  for (const TenantId one : tenants_below(tenants, run)) {
    runs_.forget(one);
    broker_->set_vacant(one, reactor_.now());
  }
}

// --- how they end ------------------------------------------------------------------------------

// A group in which processes are may be of a run that no state file knows. It goes with the last of
// them, and otherwise nobody would remove it.
void ProgramServer::use_groups(RunGroups groups) {
  groups_ = std::move(groups);
  const auto left = groups_->remove_leftovers();
  old_groups_.insert(left.begin(), left.end());
}

// Whatever ends the scheduler may have ended keepers at the same moment.
void ProgramServer::remove_groups() {
  if (!groups_) return;
  (void)end_of_turn();
  for (const auto& [run, group] : runs_.all()) {
    if (!group.empty()) old_groups_.insert(group);
  }
  const Duration waits = std::max(Duration::zero(), look_closely_until_ - reactor_.now());
  for (Duration waited{}; waited <= waits; waited += kLookClosely) {
    std::erase_if(old_groups_, [&](const auto& one) { return groups_->remove(one); });
    if (old_groups_.empty()) return;
    if (waits > Duration::zero()) std::this_thread::sleep_for(kLookClosely);
  }
}

void ProgramServer::keeper_gone(TenantId run) {
  const bool occupied = is_populated(runs_.group_of(run));
  if (occupied) {
    look_closely_until_ = reactor_.now() + kKeeperEnds;
    ending_.insert(run);
  }
  broker_->end_run(run, reactor_.now(), occupied);
  forget_ended_runs();
}

void ProgramServer::forget_ended_runs() {
  std::vector<TenantId> ended;
  for (const auto& [run, group] : runs_.all()) {
    if (!broker_->tenants().contains(run)) ended.push_back(run);
  }
  for (const TenantId run : ended) {
    const std::string group = runs_.group_of(run);
    if (groups_ && !group.empty() && !groups_->remove(group)) old_groups_.insert(group);
    runs_.forget(run);
  }
}

bool ProgramServer::is_populated(const std::string& group) const {
  return groups_ && !group.empty() && groups_->is_populated(group);
}

void ProgramServer::look_after_runs() {
  // Not for each program that connects: after a restart there may be many of both.
  if (groups_) std::erase_if(old_groups_, [&](const auto& one) { return groups_->remove(one); });
  look_after_restored();
  std::set<TenantId> all;
  for (const auto& [run, group] : runs_.all()) all.insert(run);
  look_after(all);
}

void ProgramServer::look_after(const std::set<TenantId>& runs) {
  for (const TenantId run : runs) {
    const auto tenant = broker_->tenants().find(run);
    if (tenant == broker_->tenants().end() || !tenant->second.occupied) continue;
    if (!is_populated(runs_.group_of(run))) broker_->set_vacant(run, reactor_.now());
  }
  forget_ended_runs();
}

std::optional<Time> ProgramServer::look_at_ending() {
  const Time now = reactor_.now();
  if (look_closely_until_ <= now) {
    ending_.clear();
    return std::nullopt;
  }
  if (look_closely_next_ <= now) {
    // Not at all runs: users may have left many processes behind, and this is each 10 ms.
    look_after(ending_);
    look_closely_next_ = now + kLookClosely;
  }
  return look_closely_next_;
}

}  // namespace nvshare::daemon
