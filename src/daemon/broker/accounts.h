#pragma once

#include <map>
#include <optional>

#include "daemon/broker/desk.h"

namespace nvshare::daemon {

// What clients have, as the core and their pages are told it. Claims of clients that come back, and
// programs that are larger than their GPU because they were started so (`nvshare run
// --oversubscribe-self`).
class Accounts : private Owner {
 public:
  explicit Accounts(Desk& desk) : Owner(desk) {}

  // Tells the core what the account says. The client has it: more than before counts as found.
  void book(ClientRecord& client, Time now, bool from_before = false);

  // What all processes of the tenant and its parts together have there.
  Bytes allocated_by(const TenantRecord& tenant, GpuId gpu) const;
  // The level with the least memory left under its limit there. None: no level has a limit.
  std::optional<TenantId> binding_level(TenantId tenant, GpuId gpu) const;
  // What a program of the tenant sees: the least limit of all levels, and as much in use as leaves
  // the room that the level with the least room has.
  struct Shown {
    std::optional<Bytes> limit;
    Bytes allocated{};
  };
  Shown shown_to(TenantId tenant, GpuId gpu) const;
  // In the pages of all clients for which a change in the tenant makes a difference.
  void show_allocated(TenantId tenant, GpuId gpu);
  // How much each client can have, in its page.
  void show_rooms();

  // --- claims
  // All that the client has counts, whatever its limit and the room. What is not believed to be on
  // the GPU counts as absent.
  void take_claim(ClientRecord& client, Time now);
  // The one place where claims are looked at again: there may be more room than there was, or a
  // higher limit. Nearly always nobody is doubted.
  void believe_more(Time now);

  // --- larger than the GPU
  // How much of `more` would be beyond the GPU.
  Bytes beyond_with(const ClientRecord& client, Bytes more) const;
  // There may be less room than there was: one more process, or memory of others that cannot move.
  // Where there is more again it comes with the next allocation.
  void fit_oversubscribed(Time now);

 private:
  void show_own_allocated(const TenantRecord& tenant, GpuId gpu);
  // What each tenant below has there, with its parts.
  using Sums = std::map<TenantId, Bytes>;
  Sums sums_below(TenantId tenant, GpuId gpu) const;
  Shown shown_to(TenantId tenant, const Sums& sums) const;
  void believe(ClientRecord& client, Time now);
};

}  // namespace nvshare::daemon
