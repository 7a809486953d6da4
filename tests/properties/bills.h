#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/snapshot.h"
#include "shadow.h"

namespace nvshare::properties {

// Conservation of billed time, for the policies that bill in one way only:
//  metered                  a tenant's bill is the sum of what its clients' meters showed, never
//                           more than the wall time of the grant; an overdue client pays the wall
//                           time, one that vanished that since its last reading
//  weighted                 each moment in which somebody runs is billed once, in equal parts to
//                           the clients that run
//  wall, coordinated, fair  a tenant pays each moment in which one of its clients runs, once
// What a part is billed, all tenants that it is a part of are billed as well.
// Nothing is billed while scheduling is off. Tails are billed in full (tail_billing_percent 100).
class Bills {
 public:
  explicit Bills(const core::Config& config);

  void advance(Time now);
  void tenant_added(core::TenantId tenant, std::optional<core::TenantId> parent);
  void joined(const ShadowClient& client);
  void granted(const ShadowClient& client);
  // A reading of the meter for a client that holds a grant.
  void metered(ShadowClient& client, Duration used, Time now);
  void returned(const ShadowClient& client);
  // Accounts outlive processes: they end with the tenant or the GPU.
  void tenant_removed(core::TenantId tenant);
  void gpu_removed(core::GpuId gpu);
  void switched(bool on) { on_ = on; }
  void config_changed(const core::Config& config);

  // What is wrong with the bills shown; empty when nothing is.
  std::string compare(const std::vector<core::ShareView>& shares) const;

 private:
  enum class Kind { Metered, Divided, Union, Unchecked };
  // Parts of a nanosecond: exact after years of use as well, as the core is.
  __extension__ typedef __int128 Parts;
  static constexpr std::int64_t kNanosecond = 1'000'000;
  struct Account {
    int holders = 0;
    Parts billed = 0;
  };
  using Key = std::pair<core::GpuId, core::TenantId>;

  static Kind kind_of(const core::Config& config);
  // Of the client's tenant and all that it is a part of.
  template <typename Function>
  void each_account(const ShadowClient& client, Function call) {
    for (std::optional<core::TenantId> at = client.tenant; at; at = parents_[*at]) {
      call(accounts_[{client.gpu, *at}]);
    }
  }

  Kind kind_;
  bool on_ = true;
  Time at_{};
  std::map<Key, Account> accounts_;
  std::map<core::TenantId, std::optional<core::TenantId>> parents_;
  std::map<core::GpuId, int> running_;
};

}  // namespace nvshare::properties
