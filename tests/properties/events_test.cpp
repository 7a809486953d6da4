// What must hold whatever is told to the core, by honest and dishonest shells and clients: random
// sequences of events under every policy. How to replay a failure: holds.h.

#include "holds.h"
#include "player.h"
#include "text.h"

namespace nvshare::properties {
namespace {

constexpr int kRuns = 1500;
constexpr int kBytes = 1000;

// Plays random sequences and looks at one rule.
void always(Rule rule) {
  holds(kRuns, [rule] {
    const auto input = *bytes(kBytes);
    Player player{Dice(input)};
    player.play();
    for (const Broken& broken : player.watch().broken()) {
      if (broken.rule == rule) RC_FAIL(broken.what + "\n" + player.story());
    }
  });
}

// What is resident or on its way in is never raised above the safe limit by a decision. It is above
// only because the limit came down (processes, overhead, settings), and does not grow then.
TEST(Always, MemoryStaysWithinTheSafeLimit) {
  always(Rule::Memory);
}

// A grant goes to a client that has asked, holds none, is not paused and has all its memory; a drop
// to one that holds one and was not told; overdue are those who did not answer in time; memory is
// sent out by clients that do not run.
TEST(Always, GrantsAreNeitherLostNorDoubled) {
  always(Rule::Grants);
}

// Under coordinated, fair and metered turns nobody is granted while another holds a grant that is
// not overdue.
TEST(Always, TurnsAreTakenOneAtATime) {
  always(Rule::Serial);
}

// Snapshot, events and decisions tell the same: who is there, in what state, with how much memory.
TEST(Always, TheBooksAddUp) {
  always(Rule::Books);
}

TEST(Always, BilledTimeIsUsedTime) {
  always(Rule::Bills);
}

// After a tick the next is in the future; in silence their number is bounded (watch.cpp says how).
TEST(Always, TicksAreNeitherLateNorSpinning) {
  always(Rule::Wakeups);
}

// A sleeper is not granted, sends out what has a place, and wakes when it asks and is not held.
TEST(Always, SleepersLeaveAndWakeWhenTheyAsk) {
  always(Rule::Sleep);
}

TEST(Always, WhoeverWaitsIsToldWhy) {
  always(Rule::Explains);
}

TEST(Always, ARefusedEventChangesNothing) {
  holds(kRuns, [] {
    const auto input = *bytes(kBytes);
    Player player{Dice(input)};
    player.play();
    for (const Broken& broken : player.watch().broken()) {
      if (broken.rule == Rule::Refused) RC_FAIL(broken.what + "\n" + player.story());
    }
    // A core that never heard of the refused events decides the same.
    core::Core other(player.config(), Time{});
    for (const Told& told : player.told()) {
      if (!told.taken) continue;
      const auto result = other.step(told.event, told.at);
      RC_ASSERT(static_cast<bool>(result));
      std::vector<std::string> decisions;
      for (const core::Decision& decision : *result) decisions.push_back(to_line(decision));
      if (decisions != told.decisions) RC_FAIL("decides otherwise\n" + player.story());
    }
    RC_ASSERT(to_lines(other.snapshot()) == to_lines(player.watch().seen()));
  });
}

TEST(Always, TheSameEventsGiveTheSameDecisions) {
  holds(kRuns, [] {
    const auto input = *bytes(kBytes);
    Player first{Dice(input)};
    first.play();
    Player second{Dice(input)};
    second.play();
    if (first.story() != second.story()) RC_FAIL(first.story() + "\nand\n" + second.story());
  });
}

// Whatever happened before: once everyone behaves, everyone whose memory can fit is served.
TEST(Always, GoodBehaviourServesEverybody) {
  holds(kRuns, [] {
    const auto input = *bytes(kBytes);
    Player player{Dice(input)};
    player.play();
    if (!player.watch().broken().empty()) return;  // another test says so
    const std::string left = player.settle();
    if (!left.empty()) RC_FAIL(left + player.story());
  });
}

}  // namespace
}  // namespace nvshare::properties
