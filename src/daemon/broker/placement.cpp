#include "daemon/broker/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "daemon/broker/tree.h"

namespace nvshare::daemon {

// The GPUs that the run names, in its order. Whatever the scheduler does not know is left out.
std::vector<GpuId> RunPlacer::known(const wire::RunBegin& begin) const {
  std::vector<GpuId> all;
  const std::size_t count = std::min<std::size_t>(begin.gpu_count, wire::kMostRunGpus);
  for (std::size_t i = 0; i < count; ++i) {
    for (const auto& [id, gpu] : gpus_) {
      const bool same = std::memcmp(gpu.uuid.data(), begin.gpus[i], gpu.uuid.size()) == 0;
      if (same && std::ranges::find(all, id) == all.end()) all.push_back(id);
    }
  }
  return all;
}

std::vector<core::Reservation> RunPlacer::reservations() const {
  std::vector<core::Reservation> all;
  for (const auto& [id, tenant] : tenants_) {
    if (!tenant.placed.awaited || !tenant.open) continue;
    for (const GpuId gpu : tenant.placed.gpus) {
      all.push_back({gpu, tenant.limits.memory.value_or(Bytes{})});
    }
  }
  return all;
}

RunPlacement RunPlacer::choose(const TenantRecord& run, const wire::RunBegin& begin) const {
  RunPlacement placed;
  core::PlaceWish wish{.memory = run.limits.memory, .among = known(begin), .reserved = {}};
  if (begin.gpu_count > 0 && wish.among.empty()) return placed;
  if (wish.among.empty()) {
    for (const auto& [id, gpu] : gpus_) wish.among.push_back(id);
  }
  wish.reserved = reservations();
  const std::size_t wanted = std::max<std::size_t>(begin.gpus_wanted, 1);
  while (placed.gpus.size() < std::min(wanted, wire::kMostRunGpus) && !wish.among.empty()) {
    const auto best = core_.place(wish);
    if (!best) break;
    if (placed.gpus.empty()) placed.why = core::to_text(*best);
    placed.gpus.push_back(best->gpu);
    std::erase(wish.among, best->gpu);
  }
  if (placed.gpus.size() > 1) {
    placed.why = fmt::format("first GPU {}, because {}", placed.gpus.front().value, placed.why);
  }
  // Programs count their GPUs as the machine does.
  std::ranges::sort(placed.gpus);
  return placed;
}

void RunPlacer::say(const RunPlacement& placed, wire::Welcome& welcome) const {
  for (const GpuId id : placed.gpus) {
    const Uuid& uuid = gpus_.at(id).uuid;
    std::memcpy(welcome.gpus[welcome.gpu_count++], uuid.data(), uuid.size());
  }
  wire::put_text(welcome.placement, sizeof welcome.placement, placement_text(placed).c_str());
}

void RunPlacer::place(TenantId tenant, const wire::RunBegin& begin, bool claimed_gpus,
                      wire::Welcome& welcome) {
  const auto at = tenants_.find(tenant);
  if (at == tenants_.end()) return;
  RunPlacement& placed = at->second.placed;
  switch (begin.choice) {
    case wire::GpuChoice::Auto:
      if (claimed_gpus || gpus_.size() < 2) return;
      placed = choose(at->second, begin);
      break;
    case wire::GpuChoice::Chosen:
      placed = {known(begin), core::to_text(core::Reason{.why = core::Why::Asked})};
      break;
    case wire::GpuChoice::Kept:
      placed = {known(begin), core::to_text(core::Reason{.why = core::Why::KeptGpu})};
      break;
    case wire::GpuChoice::None:
    default:
      return;
  }
  if (placed.gpus.empty()) {
    placed = {};
    return;
  }
  // After a restart of the scheduler programs may be back before their run is. The run would count
  // twice then, because no first client comes any more.
  placed.awaited = clients_below(tenants_, tenant).empty();
  say(placed, welcome);
  log_.info("run_placed", {{"tenant", at->second.is.name},
                           {"gpu", placed.gpus.front().value},
                           {"gpus", placed.gpus.size()},
                           {"reason", placed.why}});
}

std::string placement_text(const RunPlacement& placed) {
  if (placed.gpus.empty()) return "";
  std::string names;
  for (std::size_t i = 0; i < placed.gpus.size(); ++i) {
    const bool last = i + 1 == placed.gpus.size();
    names += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", placed.gpus[i].value);
  }
  return fmt::format("placed on GPU{} {}: {}", placed.gpus.size() == 1 ? "" : "s", names,
                     placed.why);
}

}  // namespace nvshare::daemon
