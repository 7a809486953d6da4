// Memory that cannot move, and waits for room that others can make.

#include "core/testing.h"

namespace nvshare::core {
namespace {

// Two clients of 7 GiB on a GPU that can safely hold 14.4, and both run.
struct PinnedWaits : testing::Test {
  PinnedWaits() {
    t.gpu(0);
    for (const int i : {1, 2}) {
      t.client(i);
      t.allocate(i, gib(7));
      t.want(i);
    }
  }
  // Asks for more that can never leave the GPU, and waits for it.
  Decisions pin(int id, Bytes more) {
    const ClientView v = t.view(id);
    return t.step(MemoryChanged{v.id, v.allocated + more, v.pinned + more, v.resident, true, true});
  }
  Bytes safe() const { return t.core.snapshot().gpus[0].safe_limit; }
  TestCore t{fixed_quantum()};
};

TEST_F(PinnedWaits, WhatFitsIsGivenAtOnce) {
  const Decisions d = pin(1, mib(100));
  EXPECT_EQ(only<MemoryGiven>(d).at(0).bytes, mib(100));
  EXPECT_TRUE(only<Drop>(d).empty());
  EXPECT_EQ(t.view(1).pinned, mib(100));
  EXPECT_EQ(t.state(1), ClientState::Running);
}

TEST_F(PinnedWaits, OthersMakeRoomAndThenItIsGiven) {
  const Decisions asked = pin(1, gib(2));
  EXPECT_EQ(only<WaitForMemory>(asked).at(0).missing, gib(2));
  EXPECT_EQ(only<Drop>(asked).at(0).client, ClientId{1}) << "it holds no grant while it waits";
  EXPECT_TRUE(only<MemoryGiven>(asked).empty());
  EXPECT_EQ(t.view(1).awaits, gib(2));
  EXPECT_EQ(t.view(1).pinned, Bytes{});
  t.release(1, 1ms, false);
  EXPECT_EQ(t.state(1), ClientState::Waiting) << "not for work, but for memory";
  EXPECT_NE(t.why(1), to_text(Reason{.why = Why::NoWork}));
  EXPECT_EQ(only<Drop>(t.pass(61s)).at(0).client, ClientId{2}) << "its quantum is over";
  const auto out = only<SendOut>(t.release(2, 60s));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].client, ClientId{2}) << "never from the one who asks";
  EXPECT_EQ(out[0].bytes, gib(16) - safe());
  const Decisions done = t.move_to(2, gib(7) - out[0].bytes);
  EXPECT_EQ(only<MemoryGiven>(done).at(0).bytes, gib(2));
  EXPECT_EQ(t.view(1).pinned, gib(2));
  EXPECT_EQ(t.view(1).resident, gib(9));
  EXPECT_EQ(t.view(1).awaits, Bytes{});
}

TEST_F(PinnedWaits, AnIdleProgramMakesRoomSoon) {
  t.release(2, 1ms, false);
  pin(1, gib(2));
  t.release(1, 1ms, false);
  const auto out = only<SendOut>(t.pass(8s));  // idle for as long as a move of it would take
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].client, ClientId{2});
}

TEST_F(PinnedWaits, WhatCouldNeverFitIsRefusedAtOnce) {
  EXPECT_EQ(only<MemoryRefused>(pin(1, safe() - gib(7) + Bytes{1})).size(), 1u) << "its own";
  EXPECT_EQ(only<MemoryRefused>(pin(1, safe() - gib(7))).size(), 0u);
  EXPECT_EQ(only<MemoryRefused>(pin(2, mib(1))).size(), 1u) << "all of it is promised";
  t.step(LimitsChanged{TenantId{2}, {.memory = gib(8)}});
  EXPECT_EQ(only<MemoryRefused>(pin(2, gib(2))).size(), 1u) << "over its limit";
}

// Both hold all the memory there is, and both want more of the kind that cannot move.
TEST_F(PinnedWaits, TwoWhoWaitAtTheSameTimeBothGetTheirs) {
  pin(1, gib(2));
  pin(2, gib(2));
  t.release(1, 1ms, false);
  Decisions all = t.release(2, 1ms, false);
  int given = 0;
  for (int i = 0; i < 50 && given < 2; ++i) {
    std::vector<MemoryMoved> moves;
    for (const int id : {1, 2}) {
      const ClientView v = t.view(id);
      const Bytes to = v.resident - v.outgoing + v.incoming;
      if (to != v.resident) moves.push_back({v.id, to, 1ms});
    }
    given += static_cast<int>(only<MemoryGiven>(all).size());
    all.clear();
    for (const MemoryMoved& move : moves) {
      for (const Decision& d : t.moved(move)) all.push_back(d);
    }
    for (const Decision& d : t.pass(10s)) all.push_back(d);
  }
  EXPECT_EQ(given, 2);
  EXPECT_EQ(t.view(1).pinned, gib(2));
  EXPECT_EQ(t.view(2).pinned, gib(2));
}

TEST_F(PinnedWaits, WhoIsKilledWaitingLeavesNothingBehind) {
  pin(1, gib(2));
  t.step(ClientGone{ClientId{1}});
  EXPECT_EQ(only<MemoryGiven>(pin(2, gib(2))).size(), 1u);
  EXPECT_TRUE(only<MemoryRefused>(t.allocate(2, safe())).empty());
}

TEST_F(PinnedWaits, ALimitThatIsLoweredMeanwhileTakesNothingBack) {
  pin(1, gib(2));
  t.step(LimitsChanged{TenantId{1}, {.memory = gib(8)}});
  EXPECT_EQ(only<MemoryRefused>(pin(1, mib(1))).size(), 1u) << "but no more";
  t.release(1, 1ms, false);
  t.step(ClientGone{ClientId{2}});
  EXPECT_EQ(t.view(1).pinned, gib(2));
}

TEST_F(PinnedWaits, WhatCanFitNoLongerIsWithdrawn) {
  pin(1, gib(4));
  t.release(1, 1ms, false);
  const Decisions d = t.step(OverheadMeasured{GpuId{0}, gib(6)});
  ASSERT_EQ(only<MemoryWithdrawn>(d).size(), 1u);
  EXPECT_EQ(only<MemoryWithdrawn>(d)[0].bytes, gib(4));
  EXPECT_EQ(t.view(1).allocated, gib(7));
  EXPECT_EQ(t.view(1).awaits, Bytes{});
  EXPECT_EQ(t.state(1), ClientState::Idle);
}

TEST_F(PinnedWaits, APausedTenantGetsItWhenItGoesOn) {
  pin(1, gib(2));
  t.step(TenantPaused{TenantId{1}, true});
  t.release(1, 1ms, false);
  EXPECT_TRUE(only<SendOut>(t.pass(1h)).empty());
  t.step(TenantPaused{TenantId{1}, false});
  t.step(ClientGone{ClientId{2}});
  EXPECT_EQ(t.view(1).pinned, gib(2));
}

TEST_F(PinnedWaits, WhatIsWaitedForCannotBeFreed) {
  pin(1, gib(2));
  EXPECT_NE(t.refused(MemoryChanged{ClientId{1}, gib(8), {}, gib(7)}), "");
  t.step(MemoryChanged{ClientId{1}, gib(8), {}, gib(6)});
  EXPECT_EQ(t.view(1).awaits, gib(2));
}

}  // namespace
}  // namespace nvshare::core
