#include "bills.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace nvshare::properties {
namespace {

// Shares of a nanosecond are rounded down once for each change of who runs.
constexpr std::int64_t kRounding = 1000;

}  // namespace

Bills::Kind Bills::kind_of(const core::Config& config) {
  using core::ComputePolicy;
  if (config.tail_billing_percent != 100) return Kind::Unchecked;
  switch (config.policy) {
    case ComputePolicy::Metered:
      return Kind::Metered;
    case ComputePolicy::Weighted:
      return Kind::Divided;
    case ComputePolicy::Wall:
    case ComputePolicy::Coordinated:
    case ComputePolicy::Fair:
      return Kind::Union;
    case ComputePolicy::Hybrid:
    case ComputePolicy::Dynamic:
      return Kind::Unchecked;
  }
  return Kind::Unchecked;
}

Bills::Bills(const core::Config& config) : kind_(kind_of(config)) {}

void Bills::config_changed(const core::Config& config) {
  if (kind_of(config) != kind_) kind_ = Kind::Unchecked;
}

void Bills::advance(Time now) {
  const std::int64_t passed = (now - at_).count();
  at_ = now;
  if (!on_ || passed <= 0 || kind_ == Kind::Metered) return;
  for (auto& [key, account] : accounts_) {
    if (account.holders == 0) continue;
    const Parts all = Parts{passed} * kNanosecond;
    const bool divided = kind_ == Kind::Divided;
    account.billed += divided ? all * account.holders / running_[key.first] : all;
  }
}

void Bills::tenant_added(core::TenantId tenant, std::optional<core::TenantId> parent) {
  parents_[tenant] = parent;
}

void Bills::joined(const ShadowClient& client) {
  each_account(client, [](Account&) {});
}

void Bills::granted(const ShadowClient& client) {
  each_account(client, [](Account& one) { ++one.holders; });
  ++running_[client.gpu];
}

void Bills::metered(ShadowClient& client, Duration used, Time now) {
  const Duration wall = std::max(client.reported, now - client.granted_at);
  const Duration shown = std::clamp(used, client.reported, wall);
  if (on_ && kind_ == Kind::Metered) {
    const Parts more = Parts{(shown - client.reported).count()} * kNanosecond;
    each_account(client, [&](Account& one) { one.billed += more; });
  }
  client.reported = shown;
  client.read_at = now;
}

void Bills::returned(const ShadowClient& client) {
  each_account(client, [](Account& one) { --one.holders; });
  --running_[client.gpu];
}

void Bills::tenant_removed(core::TenantId tenant) {
  std::erase_if(accounts_, [&](const auto& entry) { return entry.first.second == tenant; });
  parents_.erase(tenant);
}

void Bills::gpu_removed(core::GpuId gpu) {
  std::erase_if(accounts_, [&](const auto& entry) { return entry.first.first == gpu; });
}

std::string Bills::compare(const std::vector<core::ShareView>& shares) const {
  if (kind_ == Kind::Unchecked) return {};
  for (const core::ShareView& share : shares) {
    const auto it = accounts_.find({share.gpu, share.tenant});
    if (it == accounts_.end()) return fmt::format("tenant {} was never here", share.tenant.value);
    const bool settled = kind_ == Kind::Metered || it->second.holders == 0;
    const auto used = static_cast<std::int64_t>(it->second.billed / kNanosecond);
    const std::int64_t off = share.billed.count() - used;
    if (settled && std::abs(off) > (kind_ == Kind::Metered ? 0 : kRounding)) {
      return fmt::format("tenant {} is billed {}ns and used {}ns", share.tenant.value,
                         share.billed.count(), used);
    }
  }
  return {};
}

}  // namespace nvshare::properties
