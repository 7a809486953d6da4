// Host memory for what is swapped out: who needs how much of it.

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/broker/places.h"

namespace nvshare::daemon {
namespace {

constexpr Bytes kSmallCard = gib(16);

Bytes round_up(Bytes bytes, Bytes unit) {
  return Bytes{(bytes.count + unit.count - 1) / unit.count * unit.count};
}

// What is needed now is made in multiples of this. Larger pieces cost less time each, smaller ones
// are there sooner, and leave less unused.
Bytes smallest_piece(const GpuRecord& gpu) {
  return gpu.total < kSmallCard ? mib(16) : mib(64);
}

// The same for what is made ahead of need.
Bytes arena_unit(const GpuRecord& gpu) {
  return smallest_piece(gpu) * 4;
}

}  // namespace

// A process may keep what its client was given. A client that comes back from the same process, and
// says what it has kept, is counted once.
Bytes Places::lingering() const {
  if (arena_ == nullptr) return {};
  const auto& orphaned = shared_.held_by_orphans();
  if (arena_->held().empty() && orphaned.empty()) return {};
  std::map<int, Bytes> counted;
  for (const auto& [id, client] : clients_) {
    counted[client.pid] += client.arena.given - shared_.owned_by(id);
  }
  std::map<int, Bytes> held = arena_->held();
  // What has come back since the last look is still in what was seen then. Slabs are no part of it.
  for (auto& [pid, bytes] : held) {
    const auto back = returned_.find(pid);
    if (back != returned_.end()) bytes = std::max(Bytes{}, bytes - back->second);
  }
  Bytes sum{};
  for (const auto& [pid, bytes] : orphaned) held[pid] += bytes;
  for (const auto& [pid, bytes] : held) sum += std::max(Bytes{}, bytes - counted[pid]);
  return sum;
}

Bytes Places::used() const {
  Bytes sum = lingering() + shared_.unowned();
  for (const auto& [id, client] : clients_) sum += client.arena.made;
  return sum;
}

Bytes Places::given() const {
  Bytes sum = lingering() + shared_.unowned();
  for (const auto& [id, client] : clients_) sum += client.arena.given;
  return sum;
}

Bytes Places::brought() const {
  Bytes sum{};
  for (const auto& [id, client] : clients_)
    sum += std::min(client.arena.given, client.arena.brought);
  return sum;
}

// What the machine can spare changes with whatever else it does.
void Places::measure_host(Time now) {
  Bytes most = arena_ == nullptr ? Bytes{} : arena_->most() - lingering();
  // A client's places come in whole pieces: the rest of its last one is lost to the others.
  for (const auto& [id, client] : clients_) {
    if (client.backend == wire::Backend::Swap) most -= smallest_piece(gpus_.at(client.gpu));
  }
  most = std::max(Bytes{}, most);
  if (std::exchange(host_told_, most) == most) return;
  due_.rooms = true;
  const auto told = step(core::HostMeasured{most}, now);
  if (!told) log_.error("host_memory_not_told", {{"reason", told.error().message}});
}

void Places::fill(Time now) {
  due_.arena = true;
  desk_.follow({}, now);
}

// What the core hears of it can lead to orders that need places, once or twice.
bool Places::catch_up(Time now) {
  if (arena_ == nullptr || !due_.arena || rounds_ == 3) {
    rounds_ = 0;
    return false;
  }
  ++rounds_;
  due_.arena = false;
  hand_out(now);
  return true;
}

void Places::sample(Time now) {
  returned_.clear();
  tidy_shared(now);
  fill(now);
  ask_back(now);
}

void Places::leave(const ClientRecord& client, Time now) {
  close_shared(shared_.leave(client.id, client.pid, now));
}

// Three passes: what is needed now goes first. What is missing then is taken back from clients that
// have more than they use. What is left is made ahead of need, because making a piece takes far
// longer than moving memory into it.
void Places::hand_out(Time now) {
  measure_host(now);
  Bytes left = arena_->most() - used();
  Bytes lacking{};
  for (auto& [id, client] : clients_) {
    const Bytes need = round_up(core_.host_need(id).now, smallest_piece(gpus_.at(client.gpu)));
    give_shared(client, need, now);
    left -= make(client, need, left, true, now);
    // A client that cannot take what it is given keeps nobody from theirs.
    const bool takes_it = client.arena.wait == Duration{};
    const Bytes lacks = takes_it ? std::max(Bytes{}, need - client.arena.made) : Bytes{};
    if (lacks > Bytes{})
      close_shared(shared_.close_others(shares(client) ? client.home : "", lacks));
    lacking += lacks;
  }
  if (lacking > Bytes{}) {
    reclaim(lacking, now);
  } else {
    for (const bool in_part : {false, true}) {
      for (auto& [id, client] : clients_) {
        const Bytes need = round_up(core_.host_need(id).ahead, arena_unit(gpus_.at(client.gpu)));
        give_shared(client, need, now);
        left -= make(client, need, left, in_part, now);
      }
    }
  }
  for (auto& [id, client] : clients_) {
    offer_ahead(client, core_.host_need(id).ahead);
    tell_what_comes(client, now);
  }
}

// What of `left` the client is given, until it has `need`.
Bytes Places::make(ClientRecord& client, Bytes need, Bytes left, bool in_part, Time now) {
  // First it is told to give no more back.
  if (client.arena.told && need > *client.arena.told) tell_need(client, need);
  const Bytes lacks = need - client.arena.made;
  const Bytes piece = smallest_piece(gpus_.at(client.gpu));
  const Bytes whole{left.count / piece.count * piece.count};
  const Bytes fits = in_part ? std::min(lacks, whole) : lacks;
  if (fits.count <= 0 || fits > left) return {};
  const Bytes more = worth_making(client, fits, now);
  if (more.count == 0) return {};
  due_.rooms = true;
  client.arena.made += more;
  arena_->make(client.id, more);
  return more;
}

// Others need places at once. What a client has beyond its own places are copies of memory that is
// on the GPU: those only save time when it leaves again.
void Places::reclaim(Bytes lacking, Time now) {
  for (auto& [id, client] : clients_) {  // what was asked for and is on its way
    if (client.arena.told) lacking -= std::max(Bytes{}, client.arena.given - *client.arena.told);
  }
  std::vector<std::pair<Bytes, ClientRecord*>> spare;
  for (auto& [id, client] : clients_) {
    const Bytes has = std::min(client.arena.given, client.arena.told.value_or(client.arena.given));
    const Bytes excess = has - core_.host_need(id).now;
    if (excess > Bytes{}) spare.emplace_back(excess, &client);
  }
  std::sort(spare.begin(), spare.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second->id < b.second->id;
  });
  for (auto& [excess, client] : spare) {
    if (lacking <= Bytes{}) return;
    const Bytes back = std::min(excess, lacking);
    lacking -= back;
    const Bytes enough =
        std::min(client->arena.given, client->arena.told.value_or(client->arena.given)) - back;
    client->arena.returnable = std::max(client->arena.returnable, client->arena.given - enough);
    client->arena.idle_since = now;
    tell_need(*client, enough);
  }
}

// Who did not have what it was given (too many files are open) would not have the next either: it
// is given none for a while, then one piece, and the rest when that has not been missed.
Bytes Places::worth_making(ClientRecord& client, Bytes more, Time now) const {
  if (client.arena.wait == Duration{}) return more;
  if (now < client.arena.again || client.arena.given < client.arena.made) return {};
  if (std::exchange(client.arena.tried, !client.arena.tried)) {
    client.arena.wait = {};
    return more;
  }
  return std::min(more, arena_unit(gpus_.at(client.gpu)));
}

// Until it is ready whoever runs had better run on. A program that was given some needs a moment to
// say that it has it; what it says of what it was given long ago is not believed.
void Places::tell_what_comes(ClientRecord& client, Time now) {
  if (client.backend != wire::Backend::Swap) return;  // what it has goes to the host without us
  while (!client.arena.handed_over.empty() && now - client.arena.handed_over.front().at >= kTaken) {
    client.arena.handed_over.pop_front();
  }
  Bytes lately{};
  Bytes just_now{};
  for (const GivenArena& one : client.arena.handed_over) {
    lately += one.bytes;
    if (now - one.at < kNoticed) just_now += one.bytes;
  }
  const std::uint64_t said = client.page->program.arena_untaken;
  const auto most = static_cast<std::uint64_t>(std::min(lately, client.arena.given).count);
  const Bytes untaken{static_cast<std::int64_t>(std::min(said, most))};
  const Bytes not_ready = std::min(std::max(untaken, just_now), client.arena.given);
  const Bytes coming = std::max(Bytes{}, client.arena.made - client.arena.given) + not_ready;
  const Bytes ready = client.arena.given - not_ready;
  if (coming == client.arena.coming && ready == client.arena.ready) return;
  client.arena.coming = coming;
  client.arena.ready = ready;
  const auto told = step(core::HostMemoryComing{client.id, coming, ready}, now);
  if (!told) log_.error("host_memory_not_told", {{"reason", told.error().message}});
}

// Host memory that nobody needs any more goes back to the machine; not at once, for what was needed
// a moment ago may be again.
void Places::ask_back(Time now) {
  for (auto& [id, client] : clients_) {
    const Bytes unit = arena_unit(gpus_.at(client.gpu));
    const Bytes need = round_up(core_.host_need(id).ahead, unit);
    const Bytes enough = need.count == 0 ? need : need + unit;
    if (client.arena.given <= enough) {
      client.arena.idle_since.reset();
    } else if (!client.arena.idle_since) {
      client.arena.idle_since = now;
    } else if (now - *client.arena.idle_since >= (client.slept ? kSleptLingers : kLingers)) {
      // What it could not give back now it is asked for again.
      client.arena.idle_since = now;
      client.arena.returnable = std::max(client.arena.returnable, client.arena.given - enough);
      tell_need(client, enough);
    }
  }
}

void Places::tell_need(ClientRecord& client, Bytes bytes) {
  client.arena.told = bytes;
  auto message = wire::make<wire::ArenaNeed>();
  message.bytes = static_cast<std::uint64_t>(bytes.count);
  outbox_.send(client.id, message.header);
}

void Places::take(ClientRecord& client, const wire::ArenaReturned& message, Time now) {
  const Bytes most = std::min(own_places(client), client.arena.returnable);
  if (message.bytes > static_cast<std::uint64_t>(most.count)) {
    return disconnect(client, fmt::format("gave back {} bytes of host memory, and was asked for {}",
                                          message.bytes, most.count));
  }
  const Bytes bytes{static_cast<std::int64_t>(message.bytes)};
  lose(client, bytes);
  client.arena.returnable -= bytes;
  returned_[client.pid] += bytes;
  note(client, "host_memory_returned",
       {{"bytes", bytes.count}, {"left", client.arena.given.count}});
  // It may be needed again by now.
  fill(now);
}

// Its hello could only be guessed from. Believed within the same bounds: who claims much is given
// less.
void Places::take(ClientRecord& client, const wire::ArenaKept& message, Time) {
  if (!client.arena.claimed) return disconnect(client, "told twice what host memory it has");
  const Bytes total = gpus_.at(client.gpu).total;
  const Bytes kept{
      static_cast<std::int64_t>(std::min(message.bytes, static_cast<std::uint64_t>(total.count)))};
  // Some of the claim may be gone already: it was missing, or is back.
  const Bytes more = std::max(kept - *client.arena.claimed, Bytes{} - own_places(client));
  client.arena.claimed.reset();
  due_.rooms = true;
  client.arena.given += more;
  client.arena.made += more;
  client.arena.brought = kept;
  client.arena.returnable = kept;  // it may have begun to, for the scheduler before
}

void Places::take(ClientRecord& client, const wire::ArenaMissing& message, Time now) {
  const Bytes most = own_places(client);
  if (message.bytes > static_cast<std::uint64_t>(most.count)) {
    return disconnect(client, fmt::format("misses {} bytes of host memory, and was given {}",
                                          message.bytes, most.count));
  }
  const Bytes bytes{static_cast<std::int64_t>(message.bytes)};
  lose(client, bytes);
  returned_[client.pid] += bytes;
  miss(client, bytes, now);
}

// Slabs that are shared change hands by messages of their own.
Bytes Places::own_places(const ClientRecord& client) const {
  return std::max(Bytes{}, client.arena.given - shared_.owned_by(client.id));
}

void Places::lose(ClientRecord& client, Bytes bytes) {
  due_.rooms = true;
  client.arena.given -= bytes;
  client.arena.made -= bytes;
}

void Places::miss(ClientRecord& client, Bytes bytes, Time now) {
  // Of what was handed over together, all is missing.
  if (client.arena.tried || client.arena.wait == Duration{}) {
    client.arena.wait = std::clamp(2 * client.arena.wait, kShortWait, kLongWait);
    log_.warn(
        "host_memory_missing",
        {{"client", client.id.value}, {"bytes", bytes.count}, {"left", client.arena.given.count}});
  }
  client.arena.tried = false;
  client.arena.again = now + client.arena.wait;
  tell_what_comes(client, now);
}

void Places::ready(ClientId id, int descriptor, Bytes bytes, Time now, SegmentId segment) {
  ClientRecord* client = find(id);
  if (client == nullptr) return;
  // It is needed: no more goes back for that it is there.
  if (client->arena.told) tell_need(*client, *client->arena.told + bytes);
  client->arena.given += bytes;
  client->arena.handed_over.push_back({now, bytes});
  if (client->arena.tried) client->arena.again = now + kNoticed;
  if (segment != 0 && shares(*client)) return hand_over_shared(*client, segment, bytes, descriptor);
  auto message = wire::make<wire::Arena>();
  message.bytes = static_cast<std::uint64_t>(bytes.count);
  outbox_.hand_over(id, message.header, descriptor);
}

// It is tried again with the next sample.
void Places::failed(ClientId id, Bytes bytes, std::string_view why, Time now) {
  log_.warn("no_host_memory", {{"client", id.value}, {"bytes", bytes.count}, {"reason", why}});
  ClientRecord* client = find(id);
  if (client == nullptr) return;
  due_.rooms = true;
  client->arena.made -= std::min(bytes, client->arena.made);
  client->arena.tried = false;
  measure_host(now);
  tell_what_comes(*client, now);
}

}  // namespace nvshare::daemon
