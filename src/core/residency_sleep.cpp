// Memory of tenants that sleep. It leaves although no client needs the room, and comes back
// unasked.

#include <algorithm>

#include "core/residency.h"

namespace nvshare::core {
namespace {

constexpr Bytes kNothing{0};

}  // namespace

// A client that falls asleep gives up its room and its place in the queue. Otherwise others would
// wait until its quantum is over.
void Residency::sleep_changed(Client& client, Time now) {
  unlist(client);
  const bool asleep = client.tenant->sleep.has_value();
  if (asleep) {
    end_quantum(client, now);
    client.quantum.cap.reset();
    client.queue.admitted = false;
    set_undone(client, kNothing);
    woken_.erase({client.seq, &client});
  } else {
    idles(client, now);
    woken_.emplace(client.seq, &client);
  }
  stale_ = true;
  list(client);
}

// A client that still has a grant is listed when it has given the grant back.
void Residency::list_sleeper(Client& client) {
  if (client.run.phase != Phase::Off) return;
  client.eviction.listed = true;
  sleepers_.emplace(client.seq, &client);
  stale_ = true;
}

// Bytes that a sleeper is told to send out. The sleeper waits for host memory that is being made,
// so that it leaves at the speed of the link. Two chunks of places stay for clients that pass each
// other.
Bytes Residency::sends_out_asleep(const Client& client) const {
  const Bytes could = leaveable(client);
  if (!client.leaves_to_host() || !host_.most()) return could;
  const Bytes used =
      client.memory.absent() + client.memory.incoming - client.host.fresh + client.memory.outgoing;
  const Bytes ready = *client.host.ready - used;
  if (could > ready && client.host.coming > kNothing) return kNothing;
  const Bytes bytes = std::min(could, host_places() - chunk());
  return could <= ready ? bytes : std::min(bytes, ready - rounding());
}

Bytes Residency::could_leave(const Client& client) const {
  const Bytes could = leaveable(client);
  if (!client.leaves_to_host() || !host_.most()) return could;
  if (client.host.coming == kNothing) return std::max(kNothing, sends_out_asleep(client));
  return std::clamp(host_places() - chunk(), kNothing, could);
}

// Each sleeper is told to send out all memory that has a place on the host. The rest is ordered
// when host memory comes, because list() then puts the client here again.
void Residency::send_sleepers_out(Time now, Decisions& out) {
  const ClientOrder sleepers = sleepers_;
  for (const auto& [seq, client] : sleepers) {
    unlist(*client);
    const Bytes bytes = sends_out_asleep(*client);
    waits_for_places_ |= bytes < leaveable(*client);
    if (bytes > kNothing)
      send_out(*client, bytes, {.why = Why::PutToSleep, .bytes = bytes}, now, out);
    list(*client);
  }
}

// One try for each woken client, when the queue is empty and all memory that it lacks fits. So no
// client loses anything. A client with work gets its memory by the queue. A client with a grant is
// left out, because it cannot move memory now.
void Residency::bring_woken_back(Time now, Decisions& out) {
  if (woken_.empty() || !queue_.empty()) return;
  const ClientOrder woken = woken_;
  for (const auto& [seq, client] : woken) {
    if (client->memory.outgoing > kNothing || client->orders.rests_until || client->orders.stalled)
      continue;
    const Bytes absent = client->memory.absent();
    const bool idle = client->run.phase == Phase::Off && !client->waits_for_memory();
    const bool comes = idle && absent > kNothing && client->memory.incoming == kNothing;
    if (comes && absent > free() - given_back_for_now(now)) continue;
    woken_.erase({seq, client});
    if (comes) admit(*client, Time::max(), Why::Woken, now, out);
  }
}

}  // namespace nvshare::core
