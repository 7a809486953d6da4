// Tenants that are put to sleep, fall asleep by themselves, and wake.

#include "core/testing.h"

namespace nvshare::core {
namespace {

struct SleepTest : testing::Test {
  SleepTest() { t.gpu(0); }

  // A tenant with memory on the GPU and nothing to do.
  void movable(int id, Bytes bytes) {
    t.client(id);
    t.allocate(id, bytes);
  }
  static TenantId tid(int id) { return TenantId{static_cast<std::uint64_t>(id)}; }
  Decisions sleep(int id, bool hold = false) { return t.step(TenantSleeps{tid(id), true, hold}); }
  Decisions wake(int id) { return t.step(TenantSleeps{tid(id), false}); }
  bool asleep(int id) const { return t.core.sleep_of(tid(id)).has_value(); }
  Bytes resident(int id) const { return t.view(id).resident; }

  TestCore t{fixed_quantum()};
};

TEST_F(SleepTest, AllThatCanLeaveLeavesAlthoughNobodyNeedsTheRoom) {
  movable(1, gib(8));
  const Decisions orders = sleep(1);
  ASSERT_EQ(only<SendOut>(orders).size(), 1u);
  EXPECT_EQ(only<SendOut>(orders)[0].bytes, gib(8));
  ASSERT_EQ(only<Sleeps>(orders).size(), 1u);
  EXPECT_TRUE(only<Sleeps>(orders)[0].asleep);
  t.obey(orders);
  EXPECT_EQ(resident(1), Bytes{});
  EXPECT_TRUE(asleep(1));
  t.pass(3min);
  EXPECT_EQ(t.why(1), "has slept for 180.00s: nvshare wake, or its next launch, brings it back");
}

TEST_F(SleepTest, PinnedMemoryStays) {
  movable(1, gib(8));
  t.step(MemoryChanged{t.cid(1), gib(8), gib(2), gib(8)});
  t.obey(sleep(1));
  EXPECT_EQ(resident(1), gib(2));
  EXPECT_EQ(t.view(1).leaveable, Bytes{});
}

TEST_F(SleepTest, ARunningClientIsStoppedFirst) {
  movable(1, gib(8));
  t.want(1);
  ASSERT_EQ(t.state(1), ClientState::Running);
  const Decisions first = sleep(1);
  EXPECT_EQ(only<Drop>(first).size(), 1u);
  EXPECT_TRUE(only<SendOut>(first).empty());
  const Decisions then = t.release(1, 1ms, false);
  ASSERT_EQ(only<SendOut>(then).size(), 1u);
  t.obey(then);
  EXPECT_EQ(resident(1), Bytes{});
}

TEST_F(SleepTest, WorkThatIsLeftWakesTheTenantBeforeAnythingLeaves) {
  movable(1, gib(8));
  t.want(1);
  sleep(1);
  const Decisions then = t.release(1, 1ms, true);
  EXPECT_TRUE(only<SendOut>(then).empty());
  EXPECT_FALSE(asleep(1));
  EXPECT_EQ(t.state(1), ClientState::Running);
}

TEST_F(SleepTest, ATenantThatWaitsForTheGpuStaysAwake) {
  movable(1, gib(12));
  movable(2, gib(12));
  t.want(1);
  t.want(2);
  ASSERT_EQ(t.state(2), ClientState::Waiting);
  EXPECT_TRUE(sleep(2).empty());
  EXPECT_FALSE(asleep(2));
}

TEST_F(SleepTest, TheNextLaunchWakesAndBringsEverythingBack) {
  movable(1, gib(8));
  t.obey(sleep(1));
  const Decisions orders = t.want(1);
  EXPECT_FALSE(asleep(1));
  ASSERT_EQ(only<BringIn>(orders).size(), 1u);
  t.obey(orders);
  EXPECT_EQ(resident(1), gib(8));
  EXPECT_EQ(t.state(1), ClientState::Running);
}

TEST_F(SleepTest, AHeldTenantWaitsUntilItIsWoken) {
  movable(1, gib(8));
  t.obey(sleep(1, true));
  EXPECT_TRUE(only<BringIn>(t.want(1)).empty());
  t.pass(10min);
  EXPECT_EQ(t.state(1), ClientState::Waiting);
  EXPECT_EQ(t.why(1), "has been held asleep for 600.00s: nvshare wake brings it back");
  EXPECT_TRUE(only<WaitForMemory>(t.allocate(1, gib(9))).size() == 1u);
  EXPECT_TRUE(asleep(1)) << "more memory does not wake it either";
  t.obey(wake(1));
  EXPECT_EQ(resident(1), gib(9));
  EXPECT_EQ(t.state(1), ClientState::Running);
}

TEST_F(SleepTest, HoldStopsWorkThatIsLeft) {
  movable(1, gib(8));
  t.want(1);
  sleep(1, true);
  t.obey(t.release(1, 1ms, true));
  EXPECT_EQ(resident(1), Bytes{});
  EXPECT_TRUE(asleep(1));
  t.obey(wake(1));
  EXPECT_EQ(t.state(1), ClientState::Running);
}

TEST_F(SleepTest, ASleeperCanBeHeldAfterwards) {
  movable(1, gib(8));
  t.obey(sleep(1));
  t.pass(1s);
  sleep(1, true);
  EXPECT_TRUE(t.core.sleep_of(tid(1))->hold);
  t.want(1);
  EXPECT_TRUE(asleep(1));
  sleep(1, false);
  EXPECT_FALSE(asleep(1)) << "it has work";
}

TEST_F(SleepTest, ASecondTimeIsRefusedAndChangesNothing) {
  movable(1, gib(8));
  EXPECT_EQ(t.refused(TenantSleeps{tid(1), false}), "tenant 1 is awake already");
  sleep(1);
  EXPECT_EQ(t.refused(TenantSleeps{tid(1), true}), "tenant 1 sleeps already");
  EXPECT_EQ(t.refused(TenantSleeps{tid(9), true}), "tenant 9 is not known");
}

TEST_F(SleepTest, MoreMemoryWakes) {
  movable(1, gib(8));
  t.obey(sleep(1));
  t.obey(t.allocate(1, gib(9)));
  EXPECT_FALSE(asleep(1));
  EXPECT_EQ(resident(1), gib(9)) << "there was room for all of it";
}

TEST_F(SleepTest, AWokenTenantIsBackBeforeItHasWork) {
  movable(1, gib(8));
  t.obey(sleep(1));
  const Decisions orders = wake(1);
  ASSERT_EQ(only<BringIn>(orders).size(), 1u);
  EXPECT_EQ(only<BringIn>(orders)[0].bytes, gib(8));
  t.obey(orders);
  EXPECT_EQ(resident(1), gib(8));
  EXPECT_EQ(t.why(1), "has no work for the GPU");
}

TEST_F(SleepTest, AWokenTenantTakesNothingFromOthers) {
  movable(1, gib(12));
  t.obey(sleep(1));
  movable(2, gib(12));
  ASSERT_EQ(resident(2), gib(12));
  t.pass(1h);
  const Decisions orders = wake(1);
  EXPECT_TRUE(only<BringIn>(orders).empty());
  EXPECT_TRUE(only<SendOut>(orders).empty());
  // As soon as there is room.
  t.obey(t.step(ClientGone{t.cid(2)}));
  EXPECT_EQ(resident(1), gib(12));
}

TEST_F(SleepTest, AWokenTenantIsTriedOnce) {
  movable(1, gib(8));
  t.obey(sleep(1));
  wake(1);
  t.moved({t.cid(1), {}, 1ms, {}, gib(8)});
  EXPECT_TRUE(only<BringIn>(t.pass(1h)).empty());
  t.obey(t.want(1));
  EXPECT_EQ(resident(1), gib(8)) << "the queue brings it";
}

TEST_F(SleepTest, ATenantWokenWhileItLeavesComesBackAfterwards) {
  movable(1, gib(8));
  const Decisions out = sleep(1);
  EXPECT_TRUE(only<BringIn>(wake(1)).empty());
  t.obey(out);
  EXPECT_EQ(resident(1), gib(8));
}

// Found by the fuzzer: a client that could not come back when it was woken has run since.
TEST_F(SleepTest, AWokenTenantThatHasWorkIsBroughtBackByTheQueueAlone) {
  movable(1, gib(12));
  t.obey(sleep(1));
  movable(2, gib(12));
  movable(3, gib(12));
  wake(1);
  t.obey(t.want(1));
  t.obey(t.want(3));
  t.obey(t.pass(2min));
  ASSERT_EQ(t.state(1), ClientState::Running);
  ASSERT_EQ(t.state(3), ClientState::Waiting);
  t.move_to(1, gib(8));  // without an order
  ASSERT_EQ(t.state(1), ClientState::Stopping);
  t.step(ClientGone{t.cid(2)});
  EXPECT_TRUE(only<BringIn>(t.step(ClientGone{t.cid(3)})).empty()) << "it holds a grant";
  t.obey(t.release(1, 1ms, true));
  EXPECT_EQ(t.state(1), ClientState::Running);
}

TEST_F(SleepTest, AnotherTakesTheRoomAndASleeperKeepsNobodyWaiting) {
  movable(1, gib(12));
  movable(2, gib(12));
  t.want(1);
  t.obey(t.want(2));
  ASSERT_EQ(t.state(2), ClientState::Waiting);
  sleep(1, true);
  t.obey(t.release(1, 1ms, true));
  EXPECT_EQ(t.state(2), ClientState::Running) << "long before the quantum of the first is over";
  t.pass(1h);
  EXPECT_EQ(t.state(2), ClientState::Running);
  EXPECT_EQ(t.view(2).resident, gib(12));
  t.obey(wake(1));  // what fits comes ahead, the rest by the ordinary queue
  EXPECT_NE(t.state(2), ClientState::Running) << "its quantum is long over";
  t.obey(t.release(2, 1ms, false));
  EXPECT_EQ(t.state(1), ClientState::Running);
}

TEST_F(SleepTest, OnlyWhatHasAPlaceLeavesAndMoreAsHostMemoryComes) {
  movable(1, gib(8));
  t.step(HostMemoryComing{t.cid(1), {}, Bytes{}});
  EXPECT_TRUE(only<SendOut>(sleep(1)).empty());
  const Decisions some = t.step(HostMemoryComing{t.cid(1), gib(1), gib(2)});
  ASSERT_EQ(only<SendOut>(some).size(), 1u);
  EXPECT_EQ(only<SendOut>(some)[0].bytes, gib(3));
  t.obey(some);
  t.obey(t.step(HostMemoryComing{t.cid(1), {}, gib(20)}));
  EXPECT_EQ(resident(1), Bytes{});
}

TEST_F(SleepTest, WhatDidNotLeaveIsTriedAgain) {
  movable(1, gib(8));
  sleep(1);
  t.moved({t.cid(1), gib(8), 1ms, gib(8)});
  const Decisions later = t.pass(1s);
  EXPECT_FALSE(only<SendOut>(later).empty());
  t.obey(later);
  EXPECT_EQ(resident(1), Bytes{});
}

TEST_F(SleepTest, AllClientsOfATenantSleepAndWakeTogetherOnEveryGpu) {
  t.gpu(1);
  movable(1, gib(4));
  t.step(ClientAdded{t.cid(2), tid(1), GpuId{1}});
  t.allocate(2, gib(6));
  t.obey(sleep(1));
  EXPECT_EQ(resident(1), Bytes{});
  EXPECT_EQ(resident(2), Bytes{});
  t.obey(t.want(2));
  EXPECT_EQ(resident(1), gib(4));
  EXPECT_EQ(resident(2), gib(6));
}

TEST_F(SleepTest, AClientThatJoinsASleepingTenantSleepsToo) {
  movable(1, gib(4));
  t.obey(sleep(1, true));
  t.step(ClientAdded{t.cid(2), tid(1), GpuId{0}});
  t.obey(t.allocate(2, gib(6)));
  EXPECT_EQ(resident(2), Bytes{});
}

TEST_F(SleepTest, WhatAPausedTenantAsksForWakesItWhenItIsResumed) {
  movable(1, gib(4));
  t.step(TenantPaused{tid(1), true});
  t.obey(sleep(1));
  t.want(1);
  EXPECT_TRUE(asleep(1));
  t.obey(t.step(TenantPaused{tid(1), false}));
  EXPECT_FALSE(asleep(1));
  EXPECT_EQ(t.state(1), ClientState::Running);
}

// --- idle_out ---

struct IdleOutTest : SleepTest {
  IdleOutTest() {
    Config config = fixed_quantum();
    config.idle_out = 10s;
    t.step(ConfigChanged{config});
  }
};

TEST_F(IdleOutTest, WithoutWorkForSoLongATenantFallsAsleepByItself) {
  movable(1, gib(8));
  t.want(1);
  t.pass(1min);
  EXPECT_FALSE(asleep(1)) << "it runs";
  t.release(1, 1s, false);
  EXPECT_EQ(t.core.next_wakeup(), t.now + 10s);
  EXPECT_TRUE(only<SendOut>(t.pass(10s - 1ns)).empty());
  const Decisions orders = t.pass(1ns);
  ASSERT_EQ(only<Sleeps>(orders).size(), 1u);
  EXPECT_EQ(to_text(orders[0].reason), "had no work for 10.00s (setting idle_out)");
  t.obey(orders);
  EXPECT_EQ(resident(1), Bytes{});
  EXPECT_FALSE(t.core.next_wakeup()) << "nothing is left to do";
  t.obey(t.want(1));
  EXPECT_EQ(t.state(1), ClientState::Running);
}

TEST_F(IdleOutTest, OneBusyClientKeepsItsTenantAwake) {
  movable(1, gib(4));
  t.step(ClientAdded{t.cid(2), tid(1), GpuId{0}});
  t.want(2);
  t.pass(1h);
  EXPECT_FALSE(asleep(1));
  t.step(ClientGone{t.cid(2)});
  t.pass(10s);
  EXPECT_TRUE(asleep(1));
}

TEST_F(IdleOutTest, SoDoesTheClientThatCameLast) {
  movable(1, gib(4));
  t.pass(6s);
  t.allocate(1, gib(5));
  t.pass(6s);
  EXPECT_FALSE(asleep(1)) << "it took memory";
  t.pass(4s);
  EXPECT_TRUE(asleep(1));
}

TEST_F(IdleOutTest, AWokenTenantHasItsTimeAgain) {
  movable(1, gib(4));
  t.obey(t.pass(10s));
  ASSERT_TRUE(asleep(1));
  t.obey(wake(1));
  t.pass(10s - 1ns);
  EXPECT_FALSE(asleep(1));
  t.pass(1ns);
  EXPECT_TRUE(asleep(1));
}

TEST_F(IdleOutTest, ItCanBeSwitchedOff) {
  movable(1, gib(4));
  t.step(ConfigChanged{fixed_quantum()});
  EXPECT_FALSE(t.core.next_wakeup());
  t.pass(1h);
  EXPECT_FALSE(asleep(1));
}

TEST_F(IdleOutTest, APausedTenantFallsAsleepAlthoughItHasWork) {
  movable(1, gib(4));
  t.want(1);
  t.step(TenantPaused{tid(1), true});
  t.release(1, 1ms, true);
  t.obey(t.pass(10s));
  EXPECT_TRUE(asleep(1));
  EXPECT_EQ(resident(1), Bytes{});
}

}  // namespace
}  // namespace nvshare::core
