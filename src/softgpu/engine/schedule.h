#pragma once

#include <span>

#include "softgpu/engine/card.h"

// The card's time. Nothing here reads a clock, sleeps or locks: whoever holds the card's mutex
// hands in the time, and the past up to it is played, exactly, from what was submitted.
namespace nvshare::softgpu {

// What is asked of the card.
struct Submission {
  Work work = Work::kMarker;
  int device = 0;
  double amount = 0;  // nanoseconds of compute, bytes of a copy
  double width = 0;   // as Item::width
  std::span<const LanePoint> deps = {};
};

// Plays everything up to `now`. Times that go back are taken as the card's own clock.
void advance(Card& card, Nanos now);

// Whether `lane` of process `slot` has room; what has been completed still takes room until the
// owner has `collected` it.
bool has_room(const Card& card, int slot, int lane, std::uint64_t collected);

// Appends to the lane; advance() must have been called with the present time. More than kMaxDeps
// dependencies need markers in front. Returns the new item's sequence number.
std::uint64_t submit(Card& card, int slot, int lane, const Submission& submission);

// Says that the kHost item at the head of the lane is done. Call after advance(now).
void complete_host(Card& card, int slot, int lane);

// Whether the head of the lane is a kHost item that waits for its process.
bool host_ready(const Card& card, int slot, int lane);

// The earliest time at which the lane can have completed `seq`, from what is known now; kNever
// when that depends on a kHost item or on work without an end. Never too late, mostly exact.
Nanos earliest_completion(const Card& card, int slot, int lane, std::uint64_t seq);

// Completes everything in the lane at the card's clock, whatever it would still have taken.
void abort_lane(Card& card, int slot, int lane);

// Forgets all work of a process, and what it held.
void clear_process(Card& card, int slot);

// Computes everything derived again, after a process died while it changed the card.
void repair(Card& card);

// Nanoseconds in which the process (or, slot < 0, any) kept the engine busy in [from, to), from
// the history of the last kHistoryBuckets stretches; whole stretches are exact.
Nanos busy_between(const Card& card, int slot, int device, Nanos from, Nanos to, bool copies);

}  // namespace nvshare::softgpu
