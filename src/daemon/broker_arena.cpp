// Host memory for what is swapped out: who needs how much of it.

#include <fmt/format.h>

#include <algorithm>

#include "daemon/broker.h"

namespace nvshare::daemon {
namespace {

// Unified memory goes to the host without us.
Bytes leaves_by_us(const ClientRecord& client) {
  if (client.backend != wire::Backend::Swap) return {};
  return std::max(Bytes{}, client.booked - client.awaited - client.pinned);
}

}  // namespace

ArenaGpu Broker::arena_gpu(GpuId id, std::optional<ClientId> grows, Bytes by, bool movable) const {
  const GpuRecord& record = gpus_.at(id);
  ArenaGpu gpu;
  gpu.total = record.total;
  gpu.safe = core_.safe_limit(id).value_or(record.total);
  for (const ClientId client_id : record.clients) {
    const ClientRecord& client = clients_.at(client_id);
    const Bytes more = client_id == grows ? by : Bytes{};
    gpu.demand += client.booked + more;
    gpu.movable.push_back(leaves_by_us(client) + (movable ? more : Bytes{}));
  }
  return gpu;
}

// What may have to leave must have a place to go to before it is promised.
std::optional<Broker::Refusal> Broker::no_host_memory(const ClientRecord& client, Bytes bytes,
                                                      bool movable) const {
  if (movable && client.backend != wire::Backend::Swap) return std::nullopt;
  const ArenaGpu grown = arena_gpu(client.gpu, client.id, bytes, movable);
  if (grown.demand <= grown.safe) return std::nullopt;
  Bytes need = arena_need(grown);
  for (const auto& [id, gpu] : gpus_) {
    if (id != client.gpu) need += arena_need(arena_gpu(id));
  }
  // What others have been given and do not need now is not there to be given.
  for (const auto& [id, gpu] : gpus_) {
    const ArenaGpu now = arena_gpu(id);
    for (const ClientId one : gpu.clients) {
      const ClientRecord& other = clients_.at(one);
      const Bytes idle = other.arena_made - arena_need(now, leaves_by_us(other));
      if (one != client.id) need += std::max(Bytes{}, idle);
    }
  }
  const Bytes most = arena_ == nullptr ? Bytes{} : arena_->most();
  if (need <= most) return std::nullopt;
  return Refusal{
      Bytes{},
      fmt::format("{} would be allocated on a GPU that can hold {}: {} of host memory would be "
                  "needed to swap, and there can be {}",
                  nvshare::to_text(grown.demand), nvshare::to_text(grown.safe),
                  nvshare::to_text(need), nvshare::to_text(most))};
}

Bytes Broker::arena_used() const {
  Bytes sum{};
  for (const auto& [id, client] : clients_) sum += client.arena_made;
  return sum;
}

Bytes Broker::arena_given() const {
  Bytes sum{};
  for (const auto& [id, client] : clients_) sum += client.arena;
  return sum;
}

// Ahead of need: making a piece takes far longer than moving memory into it.
void Broker::fill_arena() {
  if (arena_ == nullptr) return;
  Bytes used = arena_used();
  for (const auto& [id, record] : gpus_) {
    const ArenaGpu gpu = arena_gpu(id);
    for (const ClientId client_id : record.clients) {
      ClientRecord& client = clients_.at(client_id);
      const Bytes more = arena_need(gpu, leaves_by_us(client)) - client.arena_made;
      if (more.count <= 0 || used + more > arena_->most()) continue;
      used += more;
      client.arena_made += more;
      arena_->make(client_id, more);
    }
  }
}

void Broker::arena_ready(ClientId id, int descriptor, Bytes bytes) {
  ClientRecord* client = find(id);
  if (client == nullptr) return;
  client->arena += bytes;
  auto message = wire::make<wire::Arena>();
  message.bytes = static_cast<std::uint64_t>(bytes.count);
  outbox_.hand_over(id, message.header, descriptor);
}

// It is tried again with the next sample.
void Broker::arena_failed(ClientId id, Bytes bytes, std::string_view why) {
  log_.warn("no_host_memory", {{"client", id.value}, {"bytes", bytes.count}, {"reason", why}});
  if (ClientRecord* client = find(id)) client->arena_made -= std::min(bytes, client->arena_made);
}

}  // namespace nvshare::daemon
