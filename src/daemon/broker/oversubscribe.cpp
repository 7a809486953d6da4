// Programs that are larger than their GPU and were started so (`nvshare run --oversubscribe-self`).
// Their memory is managed: the driver has on the GPU what they use, and the rest on the host. What
// does not fit is beyond the GPU (core/memory_account.h). Tenants' limits hold for all of it.

#include <algorithm>

#include "daemon/broker/broker.h"

namespace nvshare::daemon {

// How much of `more` would be beyond.
Bytes Broker::beyond_with(const ClientRecord& client, Bytes more) const {
  if (!client.oversubscribes) return {};
  return std::clamp(more - core_.memory_room(client.id)->gpu, Bytes{}, more);
}

// There may be less room than there was: one more process, or memory of others that cannot move.
// Where there is more again it comes with the next allocation.
void Broker::fit_oversubscribed(Time now) {
  for (auto& [id, client] : clients_) {
    if (!client.oversubscribes) continue;
    const Bytes too_much = Bytes{} - core_.memory_room(id)->gpu;
    if (client.memory.push_beyond(too_much) > Bytes{}) book(client, now);
  }
}

}  // namespace nvshare::daemon
