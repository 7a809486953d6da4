#include "daemon/broker/memory.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace nvshare::daemon {
namespace {

// The core knows no messages, and the library no core.

constexpr auto kMost = static_cast<std::uint64_t>(core::kMostMemory.count);
constexpr Duration kLongestMove = 1h;  // more is not believed

// What a message says. More than there can be stays that.
Bytes to_bytes(std::uint64_t count) {
  return Bytes{static_cast<std::int64_t>(std::min(count, 4 * kMost))};
}

bool can_move(const ClientRecord& client) {
  return client.backend != wire::Backend::Native;
}

}  // namespace

// --- more --------------------------------------------------------------------------------------

// Once for each limit: a framework that is refused memory tries again, and with less.
void Memory::tell_shortage(TenantRecord& tenant, GpuId gpu, std::uint64_t asked,
                           const Refusal& refusal) {
  if (std::exchange(tenant.shortage_told, true)) return;
  auto message = wire::make<wire::Shortage>();
  message.asked = std::min(asked, kMost);
  message.used = static_cast<std::uint64_t>(accounts_.allocated_by(tenant, gpu).count);
  const auto binding = accounts_.binding_level(tenant.id, gpu);
  if (binding && !refusal.by_own_limit) {
    const TenantRecord& level = tenants_.at(*binding);
    const auto limit = static_cast<std::uint64_t>(level.limits.memory->count);
    if (level.id == tenant.id) {
      message.limit = limit;
    } else {
      message.level_limit = limit;
      message.level_used = static_cast<std::uint64_t>(accounts_.allocated_by(level, gpu).count);
      wire::put_text(message.level, sizeof message.level, level.is.name.c_str());
    }
  }
  message.gpu = tenant.oversubscribes ? 0 : static_cast<std::uint64_t>(gpus_.at(gpu).total.count);
  wire::put_text(message.reason, sizeof message.reason, refusal.why.c_str());
  outbox_.tell_run(tenant.id, message.header);
}

void Memory::refuse(ClientRecord& client, const wire::MemoryRequest& message,
                    const Refusal& refusal) {
  TenantRecord& tenant = tenants_.at(client.tenant);
  for_each_level(tenants_, client.tenant, [](TenantRecord& level) { ++level.refused; });
  ++client.refusals.count;
  client.refusals.last = refusal.why;
  client.refusals.for_host = refusal.for_host;
  log_.warn("memory_refused", {{"client", client.id.value},
                               {"tenant", tenant.is.name},
                               {"pid", client.pid},
                               {"asked", message.bytes},
                               {"used", accounts_.allocated_by(tenant, client.gpu).count},
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

void Memory::answer(const ClientRecord& client, const wire::MemoryRequest& message, bool fits) {
  if (fits) {
    auto yes = wire::make<wire::MemoryAvailable>();
    yes.request = message.request;
    return outbox_.send(client.id, yes.header);
  }
  auto later = wire::make<wire::MemoryWait>();
  later.request = message.request;
  const Bytes missing = client.memory.counted() - client.memory.counted_resident();
  later.missing = static_cast<std::uint64_t>(missing.count);
  outbox_.send(client.id, later.header);
}

void Memory::take(ClientRecord& client, const wire::MemoryRequest& message, Time now) {
  places_.measure_host(now);
  const bool movable = message.movable != 0 && can_move(client);
  const Bytes bytes = to_bytes(message.bytes);
  credit_.revoke_if_near(client, bytes, now);
  if (message.bytes == 0) return answer(client, message, true);
  grow(client, message, movable, now);
  credit_.lend(client, movable);
}

// The answer goes before what else follows from it: an order to bring memory in says nothing to a
// program that does not know of that memory yet.
void Memory::grow(ClientRecord& client, const wire::MemoryRequest& message, bool movable,
                  Time now) {
  const Bytes bytes = to_bytes(message.bytes);
  Bytes beyond = accounts_.beyond_with(client, bytes);
  Bytes pushed{};
  if (!movable) pushed = client.memory.push_beyond(std::exchange(beyond, Bytes{}));
  if (pushed > Bytes{}) accounts_.book(client, now);
  // An older library takes no for an answer, and nothing else.
  const bool waits = message.movable == 0 && client.minor >= wire::kMinorPinnedWaits &&
                     client.waiting.size() < wire::kMostRequests;
  auto taken =
      desk_.decide(client.memory.grown(client.id, bytes - beyond, beyond, movable, waits), now);
  // Nothing was pushed out of the way then.
  const auto refuse_it = [&](const Refusal& refusal) {
    refuse(client, message, refusal);
    client.memory.pull_back(pushed);
    if (pushed > Bytes{}) accounts_.book(client, now);
  };
  if (!taken) return refuse_it({Bytes{0}, taken.error().message});
  for (const core::Decision& decision : *taken) {
    const auto* refused = std::get_if<core::MemoryRefused>(&decision.action);
    if (refused == nullptr || refused->client != client.id) continue;
    const Bytes allowed = std::max(Bytes{0}, refused->allowed - client.memory.counted());
    const core::Why why = decision.reason.why;
    return refuse_it({.allowed = allowed,
                      .why = desk_.text_of(decision.reason),
                      .by_own_limit = why == core::Why::OwnLimitExceeded,
                      .for_host = why == core::Why::NoHostMemory});
  }
  const core::ClientView view = *core_.view(client.id);
  const bool fits = !movable || bytes == beyond || view.resident == view.allocated;
  if (waits) {
    client.memory.await(bytes);
    client.waiting.push_back({message.request, bytes});
    if (view.awaits > Bytes{}) answer(client, message, false);  // otherwise MemoryGiven says so
  } else {
    client.memory.grow(bytes, beyond, movable, fits);
    answer(client, message, fits);
  }
  accounts_.show_allocated(client.tenant, client.gpu);
  desk_.follow(std::move(*taken), now);
  // All of it is absent then, and comes in with the rest.
  if (!waits && !fits && beyond > Bytes{}) accounts_.book(client, now);
  if (waits || movable) places_.fill(now);
}

void Memory::act(const core::MemoryGiven& given) {
  ClientRecord* client = find(given.client);
  if (client == nullptr) return;
  for (const WaitingRequest& one : std::exchange(client->waiting, {})) {
    auto yes = wire::make<wire::MemoryAvailable>();
    yes.request = one.number;
    outbox_.send(client->id, yes.header);
  }
  client->memory.give_awaited();
  due_.rooms = true;
}

void Memory::act(const core::MemoryWithdrawn& withdrawn, const core::Reason& why) {
  ClientRecord* client = find(withdrawn.client);
  if (client == nullptr) return;
  client->memory.withdraw_awaited();
  due_.rooms = true;
  for (const WaitingRequest& one : std::exchange(client->waiting, {})) {
    auto message = wire::make<wire::MemoryRequest>();
    message.request = one.number;
    message.bytes = static_cast<std::uint64_t>(one.bytes.count);
    refuse(*client, message, {Bytes{0}, desk_.text_of(why)});
  }
  accounts_.show_allocated(client->tenant, client->gpu);
}

// --- less, and elsewhere -----------------------------------------------------------------------

void Memory::take(ClientRecord& client, const wire::MemoryFreed& message, Time now) {
  const auto freed = client.memory.free(to_bytes(message.bytes), to_bytes(message.resident),
                                        to_bytes(message.pinned));
  if (!freed) return disconnect(client, freed.error().message);
  accounts_.book(client, now);
  accounts_.show_allocated(client.tenant, client.gpu);
  credit_.lend(client, message.pinned == 0 && can_move(client));
}

void Memory::take(ClientRecord& client, const wire::MemoryPinned& message, Time now) {
  const auto pinned = client.memory.pin(to_bytes(message.bytes));
  if (!pinned) return disconnect(client, pinned.error().message);
  accounts_.book(client, now);
}

void Memory::order(ClientId id, bool out, Bytes bytes, const core::Reason& why, Time now) {
  ClientRecord* client = find(id);
  if (client == nullptr) return;
  if (out) credit_.revoke(*client, now);
  const std::uint64_t number = next_order_++;
  // Room has been made for what the client claims to have there already.
  const Bytes there = out ? Bytes{} : client->memory.there_already(bytes);
  const Bytes told = client->memory.order(number, out, bytes) - there;
  if (there > Bytes{}) arrivals_.push_back({id, number, there});
  if (told == Bytes{}) return;
  due_.arena = true;
  note(*client, out ? "swap_out" : "swap_in",
       {{"order", number}, {"bytes", bytes.count}, {"reason", desk_.text_of(why)}});
  const auto send = [&](auto message) {
    message.order = number;
    message.bytes = static_cast<std::uint64_t>(told.count);
    outbox_.send(id, message.header);
  };
  out ? send(wire::make<wire::SwapOut>()) : send(wire::make<wire::SwapIn>());
}

bool Memory::take_arrival(Time now) {
  if (arrivals_.empty()) return false;
  const Arrival arrival = arrivals_.front();
  arrivals_.pop_front();
  ClientRecord* client = find(arrival.client);
  if (client == nullptr) return true;
  core::MemoryAccount& memory = client->memory;
  const auto taken = step(memory.arrived(client->id, arrival.order, arrival.bytes), now);
  if (!memory.is_doubted()) gpus_.at(client->gpu).doubted.erase(client->id);
  if (!taken) {
    log_.error("memory_not_booked",
               {{"client", client->id.value}, {"reason", taken.error().message}});
  }
  return true;
}

void Memory::take(ClientRecord& client, const wire::MemoryMoved& message, Time now) {
  if (message.out > 0) credit_.revoke(client, now);  // which may order more
  core::MoveReport report{.order = message.order,
                          .out = to_bytes(message.out),
                          .in = to_bytes(message.in),
                          .done = message.done != 0};
  report.copied = std::min(to_bytes(message.copied), report.out + report.in);
  report.took = Duration{static_cast<std::int64_t>(
      std::min(message.took, static_cast<std::uint64_t>(kLongestMove.count())))};
  const auto event = client.memory.moved(client.id, report);
  if (!event) return disconnect(client, event.error().message);
  const Moves moves{report.out, report.in, report.copied, report.took};
  client.moves += moves;
  for_each_level(tenants_, client.tenant, [&](TenantRecord& level) { level.moves += moves; });
  gpus_.at(client.gpu).moves += moves;
  note(client, "moved",
       {{"out", report.out.count},
        {"in", report.in.count},
        {"copied", report.copied.count},
        {"resident", client.memory.resident().count},
        {"allocated", client.memory.allocated().count}});
  due_.arena = true;
  const auto taken = step(*event, now);
  if (!taken) return disconnect(client, taken.error().message);
  if (core_.view(client.id)->allocated > client.memory.counted()) accounts_.book(client, now);
  if (message.no_room != 0) note_no_room(gpus_.at(client.gpu), now);
}

// --- beside what clients have ------------------------------------------------------------------

void Memory::set_overhead(GpuRecord& gpu, const Overhead& overhead, Time now) {
  const Bytes possible = std::clamp(overhead.bytes, Bytes{0}, gpu.total);
  const core::OverheadMeasured event{gpu.id, possible, overhead.clients, overhead.at_most,
                                     overhead.found};
  const Bytes safe = core_.safe_limit_with(event).value_or(gpu.total);
  const bool newcomers = static_cast<int>(gpu.clients.size()) > overhead.clients;
  const bool may_sink = safe < core_.safe_limit(gpu.id).value_or(gpu.total);
  if (newcomers || may_sink) credit_.revoke_all(gpu.id, now);
  const auto taken = step(event, now);
  if (taken) return;
  log_.warn("overhead_not_taken", {{"gpu", gpu.id.value}, {"reason", taken.error().message}});
}

// The books say that there is room, and a client found none: more is used beside them than was
// measured. Believed for a while, as measuring takes time, and within bounds: it is a client's
// word.
void Memory::note_no_room(GpuRecord& gpu, Time now) {
  credit_.revoke_all(gpu.id, now);
  Bytes resident{};
  for (const ClientId id : gpu.clients) {
    const core::ClientView view = *core_.view(id);
    resident += view.resident + view.rounded;
  }
  const Bytes least = gpu.total - core_.safe_limit(gpu.id).value_or(gpu.total);
  const Bytes most = std::max(least, gpu.overhead.value_or(Bytes{}) + Bytes{gpu.total.count / 20});
  gpu.overhead_found = std::clamp(gpu.total - resident, least, most);
  gpu.overhead_found_at = now;
  log_.info("no_room_found", {{"gpu", gpu.id.value}, {"overhead", gpu.overhead_found.count}});
  // Without measurements nobody will say what it really was.
  const bool measured = gpu.overhead || gpu.memory_used;
  set_overhead(gpu,
               {.bytes = measured ? gpu.total - *core_.promised_limit(gpu.id) : gpu.overhead_found,
                .clients = static_cast<int>(gpu.clients.size()),
                .found = gpu.overhead_found},
               now);
}

}  // namespace nvshare::daemon
