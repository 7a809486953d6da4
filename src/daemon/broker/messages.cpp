// What programs say, once they are clients.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "daemon/broker/broker.h"

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
  ++client->messages;
  settle(*client, now);
  switch (static_cast<wire::Type>(header->type)) {
    case wire::Type::RequestGrant:
      return take(*client, *wire::as<wire::RequestGrant>(header), now);
    case wire::Type::Released:
      return take(*client, *wire::as<wire::Released>(header), now);
    case wire::Type::MemoryRequest:
      return take(*client, *wire::as<wire::MemoryRequest>(header), now);
    case wire::Type::MemoryFreed:
      return take(*client, *wire::as<wire::MemoryFreed>(header), now);
    case wire::Type::MemoryPinned:
      return take(*client, *wire::as<wire::MemoryPinned>(header), now);
    case wire::Type::MemoryMoved:
      return take(*client, *wire::as<wire::MemoryMoved>(header), now);
    case wire::Type::ArenaReturned:
      return take(*client, *wire::as<wire::ArenaReturned>(header), now);
    case wire::Type::ArenaKept:
      return take(*client, *wire::as<wire::ArenaKept>(header), now);
    case wire::Type::ArenaMissing:
      return take(*client, *wire::as<wire::ArenaMissing>(header), now);
    case wire::Type::ArenaTaken:
      return take(*client, *wire::as<wire::ArenaTaken>(header), now);
    case wire::Type::ArenaPassed:
      return take(*client, *wire::as<wire::ArenaPassed>(header), now);
    case wire::Type::ArenaClosed:
      return take(*client, *wire::as<wire::ArenaClosed>(header), now);
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
  note(client, "released",
       {{"grant", message.grant},
        {"held", (now - client.grant->since).count()},
        {"used", message.used},
        {"billed", used.count()},
        {"gaps", std::chrono::nanoseconds(std::chrono::microseconds(message.gaps)).count()},
        {"more", message.more_work != 0 ? 1 : 0}});
  client.used_before += used;
  client.grant.reset();
  client.page->scheduler.grant = 0;
  gpu.holders.erase(client.id);
  const bool more = message.more_work != 0;
  set_wants(client, more, now);
  const std::chrono::microseconds gaps{message.gaps};
  const auto taken = step(core::Released{client.id, used, more, gaps}, now);
  if (!taken) disconnect(client, taken.error().message);
}

}  // namespace nvshare::daemon
