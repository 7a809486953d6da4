#include "daemon/broker/arena_policy.h"

#include <algorithm>

#include "core/config.h"

namespace nvshare::daemon {
namespace {

constexpr Bytes kSmallCard = gib(16);
constexpr int kBeginsAtPercent = 90;  // of what is safe: pieces are made before they are needed

Bytes round_up(Bytes bytes, Bytes unit) {
  return Bytes{(bytes.count + unit.count - 1) / unit.count * unit.count};
}

// Of all that may leave at most what is too much, and a chunk more; in whole units.
Bytes most_needed(const ArenaGpu& gpu, Bytes demand) {
  const Bytes over = std::max(Bytes{}, demand - gpu.safe);
  return round_up(over + core::kLargestChunk, arena_unit(gpu.total));
}

Bytes need_of(const ArenaGpu& gpu, Bytes movable, Bytes most) {
  return std::min(round_up(movable, arena_unit(gpu.total)), most);
}

}  // namespace

Bytes arena_unit(Bytes gpu_total) {
  return gpu_total < kSmallCard ? mib(64) : mib(256);
}

Bytes fits_easily(Bytes safe) {
  return Bytes{safe.count / 100 * kBeginsAtPercent};
}

void ArenaGpu::grow(std::size_t client, Bytes by, bool movable) {
  demand += by;
  if (movable) clients.at(client).movable += by;
}

Bytes arena_need(const ArenaGpu& gpu, Bytes movable) {
  if (gpu.clients.size() < 2 || movable.count <= 0) return {};
  if (gpu.demand <= fits_easily(gpu.safe)) return {};
  return need_of(gpu, movable, most_needed(gpu, gpu.demand));
}

Bytes sleep_need(const ArenaGpu& gpu, Bytes movable) {
  if (movable.count <= 0) return {};
  const Bytes unit = arena_unit(gpu.total);
  return round_up(movable, unit) + unit;
}

Bytes arena_held(const ArenaGpu& gpu) {
  Bytes sum{};
  for (const ArenaClient& client : gpu.clients) {
    sum += std::max(arena_need(gpu, client.movable), client.made);
  }
  return sum;
}

// The more it has the more must be able to leave, so the most is between what fits and what does
// not.
Bytes ArenaRoom::of(std::size_t client, Bytes room) {
  if (room <= Bytes{} || fits(client, room)) return room;
  Bytes enough{};
  while (enough + Bytes{1} < room) {
    const Bytes middle{(enough.count + room.count) / 2};
    (fits(client, middle) ? enough : room) = middle;
  }
  return enough;
}

// As arena_held() of what the GPU would be then, but for what the client itself has been given:
// that may be less than it needs, and is its own.
bool ArenaRoom::fits(std::size_t client, Bytes more) {
  const Bytes demand = gpu_.demand + more;
  if (demand <= gpu_.safe) return true;
  if (gpu_.clients.size() < 2) return most_ >= Bytes{};
  const Bytes most = most_needed(gpu_, demand);
  const ArenaClient& own = gpu_.clients.at(client);
  const Bytes others = held_with(most) - std::max(need_of(gpu_, own.movable, most), own.made);
  return others + need_of(gpu_, own.movable + more, most) <= most_;
}

Bytes ArenaRoom::held_with(Bytes most) {
  const auto [at, fresh] = held_.try_emplace(most);
  if (!fresh) return at->second;
  for (const ArenaClient& client : gpu_.clients) {
    at->second += std::max(need_of(gpu_, client.movable, most), client.made);
  }
  return at->second;
}

}  // namespace nvshare::daemon
