#include "core/memory_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nvshare::core {
namespace {

constexpr Bytes kNothing{};

Bytes at_least_nothing(Bytes bytes) {
  return std::max(kNothing, bytes);
}

}  // namespace

MemoryAccount::MemoryAccount(const MemoryClaim& claim, Bytes total, Bytes most)
    : total_(total),
      allocated_(claim.allocated),
      pinned_(claim.pinned),
      resident_(claim.resident),
      beyond_(allocated_ - std::min(most, total)),
      doubted_pinned_(pinned_) {
  beyond_ = std::clamp(beyond_, kNothing, allocated_ - pinned_);
  doubted_ = at_least_nothing(resident_ - beyond_);
}

// --- what the core counts ----------------------------------------------------------------------

Bytes MemoryAccount::could_move() const {
  return at_least_nothing(allocated_ - awaited_ - pinned_);
}

Bytes MemoryAccount::counted_pinned() const {
  return std::min(pinned_ - doubted_pinned_, counted() - awaited_);
}

Bytes MemoryAccount::counted_resident() const {
  const Bytes least = counted_pinned();
  const Bytes most = std::max(least, counted() - awaited_);
  return std::clamp(resident_ - beyond_ - doubted_, least, most);
}

MemoryChanged MemoryAccount::changed(ClientId client, Bytes core_resident) const {
  const Bytes resident = std::min(counted_resident(), core_resident);
  return {.client = client,
          .allocated = counted(),
          .pinned = std::min(counted_pinned(), resident),
          .resident = resident,
          .beyond = beyond_};
}

MemoryChanged MemoryAccount::grown(ClientId client, Bytes bytes, Bytes more_beyond, bool movable,
                                   bool waits) const {
  return {.client = client,
          .allocated = counted() + bytes,
          .pinned = counted_pinned() + (movable ? kNothing : bytes),
          .resident = counted_resident(),
          .may_wait = movable || waits,
          .pins = waits,
          .beyond = beyond_ + more_beyond};
}

MemoryFound MemoryAccount::found(ClientId client, bool from_before) const {
  return {client, counted(), counted_pinned(), counted_resident(), from_before, beyond_};
}

// Whatever the client says: only what can move is beyond, and only what is there is doubted.
void MemoryAccount::fit() {
  beyond_ = std::clamp(beyond_, kNothing, could_move());
  doubted_ = std::clamp(doubted_, kNothing, at_least_nothing(resident_ - beyond_));
  doubted_pinned_ = std::clamp(doubted_pinned_, kNothing, pinned_);
}

// --- more --------------------------------------------------------------------------------------

void MemoryAccount::grow(Bytes bytes, Bytes beyond, bool movable, bool fits) {
  allocated_ += bytes;
  beyond_ += beyond;
  if (!movable) pinned_ += bytes;
  if (fits) resident_ += bytes;
}

void MemoryAccount::await(Bytes bytes) {
  allocated_ += bytes;
  awaited_ += bytes;
}

Bytes MemoryAccount::give_awaited() {
  const Bytes bytes = std::exchange(awaited_, kNothing);
  pinned_ += bytes;
  resident_ += bytes;
  return bytes;
}

Bytes MemoryAccount::withdraw_awaited() {
  const Bytes bytes = std::exchange(awaited_, kNothing);
  allocated_ -= bytes;
  return bytes;
}

// --- less --------------------------------------------------------------------------------------

Result<void> MemoryAccount::free(Bytes bytes, Bytes resident, Bytes pinned) {
  const Bytes has = at_least_nothing(allocated_ - awaited_);
  if (bytes > has) return Error{fmt::format("freed {} bytes of {}", bytes.count, has.count)};
  if (resident > bytes || pinned > resident || pinned > pinned_) {
    return Error{fmt::format("freed {} bytes, {} of them on the GPU, {} pinned of {}", bytes.count,
                             resident.count, pinned.count, pinned_.count)};
  }
  allocated_ -= bytes;
  resident_ -= resident;
  pinned_ -= pinned;
  // A client that cannot move its memory need not say where the memory was.
  const Bytes unsaid = at_least_nothing(pinned_ - (allocated_ - awaited_));
  pinned_ -= unsaid;
  resident_ -= unsaid;
  // Absent memory was not beyond, for the core knows of what is absent.
  const Bytes not_beyond = std::min(beyond_, resident - pinned);
  beyond_ -= not_beyond;
  doubted_ -= std::min(doubted_, resident - not_beyond);
  doubted_pinned_ -= std::min(doubted_pinned_, pinned);
  fit();
  return {};
}

Result<void> MemoryAccount::pin(Bytes bytes) {
  if (bytes > could_move() || pinned_ + awaited_ + bytes > total_) {
    return Error{fmt::format("pinned {} bytes of {}, of which {} are already", bytes.count,
                             allocated_.count, pinned_.count)};
  }
  pinned_ += bytes;
  fit();
  return {};
}

// --- elsewhere ---------------------------------------------------------------------------------

// When more is away than the core knows of, that must come back, too: a program runs when nothing
// of its memory is away.
Bytes MemoryAccount::beyond_and_away() const {
  if (beyond_ == kNothing) return {};
  Bytes away = beyond_ + counted_pinned() - resident_;
  for (const MoveOrder& order : orders_) away -= order.beyond;
  return at_least_nothing(away);
}

Bytes MemoryAccount::order(std::uint64_t number, bool out, Bytes bytes) {
  const Bytes beyond = out ? kNothing : beyond_and_away();
  orders_.push_back({number, out, bytes, beyond});
  return bytes + beyond;
}

// What of the bytes that have come in for an order counts: bytes that were beyond come first.
// `before` is what was counted as being on the GPU.
Bytes MemoryAccount::count_in(MoveOrder& order, Bytes in, Bytes before) {
  if (beyond_ == kNothing && order.beyond == kNothing) return in;
  Bytes came = at_least_nothing(counted_resident() - before);
  if (const Bytes surplus = came - order.left; !order.out && surplus > kNothing) {
    beyond_ += surplus;  // less was beyond and away by then
    came = order.left;
  }
  order.beyond = at_least_nothing(order.beyond - (in - came));
  return came;
}

Result<MemoryMoved> MemoryAccount::moved(ClientId client, const MoveReport& report) {
  const auto at = std::find_if(orders_.begin(), orders_.end(),
                               [&](const MoveOrder& one) { return one.number == report.order; });
  const bool ordered = at != orders_.end();
  if (!ordered && report.order != 0) {
    return Error{fmt::format("moved memory for order {}, which it was not given", report.order)};
  }
  const Bytes may_come = ordered && !at->out ? at->left + at->beyond : kNothing;
  const bool wrong_way = ordered && !at->out && report.out > kNothing;
  if (report.in > may_come || wrong_way || report.out > allocated_ + kMostMemory) {
    return Error{fmt::format("moved {} out and {} in, and was told to bring in {}",
                             report.out.count, report.in.count, may_come.count)};
  }
  if (resident_ - report.out < kNothing - kMostMemory) {
    return Error{"has moved out far more than it has"};
  }
  const Bytes before = counted_resident();
  resident_ += report.in - report.out;
  fit();
  const Bytes came = ordered ? count_in(*at, report.in, before) : report.in;
  const Bytes most = std::max(report.out, report.in);
  Bytes kept{};
  Bytes missing{};
  if (ordered) {
    at->left = at_least_nothing(at->left - (at->out ? report.out : came));
    if (report.done) {
      (at->out ? kept : missing) = at->left;
      orders_.erase(at);
    }
  }
  MemoryMoved event = report_of(client);
  event.took = report.took;
  event.spared = most - std::min(report.copied, most);
  event.fresh =
      at_least_nothing(report.in - report.copied);  // chunks of zeros have no place either
  event.kept = kept;
  event.missing = missing;
  return event;
}

// How the client stands, and what is left of its orders.
MemoryMoved MemoryAccount::report_of(ClientId client) const {
  MemoryMoved event{.client = client, .resident = counted_resident()};
  for (const MoveOrder& one : orders_) (one.out ? event.out_left : event.in_left) += one.left;
  return event;
}

// --- claims ------------------------------------------------------------------------------------

bool MemoryAccount::believe(Bytes room) {
  const Bytes more = std::clamp(room, kNothing, doubted_);
  doubted_ -= more;
  const Bytes there = at_least_nothing(resident_ - beyond_ - doubted_);
  const Bytes pinned_before =
      std::exchange(doubted_pinned_, std::min(doubted_pinned_, at_least_nothing(pinned_ - there)));
  return more > kNothing || doubted_pinned_ != pinned_before;
}

// Pinned memory is counted as pinned only where a claim may be believed: nobody was asked whether
// others can still have theirs beside it.
MemoryMoved MemoryAccount::arrived(ClientId client, std::uint64_t order, Bytes bytes) {
  const Bytes there = there_already(bytes);
  doubted_ -= there;
  Bytes missing{};
  const auto at = std::find_if(orders_.begin(), orders_.end(),
                               [&](const MoveOrder& one) { return one.number == order; });
  if (at != orders_.end()) {
    at->left = at_least_nothing(at->left - bytes);
    const bool over = at->left + at->beyond == kNothing;
    if (over) missing = bytes - there;
    if (over) orders_.erase(at);
  }
  MemoryMoved event = report_of(client);
  event.spared = there;
  event.missing = missing;
  return event;
}

// --- beyond the GPU ----------------------------------------------------------------------------

Bytes MemoryAccount::push_beyond(Bytes bytes) {
  const Bytes pushed =
      std::clamp(counted() - awaited_ - pinned_, kNothing, at_least_nothing(bytes));
  beyond_ += pushed;
  fit();
  return pushed;
}

void MemoryAccount::pull_back(Bytes bytes) {
  beyond_ -= bytes;
  fit();
}

// --- whole pages -------------------------------------------------------------------------------

bool MemoryAccount::set_rounding(Bytes said) {
  const Bytes rounding = std::clamp(said, kNothing, std::min(could_move(), total_));
  return std::exchange(rounding_, rounding) != rounding;
}

// --- credit ------------------------------------------------------------------------------------

Bytes MemoryAccount::look_at_credit(bool movable, Bytes said) {
  MemoryCredit& of = credit(movable);
  const Bytes has = movable ? could_move() : pinned_;
  const Bytes left = std::clamp(said, kNothing, of.left + has);
  const Bytes taken = std::exchange(of.left, left) - left;
  if (taken >= kNothing) return taken;
  const Bytes freed = kNothing - taken;
  allocated_ -= freed;
  resident_ -= freed;
  if (movable) {
    beyond_ -= std::min(beyond_, freed);
  } else {
    pinned_ -= freed;
  }
  fit();
  return taken;
}

}  // namespace nvshare::core
