#include "daemon/broker/tenants.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace nvshare::daemon {
namespace {

constexpr Duration kShareOver = 4s;

}  // namespace

const TenantRecord* Tenants::find_tenant(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &tenants_.at(at->second);
}

Result<TenantId> Tenants::add_tenant(const TenantName& name, const core::Limits& limits,
                                     std::optional<TenantId> parent, Time now) {
  if (tenants_.size() >= kMostTenants && !make_room(parent, now)) {
    return Error{
        fmt::format("the scheduler serves {} tenants, as many as it can: end runs, or reset limits",
                    kMostTenants)};
  }
  const TenantId id{next_tenant_};
  const auto added = step(core::TenantAdded{id, name.name, limits, parent}, now);
  if (!added) return added.error();
  ++next_tenant_;
  by_name_.emplace(name.name, id);
  TenantRecord& tenant = tenants_[id];
  tenant.id = id;
  tenant.is = name;
  tenant.limits = limits;
  tenant.parent = parent;
  if (parent) tenants_.at(*parent).parts.insert(id);
  tenant.since = tenant.empty_since = now;
  tenant.samples = {{.at = now}};
  log_.info("tenant_added", {{"tenant", name.name},
                             {"kind", name_of(name.kind)},
                             {"parent", parent ? tenants_.at(*parent).is.name : ""},
                             {"cores", limits.core_percent},
                             {"memory", limits.memory ? limits.memory->count : 0},
                             {"uid", name.uid}});
  return id;
}

Result<TenantId> Tenants::tenant_for(const TenantName& name, const core::Limits& limits, Time now,
                                     std::optional<TenantId> parent) {
  if (const TenantRecord* known = find_tenant(name.name)) {
    if (known->is.kind == name.kind && known->parent == parent) return known->id;
    return Error{fmt::format("the name '{}' is taken", name.name)};
  }
  return add_tenant(name, limits, parent, now);
}

// --- runs --------------------------------------------------------------------------------------

Result<TenantId> Tenants::begin_run(const TenantName& name, const core::Limits& limits, Time now,
                                    wire::Backend backend, bool oversubscribes,
                                    std::optional<TenantId> parent) {
  Result<TenantId> id = Error{};
  if (const TenantRecord* known = find_tenant(name.name)) {
    const bool its_own = known->is.kind == TenantKind::Run && known->is.uid == name.uid;
    if (!its_own || known->open || known->parent != parent) {
      return Error{fmt::format(
          "the name '{}' is taken by another tenant that runs now: give another with --name",
          name.name)};
    }
    id = known->id;
    const auto changed = change_limits(tenants_.at(*id), limits, now);
    if (!changed) return changed.error();
    log_.info("run_taken_over", {{"tenant", name.name}});
  } else {
    id = add_tenant(name, limits, parent, now);
  }
  if (!id) return id;
  TenantRecord& tenant = tenants_.at(*id);
  tenant.open = true;
  tenant.occupied = false;
  tenant.backend = backend;
  tenant.oversubscribes = oversubscribes;
  return id;
}

void Tenants::end_run(TenantId id, Time now, bool occupied) {
  const auto at = tenants_.find(id);
  if (at == tenants_.end()) return;
  at->second.open = false;
  at->second.occupied = occupied;
  if (is_vacant(at->second)) remove(at->second, now);
}

void Tenants::set_vacant(TenantId id, Time now) {
  const auto at = tenants_.find(id);
  if (at == tenants_.end()) return;
  at->second.occupied = false;
  if (at->second.is.kind == TenantKind::Run && is_vacant(at->second)) remove(at->second, now);
}

// --- when they are forgotten -------------------------------------------------------------------

// The core passes what the part owes to its parent.
void Tenants::remove(const TenantRecord& tenant, Time now) {
  const TenantId id = tenant.id;
  const std::optional<TenantId> parent = tenant.parent;
  if (const auto removed = step(core::TenantRemoved{id}, now); !removed) {
    log_.error("tenant_not_removed",
               {{"tenant", tenant.is.name}, {"reason", removed.error().message}});
    return;
  }
  log_.info("tenant_removed", {{"tenant", tenant.is.name}});
  by_name_.erase(tenant.is.name);
  tenants_.erase(id);
  if (!parent) return;
  TenantRecord& above = tenants_.at(*parent);
  above.parts.erase(id);
  left(above, now);
}

// Nothing of it is there.
bool Tenants::is_vacant(const TenantRecord& tenant) {
  return tenant.clients.empty() && tenant.parts.empty() && !tenant.open && !tenant.occupied;
}

// Somebody has said that it is not to run: paused, or asleep until it is woken.
bool Tenants::is_held(const TenantRecord& tenant) const {
  const auto sleep = core_.sleep_of(tenant.id);
  return tenant.paused || (sleep && sleep->hold);
}

bool Tenants::in_use(const TenantRecord& tenant, Time now) const {
  if (!is_vacant(tenant) || tenant.kept || is_held(tenant)) return true;
  const Duration pays_off = tenant.debt * 100 / tenant.limits.core_percent;
  return tenant.is.kind != TenantKind::Run &&
         now - tenant.empty_since < std::max(kTenantLingers, pays_off);
}

// The tenant without users for the longest time goes, whatever it owes. Limited and paused tenants
// stay, because a user with many tenants would undo those changes. The parent of the new tenant
// stays, because the parent is about to have a part.
bool Tenants::make_room(std::optional<TenantId> parent, Time now) {
  const TenantRecord* oldest = nullptr;
  for (const auto& [id, tenant] : tenants_) {
    if (id == parent || !is_vacant(tenant) || tenant.kept || is_held(tenant)) continue;
    if (oldest == nullptr || tenant.empty_since < oldest->empty_since) oldest = &tenant;
  }
  if (oldest == nullptr) return false;
  remove(*oldest, now);
  return true;
}

void Tenants::forget_unused(Time now) {
  for (auto at = tenants_.begin(); at != tenants_.end();) {
    const TenantRecord& tenant = (at++)->second;  // a parent that goes with it lies before it
    if (!in_use(tenant, now)) remove(tenant, now);
  }
}

void Tenants::left(TenantRecord& tenant, Time now) {
  tenant.empty_since = now;
  if (tenant.is.kind == TenantKind::Run && is_vacant(tenant)) remove(tenant, now);
}

// --- what people say ---------------------------------------------------------------------------

Result<void> Tenants::set_limits(TenantId id, const core::Limits& limits, Time now,
                                 bool within_parents) {
  const auto at = tenants_.find(id);
  if (at == tenants_.end()) return Error{"there is no such tenant"};
  TenantRecord& tenant = at->second;
  const auto good = check_part(tenants_, tenant.parent, limits, tenant.limits);
  if (within_parents && !good) return good.error();
  if (const auto changed = change_limits(tenant, limits, now); !changed) return changed.error();
  tenant.kept = tenant.is.kind != TenantKind::Run;
  return {};
}

Result<void> Tenants::change_limits(TenantRecord& tenant, const core::Limits& limits, Time now) {
  const TenantId id = tenant.id;
  for (const ClientId client : clients_below(tenants_, id)) {
    credit_.revoke(clients_.at(client), now);
  }
  if (limits.core_percent != tenant.limits.core_percent) restart_shares(id, now);
  if (const auto taken = step(core::LimitsChanged{id, limits}, now); !taken) return taken.error();
  if (limits.memory != tenant.limits.memory) {
    for (const TenantId one : tenants_below(tenants_, id)) tenants_.at(one).shortage_told = false;
  }
  tenant.limits = limits;
  log_.info("limits_changed", {{"tenant", tenant.is.name},
                               {"cores", limits.core_percent},
                               {"memory", limits.memory ? limits.memory->count : 0},
                               {"priority", limits.priority}});
  show_limits(id);
  grants_.update_watch();
  return {};
}

Result<void> Tenants::lend_priority(TenantId id, GpuId gpu, std::optional<int> priority, Time now) {
  const auto taken = step(core::PriorityLent{id, gpu, priority}, now);
  if (!taken) return taken.error();
  std::map<GpuId, int>& lent = tenants_.at(id).lent;
  if (priority) {
    lent[gpu] = *priority;
  } else {
    lent.erase(gpu);
  }
  return {};
}

void Tenants::keep(TenantId id, bool kept) {
  const auto at = tenants_.find(id);
  if (at != tenants_.end() && at->second.is.kind != TenantKind::Run) at->second.kept = kept;
}

Result<void> Tenants::set_paused(TenantId id, bool paused, Time now) {
  const auto at = tenants_.find(id);
  if (at == tenants_.end()) return Error{"there is no such tenant"};
  if (at->second.paused == paused) return {};
  if (const auto taken = step(core::TenantPaused{id, paused}, now); !taken) return taken.error();
  at->second.paused = paused;
  restart_shares(id, now);
  log_.info(paused ? "tenant_paused" : "tenant_resumed", {{"tenant", at->second.is.name}});
  grants_.update_watch();
  return {};
}

// The core has sleep of each tenant alone: a parent sleeps by the sleep of all its parts.
Result<bool> Tenants::set_asleep(TenantId id, bool asleep, bool hold, Time now) {
  if (!tenants_.contains(id)) return Error{"there is no such tenant"};
  // What has been allocated without asking would wake it when it is noticed.
  for (const ClientId client : clients_below(tenants_, id)) {
    credit_.revoke(clients_.at(client), now);
  }
  bool changed = false;
  for (const TenantId one : tenants_below(tenants_, id)) {
    const TenantRecord& tenant = tenants_.at(one);
    // A hold is also for parts that come later. Without one they would come awake by their work.
    const bool only_parts = tenant.clients.empty() && !tenant.parts.empty();
    if (only_parts && asleep && !hold) continue;
    const auto sleep = core_.sleep_of(one);
    const bool same = asleep ? sleep && (sleep->hold || !hold) : !sleep;
    if (same) continue;
    if (const auto taken = step(core::TenantSleeps{one, asleep, hold}, now); !taken) {
      return taken.error();
    }
    changed = true;
    log_.info(asleep ? "tenant_put_to_sleep" : "tenant_woken",
              {{"tenant", tenant.is.name}, {"hold", hold ? 1 : 0}});
  }
  return changed;
}

// To the clients of all parts, too.
void Tenants::show_limits(TenantId id) {
  for (const TenantId one : tenants_below(tenants_, id)) {
    const core::Limits limits = tightest_limits(tenants_, one);
    auto message = wire::make<wire::Limits>();
    message.memory_limit = static_cast<std::uint64_t>(limits.memory ? limits.memory->count : 0);
    message.core_limit = limits.core_percent;
    message.priority = limits.priority;
    for (const ClientId client : tenants_.at(one).clients) {
      wire::Page::FromScheduler& page = clients_.at(client).page->scheduler;
      page.memory_limit = message.memory_limit;
      page.core_limit = static_cast<std::uint64_t>(message.core_limit);
      outbox_.send(client, message.header);
    }
    for (const auto& [gpu, record] : gpus_) accounts_.show_allocated(one, gpu);
  }
}

// --- shares ------------------------------------------------------------------------------------

Duration wanted(const TenantRecord& tenant, Time now) {
  return tenant.wanted + (tenant.wanting > 0 ? now - tenant.wanting_since : Duration::zero());
}

std::map<TenantId, Duration> Tenants::bills() const {
  std::map<TenantId, Duration> all;
  for (const core::ShareView& share : core_.snapshot().shares) all[share.tenant] += share.billed;
  return all;
}

void Tenants::sample(Time now) {
  sample_shares(now);
  forget_unused(now);
}

// Over some seconds, as in one of them there are few turns. Who had nothing to do in the last one,
// or came to or left a GPU, begins afresh: what it then has is not to look like less, or more.
void Tenants::sample_shares(Time now) {
  std::map<TenantId, Duration> used = bills();
  std::map<TenantId, Duration> debts;
  for (const core::ShareView& share : core_.snapshot().shares) {
    debts[share.tenant] = std::max(debts[share.tenant], share.debt);
  }
  for (auto& [id, tenant] : tenants_) {
    tenant.debt = debts[id];
    auto& samples = tenant.samples;
    const ShareSample last = samples.back();
    if (now - last.at < 500ms) continue;
    const ShareSample next{now, used[id], wanted(tenant, now), gpus_used(tenant)};
    const bool afresh = next.wanted == last.wanted || next.gpus != last.gpus;
    if (afresh) samples = {last};
    const auto more = static_cast<double>((next.used - samples.front().used).count());
    const auto passed = static_cast<double>((now - samples.front().at).count());
    // What a meter that lags says late belongs to the time before.
    const double mean = 100 * more / passed / std::max(last.gpus, next.gpus);
    tenant.share_percent = std::clamp(mean, 0.0, 100.0);
    if (afresh) samples.clear();
    samples.push_back(next);
    while (samples.size() > 1 && now - samples[1].at >= kShareOver) samples.pop_front();
  }
}

// Its limit holds on each of them.
int Tenants::gpus_used(const TenantRecord& tenant) const {
  std::set<GpuId> gpus;
  for (const ClientId id : clients_below(tenants_, tenant.id)) gpus.insert(clients_.at(id).gpu);
  return std::max(1, static_cast<int>(gpus.size()));
}

// In the whole tree, because the sum of the parts would not be their parent's share otherwise: some
// would be of the time before the change.
void Tenants::restart_shares(TenantId id, Time now) {
  grants_.read_all_meters(now);
  std::map<TenantId, Duration> used = bills();
  TenantId top = id;
  for_each_level(tenants_, id, [&](const TenantRecord& level) { top = level.id; });
  for (const TenantId one : tenants_below(tenants_, top)) {
    TenantRecord& tenant = tenants_.at(one);
    tenant.samples = {{now, used[one], wanted(tenant, now), gpus_used(tenant)}};
    tenant.share_percent.reset();  // until there is one
  }
}

}  // namespace nvshare::daemon
