#include "daemon/broker/accounts.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace nvshare::daemon {

void Accounts::book(ClientRecord& client, Time now, bool from_before) {
  const core::ClientView view = *core_.view(client.id);
  const core::MemoryAccount& memory = client.memory;
  const bool more = from_before || memory.counted() > view.allocated;
  const auto taken = more ? step(memory.found(client.id, from_before), now)
                          : step(memory.changed(client.id, view.resident), now);
  if (taken) return;
  log_.error("memory_not_booked", {{"client", client.id.value},
                                   {"bytes", memory.counted().count},
                                   {"reason", taken.error().message}});
}

// --- what tenants see --------------------------------------------------------------------------

Accounts::Sums Accounts::sums_below(TenantId tenant, GpuId gpu) const {
  Sums sums;
  const std::vector<TenantId> all = tenants_below(tenants_, tenant);
  for (auto at = all.rbegin(); at != all.rend(); ++at) {  // parts before their parents
    const TenantRecord& one = tenants_.at(*at);
    Bytes& sum = sums[*at];
    for (const ClientId id : one.clients) {
      const ClientRecord& client = clients_.at(id);
      if (client.gpu == gpu) sum += client.memory.allocated();
    }
    for (const TenantId part : one.parts) sum += sums.at(part);
  }
  return sums;
}

Bytes Accounts::allocated_by(const TenantRecord& tenant, GpuId gpu) const {
  return sums_below(tenant.id, gpu).at(tenant.id);
}

std::optional<TenantId> Accounts::binding_level(TenantId tenant, GpuId gpu) const {
  std::optional<TenantId> binding;
  Bytes least{};
  for_each_level(tenants_, tenant, [&](const TenantRecord& level) {
    if (!level.limits.memory) return;
    const Bytes room = *level.limits.memory - allocated_by(level, gpu);
    if (binding && room >= least) return;
    binding = level.id;
    least = room;
  });
  return binding;
}

Accounts::Shown Accounts::shown_to(TenantId tenant, const Sums& sums) const {
  Shown shown{{}, sums.at(tenant)};
  std::optional<Bytes> room;
  for_each_level(tenants_, tenant, [&](const TenantRecord& level) {
    if (!level.limits.memory) return;
    const Bytes limit = *level.limits.memory;
    shown.limit = std::min(shown.limit.value_or(limit), limit);
    room = std::min(room.value_or(limit), limit - sums.at(level.id));
  });
  if (shown.limit) shown.allocated = *shown.limit - *room;
  return shown;
}

Accounts::Shown Accounts::shown_to(TenantId tenant, GpuId gpu) const {
  return shown_to(tenant, sums_below(limited_level(tenants_, tenant), gpu));
}

// Processes of one tenant share their own limit: each sees what all of them have of it.
void Accounts::show_own_allocated(const TenantRecord& tenant, GpuId gpu) {
  const auto counts = [&](const ClientRecord& client) {
    return client.gpu == gpu && client.has_own_limit;
  };
  Bytes sum{};
  for (const ClientId id : tenant.clients) {
    const ClientRecord& client = clients_.at(id);
    if (counts(client)) sum += client.memory.allocated();
  }
  for (const ClientId id : tenant.clients) {
    const ClientRecord& client = clients_.at(id);
    if (!counts(client)) continue;
    client.page->scheduler.own_allocated = static_cast<std::uint64_t>(sum.count);
  }
}

void Accounts::show_allocated(TenantId id, GpuId gpu) {
  show_own_allocated(tenants_.at(id), gpu);
  const TenantId from = limited_level(tenants_, id);
  const Sums sums = sums_below(from, gpu);
  for (const auto& [one, sum] : sums) {
    const Shown shown = shown_to(one, sums);
    for (const ClientId client_id : tenants_.at(one).clients) {
      const ClientRecord& client = clients_.at(client_id);
      if (client.gpu != gpu) continue;
      client.page->scheduler.tenant_allocated = static_cast<std::uint64_t>(shown.allocated.count);
    }
  }
}

void Accounts::show_rooms() {
  if (!std::exchange(due_.rooms, false)) return;
  for (const auto& [id, client] : clients_) {
    const core::MemoryRoom room = *core_.memory_room(id);
    const bool to_host = client.backend == wire::Backend::Swap;
    const Bytes more = to_host ? std::min(room.gpu, room.host) : room.gpu;
    const Bytes all = std::max(Bytes{1}, client.memory.counted() + more);
    client.page->scheduler.room = static_cast<std::uint64_t>(all.count);
  }
}

// --- claims ------------------------------------------------------------------------------------

void Accounts::take_claim(ClientRecord& client, Time now) {
  const core::MemoryAccount& memory = client.memory;
  if (memory.allocated() == Bytes{}) return;
  GpuRecord& gpu = gpus_.at(client.gpu);
  const TenantRecord& tenant = tenants_.at(client.tenant);
  gpu.doubted.insert(client.id);
  believe(client, now);
  if (core_.view(client.id)->allocated != memory.counted()) book(client, now, true);
  if (!memory.is_doubted()) gpu.doubted.erase(client.id);
  if (memory.doubted() > Bytes{}) {
    log_.warn("memory_doubted", {{"client", client.id.value},
                                 {"tenant", tenant.is.name},
                                 {"resident", memory.resident().count},
                                 {"counted", memory.counted_resident().count}});
  }
  const Bytes left = core_.memory_room(client.id)->limit;
  if (left >= Bytes{}) return;
  log_.warn("client_over_limit", {{"client", client.id.value},
                                  {"tenant", tenant.is.name},
                                  {"allocated", memory.allocated().count},
                                  {"over", -left.count}});
}

// A client that finds no room finds in its place what another one claims to have there: what was
// found is less by what is believed now. The core does the same with what was measured.
void Accounts::believe(ClientRecord& client, Time now) {
  const Bytes before = client.memory.counted_resident();
  if (!client.memory.believe(core_.claim_room(client.id))) return;
  GpuRecord& gpu = gpus_.at(client.gpu);
  const Bytes brought = client.memory.counted_resident() - before;
  gpu.overhead_found = std::max(Bytes{}, gpu.overhead_found - brought);
  if (!client.memory.is_doubted()) gpu.doubted.erase(client.id);
  book(client, now, true);
}

void Accounts::believe_more(Time now) {
  for (auto& [id, gpu] : gpus_) {
    const std::set<ClientId> doubted = gpu.doubted;
    for (const ClientId client : doubted) believe(clients_.at(client), now);
  }
}

// --- larger than the GPU -----------------------------------------------------------------------
//
// Such memory is managed: the driver has on the GPU what the program uses, and the rest on the
// host. What does not fit is beyond the GPU (core/memory_account.h). Limits hold for all of it.

Bytes Accounts::beyond_with(const ClientRecord& client, Bytes more) const {
  if (!client.oversubscribes) return {};
  return std::clamp(more - core_.memory_room(client.id)->gpu, Bytes{}, more);
}

void Accounts::fit_oversubscribed(Time now) {
  for (auto& [id, client] : clients_) {
    if (!client.oversubscribes) continue;
    const Bytes too_much = Bytes{} - core_.memory_room(id)->gpu;
    if (client.memory.push_beyond(too_much) > Bytes{}) book(client, now);
  }
}

}  // namespace nvshare::daemon
