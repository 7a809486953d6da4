// The host memory that clients leave to: how much of it they have, and what waits for it.

#include <algorithm>

#include "base/chunk.h"
#include "core/residency.h"

namespace nvshare::core {
namespace {

constexpr Bytes kNothing{0};

// Who would wait with an idle GPU for host memory that is being made may as well let others run
// meanwhile: for as long as it should take, and not for ever.
constexpr Bytes kSlowestHost = mib(512);  // in a second
constexpr Duration kHostPatience = 30s;

// Who has failed for long fails a little longer: an order in vain stops a program for seconds.
constexpr Duration kFirstShortfall = 100ms;
constexpr Duration kLongestShortfall = 5min;

}  // namespace

// --- the pool ----------------------------------------------------------------------------------

Bytes HostPool::left_for(const Residency& gpu) const {
  if (!most_) return kMostMemory;
  Bytes left = *most_;
  for (const Residency* other : gpus_) {
    if (other != &gpu) left -= other->host_claim();
  }
  return left;
}

Bytes Residency::chunk() const {
  return Bytes{static_cast<std::int64_t>(largest_chunk(static_cast<std::uint64_t>(total_.count)))};
}

Bytes Residency::shortage() const {
  return std::max(kNothing, sums_.demand - safe_limit());
}

// Two chunks more than the shortage: one leaves while another one comes in, and an order may move a
// chunk more than it says. With less, two clients could wait for each other's places for ever.
Bytes Residency::host_need(Bytes more_demand, Bytes more_movable) const {
  const Bytes over = sums_.demand + more_demand - safe_limit();
  if (over <= kNothing) return kNothing;
  return std::min(sums_.host_movable + more_movable, over + chunk() * 2);
}

bool Residency::host_fits(const Client& client, Bytes growth, bool movable) const {
  if (!host_.most()) return true;
  const Bytes leaves = movable && client.leaves_to_host() ? growth : kNothing;
  return host_need(growth, leaves) <= host_left();
}

Bytes Residency::host_room(const Client& client) const {
  if (!host_.most()) return kMostMemory;
  const Bytes left = host_left();
  const Bytes fits = safe_limit() - sums_.demand;
  if (!client.leaves_to_host() && sums_.host_movable <= left) return kMostMemory;
  const Bytes all_leave = client.leaves_to_host() ? left - sums_.host_movable : kNothing;
  return std::max({kNothing, fits, fits + left - chunk() * 2, all_leave});
}

HostNeed Residency::host_need_of(const Client& client) const {
  if (!client.leaves_to_host()) return {};
  HostNeed need{.now = client.counted.host_used};
  const bool alone = processes_ < 2 || sums_.demand <= fits_easily(safe_limit());
  need.ahead = alone ? kNothing : std::min(client.counted.host_movable, shortage() + chunk());
  if (client.tenant->sleep) need.ahead = client.counted.host_movable;  // it leaves as a whole
  need.ahead = std::max(need.now, need.ahead);
  return need;
}

// Places that an order to send out can count on, beside what it may move too much. An order of one
// byte moves one chunk.
Bytes Residency::host_places() const {
  if (!host_.most()) return kMostMemory;
  return std::max(kNothing, host_left() - sums_.host_used - rounding());
}

// --- what can leave ----------------------------------------------------------------------------

// What has come back and was not touched yet still has its place.
Bytes Residency::most_away(const Client& client) const {
  Bytes most = kMostMemory;
  if (client.leaves_to_host() && !host_.most()) {
    most = std::max(*client.host.ready + client.host.coming,
                    client.memory.absent() + client.memory.incoming + client.memory.moved_in);
  }
  if (!client.host.shortfall || !client.host.shortfall->until) return most;
  const Bytes more = client.host.ready.value_or(kNothing) - client.host.shortfall->host_ready;
  return std::min(most, client.host.shortfall->away + std::max(kNothing, more));
}

Bytes Residency::leaveable(const Client& client) const {
  const Bytes could = most_away(client) - client.memory.absent() - client.memory.outgoing;
  return std::max(kNothing, std::min(client.memory.movable(), could));
}

void Residency::count(Client& client, const Counted& as) {
  sums_.demand += as.demand - client.counted.demand;
  sums_.rooted += as.rooted - client.counted.rooted;
  sums_.host_used += as.host_used - client.counted.host_used;
  sums_.host_movable += as.host_movable - client.counted.host_movable;
  client.counted = as;
}

// Brings the client's part of the sums up to date, after anything about its memory has changed.
void Residency::recount(Client& client) {
  Counted as{.demand = client.memory.demand + client.memory.rounding};
  // What a client holds and has no place for will not move for anybody. (What does not move at all
  // is counted as that.)
  const Bytes stays = client.memory.demand - client.memory.awaits - most_away(client);
  const Bytes holds =
      std::min(client.memory.resident + client.memory.incoming, stays) - client.memory.pinned;
  as.rooted = client.orders.stalled ? kNothing : std::max(kNothing, holds);
  if (client.leaves_to_host()) {
    as.host_movable = std::max(kNothing, client.memory.demand - client.memory.stuck());
    client.host.fresh =
        std::min(client.host.fresh, client.memory.absent() + client.memory.incoming);
    const Bytes leaves = client.memory.outgoing + client.memory.planned;
    as.host_used = client.memory.absent() + client.memory.incoming - client.host.fresh + leaves;
    const Bytes stays_for_now = client.memory.resident - client.memory.pinned - leaves;
    if (leaves > kNothing) as.host_used += std::clamp(stays_for_now, kNothing, rounding());
  }
  stale_ |= as.rooted != client.counted.rooted || as.host_used != client.counted.host_used;
  count(client, as);
}

// So many bytes more that never were on the GPU, or fewer.
void Residency::add_fresh(Client& client, Bytes bytes) {
  client.host.fresh = std::max(kNothing, client.host.fresh + bytes);
}

// What others hold and cannot leave with. When the client has all of its memory on the GPU, the
// whole of the host's memory is there for the others.
Bytes Residency::rooted_beside(const Client& client) const {
  const Bytes known = sums_.rooted - client.counted.rooted;
  if (!host_.most()) return known;
  const Bytes others = sums_.host_movable - client.counted.host_movable;
  return std::max(known, others - host_left());
}

void Residency::host_memory(Client& client, Bytes coming, std::optional<Bytes> ready) {
  unlist(client);
  client.host.coming = coming;
  client.host.ready = ready;
  client.host.doubted = client.host.doubted && coming > kNothing;
  recount(client);
  list(client);
  stale_ = true;
}

// --- what could not leave ----------------------------------------------------------------------

// More than has left will not leave for now, whatever the reason: it is not told to again, and who
// would need that room does not keep others waiting for it. More host memory is a reason to try at
// once; otherwise it is tried again after twice the time each time.
void Residency::note_shortfall(Client& client, Time now) {
  const Duration before = client.host.shortfall ? client.host.shortfall->lasts : Duration::zero();
  forget_shortfall(client);
  const Duration lasts = std::clamp(before * 2, kFirstShortfall, kLongestShortfall);
  const Bytes ready = client.host.ready.value_or(kNothing);
  client.host.shortfall = Shortfall{client.memory.absent(), ready, lasts, now + lasts};
  short_.emplace(now + lasts, client.seq, &client);
  recount(client);
}

void Residency::forget_shortfall(Client& client) {
  if (client.host.shortfall && client.host.shortfall->until) {
    short_.erase({*client.host.shortfall->until, client.seq, &client});
  }
  client.host.shortfall.reset();
  recount(client);
}

void Residency::doubt_shortfalls(Time now) {
  while (!short_.empty() && std::get<0>(*short_.begin()) <= now) {
    Client& client = *std::get<2>(*short_.begin());
    short_.erase(short_.begin());
    unlist(client);
    client.host.shortfall->until.reset();
    recount(client);
    list(client);
    stale_ = true;
  }
}

// --- what is not there yet ---------------------------------------------------------------------

// Whether it runs, and would leave at the speed at which host memory is made. A moment without work
// is not the end of its running.
bool Residency::needs_host(const Client& client, Bytes bytes, Time now) const {
  if (client.queue.joined || client.host.doubted || client.share->over_memory_limit()) return false;
  const bool runs =
      client.is_busy() || now < client.eviction.idle_since + move_time(client.memory.demand);
  return runs && client.host.coming > kNothing && bytes > client.host.ready.value_or(kNothing);
}

// Until when the first in the queue waits for the host memory of those who make room for it. Once,
// however many they are; and who has kept it waiting in vain is not believed again before all that
// it was given is ready.
std::optional<Time> Residency::wait_for_host(Client& head, const Victims& victims, Bytes deficit,
                                             Time now) {
  Bytes coming{};
  std::vector<Client*> late;
  for (Client* client : victims.clients) {
    const Bytes bytes = std::min(leaveable(*client), deficit);
    deficit -= bytes;
    if (!needs_host(*client, bytes, now)) continue;
    coming += client->host.coming;
    late.push_back(client);
  }
  if (late.empty()) return std::nullopt;
  if (!head.host.waits_until) {
    const std::int64_t seconds = coming.count / kSlowestHost.count + 1;
    head.host.waits_until = now + 1s * std::min<std::int64_t>(kHostPatience / 1s, seconds);
  }
  if (now < *head.host.waits_until) {
    Time until = *head.host.waits_until;
    for (const Client* client : late) {
      if (!client->is_busy())
        until = std::min(until, client->eviction.idle_since + move_time(client->memory.demand));
    }
    return until;
  }
  for (Client* client : late) client->host.doubted = true;
  return std::nullopt;
}

void Residency::stop_waiting_for_host(Client& client) {
  client.host.waits_until.reset();
}

}  // namespace nvshare::core
