#include "daemon/lease/lender.h"

#include <algorithm>

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

// Users do not go before one another, as long as nobody has allowed it: with a lease a tenant goes
// no higher than the tenant at the top may go by itself, and 0. Root's own tenants may.
int Lender::most_lent(TenantId tenant) const {
  if (is_private_) return core::kHighestPriority;
  const TenantRecord* top = nullptr;
  for_each_level(broker_.tenants(), tenant, [&](const TenantRecord& level) { top = &level; });
  const bool root = top->is.kind == TenantKind::User && top->is.uid == 0;
  return root ? core::kHighestPriority : std::max(0, top->limits.priority);
}

std::map<Lender::Place, int> Lender::wanted(const Leases& leases) const {
  using Holder = std::pair<ProcessKey, GpuId>;
  std::map<Holder, int> owners;   // what is lent to the process itself
  std::map<Holder, int> parents;  // and to those below it
  const auto raise = [](std::map<Holder, int>& to, const Holder& holder, int priority) {
    const auto [at, is_new] = to.try_emplace(holder, priority);
    if (!is_new) at->second = std::max(at->second, priority);
  };
  for (const core::LeaseView& lease : leases.arbiter().active()) {
    const auto holder = leases.holder_of(lease.lease);
    if (!holder) continue;
    const int priority = core::tenant_priority(lease.priority);
    raise(owners, {holder->process, lease.gpu}, priority);
    if (holder->with_children) raise(parents, {holder->process, lease.gpu}, priority);
  }
  std::map<Place, int> wanted;
  if (owners.empty()) return wanted;
  for (const auto& [id, client] : broker_.clients()) {
    const auto keys = above_.find(id);
    if (keys == above_.end()) continue;
    for (const ProcessKey& key : keys->second) {
      const auto& from = key.pid == client.pid ? owners : parents;
      const auto holder = from.find({key, client.gpu});
      if (holder == from.end()) continue;
      const int priority = std::min(holder->second, most_lent(client.tenant));
      const auto [at, is_new] = wanted.try_emplace({client.tenant, client.gpu}, priority);
      if (!is_new) at->second = std::max(at->second, priority);
    }
  }
  return wanted;
}

bool Lender::is_of(const ClientRecord& client, const LeaseHolder& holder) const {
  const auto keys = above_.find(client.id);
  return keys != above_.end() && std::ranges::any_of(keys->second, [&](const ProcessKey& key) {
           return key == holder.process && (holder.with_children || key.pid == client.pid);
         });
}

bool Lender::any_program(const LeaseHolder& holder, GpuId gpu) {
  const bool all = look_above();
  return !all || std::ranges::any_of(broker_.clients(), [&](const auto& one) {
    return one.second.gpu == gpu && is_of(one.second, holder);
  });
}

bool Lender::memory_is_there(const LeaseHolder& holder, GpuId gpu) {
  return look_above() && std::ranges::all_of(broker_.clients(), [&](const auto& one) {
           const ClientRecord& client = one.second;
           if (client.gpu != gpu || !is_of(client, holder)) return true;
           const auto view = broker_.core().view(client.id);
           return view && view->resident == view->allocated && view->outgoing == Bytes{};
         });
}

// Where a program is of several holders, a lease that is held counts.
std::map<ClientId, core::ClientLease> Lender::leased(const Leases& leases) const {
  std::map<ClientId, core::ClientLease> all;
  const auto mark = [&](const LeaseHolder& holder, GpuId gpu, core::ClientLease as) {
    for (const auto& [id, client] : broker_.clients()) {
      if (client.gpu == gpu && is_of(client, holder)) all.insert_or_assign(id, as);
    }
  };
  for (const OverdueLease& one : leases.overdue()) {
    const auto gpu = leases.arbiter().gpu(one.gpu, Time{});
    const bool others = gpu && gpu->active + gpu->waiting > 0;
    if (others) mark(one.holder, one.gpu, core::ClientLease::Over);
  }
  for (const core::LeaseView& lease : leases.arbiter().active()) {
    const auto holder = leases.holder_of(lease.lease);
    if (holder) mark(*holder, lease.gpu, core::ClientLease::Held);
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
  for (const auto& [client, as] : next) {
    const auto before = leased_.find(client);
    if (before == leased_.end() || before->second != as) broker_.set_lease(client, as, now);
  }
  leased_ = next;
}

std::optional<Time> Lender::end_of_turn(const Leases& leases, Time now) {
  // Others' requests decide how long the holder of an overdue lease stays off the GPU.
  const bool others = !leases.overdue().empty() && changes_seen_ != leases.changes();
  changes_seen_ = leases.changes();
  if (!clients_changed() && !due_ && !others) return std::nullopt;
  due_ = false;
  const bool used =
      !lent_.empty() || !leased_.empty() || leases.any_owned() || !leases.overdue().empty();
  if (!used) return std::nullopt;
  const bool all = look_above();
  lend(wanted(leases), now);  // first: memory comes in by priority
  tell(leased(leases), now);
  due_ = !all;
  return all ? std::nullopt : std::optional(now + 1ms);
}

}  // namespace nvshare::daemon
