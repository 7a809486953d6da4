// The host memory that clients leave to: how much of it they have, and what waits for it.

#include <algorithm>

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

// --- what can leave ----------------------------------------------------------------------------

// What has come back and was not touched yet still has its place.
Bytes Client::most_away() const {
  Bytes most = kMostMemory;
  if (host_ready) most = std::max(*host_ready + host_coming, absent() + incoming + moved_in);
  if (!shortfall || !shortfall->until) return most;
  const Bytes more = host_ready.value_or(kNothing) - shortfall->host_ready;
  return std::min(most, shortfall->away + std::max(kNothing, more));
}

Bytes Client::leaveable() const {
  return std::max(kNothing, std::min(movable(), most_away() - absent() - outgoing));
}

// What a client holds and has no place for will not move for anybody. (What does not move at all
// is counted as that.)
void Residency::count_rooted(Client& client) {
  const Bytes stays = client.demand - client.awaits - client.most_away();
  const Bytes holds = std::min(client.resident + client.incoming, stays) - client.pinned;
  const Bytes rooted = client.stalled ? kNothing : std::max(kNothing, holds);
  stale_ |= rooted != client.rooted;
  rooted_ += rooted - client.rooted;
  client.rooted = rooted;
}

void Residency::host_memory(Client& client, Bytes coming, std::optional<Bytes> ready) {
  unlist(client);
  client.host_coming = coming;
  client.host_ready = ready;
  client.host_doubted = client.host_doubted && coming > kNothing;
  count_rooted(client);
  list(client);
  stale_ = true;
}

// --- what could not leave ----------------------------------------------------------------------

// More than has left will not leave for now, whatever the reason: it is not told to again, and who
// would need that room does not keep others waiting for it. More host memory is a reason to try at
// once; otherwise it is tried again after twice the time each time.
void Residency::note_shortfall(Client& client, Time now) {
  const Duration before = client.shortfall ? client.shortfall->lasts : Duration::zero();
  forget_shortfall(client);
  const Duration lasts = std::clamp(before * 2, kFirstShortfall, kLongestShortfall);
  const Bytes ready = client.host_ready.value_or(kNothing);
  client.shortfall = Shortfall{client.absent(), ready, lasts, now + lasts};
  short_.emplace(now + lasts, client.seq, &client);
  count_rooted(client);
}

void Residency::forget_shortfall(Client& client) {
  if (client.shortfall && client.shortfall->until) {
    short_.erase({*client.shortfall->until, client.seq, &client});
  }
  client.shortfall.reset();
  count_rooted(client);
}

void Residency::doubt_shortfalls(Time now) {
  while (!short_.empty() && std::get<0>(*short_.begin()) <= now) {
    Client& client = *std::get<2>(*short_.begin());
    short_.erase(short_.begin());
    unlist(client);
    client.shortfall->until.reset();
    count_rooted(client);
    list(client);
    stale_ = true;
  }
}

// --- what is not there yet ---------------------------------------------------------------------

// Whether it runs, and would leave at the speed at which host memory is made. A moment without work
// is not the end of its running.
bool Residency::needs_host(const Client& client, Bytes bytes, Time now) const {
  if (client.queued || client.host_doubted || client.share->over_memory_limit()) return false;
  const bool runs = client.is_busy() || now < client.idle_since + move_time(client.demand);
  return runs && client.host_coming > kNothing && bytes > client.host_ready.value_or(kNothing);
}

// Until when the first in the queue waits for the host memory of those who make room for it. Once,
// however many they are; and who has kept it waiting in vain is not believed again before all that
// it was given is ready.
std::optional<Time> Residency::wait_for_host(Client& head, const Victims& victims, Bytes deficit,
                                             Time now) {
  Bytes coming{};
  std::vector<Client*> late;
  for (Client* client : victims.clients) {
    const Bytes bytes = std::min(client->leaveable(), deficit);
    deficit -= bytes;
    if (!needs_host(*client, bytes, now)) continue;
    coming += client->host_coming;
    late.push_back(client);
  }
  if (late.empty()) return std::nullopt;
  if (!head.host_until) {
    const std::int64_t seconds = coming.count / kSlowestHost.count + 1;
    head.host_until = now + 1s * std::min<std::int64_t>(kHostPatience / 1s, seconds);
  }
  if (now < *head.host_until) {
    Time until = *head.host_until;
    for (const Client* client : late) {
      if (!client->is_busy())
        until = std::min(until, client->idle_since + move_time(client->demand));
    }
    return until;
  }
  for (Client* client : late) client->host_doubted = true;
  return std::nullopt;
}

}  // namespace nvshare::core
