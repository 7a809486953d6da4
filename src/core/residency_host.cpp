// The host memory that clients leave to: how much each has, and what waits for it.

#include <algorithm>

#include "base/chunk.h"
#include "core/residency.h"

namespace nvshare::core {
namespace {

constexpr Bytes kNothing{0};

// The first of the queue waits for host memory that is being made, and others run meanwhile. It
// waits for the time that making should take, and not for ever.
constexpr Bytes kSlowestHost = mib(512);  // in a second
constexpr Duration kHostPatience = 30s;

// An order in vain stops a program for seconds. So a client that fails again is asked less often.
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

// Two chunks more than the shortage: one chunk leaves while another one comes in, and an order may
// move a chunk more than it says. With less, two clients could wait for each other for ever.
Bytes Residency::host_need(Bytes more_demand, Bytes more_movable) const {
  const Bytes over = sums_.demand + more_demand - promised_limit();
  if (over <= kNothing) return kNothing;
  return std::min(sums_.host_movable + more_movable, over + chunk() * 2);
}

bool Residency::host_fits(const Client& client, Bytes growth, bool movable) const {
  if (!host_.most()) return true;
  const Bytes leaves = movable && client.leaves_to_host() ? growth : kNothing;
  const Bytes need = host_need(growth, leaves);
  return need <= kNothing || need <= host_left();  // other GPUs may claim more than there is
}

Bytes Residency::host_room(const Client& client) const {
  if (!host_.most()) return kMostMemory;
  const Bytes left = host_left();
  const Bytes fits = promised_limit() - sums_.demand;
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

// Places that an order to send out can count on. The rest of a chunk is left out, because an order
// of one byte moves one chunk.
Bytes Residency::host_places() const {
  if (!host_.most()) return kMostMemory;
  return std::max(kNothing, host_left() - sums_.host_used - rounding());
}

// --- what can leave ----------------------------------------------------------------------------

// Memory that has come back and was not touched yet still has its place.
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
  if (client.memory.movable() <= kNothing) return kNothing;
  const Bytes could = most_away(client) - client.memory.absent() - client.memory.outgoing;
  return std::clamp(could, kNothing, client.memory.movable());
}

void Residency::count(Client& client, const Counted& as) {
  sums_.demand += as.demand - client.counted.demand;
  sums_.rooted += as.rooted - client.counted.rooted;
  sums_.host_used += as.host_used - client.counted.host_used;
  sums_.host_movable += as.host_movable - client.counted.host_movable;
  client.counted = as;
}

// Brings the client's part of the sums up to date, after a change of its memory.
void Residency::recount(Client& client) {
  Counted as{.demand = client.memory.demand + client.memory.rounding};
  // Memory on the GPU that has no place in host memory will not move. (Stalled memory is counted in
  // stalled_.)
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

// Counts more bytes, or fewer, that never were on the GPU.
void Residency::add_fresh(Client& client, Bytes bytes) {
  client.host.fresh = std::max(kNothing, client.host.fresh + bytes);
}

// Memory of others that has no place to go to. When the client has all of its memory on the GPU,
// all host memory is there for the others.
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

// More than has left will not leave for now, whatever the reason. So no order asks for more, and a
// client that needs the room does not block the queue. With more host memory an order is tried at
// once. Otherwise it is tried again, each time after twice the time.
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

// Whether the client runs, and would leave at the speed at which host memory is made. A moment
// without work does not end its running.
bool Residency::needs_host(const Client& client, Bytes bytes, Time now) const {
  if (client.queue.joined || client.host.doubted || client.share->over_memory_limit()) return false;
  const bool runs =
      client.is_busy() || now < client.eviction.idle_since + move_time(client.memory.demand);
  return runs && client.host.coming > kNothing && bytes > client.host.ready.value_or(kNothing);
}

// Until when the first in the queue waits for the host memory of the clients that make room for it.
// The first waits once for all of these clients. A client whose host memory did not come is doubted
// until all of that memory is ready.
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
