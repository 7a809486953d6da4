#pragma once

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

  // What all processes of the tenant together have there.
  Bytes allocated_by(const TenantRecord& tenant, GpuId gpu) const;
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
  void believe(ClientRecord& client, Time now);
};

}  // namespace nvshare::daemon
