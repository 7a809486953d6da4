#pragma once

#include <map>
#include <optional>
#include <vector>

#include "base/result.h"
#include "daemon/broker/records.h"

// Tenants nest: a run is a part of its user or container, or of the run around it. A *level* of a
// tenant is the tenant itself, its parent, and so on up to the top.
namespace nvshare::daemon {

using TenantMap = std::map<TenantId, TenantRecord>;

// Calls with each level, from the tenant up.
template <typename Map, typename Call>
void for_each_level(Map& tenants, TenantId tenant, Call call) {
  for (std::optional<TenantId> at = tenant; at;) {
    auto& level = tenants.at(*at);
    at = level.parent;
    call(level);
  }
}

// The tenant first, then its parts and their parts. A parent comes before its parts.
std::vector<TenantId> tenants_below(const TenantMap& tenants, TenantId tenant);
// Clients of the tenant and of everything below it.
std::vector<ClientId> clients_below(const TenantMap& tenants, TenantId tenant);
// Whether `part` is `tenant`, or below it.
bool is_below(const TenantMap& tenants, TenantId part, TenantId tenant);

// Of each limit the tighter one.
core::Limits tightest(core::Limits limits, const core::Limits& others);
// What holds for clients of the tenant: of each limit the tightest of all levels.
core::Limits tightest_limits(const TenantMap& tenants, TenantId tenant);
// The tenant or a level above it is paused.
bool is_paused(const TenantMap& tenants, TenantId tenant);
// The highest level with a memory limit; the tenant itself when no level has one. Memory that
// clients below this level have is no matter of limits for anybody else.
TenantId limited_level(const TenantMap& tenants, TenantId tenant);

// Whether a part of `parent` may have these limits: none is above a limit of a level. Limits that
// are the same in `before` are not looked at, because a parent can be lowered below its parts.
Result<void> check_part(const TenantMap& tenants, std::optional<TenantId> parent,
                        const core::Limits& limits, const core::Limits& before = {});

}  // namespace nvshare::daemon
