#include "interposer/gate/gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "interposer/gate/records.h"
#include "interposer/link/state.h"
#include "interposer/moving/swap/swap.h"

// The gate alone, with this file in the place of the link and the streams behind it.
namespace nvshare::interposer {

void* catching::g_driver[kFunctionCount];

namespace {
link::Link g_link;
std::atomic<bool> g_captured{false};
std::atomic<bool> g_can_leave{false};
std::atomic<int> g_waits{0};
std::atomic<int> g_waited_for{0};
std::atomic<bool> g_waited_inside{false};
std::atomic<int> g_counted{0};
}  // namespace

bool link::any_link() {
  return true;
}
gate::Gate* link::gate_of_current_device() {
  return &g_link.gate;
}
gate::Gate* gate::gate_of_context(CUcontext) {
  return &g_link.gate;
}
bool gate::is_captured(Destination) {
  return g_captured;
}
bool moving::swap::swap_has_any(gate::Gate&) {
  return g_can_leave;
}
gate::StreamRecord* gate::record_for(Slot&, Gate&, Destination) {
  ++g_counted;
  return nullptr;
}
void gate::wait_for_room(StreamRecord&) {}
void gate::note_submission(StreamRecord&) {}
void gate::wait_for_call(Destination) {
  ++g_waited_for;
  g_waited_inside = !nobody_inside(g_link.gate);
}
bool gate::note_thread_gone(const Slot&) {
  return true;
}
void link::start_meter(Link&, gate::StreamRecord&) {}
void link::note_gap(Link&, gate::StreamRecord&) {}
void link::wait_for_grant(Link& link) {
  ++g_waits;
  const uint32_t turn = link.waiters.turn.load();
  if (link.gate.state.load() == gate::kClosed) futex_wait(link.waiters.turn, turn, 1'000'000);
}

namespace gate {
namespace {

// As the hooks do it.
template <typename Call>
void through_the_gate(Call call, Needs needs = Needs::kTurn) {
  if (Slot* slot = enter_free()) {
    call();
    leave_free(slot);
    return;
  }
  const Passage passage(Destination{}, needs);
  call();
}

class GateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(prepare_barrier());
    g_link.gate.link = &g_link;
    g_only_gate = &g_link.gate;
    g_captured = g_can_leave = false;
    open(kFree);
  }
  // A call that needs this, with the gate closed, is held back until that opens, and inside then.
  static void expect_held_back(Needs needs) {
    close_gate(g_link.gate);
    g_waits = g_counted = 0;
    std::atomic<bool> made{false};
    std::thread caller([&] {
      through_the_gate(
          [&] {
            EXPECT_FALSE(nobody_inside(g_link.gate)) << "the memory could leave meanwhile";
            made = true;
          },
          needs);
    });
    while (g_waits == 0 && !made) std::this_thread::yield();
    EXPECT_FALSE(made);
    open(kMetered);
    caller.join();
    EXPECT_TRUE(made);
    EXPECT_TRUE(nobody_inside(g_link.gate));
  }
  static void expect_let_through(Needs needs) {
    close_gate(g_link.gate);
    through_the_gate([] { EXPECT_TRUE(nobody_inside(g_link.gate)); }, needs);
  }
  static void open(uint32_t state) {
    g_link.gate.state = state;
    g_link.waiters.turn.fetch_add(1);
    futex_wake(g_link.waiters.turn, kEveryone);
  }
};

// A count of its own cache line, raised without a fence: nothing but the gate orders it.
struct alignas(64) Count {
  std::atomic<uint64_t> value{0};
};

// Threads pass as fast as they can; each passage is a "launch" that raises a count. Once the gate
// is closed and nobody is inside, the counts stand still.
void nobody_slips_in(bool slow_way) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 2000;
  Count launched[kThreads];
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (Count& count : launched) {
    threads.emplace_back([&] {
      while (!end.load(std::memory_order_relaxed)) {
        through_the_gate([&] {
          const uint64_t before = count.value.load(std::memory_order_relaxed);
          count.value.store(before + 1, std::memory_order_relaxed);
        });
      }
    });
  }
  const auto all = [&] {
    uint64_t sum = 0;
    for (const Count& count : launched) sum += count.value.load();
    return sum;
  };
  if (slow_way) g_only_gate = nullptr;
  int slipped = 0;
  for (int round = 0; round < kRounds; ++round) {
    close_gate(g_link.gate);
    while (!nobody_inside(g_link.gate)) {
    }
    const uint64_t answered = all();
    for (int i = 0; i < 200; ++i) slipped += all() != answered;
    g_link.gate.state = round % 2 == 0 ? kFree : kMetered;
    g_link.waiters.turn.fetch_add(1);
    futex_wake(g_link.waiters.turn, kEveryone);
    while (all() == answered) std::this_thread::yield();
  }
  end = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(slipped, 0);
}

TEST_F(GateTest, NobodySlipsInAfterItWasClosed) {
  nobody_slips_in(false);
}

TEST_F(GateTest, NorWithoutTheKernelsBarrier) {
  nobody_slips_in(true);
}

TEST_F(GateTest, ACallWithinACallDoesNotWait) {
  const Passage outer(Destination{});
  close_gate(g_link.gate);
  EXPECT_FALSE(nobody_inside(g_link.gate));
  { const Passage inner(Destination{}); }
  EXPECT_FALSE(nobody_inside(g_link.gate)) << "the outer call is still inside";
}

TEST_F(GateTest, WhatIsCapturedIsNotHeldBack) {
  close_gate(g_link.gate);
  g_captured = true;
  through_the_gate([] { EXPECT_TRUE(nobody_inside(g_link.gate)) << "it makes no GPU work"; });
}

// There is no memory for one; nobody else could tell the end of it.
TEST_F(GateTest, ACallWithoutARecordIsWaitedForInside) {
  open(kMetered);
  g_waited_for = 0;
  { const Passage passage(Destination{}); }
  EXPECT_EQ(g_waited_for, 1);
  EXPECT_TRUE(g_waited_inside);
  EXPECT_TRUE(nobody_inside(g_link.gate));
  g_captured = true;
  { const Passage passage(Destination{}); }
  EXPECT_EQ(g_waited_for, 1) << "it makes no GPU work";
  g_captured = false;
  open(kFree);
  { const Passage passage(Destination{}); }
  EXPECT_EQ(g_waited_for, 1) << "nothing is counted";
}

TEST_F(GateTest, WhatIsCapturedIsHeldBackWhereTheDriverLooksAtMemoryThatCanLeave) {
  g_captured = g_can_leave = true;
  expect_let_through(Needs::kTurn);
  expect_held_back(Needs::kTurnAndMemory);
  g_can_leave = false;
  expect_let_through(Needs::kTurnAndMemory);
}

TEST_F(GateTest, WhatOnlyLooksAtMemoryIsHeldBackWhereThatCanLeaveAndNotCounted) {
  g_can_leave = true;
  for (const bool captured : {false, true}) {
    g_captured = captured;
    expect_held_back(Needs::kMemory);
    EXPECT_EQ(g_counted, 0);
  }
  g_can_leave = false;
  expect_let_through(Needs::kMemory);
}

// With several devices, the memory that is waited for may be another's than the current one's.
TEST_F(GateTest, AGateThatIsNamedIsWaitedForAndNoOther) {
  g_can_leave = true;
  static link::Link other;
  other.gate.link = &other;
  g_only_gate = nullptr;
  close_gate(g_link.gate);
  other.gate.state = kMetered;
  {
    const Passage passage(other.gate);
    EXPECT_FALSE(nobody_inside(other.gate));
    EXPECT_TRUE(nobody_inside(g_link.gate));
  }
  EXPECT_TRUE(nobody_inside(other.gate));
  open(kFree);
  close_gate(other.gate);
  g_waits = 0;
  std::thread waits([&] { const Passage passage(other.gate); });
  while (g_waits == 0) std::this_thread::yield();
  other.gate.state = kFree;
  waits.join();
}

TEST_F(GateTest, TheHostsErrnoIsLeftAlone) {
  close_gate(g_link.gate);
  std::thread opener([] {
    while (g_waits == 0) std::this_thread::yield();
    open(kFree);
  });
  g_waits = 0;
  errno = 4711;
  { const Passage passage(Destination{}); }
  EXPECT_EQ(errno, 4711);
  opener.join();
}

TEST_F(GateTest, WhenItHasEndedCallsAreRefusedForGood) {
  close_gate(g_link.gate);
  std::atomic<bool> refused{false};
  g_waits = 0;
  std::thread waits([&] { refused = Passage(Destination{}).refused(); });
  while (g_waits == 0) std::this_thread::yield();
  end_gate(g_link.gate);
  waits.join();
  EXPECT_TRUE(refused);
  set_state(g_link.gate, kFree);
  close_gate(g_link.gate);
  EXPECT_EQ(g_link.gate.state.load(), kEnded);
  EXPECT_TRUE(Passage(Destination{}).refused());
  EXPECT_TRUE(nobody_inside(g_link.gate));
  g_captured = g_can_leave = true;
  EXPECT_FALSE(Passage(Destination{}, Needs::kTurn).refused()) << "it makes no GPU work";
  EXPECT_TRUE(Passage(Destination{}).refused()) << "the memory is given back";
}

TEST_F(GateTest, SlotsOfThreadsThatEndedAreUsedAgain) {
  std::vector<const Slot*> seen;
  for (int i = 0; i < 3; ++i) {
    std::thread([&] { through_the_gate([&] { seen.push_back(t_slot); }); }).join();
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[1], seen[2]);
}

}  // namespace
}  // namespace gate
}  // namespace nvshare::interposer
