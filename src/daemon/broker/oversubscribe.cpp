// Programs that are larger than their GPU and were started so (`nvshare run --oversubscribe-self`).
// Their memory is managed: the driver has on the GPU what they use, and the rest on the host. What
// does not fit is beyond the GPU (core/memory_account.h). Tenants' limits hold for all of it.

#include <algorithm>

#include "daemon/broker/broker.h"

namespace nvshare::daemon {

// What the client can have there at most.
Bytes Broker::room_for(const ClientRecord& client) const {
  const GpuRecord& gpu = gpus_.at(client.gpu);
  Bytes room = core_.safe_limit(gpu.id).value_or(gpu.total);
  for (const ClientId id : gpu.clients) {
    if (id != client.id) room -= clients_.at(id).memory.counted_pinned();
  }
  return std::max(Bytes{}, room);
}

Bytes Broker::beyond_with(const ClientRecord& client, Bytes more) const {
  return client.oversubscribes ? client.memory.beyond_with(more, room_for(client)) : Bytes{};
}

// There may be less room than there was: one more process, or memory of others that cannot move.
// Where there is more again it comes with the next allocation.
void Broker::fit_oversubscribed(Time now) {
  for (auto& [id, client] : clients_) {
    if (!client.oversubscribes) continue;
    const Bytes too_much = client.memory.counted() - room_for(client);
    if (client.memory.push_beyond(too_much) > Bytes{}) book(client, now);
  }
}

}  // namespace nvshare::daemon
