#include "core/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "core/core_impl.h"

namespace nvshare::core {
namespace {

constexpr std::size_t kOthersShown = 3;

bool fits(const GpuLoad& gpu, const std::optional<Bytes>& memory) {
  if (memory) return *memory <= gpu.free;
  return gpu.free.count >= gpu.total.count / 100 * kFreeForUnknown;
}

bool is_better(const GpuLoad& a, const GpuLoad& b, const std::optional<Bytes>& memory) {
  const bool a_fits = fits(a, memory);
  if (a_fits != fits(b, memory)) return a_fits;
  if (!a_fits && a.free != b.free) return a.free > b.free;
  return std::tuple(a.programs, a.wanting, -a.free.count, a.gpu) <
         std::tuple(b.programs, b.wanting, -b.free.count, b.gpu);
}

Reason reason_for(const GpuLoad& best, const std::vector<GpuLoad>& others,
                  const std::optional<Bytes>& memory) {
  Reason reason{.bytes = memory.value_or(Bytes{}), .free = best.free, .count = best.programs};
  const bool passed_over = std::ranges::any_of(others, [&](const GpuLoad& other) {
    return !fits(other, memory) && other.programs <= best.programs;
  });
  if (others.empty()) {
    reason.why = Why::OnlyGpu;
  } else if (!fits(best, memory)) {
    reason.why = Why::MostFree;
  } else if (passed_over) {
    reason.why = Why::HasRoom;
  } else {
    reason.why = best.programs == 0 ? Why::IdleGpu : Why::LeastLoaded;
  }
  return reason;
}

std::string programs(int count) {
  return count == 1 ? "1 program" : fmt::format("{} programs", count);
}

std::string had(const GpuLoad& gpu, Why why) {
  if (why == Why::HasRoom || why == Why::MostFree) {
    return fmt::format("GPU {} had {} free", gpu.gpu.value, to_text(std::max(gpu.free, Bytes{})));
  }
  if (gpu.programs == 0) return fmt::format("GPU {} was idle too", gpu.gpu.value);
  return fmt::format("GPU {} had {}", gpu.gpu.value, programs(gpu.programs));
}

}  // namespace

std::optional<Placement> choose(const std::vector<GpuLoad>& gpus,
                                const std::optional<Bytes>& memory) {
  const auto best = std::ranges::min_element(
      gpus, [&](const GpuLoad& a, const GpuLoad& b) { return is_better(a, b, memory); });
  if (best == gpus.end()) return std::nullopt;
  Placement placement{best->gpu, {}, {}};
  for (const GpuLoad& gpu : gpus) {
    if (gpu.gpu != best->gpu) placement.others.push_back(gpu);
  }
  placement.reason = reason_for(*best, placement.others, memory);
  return placement;
}

std::string to_text(const Placement& placement) {
  std::string text = to_text(placement.reason);
  const std::size_t shown = std::min(placement.others.size(), kOthersShown);
  for (std::size_t i = 0; i < shown; ++i) {
    text += (i == 0 ? "; " : ", ") + had(placement.others[i], placement.reason.why);
  }
  const std::size_t more = placement.others.size() - shown;
  return more == 0 ? text : text + fmt::format(" and {} others", more);
}

std::optional<Placement> Core::Impl::place(const PlaceWish& wish) const {
  std::vector<GpuLoad> gpus;
  for (const auto& [id, gpu] : gpus_) {
    if (!wish.among.empty() && !std::ranges::count(wish.among, id)) continue;
    GpuLoad load{.gpu = id,
                 .programs = static_cast<int>(gpu.clients().size()),
                 .wanting = gpu.wanting(),
                 .free = gpu.residency().safe_limit(),
                 .total = gpu.total()};
    for (const auto& [client_id, client] : gpu.clients()) {
      load.free -= client->memory.demand + client->memory.rounding;
    }
    for (const Reservation& one : wish.reserved) {
      if (one.gpu != id) continue;
      ++load.programs;
      load.free -= one.memory;
    }
    gpus.push_back(load);
  }
  return choose(gpus, wish.memory);
}

std::optional<Placement> Core::place(const PlaceWish& wish) const {
  return impl_->place(wish);
}

}  // namespace nvshare::core
