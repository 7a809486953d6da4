#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>

#include "daemon/broker/trace.h"
#include "daemon/lease/leases.h"
#include "daemon/serve/identity.h"
#include "daemon/serve/lease_facts.h"

namespace nvshare::daemon {

// Notes in the trace what becomes of leases, and knows the tenant of each. A lease is a number
// there, because its name is the right to it.
class LeaseNotes {
 public:
  using TenantOf = std::function<std::string(int pid, std::uint32_t uid)>;

  // All that is handed in outlives it.
  LeaseNotes(Leases& leases, Trace& trace, TenantOf tenant_of);

  // The tenant of the lease's owner. Empty: none is known.
  std::string tenant_of(LeaseId lease) const;
  // About once a second: looks at owners anew, because a process can be in a run that began later.
  void look() { of_process_.clear(); }

  // For people, at `now`.
  LeaseFacts::Leases facts(const LeaseFacts::IsWanted& is_wanted, Time now) const;

 private:
  void note(const LeaseRecord& lease, const LeaseEvent& event);
  std::string find_tenant(const LeaseRecord& lease);

  const Leases& leases_;
  Trace& trace_;
  TenantOf tenant_of_;
  // What the kernel said in this second: that takes some microseconds for each lease.
  std::map<ProcessKey, std::string> of_process_;
  std::unordered_map<LeaseId, std::string> of_lease_;  // that is held or waits
};

}  // namespace nvshare::daemon
