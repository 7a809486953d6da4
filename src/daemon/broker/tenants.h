#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "daemon/broker/credit.h"
#include "daemon/broker/grants.h"

namespace nvshare::daemon {

// Tenants: their limits, their shares, and when they are forgotten.
class Tenants : private Owner {
 public:
  Tenants(Desk& desk, Accounts& accounts, Credit& credit, Grants& grants)
      : Owner(desk), accounts_(accounts), credit_(credit), grants_(grants) {}

  // Broker says what these promise.
  Result<TenantId> tenant_for(const TenantName& name, const core::Limits& limits, Time now,
                              std::optional<TenantId> parent);
  Result<TenantId> begin_run(const TenantName& name, const core::Limits& limits, Time now,
                             wire::Backend backend, bool oversubscribes,
                             std::optional<TenantId> parent);
  void end_run(TenantId tenant, Time now, bool occupied);
  void set_vacant(TenantId tenant, Time now);
  std::map<TenantId, Duration> bills() const;
  const TenantRecord* find_tenant(std::string_view name) const;
  Result<void> set_limits(TenantId tenant, const core::Limits& limits, Time now,
                          bool within_parents);
  Result<void> lend_priority(TenantId tenant, GpuId gpu, std::optional<int> priority, Time now);
  void keep(TenantId tenant, bool kept);
  Result<void> set_paused(TenantId tenant, bool paused, Time now);
  Result<bool> set_asleep(TenantId tenant, bool asleep, bool hold, Time now);

  // A client or a part of it is gone.
  void left(TenantRecord& tenant, Time now);
  // About once a second: reckons shares, forgets tenants that nobody uses.
  void sample(Time now);

  static constexpr std::size_t kMostTenants = 4096;
  static constexpr Duration kTenantLingers = 60s;  // what it owes is not forgotten sooner

 private:
  Result<TenantId> add_tenant(const TenantName& name, const core::Limits& limits,
                              std::optional<TenantId> parent, Time now);
  Result<void> change_limits(TenantRecord& tenant, const core::Limits& limits, Time now);
  static bool is_vacant(const TenantRecord& tenant);
  bool is_held(const TenantRecord& tenant) const;
  bool in_use(const TenantRecord& tenant, Time now) const;
  void remove(const TenantRecord& tenant, Time now);
  bool make_room(std::optional<TenantId> parent, Time now);
  void forget_unused(Time now);
  void show_limits(TenantId tenant);
  void sample_shares(Time now);
  int gpus_used(const TenantRecord& tenant) const;
  // The limit of the tenant changes, or it is stopped: what it and its parts had before does not
  // count for their shares now.
  void restart_shares(TenantId tenant, Time now);

  Accounts& accounts_;
  Credit& credit_;
  Grants& grants_;
  std::uint64_t next_tenant_ = 1;
  std::map<std::string, TenantId, std::less<>> by_name_;
};

// How long the tenant, or a part of it, has had work to do.
Duration wanted(const TenantRecord& tenant, Time now);

}  // namespace nvshare::daemon
