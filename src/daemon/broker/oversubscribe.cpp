// Programs that are larger than their GPU and were started so (`nvshare run --oversubscribe-self`).
// Their memory is managed: the driver has on the GPU what they use, and the rest on the host. What
// does not fit is `beyond`: the core never hears of it, so it is asked for nowhere, and no plan
// depends on it. Tenants' limits hold for all of it.
//
// Which bytes are beyond nobody knows. A client says that all it was given is on the GPU, and
// `beyond` of that is not counted: when it has sent out so much, that much less is there.

#include <algorithm>

#include "daemon/broker/broker.h"

namespace nvshare::daemon {

// What the client can have there at most.
Bytes Broker::room_for(const ClientRecord& client) const {
  const GpuRecord& gpu = gpus_.at(client.gpu);
  Bytes room = core_.safe_limit(gpu.id).value_or(gpu.total);
  for (const ClientId id : gpu.clients) {
    if (id != client.id) room -= booked_pinned(clients_.at(id));
  }
  return std::max(Bytes{}, room);
}

// How much of what is more would be beyond the GPU.
Bytes Broker::beyond_with(const ClientRecord& client, Bytes more) const {
  if (!client.oversubscribes) return {};
  return std::clamp(client.booked + more - room_for(client), Bytes{}, more);
}

// When more is away than the core knows of, that must come back, too, and is told to with the next
// order: a program runs when nothing of its memory is away.
Bytes Broker::beyond_and_away(const ClientRecord& client) const {
  Bytes away = client.beyond + booked_pinned(client) - client.resident;
  for (const MoveOrder& order : client.orders) away -= order.beyond;
  return client.oversubscribes ? std::max(Bytes{}, away) : Bytes{};
}

// What of the bytes that have come in for an order counts: what was beyond comes first. `before` is
// what was counted as being on the GPU.
Bytes Broker::count_in(ClientRecord& client, MoveOrder& order, Bytes in, Bytes before) {
  Bytes came = std::max(Bytes{}, booked_resident(client) - before);
  if (const Bytes surplus = came - order.left; !order.out && surplus > Bytes{}) {
    client.beyond += surplus;  // less was beyond and away by then
    came = order.left;
  }
  order.beyond = std::max(Bytes{}, order.beyond - (in - came));
  return came;
}

// Only what can move is beyond, whatever the client says: the rest is on the GPU, or will be.
void Broker::fit_beyond(ClientRecord& client) {
  const Bytes could_move = client.allocated - client.awaited - client.pinned;
  client.beyond = std::clamp(client.beyond, Bytes{}, std::max(Bytes{}, could_move));
}

// So much that could move, and was on the GPU, is freed. What was absent was not beyond, for what
// is absent the core knows of.
void Broker::free_beyond(ClientRecord& client, Bytes freed) {
  client.beyond -= std::min(client.beyond, freed);
  fit_beyond(client);
}

// So much less of what the client has is asked to be on the GPU.
void Broker::push_beyond(ClientRecord& client, Bytes bytes, Time now) {
  const Bytes possible = std::min(bytes, client.booked - client.awaited - booked_pinned(client));
  if (possible.count <= 0) return;
  client.beyond += possible;
  book_change(client, now);
}

// There may be less room than there was: one more process, or memory of others that cannot move.
// Where there is more again it comes with the next allocation.
void Broker::fit_oversubscribed(Time now) {
  for (auto& [id, client] : clients_) {
    if (client.oversubscribes) push_beyond(client, client.booked - room_for(client), now);
  }
}

// What the core counts is not all that such a tenant has.
std::optional<Broker::Refusal> Broker::over_tenant_limit(const ClientRecord& client,
                                                         Bytes bytes) const {
  const TenantRecord& tenant = tenants_.at(client.tenant);
  if (!tenant.oversubscribes || !tenant.limits.memory) return std::nullopt;
  const Bytes left = *tenant.limits.memory - allocated_by(tenant, client.gpu);
  if (bytes <= left) return std::nullopt;
  return Refusal{std::max(Bytes{}, left), "more than the memory limit, with what is on the host"};
}

}  // namespace nvshare::daemon
