#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "daemon/broker/credit.h"
#include "daemon/broker/places.h"

namespace nvshare::daemon {

// Requests for memory, and orders to move it.
class Memory : private Owner {
 public:
  Memory(Desk& desk, Accounts& accounts, Credit& credit, Places& places)
      : Owner(desk), accounts_(accounts), credit_(credit), places_(places) {}

  // --- what clients say
  void take(ClientRecord& client, const wire::MemoryRequest& message, Time now);
  void take(ClientRecord& client, const wire::MemoryFreed& message, Time now);
  void take(ClientRecord& client, const wire::MemoryPinned& message, Time now);
  void take(ClientRecord& client, const wire::MemoryMoved& message, Time now);

  // --- what the core decides
  void order(ClientId client, bool out, Bytes bytes, const core::Reason& why, Time now);
  void act(const core::MemoryGiven& given);
  void act(const core::MemoryWithdrawn& withdrawn, const core::Reason& why);
  // Memory that was ordered in and is there already. Believed when all decisions are followed: the
  // core has told of orders that the account does not know before that. False when there is none.
  bool take_arrival(Time now);

  // What is used of the GPU beside what its clients have.
  void set_overhead(GpuRecord& gpu, const Overhead& overhead, Time now);

 private:
  struct Refusal {
    Bytes allowed{};  // more than it has
    std::string why;
    bool by_own_limit = false;  // the client's, not its tenant's
    bool for_host = false;      // for want of host memory
  };
  struct Arrival {
    ClientId client;
    std::uint64_t order = 0;
    Bytes bytes{};
  };

  void grow(ClientRecord& client, const wire::MemoryRequest& message, bool movable, Time now);
  void answer(const ClientRecord& client, const wire::MemoryRequest& message, bool fits);
  void refuse(ClientRecord& client, const wire::MemoryRequest& message, const Refusal& refusal);
  void tell_shortage(TenantRecord& tenant, GpuId gpu, std::uint64_t asked, const Refusal& refusal);
  void note_no_room(GpuRecord& gpu, Time now);

  Accounts& accounts_;
  Credit& credit_;
  Places& places_;
  std::uint64_t next_order_ = 1;
  std::deque<Arrival> arrivals_;
};

}  // namespace nvshare::daemon
