#include "daemon/lease/lender.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "daemon/broker/tree.h"

namespace nvshare::daemon {

// A client has a new number each time, so that the last one and their count tell.
bool Lender::clients_changed() {
  const auto& clients = broker_.clients();
  const std::pair seen{clients.size(), clients.empty() ? ClientId{} : clients.rbegin()->first};
  return std::exchange(clients_seen_, seen) != seen;
}

bool Lender::look_above() {
  std::erase_if(above_, [&](const auto& one) { return !broker_.clients().contains(one.first); });
  int looks = 0;
  for (const auto& [id, client] : broker_.clients()) {
    if (above_.contains(id)) continue;
    if (++looks > kLooksPerTurn) return false;
    std::vector<ProcessKey>& keys = above_[id];
    (void)processes_.run_above(client.pid, [&](const ProcessKey& key) {
      keys.push_back(key);
      return std::optional<TenantId>{};
    });
  }
  return true;
}

const TenantRecord& Lender::top_of(TenantId tenant) const {
  const TenantRecord* top = nullptr;
  for_each_level(broker_.tenants(), tenant, [&](const TenantRecord& level) { top = &level; });
  return *top;
}

// Users do not go before one another, as long as nobody has allowed it: with a lease a tenant goes
// no higher than the tenant at the top may go by itself, and 0. Root's own tenants may.
int Lender::most_lent(TenantId tenant) const {
  if (is_private_) return core::kHighestPriority;
  const TenantRecord& top = top_of(tenant);
  const bool root = top.is.kind == TenantKind::User && top.is.uid == 0;
  return root ? core::kHighestPriority : std::max(0, top.limits.priority);
}

// A user's shell may have started another user's program. A container's programs run as other
// numbers of its user.
bool Lender::is_of(const ClientRecord& client, const LeaseHolder& holder) const {
  const auto keys = above_.find(client.id);
  if (keys == above_.end()) return false;
  const bool below = std::ranges::any_of(keys->second, [&](const ProcessKey& key) {
    return key == holder.process && (holder.with_children || key.pid == client.pid);
  });
  if (!below) return false;
  const std::uint32_t uid = holder.uid.value_or(0);
  if (is_private_ || uid == 0 || client.uid == uid) return true;
  const TenantName& top = top_of(client.tenant).is;
  return top.kind == TenantKind::User && top.uid == uid;
}

bool Lender::any_program(const LeaseHolder& holder, GpuId gpu) {
  const bool all = look_above();
  return !all || std::ranges::any_of(broker_.clients(), [&](const auto& one) {
    return one.second.gpu == gpu && is_of(one.second, holder);
  });
}

bool Lender::memory_is_there(const LeaseHolder& holder, GpuId gpu, Time now) {
  if (!look_above()) return false;
  Bytes sum{};
  bool all = true;
  for (const auto& [id, client] : broker_.clients()) {
    if (client.gpu != gpu || !is_of(client, holder)) continue;
    sum += client.memory.counted();
    all &= is_complete(id) || is_in_vain(id, now);
  }
  // Programs that do not fit together take turns, with a lease as without one.
  return all || sum > broker_.core().safe_limit(gpu).value_or(Bytes{});
}

// The client's memory will not come in, however long a request waits.
bool Lender::is_in_vain(ClientId client, Time now) const {
  const auto reason = broker_.core().reason(client, now);
  return reason &&
         (reason->why == core::Why::Paused || reason->why == core::Why::HeldAsleep ||
          reason->why == core::Why::MemoryCannotFit || reason->why == core::Why::OthersCannotLeave);
}

bool Lender::is_complete(ClientId client) const {
  const auto view = broker_.core().view(client);
  return view && view->resident == view->allocated && view->outgoing == Bytes{};
}

// Where a program is of several holders, a lease that is held counts.
Lender::Wanted Lender::wanted(const Leases& leases, Time now) const {
  Wanted all;
  const auto each_of = [&](const LeaseHolder& holder, GpuId gpu, auto&& call) {
    for (const auto& [id, client] : broker_.clients()) {
      if (client.gpu == gpu && is_of(client, holder)) call(client);
    }
  };
  const auto mark = [&](const LateHolder& late, core::ClientLease as) {
    each_of(late.holder, late.gpu, [&](const auto& client) { all.leased[client.id] = as; });
  };
  for (const LateHolder& one : leases.overdue()) {
    const auto gpu = leases.arbiter().gpu(one.gpu, now);
    const bool others = gpu && gpu->active + gpu->waiting > 0;
    // Without scheduling everybody runs.
    if (others && broker_.scheduling()) mark(one, core::ClientLease::Over);
  }
  for (const LateHolder& one : leases.called()) mark(one, core::ClientLease::Held);
  for (const core::LeaseView& lease : leases.arbiter().active()) {
    const auto holder = leases.holder_of(lease.lease);
    if (!holder) continue;
    each_of(*holder, lease.gpu, [&](const ClientRecord& client) {
      all.leased[client.id] = core::ClientLease::Held;
      const int priority =
          std::min(core::tenant_priority(lease.priority), most_lent(client.tenant));
      const auto [at, is_new] = all.lent.try_emplace({client.tenant, client.gpu}, priority);
      if (!is_new) at->second = std::max(at->second, priority);
    });
  }
  return all;
}

void Lender::lend(const std::map<Place, int>& next, Time now) {
  for (const auto& [place, priority] : lent_) {
    if (next.contains(place) || !broker_.tenants().contains(place.first)) continue;
    (void)broker_.lend_priority(place.first, place.second, std::nullopt, now);
  }
  for (const auto& [place, priority] : next) {
    const auto before = lent_.find(place);
    if (before != lent_.end() && before->second == priority) continue;
    (void)broker_.lend_priority(place.first, place.second, priority, now);
  }
  lent_ = next;
}

void Lender::tell(const std::map<ClientId, core::ClientLease>& next, Time now) {
  for (const auto& [client, as] : leased_) {
    if (!next.contains(client) && broker_.clients().contains(client)) {
      broker_.set_lease(client, core::ClientLease::None, now);
    }
  }
  // First what must stop, then what is there: memory that comes in would take its room otherwise.
  std::vector<std::tuple<int, ClientId, core::ClientLease>> changes;
  for (const auto& [client, as] : next) {
    const auto before = leased_.find(client);
    if (before != leased_.end() && before->second == as) continue;
    const int rank = as == core::ClientLease::Over ? 0 : is_complete(client) ? 1 : 2;
    changes.emplace_back(rank, client, as);
  }
  std::ranges::sort(changes);
  for (const auto& [rank, client, as] : changes) broker_.set_lease(client, as, now);
  leased_ = next;
}

std::optional<Time> Lender::end_of_turn(const Leases& leases, Time now) {
  // Others' requests decide how long the holder of an overdue lease stays off the GPU.
  const bool late = !leases.overdue().empty();
  const bool others = late && changes_seen_ != leases.changes();
  const bool on = broker_.scheduling();
  const bool switched = std::exchange(scheduling_seen_, on) != on;
  changes_seen_ = leases.changes();
  if (!clients_changed() && !due_ && !others && !switched) return std::nullopt;
  due_ = false;
  const bool used =
      !lent_.empty() || !leased_.empty() || leases.any_owned() || late || !leases.called().empty();
  if (!used) return std::nullopt;
  const bool all = look_above();
  const Wanted next = wanted(leases, now);
  lend(next.lent, now);  // first: memory comes in by priority
  tell(next.leased, now);
  due_ = !all;
  return all ? std::nullopt : std::optional(now + 1ms);
}

}  // namespace nvshare::daemon
