#include "daemon/broker/tree.h"

#include <fmt/format.h>

#include <algorithm>

namespace nvshare::daemon {

std::vector<TenantId> tenants_below(const TenantMap& tenants, TenantId tenant) {
  std::vector<TenantId> all{tenant};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::set<TenantId>& parts = tenants.at(all[i]).parts;
    all.insert(all.end(), parts.begin(), parts.end());
  }
  return all;
}

std::vector<ClientId> clients_below(const TenantMap& tenants, TenantId tenant) {
  std::vector<ClientId> all;
  for (const TenantId id : tenants_below(tenants, tenant)) {
    const std::set<ClientId>& clients = tenants.at(id).clients;
    all.insert(all.end(), clients.begin(), clients.end());
  }
  return all;
}

bool is_below(const TenantMap& tenants, TenantId part, TenantId tenant) {
  bool found = false;
  for_each_level(tenants, part, [&](const TenantRecord& level) { found |= level.id == tenant; });
  return found;
}

core::Limits tightest(core::Limits limits, const core::Limits& others) {
  limits.core_percent = std::min(limits.core_percent, others.core_percent);
  limits.priority = std::min(limits.priority, others.priority);
  if (others.memory) {
    limits.memory = std::min(limits.memory.value_or(*others.memory), *others.memory);
  }
  return limits;
}

core::Limits tightest_limits(const TenantMap& tenants, TenantId tenant) {
  core::Limits limits = tenants.at(tenant).limits;
  for_each_level(tenants, tenant,
                 [&](const TenantRecord& level) { limits = tightest(limits, level.limits); });
  return limits;
}

bool is_paused(const TenantMap& tenants, TenantId tenant) {
  bool paused = false;
  for_each_level(tenants, tenant, [&](const TenantRecord& level) { paused |= level.paused; });
  return paused;
}

TenantId limited_level(const TenantMap& tenants, TenantId tenant) {
  TenantId highest = tenant;
  for_each_level(tenants, tenant, [&](const TenantRecord& level) {
    if (level.limits.memory) highest = level.id;
  });
  return highest;
}

Result<void> check_part(const TenantMap& tenants, std::optional<TenantId> parent,
                        const core::Limits& limits, const core::Limits& before) {
  if (!parent) return {};
  std::optional<Error> above;
  for_each_level(tenants, *parent, [&](const TenantRecord& level) {
    const auto refuse = [&](const std::string& what, const std::string& most) {
      if (above) return;
      above = Error{
          fmt::format("{} is above the limit of '{}', which is {}", what, level.is.name, most)};
    };
    const core::Limits& most = level.limits;
    if (limits.core_percent != before.core_percent && limits.core_percent != core::kNoCoreLimit &&
        limits.core_percent > most.core_percent) {
      refuse(fmt::format("cores {}", limits.core_percent), std::to_string(most.core_percent));
    }
    if (limits.memory != before.memory && limits.memory && most.memory &&
        *limits.memory > *most.memory) {
      refuse("memory " + to_text(*limits.memory), to_text(*most.memory));
    }
    if (limits.priority != before.priority && limits.priority > most.priority) {
      refuse(fmt::format("priority {}", limits.priority), std::to_string(most.priority));
    }
  });
  if (above) return *above;
  return {};
}

}  // namespace nvshare::daemon
