#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "base/result.h"
#include "base/units.h"
#include "core/event.h"
#include "core/ids.h"

namespace nvshare::core {

// The memory that a client names in its hello: all of it, the pinned part, and the part on the GPU.
struct MemoryClaim {
  Bytes allocated{};
  Bytes pinned{};
  Bytes resident{};
};

// An order to move memory that is not over.
struct MoveOrder {
  std::uint64_t number = 0;
  bool out = false;
  Bytes left{};
  Bytes beyond{};  // in addition to `left`: bytes that are beyond the GPU
};

// A client's report on an order. Order 0: the client has moved memory of its own accord.
struct MoveReport {
  std::uint64_t order = 0;
  Bytes out{};
  Bytes in{};
  Bytes copied{};
  Duration took{};
  bool done = false;
};

// Bytes that a client may allocate without asking. `left`: the bytes left at the last look.
struct MemoryCredit {
  bool given = false;
  Bytes left{};
};

// The scheduler's only book of the memory that one client has. The account is a value. The caller
// that changes it tells the core what changed(), grown() or found() says. Afterwards the core's
// numbers are counted(), counted_pinned() and counted_resident().
//
// allocated = counted + beyond. Bytes beyond are too much for the GPU, and the core counts them for
// limits alone. They are an amount, not certain bytes: a client reports all its memory on the GPU,
// and `beyond` of these bytes do not count.
//
// Bytes are doubted while they would not fit beside other clients, or are above a limit. The
// account does not believe then that they are on the GPU, because a false hello would take the GPU
// from the others. The core counts doubted bytes as absent. When the core orders them in, they are
// there.
class MemoryAccount {
 public:
  MemoryAccount() = default;
  // The account after a hello; `claim.pinned` is no more than `total`. At most `most` is counted,
  // as far as the rest can move. All bytes on the GPU are doubted.
  MemoryAccount(const MemoryClaim& claim, Bytes total, Bytes most);

  // --- what the client has
  Bytes allocated() const { return allocated_; }
  Bytes pinned() const { return pinned_; }
  // By the client's messages, which come from several threads. While messages cross each other this
  // can be more than allocated, or less than pinned.
  Bytes resident() const { return resident_; }
  Bytes awaited() const { return awaited_; }  // part of allocated: pinned, and not given yet
  Bytes beyond() const { return beyond_; }
  Bytes doubted() const { return doubted_; }
  bool is_doubted() const { return doubted_.count > 0 || doubted_pinned_.count > 0; }
  Bytes could_move() const;
  const std::deque<MoveOrder>& orders() const { return orders_; }

  // --- what the core counts
  Bytes counted() const { return allocated_ - beyond_; }
  Bytes counted_pinned() const;
  Bytes counted_resident() const;
  // `core_resident`: bytes that the core counts on the GPU now. The event never says more, because
  // messages cross each other and the core has not heard of the rest yet.
  MemoryChanged changed(ClientId client, Bytes core_resident) const;
  // With `bytes` more on the GPU, and `more_beyond` beyond it.
  MemoryChanged grown(ClientId client, Bytes bytes, Bytes more_beyond, bool movable,
                      bool waits) const;
  MemoryFound found(ClientId client, bool from_before) const;

  // --- more
  // The client was given `bytes`, `beyond` of them beyond the GPU. `fits`: all have room now.
  void grow(Bytes bytes, Bytes beyond, bool movable, bool fits);
  // Pinned memory that the client waits for; it is given, or withdrawn. Answers how much it was.
  void await(Bytes bytes);
  Bytes give_awaited();
  Bytes withdraw_awaited();

  // --- less. An error, and no change, when the client has fewer bytes than it says.
  Result<void> free(Bytes bytes, Bytes resident, Bytes pinned);
  Result<void> pin(Bytes bytes);

  // --- elsewhere
  // Answers the bytes that the client is told to move: with bytes beyond the GPU that come back.
  Bytes order(std::uint64_t number, bool out, Bytes bytes);
  // An error when the client had no such order; nothing has changed then.
  Result<MemoryMoved> moved(ClientId client, const MoveReport& report);

  // --- claims
  // Up to `room` doubted bytes count as being on the GPU from now on. Whether anything changed.
  bool believe(Bytes room);
  // The core orders `bytes` in. So many of them are doubted, and therefore there already. The
  // client is told to bring in the rest.
  Bytes there_already(Bytes bytes) const { return std::min(bytes, doubted_); }
  // Believes these bytes of the order, once the client has been told of all its orders.
  MemoryMoved arrived(ClientId client, std::uint64_t order, Bytes bytes);

  // --- beyond the GPU
  // Counts `bytes` less, as far as they can move. Answers by how much.
  Bytes push_beyond(Bytes bytes);
  void pull_back(Bytes bytes);

  // --- whole pages
  // `said`: the bytes that the client's memory takes on the GPU beyond its size. At most its
  // movable memory is believed, because only an allocation above half a page takes a page of its
  // own. Whether the rounding has changed.
  bool set_rounding(Bytes said);
  Bytes rounding() const { return rounding_; }

  // --- credit
  MemoryCredit& credit(bool movable) { return movable ? movable_credit_ : pinned_credit_; }
  // What that can take on the GPU: what moves takes up to as much again, in whole pages.
  Bytes credit_in_pages() const { return movable_credit_.left * 2 + pinned_credit_.left; }
  Bytes credit_left() const { return movable_credit_.left + pinned_credit_.left; }
  // `said`: the credit that is left, by the client's word. The client cannot have freed more than
  // it had. Answers the bytes allocated since the last look, for which the caller calls grow().
  // Below 0 the client has freed memory, and the account has followed.
  Bytes look_at_credit(bool movable, Bytes said);

 private:
  void fit();
  Bytes beyond_and_away() const;
  Bytes count_in(MoveOrder& order, Bytes in, Bytes before);
  MemoryMoved report_of(ClientId client) const;

  Bytes total_ = kMostMemory;
  Bytes allocated_{};
  Bytes pinned_{};
  Bytes resident_{};
  Bytes awaited_{};
  Bytes beyond_{};
  Bytes doubted_{};         // part of resident_
  Bytes doubted_pinned_{};  // part of pinned_
  Bytes rounding_{};
  std::deque<MoveOrder> orders_;
  MemoryCredit movable_credit_;
  MemoryCredit pinned_credit_;
};

}  // namespace nvshare::core
