#include "daemon/arena_policy.h"

#include <algorithm>

#include "core/config.h"

namespace nvshare::daemon {
namespace {

constexpr Bytes kSmallCard = gib(16);
constexpr int kBeginsAtPercent = 90;  // of what is safe: pieces are made before they are needed

Bytes round_up(Bytes bytes, Bytes unit) {
  return Bytes{(bytes.count + unit.count - 1) / unit.count * unit.count};
}

}  // namespace

Bytes arena_unit(Bytes gpu_total) {
  return gpu_total < kSmallCard ? mib(64) : mib(256);
}

Bytes fits_easily(Bytes safe) {
  return Bytes{safe.count / 100 * kBeginsAtPercent};
}

Bytes arena_need(const ArenaGpu& gpu, Bytes movable) {
  if (gpu.movable.size() < 2 || movable.count <= 0) return {};
  if (gpu.demand <= fits_easily(gpu.safe)) return {};
  const Bytes over = std::max(Bytes{}, gpu.demand - gpu.safe);
  return round_up(std::min(movable, over + core::kLargestChunk), arena_unit(gpu.total));
}

Bytes arena_need(const ArenaGpu& gpu) {
  Bytes sum{};
  for (const Bytes movable : gpu.movable) sum += arena_need(gpu, movable);
  return sum;
}

}  // namespace nvshare::daemon
