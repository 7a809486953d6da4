#include "core/arbiter/usage_meter.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <utility>

namespace nvshare::core {

std::optional<UsageSample> UsageMeter::read(const Snapshot& snapshot, GpuId gpu,
                                            std::optional<int> seen, Time at, Time now) {
  std::map<TenantId, Duration> billed;
  std::map<TenantId, Duration> since;  // the last reading
  for (const ShareView& share : snapshot.shares) {
    if (share.gpu != gpu) continue;
    billed[share.tenant] = share.billed;
    const auto before = billed_.find(share.tenant);
    const Duration earlier = before == billed_.end() ? Duration{} : before->second;
    since[share.tenant] = std::max(Duration{}, share.billed - earlier);
  }
  // A parent's bill has those of its parts in it. A part that has gone since leaves its bill there.
  std::map<TenantId, Duration> own = since;
  for (const TenantView& tenant : snapshot.tenants) {
    if (!tenant.parent || !since.contains(tenant.id)) continue;
    const auto parent = own.find(*tenant.parent);
    if (parent != own.end()) parent->second -= since[tenant.id];
  }
  const auto last = std::exchange(read_at_, now);
  billed_ = std::move(billed);
  std::array<double, kPriorities> by_priority{};
  double sum = 0;
  if (last && now > *last) {
    const double passed = std::chrono::duration<double>(now - *last).count();
    for (const ShareView& share : snapshot.shares) {
      if (share.gpu != gpu) continue;
      const Duration spent = std::max(Duration{}, own[share.tenant]);
      const double percent = 100 * std::chrono::duration<double>(spent).count() / passed;
      by_priority[static_cast<std::size_t>(share.priority - kLowestPriority)] += percent;
      sum += percent;
    }
  } else if (!seen) {
    return std::nullopt;
  }
  return UsageSample::of(at, seen ? *seen : std::min(sum, 100.0), by_priority);
}

}  // namespace nvshare::core
