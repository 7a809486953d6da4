#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/broker/broker.h"
#include "daemon/lease/leases.h"
#include "daemon/serve/identity.h"

namespace nvshare::daemon {

// What a lease means for its holder's programs: those of the process that owns the lease, on the
// lease's GPU. Of a lease `with_children` also those of processes below the owner.
//
// While the lease is held, their tenant has the priority of its class, and their memory is on the
// GPU. A lease that was held for too long keeps them off it, while others hold leases there or
// wait.
class Lender {
 public:
  // Of a private scheduler all tenants are one user's.
  Lender(Broker& broker, const Processes& processes, bool is_private)
      : broker_(broker), processes_(processes), is_private_(is_private) {}

  // Leases have come or gone.
  void leases_changed() { due_ = true; }
  // Does what is due; when to be called again if not all programs have been looked at.
  std::optional<Time> end_of_turn(const Leases& leases, Time now);

  // Whether the holder has a program on the GPU, as far as that is known; and whether all memory of
  // its programs there is on the GPU, or is not worth waiting for.
  bool any_program(const LeaseHolder& holder, GpuId gpu);
  bool memory_is_there(const LeaseHolder& holder, GpuId gpu, Time now);

  // Programs of which the processes above are looked up in one turn: each takes some reads.
  static constexpr int kLooksPerTurn = 16;

 private:
  using Place = std::pair<TenantId, GpuId>;
  struct Wanted {
    std::map<Place, int> lent;
    std::map<ClientId, core::ClientLease> leased;
  };

  bool clients_changed();
  // False: some programs have not been looked at yet.
  bool look_above();
  bool is_complete(ClientId client) const;
  bool is_of(const ClientRecord& client, const LeaseHolder& holder) const;
  bool is_in_vain(ClientId client, Time now) const;
  Wanted wanted(const Leases& leases, Time now) const;
  void lend(const std::map<Place, int>& next, Time now);
  void tell(const std::map<ClientId, core::ClientLease>& next, Time now);
  const TenantRecord& top_of(TenantId tenant) const;
  int most_lent(TenantId tenant) const;

  Broker& broker_;
  const Processes& processes_;
  bool is_private_;
  bool due_ = false;
  std::pair<std::size_t, ClientId> clients_seen_{};
  std::map<ClientId, std::vector<ProcessKey>> above_;  // of each program, with its own process
  std::map<Place, int> lent_;
  std::map<ClientId, core::ClientLease> leased_;  // as the core was told
  std::uint64_t changes_seen_ = 0;
  bool scheduling_seen_ = true;
};

}  // namespace nvshare::daemon
