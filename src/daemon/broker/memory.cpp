// What programs have on their GPUs, and what of it is moved where.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "daemon/broker/broker.h"

namespace nvshare::daemon {
namespace {

constexpr auto kMost = static_cast<std::uint64_t>(core::kMostMemory.count);
constexpr std::size_t kMostWaiting = 64;  // requests of a client for pinned memory; as the library
constexpr Duration kLongestMove = 1h;     // more is not believed

Bytes to_bytes(std::uint64_t count) {
  return Bytes{static_cast<std::int64_t>(count)};
}

bool can_move(const ClientRecord& client) {
  return client.backend != wire::Backend::Native;
}

}  // namespace

// --- what the core counts ----------------------------------------------------------------------

Bytes Broker::booked_pinned(const ClientRecord& client) {
  return std::min(client.pinned, client.booked - client.awaited);
}

Bytes Broker::booked_resident(const ClientRecord& client) {
  const Bytes least = booked_pinned(client);
  const Bytes most = std::max(least, client.booked - client.awaited);
  return std::clamp(client.resident - client.beyond, least, most);
}

// After the scheduler was away a client may have more than it would be given now. It has it anyway;
// the core counts as much as the limit allows and the GPU can hold, and the rest as soon as they
// do.
void Broker::book_rest(ClientRecord& client, Time now) {
  const Bytes rest = client.to_book() - client.booked;
  if (rest.count <= 0) return;
  revoke_all(client.gpu, now);
  const TenantRecord& tenant = tenants_.at(client.tenant);
  GpuRecord& gpu = gpus_.at(client.gpu);
  Bytes of_tenant{};
  Bytes on_gpu{};
  for (const ClientId id : gpu.clients) {
    const ClientRecord& one = clients_.at(id);
    if (one.tenant == client.tenant) of_tenant += one.booked;
    if (id != client.id) on_gpu += booked_resident(one);
  }
  Bytes more = std::min(rest, gpu.total - client.booked);
  if (tenant.limits.memory) more = std::min(more, *tenant.limits.memory - of_tenant);
  const Bytes resident_before = booked_resident(client);
  const Bytes before = std::exchange(client.booked, client.booked + std::max(Bytes{}, more));
  const Bytes room = std::max(Bytes{}, gpu.total - on_gpu);
  if (booked_resident(client) > room) client.booked = std::max(before, room);
  if (client.booked == before) return;
  const auto taken = step(
      core::MemoryFound{client.id, client.booked, booked_pinned(client), booked_resident(client)},
      now);
  if (taken) {
    // Who found no room before found this in its place; the core does the same with what was
    // measured.
    const Bytes brought = std::max(Bytes{}, booked_resident(client) - resident_before);
    gpu.overhead_found = std::max(Bytes{}, gpu.overhead_found - brought);
    return;
  }
  log_.error("memory_not_booked", {{"client", client.id.value}, {"reason", taken.error().message}});
  client.booked = before;
}

// It has freed some, or less of it can move.
void Broker::book_change(ClientRecord& client, Time now) {
  client.booked = std::min(client.booked, client.to_book());
  // Messages cross each other: what the core has not heard of as there yet cannot be less now.
  const Bytes resident = std::min(booked_resident(client), core_.view(client.id)->resident);
  const Bytes pinned = std::min(booked_pinned(client), resident);
  const auto taken = step(core::MemoryChanged{client.id, client.booked, pinned, resident}, now);
  if (taken) return;
  log_.error("memory_not_booked", {{"client", client.id.value},
                                   {"bytes", client.booked.count},
                                   {"reason", taken.error().message}});
}

// --- more --------------------------------------------------------------------------------------

// What the core does not know of.
std::optional<Broker::Refusal> Broker::refuse(const ClientRecord& client,
                                              std::uint64_t bytes) const {
  // Larger than anything there is; also what would overflow below.
  if (bytes > kMost || client.allocated > core::kMostMemory - to_bytes(bytes)) {
    return Refusal{Bytes{0}, "more than any GPU has"};
  }
  if (client.own_limit && client.allocated + to_bytes(bytes) > *client.own_limit) {
    return Refusal{std::max(Bytes{0}, *client.own_limit - client.allocated),
                   "more than the process's own limit"};
  }
  if (client.booked != client.to_book() && bytes > 0) {
    const TenantRecord& tenant = tenants_.at(client.tenant);
    const auto& limit = tenant.limits.memory;
    return Refusal{Bytes{0},
                   limit && allocated_by(tenant, client.gpu) > *limit
                       ? "it has more than its limit already"
                       : "what it has from before does not all fit beside what others have"};
  }
  if (auto refusal = over_tenant_limit(client, to_bytes(bytes))) return refusal;
  return std::nullopt;
}

// Once for each limit: a framework that is refused memory tries again, and with less.
void Broker::tell_shortage(TenantRecord& tenant, GpuId gpu, std::uint64_t asked,
                           const Refusal& refusal) {
  if (std::exchange(tenant.shortage_told, true)) return;
  auto message = wire::make<wire::Shortage>();
  message.asked = std::min(asked, kMost);
  message.used = static_cast<std::uint64_t>(allocated_by(tenant, gpu).count);
  message.limit =
      tenant.limits.memory ? static_cast<std::uint64_t>(tenant.limits.memory->count) : 0;
  message.gpu = tenant.oversubscribes ? 0 : static_cast<std::uint64_t>(gpus_.at(gpu).total.count);
  wire::put_text(message.reason, sizeof message.reason, refusal.why.c_str());
  outbox_.tell_run(tenant.id, message.header);
}

void Broker::refuse_memory(ClientRecord& client, const wire::MemoryRequest& message,
                           const Refusal& refusal) {
  TenantRecord& tenant = tenants_.at(client.tenant);
  ++tenant.refused;
  ++client.refusals.count;
  client.refusals.last = refusal.why;
  log_.warn("memory_refused", {{"client", client.id.value},
                               {"tenant", tenant.is.name},
                               {"pid", client.pid},
                               {"asked", message.bytes},
                               {"used", allocated_by(tenant, client.gpu).count},
                               {"limit", tenant.limits.memory ? tenant.limits.memory->count : 0},
                               {"allowed", refusal.allowed.count},
                               {"reason", refusal.why}});
  // The program may end as soon as it is told, and its run with it.
  tell_shortage(tenant, client.gpu, message.bytes, refusal);
  auto answer = wire::make<wire::MemoryRefused>();
  answer.request = message.request;
  answer.allowed = static_cast<std::uint64_t>(refusal.allowed.count);
  outbox_.send(client.id, answer.header);
}

void Broker::answer(const ClientRecord& client, const wire::MemoryRequest& message, bool fits) {
  if (fits) {
    auto yes = wire::make<wire::MemoryAvailable>();
    yes.request = message.request;
    return outbox_.send(client.id, yes.header);
  }
  auto later = wire::make<wire::MemoryWait>();
  later.request = message.request;
  later.missing = static_cast<std::uint64_t>((client.booked - booked_resident(client)).count);
  outbox_.send(client.id, later.header);
}

void Broker::take(ClientRecord& client, const wire::MemoryRequest& message, Time now) {
  measure_host(now);
  book_rest(client, now);
  const bool movable = message.movable != 0 && can_move(client);
  revoke_if_near(client, to_bytes(std::min(message.bytes, kMost)), now);
  if (const auto refusal = refuse(client, message.bytes)) {
    return refuse_memory(client, message, *refusal);
  }
  if (message.bytes == 0) return answer(client, message, true);
  grow(client, message, movable, now);
  lend(client, movable);
}

void Broker::count(ClientRecord& client, Bytes bytes, bool movable, bool fits) {
  client.allocated += bytes;
  client.booked += bytes;
  if (!movable) client.pinned += bytes;
  if (fits) client.resident += bytes;
  rooms_stale_ = true;
  show_allocated(client.tenant, client.gpu);
}

// Memory that cannot move: an older library takes no for an answer, and nothing else. Others can
// make room only when they have a place to go to.
bool Broker::may_wait(const ClientRecord& client, const wire::MemoryRequest& message) const {
  return message.movable == 0 && client.minor >= wire::kMinorPinnedWaits &&
         client.waiting.size() < kMostWaiting &&
         core_.host_fits(client.id, to_bytes(message.bytes), false);
}

// The answer goes before what else follows from it: an order to bring memory in says nothing to a
// program that does not know of that memory yet.
void Broker::grow(ClientRecord& client, const wire::MemoryRequest& message, bool movable,
                  Time now) {
  Bytes bytes = to_bytes(message.bytes);
  Bytes beyond = beyond_with(client, bytes);
  const Bytes beyond_before = client.beyond;
  if (!movable) push_beyond(client, std::exchange(beyond, Bytes{}), now);
  bytes -= beyond;
  const Bytes pinned = booked_pinned(client) + (movable ? Bytes{} : bytes);
  const bool waits = may_wait(client, message);
  auto taken = core_.step(core::MemoryChanged{client.id, client.booked + bytes, pinned,
                                              booked_resident(client), movable || waits, waits},
                          now);
  // Nothing was pushed out of the way then.
  const auto refuse_it = [&](const Refusal& refusal) {
    refuse_memory(client, message, refusal);
    client.beyond = beyond_before;
    book_rest(client, now);
  };
  if (!taken) return refuse_it({Bytes{0}, taken.error().message});
  for (const core::Decision& decision : *taken) {
    const auto* refused = std::get_if<core::MemoryRefused>(&decision.action);
    if (refused == nullptr || refused->client != client.id) continue;
    const Bytes allowed = std::max(Bytes{0}, refused->allowed - client.booked);
    return refuse_it({allowed, core::to_text(decision.reason)});
  }
  const core::ClientView view = *core_.view(client.id);
  const bool fits = !movable || bytes == Bytes{} || view.resident == view.allocated;
  if (waits) {
    client.allocated += bytes;
    client.booked += bytes;
    client.waiting.push_back({message.request, bytes});
    client.awaited += bytes;
    rooms_stale_ = true;
    show_allocated(client.tenant, client.gpu);
    if (view.awaits > Bytes{}) answer(client, message, false);  // otherwise MemoryGiven says so
    follow(std::move(*taken), now);
    return fill_arena(now);
  }
  client.beyond += beyond;
  client.allocated += beyond;
  if (fits) client.resident += beyond;
  count(client, bytes, movable, fits);
  answer(client, message, fits);
  follow(std::move(*taken), now);
  // All of it is absent then, and comes in with the rest.
  if (!fits && beyond > Bytes{}) book_change(client, now);
  if (movable) fill_arena(now);
}

void Broker::act(const core::MemoryGiven& given, const core::Reason&, Time) {
  ClientRecord* client = find(given.client);
  if (client == nullptr) return;
  for (const WaitingRequest& one : std::exchange(client->waiting, {})) {
    auto yes = wire::make<wire::MemoryAvailable>();
    yes.request = one.number;
    outbox_.send(client->id, yes.header);
  }
  const Bytes bytes = std::exchange(client->awaited, {});
  client->pinned += bytes;
  client->resident += bytes;
  rooms_stale_ = true;
}

void Broker::act(const core::MemoryWithdrawn& withdrawn, const core::Reason& why, Time) {
  ClientRecord* client = find(withdrawn.client);
  if (client == nullptr) return;
  const Bytes bytes = std::exchange(client->awaited, {});
  client->allocated -= bytes;
  client->booked -= bytes;
  rooms_stale_ = true;
  for (const WaitingRequest& one : std::exchange(client->waiting, {})) {
    auto message = wire::make<wire::MemoryRequest>();
    message.request = one.number;
    message.bytes = static_cast<std::uint64_t>(one.bytes.count);
    refuse_memory(*client, message, {Bytes{0}, core::to_text(why)});
  }
  show_allocated(client->tenant, client->gpu);
}

// --- less, and elsewhere -----------------------------------------------------------------------

void Broker::take(ClientRecord& client, const wire::MemoryFreed& message, Time now) {
  const Bytes has = std::max(Bytes{}, client.allocated - client.awaited);
  if (message.bytes > static_cast<std::uint64_t>(has.count)) {
    return disconnect(client, fmt::format("freed {} bytes of {}", message.bytes, has.count));
  }
  if (message.resident > message.bytes || message.pinned > message.resident ||
      message.pinned > static_cast<std::uint64_t>(client.pinned.count)) {
    return disconnect(
        client, fmt::format("freed {} bytes, {} of them on the GPU, {} pinned of {}", message.bytes,
                            message.resident, message.pinned, client.pinned.count));
  }
  client.allocated -= to_bytes(message.bytes);
  client.resident -= to_bytes(message.resident);
  client.pinned -= to_bytes(message.pinned);
  // One that cannot move its memory need not say where it was.
  const Bytes unsaid = std::max(Bytes{}, client.pinned - (client.allocated - client.awaited));
  client.pinned -= unsaid;
  client.resident -= unsaid;
  free_beyond(client, to_bytes(message.resident - message.pinned));
  book_change(client, now);
  show_allocated(client.tenant, client.gpu);
  lend(client, message.pinned == 0 && can_move(client));
}

void Broker::take(ClientRecord& client, const wire::MemoryPinned& message, Time now) {
  const Bytes could_move = std::max(Bytes{}, client.allocated - client.awaited - client.pinned);
  if (message.bytes > static_cast<std::uint64_t>(could_move.count)) {
    return disconnect(client,
                      fmt::format("pinned {} bytes of {}, of which {} are already", message.bytes,
                                  client.allocated.count, client.pinned.count));
  }
  client.pinned += to_bytes(message.bytes);
  fit_beyond(client);
  book_change(client, now);
}

void Broker::order(ClientId id, bool out, Bytes bytes, const core::Reason& why, Time now) {
  ClientRecord* client = find(id);
  if (client == nullptr) return;
  if (out) revoke(*client, now);
  const std::uint64_t number = next_order_++;
  const Bytes beyond = out ? Bytes{} : beyond_and_away(*client);
  client->orders.push_back({number, out, bytes, beyond});
  arena_stale_ = true;
  note(*client, out ? "swap_out" : "swap_in",
       {{"order", number}, {"bytes", bytes.count}, {"reason", core::to_text(why)}});
  const auto send = [&](auto message) {
    message.order = number;
    message.bytes = static_cast<std::uint64_t>((bytes + beyond).count);
    outbox_.send(id, message.header);
  };
  out ? send(wire::make<wire::SwapOut>()) : send(wire::make<wire::SwapIn>());
}

void Broker::take(ClientRecord& client, const wire::MemoryMoved& message, Time now) {
  if (message.out > 0) revoke(client, now);  // which may order more
  const auto at = std::find_if(client.orders.begin(), client.orders.end(),
                               [&](const MoveOrder& one) { return one.number == message.order; });
  const bool ordered = at != client.orders.end();
  if (!ordered && message.order != 0) {
    return disconnect(
        client, fmt::format("moved memory for order {}, which it was not given", message.order));
  }
  const Bytes may_come = ordered && !at->out ? at->left + at->beyond : Bytes{};
  const bool wrong_way = ordered && !at->out && message.out > 0;
  if (message.in > static_cast<std::uint64_t>(may_come.count) || wrong_way ||
      message.out > static_cast<std::uint64_t>(client.allocated.count) + kMost) {
    return disconnect(client, fmt::format("moved {} out and {} in, and was told to bring in {}",
                                          message.out, message.in, may_come.count));
  }
  const Bytes out = to_bytes(message.out);
  const Bytes in = to_bytes(message.in);
  if (client.resident - out < Bytes{} - core::kMostMemory) {
    return disconnect(client, "has moved out far more than it has");
  }
  const Bytes before = booked_resident(client);
  client.resident += in - out;
  const Bytes came = client.oversubscribes && ordered ? count_in(client, *at, in, before) : in;
  const auto took = Duration{static_cast<std::int64_t>(
      std::min(message.took, static_cast<std::uint64_t>(kLongestMove.count())))};
  const Bytes copied = to_bytes(std::min(message.copied, message.out + message.in));
  const Moves moves{out, in, copied, took};
  client.moves += moves;
  tenants_.at(client.tenant).moves += moves;
  gpus_.at(client.gpu).moves += moves;
  core::MemoryMoved event{.client = client.id, .resident = booked_resident(client), .took = took};
  // Chunks of zeros have no place either.
  event.fresh = std::max(Bytes{}, in - copied);
  event.spared = std::max(out, in) - std::min(copied, std::max(out, in));
  if (ordered) {
    at->left = std::max(Bytes{}, at->left - (at->out ? out : came));
    if (message.done != 0) {
      (at->out ? event.kept : event.missing) = at->left;
      client.orders.erase(at);
    }
  }
  for (const MoveOrder& one : client.orders) (one.out ? event.out_left : event.in_left) += one.left;
  note(client, "moved",
       {{"out", out.count},
        {"in", in.count},
        {"copied", copied.count},
        {"resident", client.resident.count},
        {"allocated", client.allocated.count}});
  arena_stale_ = true;
  const auto taken = step(event, now);
  if (!taken) return disconnect(client, taken.error().message);
  if (client.booked > client.to_book()) book_change(client, now);
  if (message.no_room != 0) note_no_room(gpus_.at(client.gpu), now);
}

// --- what tenants see --------------------------------------------------------------------------

Bytes Broker::allocated_by(const TenantRecord& tenant, GpuId gpu) const {
  Bytes sum{};
  for (const ClientId id : tenant.clients) {
    const ClientRecord& client = clients_.at(id);
    if (client.gpu == gpu) sum += client.allocated;
  }
  return sum;
}

void Broker::show_rooms() {
  if (!std::exchange(rooms_stale_, false)) return;
  for (const auto& [id, gpu] : gpus_) show_room(id);
}

void Broker::show_room(GpuId gpu) {
  const auto unpinned = core_.unpinned(gpu);
  if (!unpinned) return;
  for (const ClientId id : gpus_.at(gpu).clients) {
    const ClientRecord& client = clients_.at(id);
    const auto view = core_.view(id);
    Bytes more = *unpinned + view->pinned + view->awaits - client.booked;
    if (client.backend == wire::Backend::Swap) more = std::min(more, core_.host_room(id));
    const Bytes room = std::max(Bytes{1}, client.booked + more);
    client.page->scheduler.room = static_cast<std::uint64_t>(room.count);
  }
}

void Broker::show_allocated(TenantId id, GpuId gpu) {
  const TenantRecord& tenant = tenants_.at(id);
  const Bytes sum = allocated_by(tenant, gpu);
  for (const ClientId client_id : tenant.clients) {
    const ClientRecord& client = clients_.at(client_id);
    if (client.gpu != gpu) continue;
    client.page->scheduler.tenant_allocated = static_cast<std::uint64_t>(sum.count);
  }
}

}  // namespace nvshare::daemon
