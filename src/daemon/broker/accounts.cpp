#include "daemon/broker/accounts.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

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

Bytes Accounts::allocated_by(const TenantRecord& tenant, GpuId gpu) const {
  Bytes sum{};
  for (const ClientId id : tenant.clients) {
    const ClientRecord& client = clients_.at(id);
    if (client.gpu == gpu) sum += client.memory.allocated();
  }
  return sum;
}

void Accounts::show_allocated(TenantId id, GpuId gpu) {
  const TenantRecord& tenant = tenants_.at(id);
  const Bytes sum = allocated_by(tenant, gpu);
  for (const ClientId client_id : tenant.clients) {
    const ClientRecord& client = clients_.at(client_id);
    if (client.gpu != gpu) continue;
    client.page->scheduler.tenant_allocated = static_cast<std::uint64_t>(sum.count);
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
