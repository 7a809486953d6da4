// What programs say, once they are clients.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "daemon/broker.h"

namespace nvshare::daemon {

void Broker::disconnect(const ClientRecord& client, std::string_view why) {
  log_.warn("client_disconnected", {{"client", client.id.value},
                                    {"tenant", tenants_.at(client.tenant).is.name},
                                    {"pid", client.pid},
                                    {"reason", why}});
  outbox_.disconnect(client.id, why);
}

void Broker::packet(ClientId id, const wire::Header* header, Time now) {
  ClientRecord* client = find(id);
  if (client == nullptr) return;
  if (header == nullptr) return disconnect(*client, "a packet with a wrong length");
  switch (static_cast<wire::Type>(header->type)) {
    case wire::Type::RequestGrant:
      return take(*client, *wire::as<wire::RequestGrant>(header), now);
    case wire::Type::Released:
      return take(*client, *wire::as<wire::Released>(header), now);
    case wire::Type::MemoryRequest:
      return take(*client, *wire::as<wire::MemoryRequest>(header), now);
    case wire::Type::MemoryFreed:
      return take(*client, *wire::as<wire::MemoryFreed>(header), now);
    case wire::Type::MemoryMoved:
      return disconnect(*client, "moved memory it was not told to move");
    case wire::Type::Hello:
    case wire::Type::RunBegin:
      return disconnect(*client, "a second hello");
    default:
      break;
  }
  if (wire::size_of(static_cast<wire::Type>(header->type)) != 0) {
    disconnect(*client, fmt::format("a message of the scheduler's own, type {}", header->type));
  }
}

// --- compute -----------------------------------------------------------------------------------

void Broker::set_wants(ClientRecord& client, bool wants, Time now) {
  if (client.wants == wants) return;
  client.wants = wants;
  TenantRecord& tenant = tenants_.at(client.tenant);
  if (wants && tenant.wanting++ == 0) tenant.wanting_since = now;
  if (!wants && --tenant.wanting == 0) tenant.wanted += now - tenant.wanting_since;
}

Duration Broker::wanted(const TenantRecord& tenant, Time now) {
  return tenant.wanted + (tenant.wanting > 0 ? now - tenant.wanting_since : Duration::zero());
}

void Broker::take(ClientRecord& client, const wire::RequestGrant&, Time now) {
  set_wants(client, true, now);
  const auto taken = step(core::WorkRequested{client.id}, now);
  if (!taken) disconnect(client, taken.error().message);
}

void Broker::take(ClientRecord& client, const wire::Released& message, Time now) {
  if (!client.grant || client.grant->number != message.grant) {
    return disconnect(client,
                      fmt::format("released grant {}, which it does not hold", message.grant));
  }
  GpuRecord& gpu = gpus_.at(client.gpu);
  read_meters(gpu, now, &client, message.used);
  const Duration used = client.grant->billed;
  client.used_before += used;
  client.grant.reset();
  client.page->scheduler.grant = 0;
  gpu.holders.erase(client.id);
  const bool more = message.more_work != 0;
  set_wants(client, more, now);
  const auto taken = step(core::Released{client.id, used, more}, now);
  if (!taken) disconnect(client, taken.error().message);
}

// --- memory ------------------------------------------------------------------------------------

// Nothing can be moved to the host yet, so what a client has is pinned, and who does not find room
// at once is refused.
std::optional<Broker::Refusal> Broker::grow(ClientRecord& client, Bytes bytes, Time now) {
  auto taken = core_.step(
      core::MemoryChanged{client.id, client.booked + bytes, client.booked, client.booked, false},
      now);
  if (!taken) return Refusal{Bytes{0}, taken.error().message};
  std::optional<Refusal> refusal;
  for (const core::Decision& decision : *taken) {
    const auto* refused = std::get_if<core::MemoryRefused>(&decision.action);
    if (refused == nullptr || refused->client != client.id) continue;
    refusal = Refusal{std::max(Bytes{0}, refused->allowed - client.booked),
                      core::to_text(decision.reason)};
  }
  follow(std::move(*taken), now);
  if (!refusal) set_booked(client, client.booked + bytes, now);
  return refusal;
}

void Broker::set_booked(ClientRecord& client, Bytes booked, Time now) {
  client.booked = booked;
  const auto taken = step(core::MemoryChanged{client.id, booked, booked, booked}, now);
  if (!taken) {
    log_.error(
        "memory_not_booked",
        {{"client", client.id.value}, {"bytes", booked.count}, {"reason", taken.error().message}});
  }
}

// After the scheduler was away a client may have more than it would be given now. It has it anyway;
// the core counts as much as it allows, and the rest as soon as it does.
void Broker::book_rest(ClientRecord& client, Time now) {
  const Bytes rest = client.allocated - client.booked;
  if (rest.count <= 0) return;
  const auto refusal = grow(client, rest, now);
  if (refusal && refusal->allowed.count > 0) grow(client, std::min(rest, refusal->allowed), now);
}

void Broker::refuse_memory(const ClientRecord& client, const wire::MemoryRequest& message,
                           const Refusal& refusal) {
  const TenantRecord& tenant = tenants_.at(client.tenant);
  log_.warn("memory_refused", {{"client", client.id.value},
                               {"tenant", tenant.is.name},
                               {"pid", client.pid},
                               {"asked", message.bytes},
                               {"used", allocated_by(tenant, client.gpu).count},
                               {"limit", tenant.limits.memory ? tenant.limits.memory->count : 0},
                               {"allowed", refusal.allowed.count},
                               {"reason", refusal.why}});
  auto answer = wire::make<wire::MemoryRefused>();
  answer.request = message.request;
  answer.allowed = static_cast<std::uint64_t>(refusal.allowed.count);
  outbox_.send(client.id, answer.header);
}

void Broker::take(ClientRecord& client, const wire::MemoryRequest& message, Time now) {
  book_rest(client, now);
  std::optional<Refusal> refusal;
  // Larger than anything there is; also what would overflow below.
  if (message.bytes > static_cast<std::uint64_t>(core::kMostMemory.count)) {
    refusal = Refusal{Bytes{0}, "more than any GPU has"};
  } else if (const Bytes bytes{static_cast<std::int64_t>(message.bytes)};
             client.own_limit && client.allocated + bytes > *client.own_limit) {
    refusal = Refusal{std::max(Bytes{0}, *client.own_limit - client.allocated),
                      "more than the process's own limit"};
  } else if (client.booked != client.allocated && bytes.count > 0) {
    refusal = Refusal{Bytes{0}, "it has more than its limit already"};
  } else if (bytes.count > 0) {
    refusal = grow(client, bytes, now);
  }
  if (refusal) return refuse_memory(client, message, *refusal);
  client.allocated += Bytes{static_cast<std::int64_t>(message.bytes)};
  show_allocated(client.tenant, client.gpu);
  auto answer = wire::make<wire::MemoryAvailable>();
  answer.request = message.request;
  outbox_.send(client.id, answer.header);
}

void Broker::take(ClientRecord& client, const wire::MemoryFreed& message, Time now) {
  if (message.bytes > static_cast<std::uint64_t>(client.allocated.count)) {
    return disconnect(client,
                      fmt::format("freed {} bytes of {}", message.bytes, client.allocated.count));
  }
  client.allocated -= Bytes{static_cast<std::int64_t>(message.bytes)};
  if (client.booked > client.allocated) set_booked(client, client.allocated, now);
  show_allocated(client.tenant, client.gpu);
}

Bytes Broker::allocated_by(const TenantRecord& tenant, GpuId gpu) const {
  Bytes sum{};
  for (const ClientId id : tenant.clients) {
    const ClientRecord& client = clients_.at(id);
    if (client.gpu == gpu) sum += client.allocated;
  }
  return sum;
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
