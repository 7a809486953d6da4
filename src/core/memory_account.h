#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "base/result.h"
#include "base/units.h"
#include "core/event.h"
#include "core/ids.h"

namespace nvshare::core {

// What a client says in its hello: all it has, and of that what is pinned and what is on the GPU.
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
  Bytes beyond{};  // beside `left`: bytes that are beyond the GPU
};

// What a client says of an order. Order 0: the client has moved memory of its own accord.
struct MoveReport {
  std::uint64_t order = 0;
  Bytes out{};
  Bytes in{};
  Bytes copied{};
  Duration took{};
  bool done = false;
};

// What a client may allocate without asking. `left` is what was left at the last look.
struct MemoryCredit {
  bool given = false;
  Bytes left{};
};

// Everything that one client has on its GPU: the scheduler's only book of it. The account is a
// value. Whoever changes it tells the core what changed(), grown() or found() says; afterwards the
// core's numbers are counted(), counted_pinned() and counted_resident().
//
// allocated = counted + beyond. What is beyond is too much for the GPU: the core counts it for
// limits alone. Which bytes are beyond nobody knows: a client says that all it was given is on the
// GPU, and `beyond` of that does not count.
//
// A client is not believed that a part of its memory is on the GPU (doubted) while that part would
// not fit beside the others' or is above a limit: otherwise a false hello takes the GPU from the
// others. The core counts doubted bytes as absent. When the core has made room and orders them in,
// they are there.
class MemoryAccount {
 public:
  MemoryAccount() = default;
  // Of a hello; `claim.pinned` is no more than `total`. At most `most` is counted, as far as the
  // rest can move. Nothing is believed to be on the GPU yet.
  MemoryAccount(const MemoryClaim& claim, Bytes total, Bytes most);

  // --- what the client has
  Bytes allocated() const { return allocated_; }
  Bytes pinned() const { return pinned_; }
  // As far as its messages say. They come from several threads: while they cross each other this
  // can be more than allocated, or less than pinned.
  Bytes resident() const { return resident_; }
  Bytes awaited() const { return awaited_; }  // of allocated: pinned memory that it waits for
  Bytes beyond() const { return beyond_; }
  Bytes doubted() const { return doubted_; }
  bool is_doubted() const { return doubted_.count > 0 || doubted_pinned_.count > 0; }
  Bytes could_move() const;
  const std::deque<MoveOrder>& orders() const { return orders_; }

  // --- what the core counts
  Bytes counted() const { return allocated_ - beyond_; }
  Bytes counted_pinned() const;
  Bytes counted_resident() const;
  // `core_resident` is what the core counts as being on the GPU now. Messages cross each other:
  // memory that the core has not heard of yet cannot be less.
  MemoryChanged changed(ClientId client, Bytes core_resident) const;
  // With `bytes` more on the GPU, and `more_beyond` beyond it.
  MemoryChanged grown(ClientId client, Bytes bytes, Bytes more_beyond, bool movable,
                      bool waits) const;
  MemoryFound found(ClientId client, bool from_before) const;

  // --- more
  // Of `bytes` that were given, `beyond` are beyond the GPU. `fits`: there is room for all now.
  void grow(Bytes bytes, Bytes beyond, bool movable, bool fits);
  // Pinned memory that is waited for, and what becomes of it. Answers how much it was.
  void await(Bytes bytes);
  Bytes give_awaited();
  Bytes withdraw_awaited();

  // --- less. An error when that cannot be; nothing has changed then.
  Result<void> free(Bytes bytes, Bytes resident, Bytes pinned);
  Result<void> pin(Bytes bytes);

  // --- elsewhere
  // Answers what the client is told: with what must come back and the core does not know of.
  Bytes order(std::uint64_t number, bool out, Bytes bytes);
  // An error when the client was not told to do that; nothing has changed then.
  Result<MemoryMoved> moved(ClientId client, const MoveReport& report);

  // --- claims
  // `room` more may be counted as being on the GPU. Whether that has changed anything.
  bool believe(Bytes room);
  // The core has made room for `bytes`, by an order to bring them in: so many of them are there
  // already, as claimed, and the client is told to bring in the rest.
  Bytes there_already(Bytes bytes) const { return std::min(bytes, doubted_); }
  // Believes that of the order, once the client has been told of all its orders.
  MemoryMoved arrived(ClientId client, std::uint64_t order, Bytes bytes);

  // --- beyond the GPU
  // So much less counts, as far as it can move. Answers how much that is.
  Bytes push_beyond(Bytes bytes);
  void pull_back(Bytes bytes);

  // --- whole pages
  // What the client says that its memory takes on the GPU beyond what it asked for: no more than it
  // has that can move, since only an allocation above half a page takes a page of its own. Whether
  // that has changed.
  bool set_rounding(Bytes said);
  Bytes rounding() const { return rounding_; }

  // --- credit
  MemoryCredit& credit(bool movable) { return movable ? movable_credit_ : pinned_credit_; }
  // What that can take on the GPU: what moves takes up to as much again, in whole pages.
  Bytes credit_in_pages() const { return movable_credit_.left * 2 + pinned_credit_.left; }
  Bytes credit_left() const { return movable_credit_.left + pinned_credit_.left; }
  // What counts against limits: whatever the client does with its credit, it has no more.
  Bytes promised() const { return allocated_ + credit_left(); }
  // `said` is what is left of the credit, in the client's word; it cannot have freed more than it
  // had. Answers what it has allocated since the last look, which the caller lets grow(); below 0
  // when it has freed, which has been done.
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
  Bytes doubted_{};         // of what is on the GPU
  Bytes doubted_pinned_{};  // of what is pinned
  Bytes rounding_{};
  std::deque<MoveOrder> orders_;
  MemoryCredit movable_credit_;
  MemoryCredit pinned_credit_;
};

}  // namespace nvshare::core
