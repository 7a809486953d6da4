// Host memory for what is swapped out: who needs how much of it.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/broker/broker.h"

namespace nvshare::daemon {
namespace {

// Unified memory goes to the host without us.
Bytes leaves_by_us(const ClientRecord& client) {
  if (client.backend != wire::Backend::Swap) return {};
  return std::max(Bytes{}, client.memory.could_move() - client.memory.beyond());
}

}  // namespace

ArenaGpu Broker::arena_gpu(GpuId id) const {
  const GpuRecord& record = gpus_.at(id);
  ArenaGpu gpu;
  gpu.total = record.total;
  gpu.safe = core_.safe_limit(id).value_or(record.total);
  if (record.sinks_to) gpu.safe = std::min(gpu.safe, *record.sinks_to);
  for (const ClientId client_id : record.clients) {
    const ClientRecord& client = clients_.at(client_id);
    gpu.demand += client.memory.counted();
    gpu.clients.push_back({leaves_by_us(client), client.arena_made});
  }
  return gpu;
}

// What of the host's memory is there for the clients of the GPU: what others need or have cannot be
// given to them.
Bytes Broker::arena_left_for(GpuId gpu) const {
  Bytes left = arena_ == nullptr ? Bytes{} : arena_->most() - arena_lingering();
  for (const auto& [id, record] : gpus_) {
    if (id != gpu) left -= arena_held(arena_gpu(id));
  }
  return left;
}

// What may have to leave must have a place to go to before it is promised.
std::optional<Broker::Refusal> Broker::no_host_memory(const ClientRecord& client, Bytes bytes,
                                                      bool movable) const {
  if (movable && client.backend != wire::Backend::Swap) return std::nullopt;
  const auto& beside = gpus_.at(client.gpu).clients;
  const auto place = std::distance(beside.begin(), beside.find(client.id));
  ArenaGpu grown = arena_gpu(client.gpu);
  grown.grow(static_cast<std::size_t>(place), bytes, movable);
  if (grown.demand <= grown.safe) return std::nullopt;
  // What it has been given is its own, and may be more than it needs by now.
  grown.clients[static_cast<std::size_t>(place)].made = {};
  const Bytes need = arena_held(grown);
  const Bytes most = arena_left_for(client.gpu);
  if (need <= most) return std::nullopt;
  return Refusal{
      Bytes{},
      fmt::format(
          "{} would be allocated on a GPU that can hold {}: {} of host memory would be "
          "needed to swap, and there can be {} (setting arena_limit, and what the machine has)",
          nvshare::to_text(grown.demand), nvshare::to_text(grown.safe), nvshare::to_text(need),
          nvshare::to_text(std::max(Bytes{}, most)))};
}

// A process may keep what its client was given. A client that comes back from the same process, and
// says what it has kept, is counted once.
Bytes Broker::arena_lingering() const {
  if (arena_ == nullptr || arena_->held().empty()) return {};
  std::map<int, Bytes> counted;
  for (const auto& [id, client] : clients_) counted[client.pid] += client.arena;
  Bytes sum{};
  for (const auto& [pid, bytes] : arena_->held()) sum += std::max(Bytes{}, bytes - counted[pid]);
  return sum;
}

Bytes Broker::arena_used() const {
  Bytes sum = arena_lingering();
  for (const auto& [id, client] : clients_) sum += client.arena_made;
  return sum;
}

Bytes Broker::arena_given() const {
  Bytes sum = arena_lingering();
  for (const auto& [id, client] : clients_) sum += client.arena;
  return sum;
}

Bytes Broker::arena_brought() const {
  Bytes sum{};
  for (const auto& [id, client] : clients_) sum += std::min(client.arena, client.arena_brought);
  return sum;
}

// Ahead of need: making a piece takes far longer than moving memory into it. Where there is less
// than was promised, because the GPU or the host has less than it had then, who can still have all
// it needs is first, and the others get what is left.
void Broker::fill_arena(Time now) {
  if (arena_ == nullptr) return;
  Bytes left = arena_->most() - arena_used();
  for (const bool in_part : {false, true}) {
    for (const auto& [id, record] : gpus_) {
      const ArenaGpu gpu = arena_gpu(id);
      for (const ClientId client : record.clients) {
        left -= fill_arena(clients_.at(client), gpu, left, in_part, now);
      }
    }
  }
  for (const auto& [id, record] : gpus_) {
    for (const ClientId client_id : record.clients) tell_what_comes(clients_.at(client_id), now);
  }
}

// The GPU is about to hold less. What is too much then needs a place before the core hears of it:
// it would stop whoever runs and has one, when those who wait have none for what they hold.
void Broker::prepare_for_less(GpuRecord& gpu, Bytes safe, Time now) {
  gpu.sinks_to = std::max(Bytes{}, safe);
  fill_arena(now);
  gpu.sinks_to.reset();
}

// What of `left` it is given.
Bytes Broker::fill_arena(ClientRecord& client, const ArenaGpu& gpu, Bytes left, bool in_part,
                         Time now) {
  const Bytes need = arena_need(gpu, leaves_by_us(client));
  // First it is told to give no more back.
  if (client.arena_told && need > *client.arena_told) tell_arena_need(client, need);
  const Bytes unit = arena_unit(gpu.total);
  const Bytes lacks = need - client.arena_made;
  const Bytes fits = in_part ? std::min(lacks, unit * (left.count / unit.count)) : lacks;
  if (fits.count <= 0 || fits > left) return {};
  const Bytes more = worth_making(client, fits, now);
  if (more.count == 0) return {};
  rooms_stale_ = true;
  client.arena_made += more;
  arena_->make(client.id, more);
  return more;
}

// Who did not have what it was given (too many files are open) would not have the next either: it
// is given none for a while, then one piece, and the rest when that has not been missed.
Bytes Broker::worth_making(ClientRecord& client, Bytes more, Time now) const {
  if (client.arena_wait == Duration{}) return more;
  if (now < client.arena_again || client.arena < client.arena_made) return {};
  if (std::exchange(client.arena_tried, !client.arena_tried)) {
    client.arena_wait = {};
    return more;
  }
  return std::min(more, arena_unit(gpus_.at(client.gpu).total));
}

// Until it is ready whoever runs had better run on. A program that was given some needs a moment to
// say that it has it; what it says of what it was given long ago is not believed.
void Broker::tell_what_comes(ClientRecord& client, Time now) {
  if (client.backend != wire::Backend::Swap) return;  // what it has goes to the host without us
  while (!client.arena_given.empty() && now - client.arena_given.front().at >= kArenaTaken) {
    client.arena_given.pop_front();
  }
  Bytes lately{};
  Bytes just_now{};
  for (const GivenArena& one : client.arena_given) {
    lately += one.bytes;
    if (now - one.at < kArenaNoticed) just_now += one.bytes;
  }
  const std::uint64_t said = client.page->program.arena_untaken;
  const auto most = static_cast<std::uint64_t>(std::min(lately, client.arena).count);
  const Bytes untaken{static_cast<std::int64_t>(std::min(said, most))};
  const Bytes not_ready = std::min(std::max(untaken, just_now), client.arena);
  const Bytes coming = std::max(Bytes{}, client.arena_made - client.arena) + not_ready;
  const Bytes ready = client.arena - not_ready;
  if (coming == client.arena_coming && ready == client.arena_ready) return;
  client.arena_coming = coming;
  client.arena_ready = ready;
  const auto told = step(core::HostMemoryComing{client.id, coming, ready}, now);
  if (!told) log_.error("host_memory_not_told", {{"reason", told.error().message}});
}

// Host memory that nobody needs any more goes back to the machine; not at once, for what was needed
// a moment ago may be again.
void Broker::ask_for_arena(Time now) {
  for (const auto& [id, record] : gpus_) {
    const ArenaGpu gpu = arena_gpu(id);
    for (const ClientId client_id : record.clients) {
      ClientRecord& client = clients_.at(client_id);
      const Bytes need = arena_need(gpu, leaves_by_us(client));
      const Bytes enough = need.count == 0 ? need : need + arena_unit(gpu.total);
      if (client.arena <= enough) {
        client.arena_idle_since.reset();
      } else if (!client.arena_idle_since) {
        client.arena_idle_since = now;
      } else if (now - *client.arena_idle_since >= kArenaLingers) {
        // What it could not give back now it is asked for again.
        client.arena_idle_since = now;
        client.arena_returnable = std::max(client.arena_returnable, client.arena - enough);
        tell_arena_need(client, enough);
      }
    }
  }
}

void Broker::tell_arena_need(ClientRecord& client, Bytes bytes) {
  client.arena_told = bytes;
  auto message = wire::make<wire::ArenaNeed>();
  message.bytes = static_cast<std::uint64_t>(bytes.count);
  outbox_.send(client.id, message.header);
}

void Broker::take(ClientRecord& client, const wire::ArenaReturned& message, Time now) {
  const Bytes most = std::min(client.arena, client.arena_returnable);
  if (message.bytes > static_cast<std::uint64_t>(most.count)) {
    return disconnect(client, fmt::format("gave back {} bytes of host memory, and was asked for {}",
                                          message.bytes, most.count));
  }
  const Bytes bytes{static_cast<std::int64_t>(message.bytes)};
  rooms_stale_ = true;
  client.arena -= bytes;
  client.arena_made -= bytes;
  client.arena_returnable -= bytes;
  note(client, "host_memory_returned", {{"bytes", bytes.count}, {"left", client.arena.count}});
  // It may be needed again by now.
  fill_arena(now);
}

// Its hello could only be guessed from. Believed within the same bounds: who claims much is given
// less.
void Broker::take(ClientRecord& client, const wire::ArenaKept& message, Time) {
  if (!client.arena_claimed) return disconnect(client, "told twice what host memory it has");
  const Bytes total = gpus_.at(client.gpu).total;
  const Bytes kept{
      static_cast<std::int64_t>(std::min(message.bytes, static_cast<std::uint64_t>(total.count)))};
  const Bytes more = kept - *client.arena_claimed;
  client.arena_claimed.reset();
  rooms_stale_ = true;
  client.arena += more;
  client.arena_made += more;
  client.arena_brought = kept;
  client.arena_returnable = kept;  // it may have begun to, for the scheduler before
}

void Broker::take(ClientRecord& client, const wire::ArenaMissing& message, Time now) {
  if (message.bytes > static_cast<std::uint64_t>(client.arena.count)) {
    return disconnect(client, fmt::format("misses {} bytes of host memory, and was given {}",
                                          message.bytes, client.arena.count));
  }
  const Bytes bytes{static_cast<std::int64_t>(message.bytes)};
  rooms_stale_ = true;
  client.arena -= bytes;
  client.arena_made -= bytes;
  // Of what was handed over together, all is missing.
  if (client.arena_tried || client.arena_wait == Duration{}) {
    client.arena_wait = std::clamp(2 * client.arena_wait, kArenaShortWait, kArenaLongWait);
    log_.warn("host_memory_missing",
              {{"client", client.id.value}, {"bytes", bytes.count}, {"left", client.arena.count}});
  }
  client.arena_tried = false;
  client.arena_again = now + client.arena_wait;
  tell_what_comes(client, now);
}

void Broker::arena_ready(ClientId id, int descriptor, Bytes bytes, Time now) {
  ClientRecord* client = find(id);
  if (client == nullptr) return;
  client->arena += bytes;
  client->arena_given.push_back({now, bytes});
  if (client->arena_tried) client->arena_again = now + kArenaNoticed;
  auto message = wire::make<wire::Arena>();
  message.bytes = static_cast<std::uint64_t>(bytes.count);
  outbox_.hand_over(id, message.header, descriptor);
}

// It is tried again with the next sample.
void Broker::arena_failed(ClientId id, Bytes bytes, std::string_view why, Time now) {
  log_.warn("no_host_memory", {{"client", id.value}, {"bytes", bytes.count}, {"reason", why}});
  ClientRecord* client = find(id);
  if (client == nullptr) return;
  rooms_stale_ = true;
  client->arena_made -= std::min(bytes, client->arena_made);
  client->arena_tried = false;
  tell_what_comes(*client, now);
}

}  // namespace nvshare::daemon
