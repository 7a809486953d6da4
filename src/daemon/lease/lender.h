#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/broker/broker.h"
#include "daemon/lease/leases.h"
#include "daemon/serve/identity.h"

namespace nvshare::daemon {

// Lends the priority of its class to the tenant of a lease's holder, while the lease is held: where
// the process that owns the lease uses the lease's GPU. Of a lease `with_children` also where a
// process below the owner does.
class Lender {
 public:
  // Of a private scheduler all tenants are one user's.
  Lender(Broker& broker, const Processes& processes, bool is_private)
      : broker_(broker), processes_(processes), is_private_(is_private) {}

  // Leases have come or gone.
  void leases_changed() { due_ = true; }
  // Lends what is due; when to be called again if not all programs have been looked at.
  std::optional<Time> end_of_turn(const Leases& leases, Time now);

  // Programs of which the processes above are looked up in one turn: each takes some reads.
  static constexpr int kLooksPerTurn = 16;

 private:
  using Place = std::pair<TenantId, GpuId>;

  bool clients_changed();
  // False: some programs have not been looked at yet.
  bool look_above();
  std::map<Place, int> wanted(const Leases& leases) const;
  int most_lent(TenantId tenant) const;

  Broker& broker_;
  const Processes& processes_;
  bool is_private_;
  bool due_ = false;
  std::pair<std::size_t, ClientId> clients_seen_{};
  std::map<ClientId, std::vector<ProcessKey>> above_;  // of each program, with its own process
  std::map<Place, int> lent_;
};

}  // namespace nvshare::daemon
