// The plan: which client comes in, which clients make room for it, and why the rest waits.

#include <algorithm>

#include "core/residency.h"

namespace nvshare::core {
namespace {

constexpr int kGapSearch = 8;    // clients of the queue that are tried for a gap
constexpr int kRoomSearch = 64;  // clients whose freed room is kept, at most
constexpr Bytes kNothing{0};
constexpr int kWorthComingBack = 4;  // quantum left, in times of the move out

}  // namespace

// Gives the client the pinned memory that it waits for. Its idle time begins anew, because the
// program will use the memory at once.
void Residency::give(Client& client, Time now, Decisions& out) {
  const Bytes bytes = std::exchange(client.memory.awaits, kNothing);
  client.memory.pinned += bytes;
  set_resident(client, client.memory.resident + bytes);
  idles(client, now);
  out.push_back({MemoryGiven{client.id, bytes}, {.why = Why::Fits, .bytes = bytes}});
}

// There is less room than when the pinned memory was promised. The promise is taken back, because
// the same request would be refused now.
void Residency::withdraw(Client& client, Time now, Decisions& out) {
  const Bytes most = std::max(kNothing, room_for(client));
  const Bytes bytes = std::exchange(client.memory.awaits, kNothing);
  out.push_back({MemoryWithdrawn{client.id, bytes},
                 {.why = Why::MemoryCannotFit, .bytes = client.memory.demand, .free = most}});
  pinned_ -= bytes;
  set_allocated(client, client.memory.demand - bytes, client.memory.beyond);
  client.memory.demand -= bytes;
  recount(client);
  stale_ = true;
  if (client.memory.complete()) return complete(client, now, out);
  if (!client.wants_work) dequeue(client);
  changed_.push_back(&client);
}

void Residency::admit(Client& client, Time protect_until, Why why, Time now, Decisions& out) {
  dequeue(client);
  unlist(client);
  client.queue.admitted = true;
  client.quantum.cap = protect_until;
  if (client.memory.awaits > kNothing) give(client, now, out);
  const Bytes absent = client.memory.absent();
  if (absent > kNothing) bring_in(client, absent, {.why = why, .bytes = absent}, now, out);
}

// A service with a lease does not wait for the quantum of what has a lower priority and no lease.
bool Residency::gives_way(const Client& client, const Client& head) {
  return head.lease == ClientLease::Held && client.lease != ClientLease::Held &&
         client.share->priority < head.share->priority;
}

// Clients that can make room: the last of the queue first, then the others by when they may be
// taken. `head` is not among them.
Residency::Victims Residency::find_victims(const Client* head, Bytes deficit) const {
  Victims found;
  Bytes places = host_places();
  const auto add = [&](Client* client) {
    const Bytes gives = leaveable(*client);
    const Bytes at_once = client->leaves_to_host() ? std::min(gives, places) : gives;
    if (client->leaves_to_host()) places -= at_once;
    found.clients.push_back(client);
    found.enough += gives + client->memory.rounding_of(gives);
    found.now += at_once + client->memory.rounding_of(at_once);
  };
  for (auto it = queued_resident_.rbegin(); it != queued_resident_.rend(); ++it) {
    if (found.enough >= deficit) return found;
    Client* client = std::get<2>(*it);
    if (client != head) add(client);
  }
  // It keeps its room for as long as it took to come in, so that memory does not only move.
  if (head != nullptr && head->lease == ClientLease::Held) {
    for (const auto& [at, seq, client] : evictable_) {
      if (found.enough >= deficit) return found;
      if (!gives_way(*client, *head)) continue;
      add(client);
      const Time came_in_for = client->quantum.since + move_time(client->quantum.bytes);
      found.due = std::max(found.due, std::min(at, came_in_for));
    }
  }
  for (const auto& [at, seq, client] : evictable_) {
    if (found.enough >= deficit) return found;
    if (client == head || (head != nullptr && gives_way(*client, *head))) continue;
    add(client);
    found.due = std::max(found.due, at);
  }
  return found;
}

void Residency::take(const Victims& victims, Bytes deficit, Why why, Time now, Decisions& out,
                     std::vector<Client*>& stop) {
  for (Client* client : victims.clients) {
    if (deficit <= kNothing) break;
    Bytes bytes = std::min(leaveable(*client), deficit);
    if (client->leaves_to_host()) bytes = std::min(bytes, host_places());
    if (bytes <= kNothing) continue;
    deficit -= bytes + client->memory.rounding_of(bytes);
    unlist(*client);
    // Where only the room is less, no other client's quantum begins. So the client comes back for
    // the rest of its own quantum, if that is worth the way out and back.
    const bool over = client->quantum.until - now < kWorthComingBack * move_time(bytes);
    if (why != Why::ReserveGrew || over) end_quantum(*client, now);
    if (client->run.phase == Phase::Off) {
      send_out(*client, bytes, {.why = why, .bytes = bytes}, now, out);
      list(*client);
      continue;
    }
    client->memory.planned = bytes;
    leaving_ += bytes;
    recount(*client);
    stop.push_back(client);
  }
}

// More processes or a measured overhead can leave less room than is in use. A client that alone has
// more than there is keeps its memory, because it would never come back.
void Residency::relieve_pressure(Time now, Decisions& out, std::vector<Client*>& stop) {
  const Bytes too_much = over();
  if (too_much <= kNothing) return;
  const Victims victims = find_victims(nullptr, too_much);
  if (victims.clients.size() == 1 && victims.clients[0]->memory.resident == resident_ + incoming_)
    return;
  take(victims, too_much, Why::ReserveGrew, now, out, stop);
}

// Room that clients have freed in their quantum. Programs may allocate it again in every step, and
// memory that came in there meanwhile would have to leave each time.
Bytes Residency::given_back_for_now(Time now) const {
  Bytes sum{};
  int looked_at = 0;
  for (auto it = evictable_.rbegin(); it != evictable_.rend() && looked_at < kRoomSearch; ++it) {
    const auto& [at, seq, client] = *it;
    if (at <= now) break;
    sum += client->quantum.peak - client->memory.demand;
    ++looked_at;
  }
  return sum;
}

// While the first in the queue waits for room, clients that fit the free room may run until then.
// The rest of the free room takes in memory of the first one ahead of time. That memory goes back
// when another client can run in its place, which is cheap because it was not touched yet.
void Residency::fill_gaps(Client& head, Time now, Decisions& out) {
  if (leaving_ == kNothing && rotation_at_) {
    int looked_at = 0;
    for (auto it = std::next(queue_.begin()); it != queue_.end() && looked_at < kGapSearch;) {
      Client& client = *std::get<2>(*it++);
      ++looked_at;
      if (&client == &head) continue;
      const Bytes need = client.memory.need_in_pages();
      if (client.memory.outgoing > kNothing || client.orders.rests_until || !can_ever_fit(client))
        continue;
      if (need > free()) {
        const bool moves = head.memory.incoming > kNothing || head.orders.rests_until;
        const Bytes could = std::min({head.memory.moved_in, leaveable(head), host_places()});
        const Bytes ahead = moves ? kNothing : could;
        if (need > free() + ahead) continue;
        unlist(head);
        send_out(head, need - free(), {.why = Why::FillsGap, .bytes = need - free()}, now, out);
        list(head);
        return;
      }
      admit(client, *rotation_at_, Why::Fits, now, out);
      if (client.memory.complete()) complete(client, now, out);
    }
  }
  const Bytes absent = head.memory.absent();
  const Bytes room = free() - given_back_for_now(now);
  const bool all = head.memory.need_in_pages() - head.memory.awaits <= room;
  const Bytes ahead = all ? absent : std::min(absent, room - head.memory.rounding_of(room));
  // Less than a chunk moves only when it is all that is missing.
  const bool moves = ahead > kNothing && (ahead == absent || ahead >= chunk());
  if (moves && head.memory.outgoing == kNothing && !head.orders.rests_until) {
    unlist(head);
    bring_in(head, ahead, {.why = Why::NextInLine, .bytes = ahead}, now, out);
    list(head);
  }
}

void Residency::plan(Time now, Decisions& out, std::vector<Client*>& stop) {
  look_for_stalled(now, out);
  wake_the_rested(now);
  doubt_shortfalls(now);
  // The last plan still holds unless something has changed or is due.
  if (!stale_ && (!rotation_at_ || now < *rotation_at_)) return;
  stale_ = false;
  rotation_at_.reset();
  waits_for_host_ = false;
  waits_for_places_ = false;
  send_sleepers_out(now, out);
  relieve_pressure(now, out, stop);
  for (auto it = queue_.begin(); it != queue_.end();) {
    Client& head = *std::get<2>(*it++);
    if (head.memory.awaits > kNothing && head.memory.demand > room_for(head))
      withdraw(head, now, out);
    if (!head.queue.joined) continue;
    waits_for_places_ |= !can_fit(head);
    if (!can_fit(head) || head.orders.rests_until)
      continue;                                  // explain() says so; blocks no other client
    if (head.memory.outgoing > kNothing) break;  // still being moved out
    const Bytes need = head.memory.need_in_pages();
    if (need <= free()) {
      admit(head, Time::max(), Why::Fits, now, out);
      if (head.memory.complete()) complete(head, now, out);
      continue;
    }
    // free() is below zero where a client alone has more than there is.
    const Bytes deficit = need - free() - leaving_;
    if (deficit > kNothing) {
      const Victims victims = find_victims(&head, deficit);
      if (victims.enough < deficit) {
        // A client is still stopping or moving. Its report brings about the next plan.
      } else if (victims.due <= now) {
        rotation_at_ = wait_for_host(head, victims, deficit, now);
        waits_for_host_ = rotation_at_.has_value();
        // Where host memory is full, chunks leave and come in lockstep: each chunk that comes in
        // for the first client gives its place to the next chunk that leaves.
        if (!rotation_at_) take(victims, deficit, Why::Rotation, now, out, stop);
        waits_for_places_ |= victims.now < deficit;
      } else {
        rotation_at_ = victims.due;
      }
    }
    fill_gaps(head, now, out);
    break;
  }
  bring_woken_back(now, out);
}

std::optional<Time> Residency::next_wakeup() const {
  std::optional<Time> next = rotation_at_;
  for (const auto* waiting : {&moving_, &resting_, &short_}) {
    if (waiting->empty()) continue;
    bring_forward(next, std::get<0>(*waiting->begin()));
  }
  return next;
}

Reason Residency::explain(const Client& client, Time now) const {
  const Bytes missing = client.memory.demand - client.memory.resident;
  if (!can_ever_fit(client)) {
    return {.why = Why::MemoryCannotFit,
            .bytes = client.memory.demand,
            .free = std::max(kNothing, safe_limit() - stuck_beside(client))};
  }
  if (!can_fit(client)) {
    const Bytes most = safe_limit() - stuck_beside(client) - rooted_beside(client);
    return {.why = Why::OthersCannotLeave,
            .bytes = client.memory.demand,
            .free = std::max(kNothing, most)};
  }
  if (client.orders.rests_until) {
    return {.why = Why::MoveFailed,
            .wait = std::max(Duration::zero(), *client.orders.rests_until - now),
            .bytes = missing};
  }
  if (!client.queue.joined) return {.why = Why::MemoryComing, .bytes = missing};
  if (!rotation_at_) {
    return {.why = leaving_ + incoming_ > kNothing ? Why::RoomIsMade : Why::WaitsForHolders,
            .bytes = missing,
            .free = std::max(kNothing, free())};
  }
  return {.why = waits_for_host_ ? Why::WaitsForHostMemory : Why::WaitsForMemory,
          .wait = std::max(Duration::zero(), *rotation_at_ - now),
          .bytes = missing,
          .free = std::max(kNothing, free())};
}

}  // namespace nvshare::core
