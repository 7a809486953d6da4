#pragma once

#include <cstdint>

#include "daemon/broker/accounts.h"

namespace nvshare::daemon {

// Credit (wire/credit.h): what a client may allocate without asking, as long as no limit is near.
//
// What a client has and what is left of its credit is one sum. Only what is decided here and what
// is asked for or told by message changes it, and it stays within every limit; so whatever the
// client does with its credit, nothing would have been decided otherwise. Whoever brings a limit
// near takes the credit back first and decides then, so nobody is refused for what somebody else
// does not use. The core never hears of credit.
class Credit : private Owner {
 public:
  Credit(Desk& desk, Accounts& accounts) : Owner(desk), accounts_(accounts) {}

  // Looks what the client has allocated without asking.
  void settle(ClientRecord& client, Time now);
  void settle(Time now);
  // A client that asks gets enough for a while, and one that frees so much that it had to say so
  // can free as much again; in between it says nothing.
  void lend(ClientRecord& client, bool movable);
  void revoke(ClientRecord& client, Time now);
  void revoke_all(GpuId gpu, Time now);
  // Before it is decided whether the client may have so much more.
  void revoke_if_near(ClientRecord& client, Bytes bytes, Time now);

 private:
  void settle_credit(ClientRecord& client, Time now);
  void settle_rounding(ClientRecord& client, Time now);
  void note_credit(ClientRecord& client, bool movable, std::uint64_t left, Time now);
  void book_taken(ClientRecord& client, Bytes bytes, bool movable, Time now);
  Bytes room_within_limits(const ClientRecord& client) const;
  Bytes room_to_lend(const ClientRecord& client) const;
  bool may_have_credit(const ClientRecord& client) const;

  Accounts& accounts_;
};

}  // namespace nvshare::daemon
