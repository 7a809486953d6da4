#include "core/residency.h"

#include "core/testing.h"

namespace nvshare::core {
namespace {

TEST(SwitchQuantum, FollowsTheCostWithinBounds) {
  Config config;
  EXPECT_EQ(switch_quantum(gib(100), gib(50), config), 10s);
  EXPECT_EQ(switch_quantum(gib(1), gib(50), config), config.quantum_min);
  EXPECT_EQ(switch_quantum(gib(1000), gib(1), config), config.quantum_max);
  config.quantum_multiplier = 10;
  EXPECT_EQ(switch_quantum(gib(100), gib(50), config), 20s);
  config.quantum_mode = QuantumMode::Fixed;
  EXPECT_EQ(switch_quantum(gib(100), gib(50), config), 60s);
}

// Two clients of 12 GiB on a GPU that can safely hold 14.4: the second waits, and only what is
// missing moves.
struct Rotation : testing::Test {
  Rotation() { t.two_that_do_not_fit(); }
  Bytes safe() const { return t.core.snapshot().gpus[0].safe_limit; }
  TestCore t;
};

TEST_F(Rotation, TheSecondWaitsAndPartOfItComesInAhead) {
  const Decisions d = t.want(2);
  EXPECT_EQ(t.state(1), ClientState::Running);
  EXPECT_EQ(t.state(2), ClientState::Waiting);
  EXPECT_EQ(only<WaitForMemory>(d).at(0).missing, gib(12));
  EXPECT_EQ(only<BringIn>(d).at(0).bytes, safe() - gib(12));
  EXPECT_TRUE(only<Drop>(d).empty());
}

TEST_F(Rotation, WhoCannotWaitIsRefusedAndGoesOnRunning) {
  const Bytes left = safe() - gib(12);
  const Decisions d =
      t.step(MemoryChanged{ClientId{1}, gib(12) + left + Bytes{1}, {}, gib(12), false});
  ASSERT_EQ(only<MemoryRefused>(d).size(), 1u);
  EXPECT_EQ(only<MemoryRefused>(d)[0].allowed, gib(12) + left);
  EXPECT_TRUE(only<Drop>(d).empty());
  EXPECT_EQ(t.view(1).allocated, gib(12));
  EXPECT_EQ(t.state(1), ClientState::Running);
  EXPECT_EQ(
      only<MemoryAvailable>(t.step(MemoryChanged{ClientId{1}, gib(12) + left, {}, gib(12), false}))
          .size(),
      1u);
}

TEST_F(Rotation, AfterTheQuantumOnlyTheDeficitMoves) {
  t.want(2);
  t.move_to(2, safe() - gib(12));
  const Bytes deficit = gib(12) + gib(12) - safe();
  const Decisions d = t.pass(61s);  // 12 GiB at the careful guess of 1 GiB/s, times 5
  ASSERT_EQ(only<Drop>(d).size(), 1u);
  const auto out = only<SendOut>(t.release(1, 60s));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].bytes, deficit);
  EXPECT_EQ(out[0].client, ClientId{1});
  // Half of it is out: that much comes in at once, both ways at the same time.
  const auto in = only<BringIn>(t.move_to(1, gib(12) - Bytes{deficit.count / 2}));
  ASSERT_EQ(in.size(), 1u);
  EXPECT_EQ(in[0].bytes, Bytes{deficit.count / 2});
  const auto rest = only<BringIn>(t.move_to(1, gib(12) - deficit));
  EXPECT_EQ(rest.at(0).bytes, deficit - in[0].bytes);
  const Decisions done = t.move_to(2, gib(12));
  EXPECT_EQ(only<MemoryAvailable>(done).size(), 1u);
  EXPECT_EQ(only<Grant>(done).at(0).client, ClientId{2});
  EXPECT_EQ(t.state(1), ClientState::Waiting);
}

// The reports of copies that are under way at the same time come at the same time: all of the time
// is in the first, also when that is too small to count. Taken for a link without limits, what has
// just come in would be sent out again at the first gap in its work.
TEST(Residency, CopiesAtTheSameTimeAreMeasuredTogether) {
  for (const Bytes first : {gib(5), mib(8)}) {
    SCOPED_TRACE(first.count);
    TestCore t;
    t.two_that_do_not_fit();
    t.want(2);
    t.move_to(2, t.core.snapshot().gpus[0].safe_limit - gib(12));
    t.pass(61s);
    const Bytes deficit = only<SendOut>(t.release(1, 60s)).at(0).bytes;
    const Duration all{deficit.count / 4};  // at 4 bytes a nanosecond
    t.move_to(1, gib(12) - first, all);
    t.move_to(1, gib(12) - deficit, Duration::zero());
    t.move_to(2, gib(12) - deficit + first, all);
    t.move_to(2, gib(12), Duration::zero());
    ASSERT_EQ(t.state(2), ClientState::Running);
    EXPECT_TRUE(only<SendOut>(t.release(2, 1s, false)).empty());
    EXPECT_TRUE(only<SendOut>(t.pass(2500ms)).empty()) << "10 GiB take longer";
    EXPECT_FALSE(only<SendOut>(t.pass(1s)).empty());
  }
}

TEST_F(Rotation, NobodyIsStoppedWhileNobodyWaits) {
  EXPECT_TRUE(t.pass(1h).empty());
}

TEST_F(Rotation, MemoryThatIsFreedGoesToTheOneWhoWaits) {
  t.want(2);
  t.move_to(2, safe() - gib(12));
  const Decisions d = t.step(MemoryChanged{ClientId{1}, gib(1), Bytes{}, gib(1)});
  EXPECT_EQ(only<BringIn>(d).at(0).client, ClientId{2});
  EXPECT_EQ(t.state(1), ClientState::Running);
  t.move_to(2, gib(12));
  EXPECT_EQ(t.state(1), ClientState::Running);
  EXPECT_EQ(t.state(2), ClientState::Running);  // nobody has a limit and both fit
}

TEST_F(Rotation, AnIdleClientMakesRoomBeforeItsQuantumIsOver) {
  t.release(1, 1ms, false);
  t.want(2);
  t.move_to(2, safe() - gib(12));
  const auto out = only<SendOut>(t.pass(13s));  // idle for as long as a move of it would take
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].client, ClientId{1});
}

TEST_F(Rotation, PinnedMemoryStays) {
  t.step(MemoryChanged{ClientId{1}, gib(12), gib(12), gib(12)});
  t.want(2);
  EXPECT_TRUE(only<SendOut>(t.pass(1h)).empty());
  EXPECT_EQ(t.why(2),
            "needs 12GiB of GPU memory, and at most 2.4GiB can be made free beside what "
            "cannot move");
}

TEST_F(Rotation, AMeasuredLinkShortensTheQuantum) {
  t.want(2);
  t.move_to(2, safe() - gib(12), 50ms);  // about 48 GiB/s
  t.pass(61s);
  t.release(1, 60s);
  t.move_to(1, safe() - gib(12), 200ms);
  t.move_to(2, gib(12), 200ms);
  ASSERT_EQ(t.state(2), ClientState::Running);
  EXPECT_EQ(only<Drop>(t.pass(11s)).size(), 1u);  // now the other way round after quantum_min
}

// The first quantum rests on a guess of 1 GiB/s; the first move shows what a switch really costs.
TEST_F(Rotation, TheFirstMoveReplacesTheGuess) {
  t.now += 1s;
  t.want(2);
  EXPECT_NE(t.why(2).find("next switch in 59.00s"), std::string::npos) << t.why(2);
  t.move_to(2, safe() - gib(12), 50ms);
  EXPECT_NE(t.why(2).find("next switch in 9.00s"), std::string::npos) << t.why(2);
}

TEST(Residency, GrowthThatDoesNotFitStopsItsOwnClientFirst) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  t.client(2);
  t.allocate(1, gib(6));
  t.allocate(2, gib(6));
  t.want(1);
  t.want(2);
  const Decisions d = t.allocate(1, gib(10));
  EXPECT_EQ(only<WaitForMemory>(d).at(0).missing, gib(4));
  EXPECT_EQ(only<Drop>(d).at(0).client, ClientId{1});
}

TEST(Residency, SmallClientsFillGapsButNeverDelayTheFirst) {
  TestCore t(fixed_quantum());
  t.gpu(0);
  for (int i : {1, 2, 3}) t.client(i);
  t.allocate(1, gib(12));
  t.want(1);
  t.now += 30s;
  t.allocate(2, gib(13));
  const Bytes ahead = only<BringIn>(t.want(2)).at(0).bytes;
  t.move_to(2, ahead);
  // The room is taken by what came in ahead of client 2's turn; client 3 can use it until then.
  t.allocate(3, gib(1));
  const auto back = only<SendOut>(t.want(3));
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].client, ClientId{2});
  EXPECT_EQ(back[0].bytes, gib(1));
  EXPECT_EQ(only<BringIn>(t.move_to(2, ahead - gib(1))).at(0).client, ClientId{3});
  t.move_to(3, gib(1));
  EXPECT_NE(t.state(3), ClientState::Idle);
  // The switch to client 2 is due when it would have been without client 3: at 60 s.
  EXPECT_NE(t.why(2).find("next switch in 30.00s"), std::string::npos) << t.why(2);
}

TEST(Residency, SafeLimitUsesTheLargerReserveAndThenTheMeasuredOne) {
  TestCore t;
  t.gpu(0);
  const auto safe = [&] { return t.core.snapshot().gpus[0].safe_limit; };
  EXPECT_EQ(safe(), gib(16) - Bytes{gib(16).count / 100 * 10});
  for (int i = 1; i <= 10; ++i) t.client(i);
  EXPECT_EQ(safe(), gib(16) - mib(500) - mib(300) * 10);
  t.step(OverheadMeasured{GpuId{0}, gib(1)});
  EXPECT_EQ(safe(), gib(15));
  EXPECT_EQ(t.refused(OverheadMeasured{GpuId{0}, gib(17)}),
            "overhead 17GiB is not from 0 to the GPU's 16GiB");
}

TEST(Residency, LessRoomMovesTheExcessOut) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  t.client(2);
  t.allocate(1, gib(7));
  t.allocate(2, gib(7));
  const auto out = only<SendOut>(t.step(OverheadMeasured{GpuId{0}, gib(4)}));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].bytes, gib(2));
}

// The first of two runs, for 60 s, when there is less room. What the other holds has no place to go
// to, until the first has stopped.
struct LessRoom : testing::Test {
  LessRoom() {
    t.gpu(0);
    for (const int id : {1, 2}) t.client(id);
    t.allocate(1, gib(12));
    t.want(1);
    t.allocate(2, gib(2));
    t.allocate(2, gib(12));
    const Bytes ahead = only<BringIn>(t.want(2)).at(0).bytes;
    t.move_to(2, gib(2) + ahead, Duration{ahead.count});  // about a byte in a nanosecond
  }
  void less_after(Duration length) {
    t.pass(length);
    t.step(HostMemoryComing{ClientId{2}, {}, gib(10)});  // for no more than is away
    const Decisions less = t.step(OverheadMeasured{GpuId{0}, gib(3), 2});
    ASSERT_EQ(only<Drop>(less).size(), 1u);
    t.obey(less);
    t.step(HostMemoryComing{ClientId{2}, {}, gib(12)});
    t.obey(t.release(1, length));
  }
  TestCore t{fixed_quantum()};
};

// It is nobody else's turn: who has to stop has the rest of its quantum.
TEST_F(LessRoom, WhoStopsForItComesBackBeforeOthers) {
  less_after(10s);
  EXPECT_EQ(t.state(1), ClientState::Running);
  EXPECT_TRUE(only<Drop>(t.pass(49s)).empty());
  EXPECT_EQ(only<Drop>(t.pass(2s)).size(), 1u) << "its quantum was no longer for that";
}

// A rest that is over by the time its memory would be back is worth nothing.
TEST_F(LessRoom, WhoStopsNearTheEndOfItsQuantumDoesNotComeBack) {
  less_after(59s);
  EXPECT_EQ(t.state(2), ClientState::Running);
}

TEST(Residency, WhoRunsWhileOthersWaitForMemoryIsNotToldThatNobodyDoes) {
  TestCore t;
  t.two_that_do_not_fit();
  EXPECT_EQ(t.why(1), "runs, and nobody else wants the GPU");
  t.want(2);
  EXPECT_EQ(t.why(1), "runs");
}

TEST(Residency, PriorityGoesFirstAndAgeMakesUpForIt) {
  for (Duration head_start : {2s, 8s}) {
    TestCore t(fixed_quantum());
    t.gpu(0);
    for (int i : {1, 2, 3}) t.client(i);
    t.step(LimitsChanged{TenantId{3}, {.memory = {}, .priority = 5}});
    t.allocate(1, gib(12));
    t.want(1);
    t.allocate(2, gib(12));
    t.allocate(3, gib(12));
    t.move_to(2, only<BringIn>(t.want(2)).at(0).bytes);
    t.now += head_start;
    t.want(3);
    EXPECT_EQ(only<Drop>(t.pass(60s)).size(), 1u);
    t.release(1, 60s);
    const Bytes left = Bytes{t.view(1).resident.count / 2};
    t.move_to(1, left);
    // Five steps of priority are worth five seconds of waiting.
    const ClientId next = head_start < 5s ? ClientId{3} : ClientId{2};
    bool comes_in = false;
    for (const BringIn& in : only<BringIn>(t.move_to(1, Bytes{left.count / 2}))) {
      comes_in |= in.client == next;
    }
    EXPECT_TRUE(comes_in) << to_text(head_start);
  }
}

// --- whole chunks, and orders that are not obeyed ----------------------------------------------

TEST_F(Rotation, MoreThanWasOrderedMayGoOut) {
  t.want(2);
  t.move_to(2, safe() - gib(12));
  t.pass(61s);
  const Bytes deficit = only<SendOut>(t.release(1, 60s)).at(0).bytes;
  const Decisions d = t.move_to(1, gib(12) - deficit - mib(100));
  EXPECT_EQ(only<BringIn>(d).at(0).bytes, deficit);
  EXPECT_EQ(t.view(1).resident, gib(12) - deficit - mib(100));
  t.step(MemoryChanged{ClientId{1}, gib(12), gib(1), t.view(1).resident});
  EXPECT_NE(t.refused(MemoryMoved{ClientId{1}, gib(1) - Bytes{1}, 1ms}), "") << "what is pinned";
}

TEST_F(Rotation, LessThanAChunkIsNotBroughtInAhead) {
  t.step(OverheadMeasured{GpuId{0}, gib(16) - gib(12) - mib(256) + Bytes{1}});
  EXPECT_TRUE(only<BringIn>(t.want(2)).empty());
  EXPECT_EQ(only<BringIn>(t.step(OverheadMeasured{GpuId{0}, gib(4) - mib(256)})).size(), 1u);
}

TEST_F(Rotation, WhatIsLeftOfSeveralOrdersComesInWithOne) {
  t.want(2);
  const Bytes ahead = safe() - gib(12);
  t.pass(61s);
  const Bytes deficit = only<SendOut>(t.release(1, 60s)).at(0).bytes;
  EXPECT_EQ(only<BringIn>(t.move_to(1, gib(12) - deficit)).at(0).bytes, deficit);
  // Two orders are under way; each ends with some of it undone.
  EXPECT_TRUE(
      only<BringIn>(t.moved(MemoryMoved{ClientId{2}, ahead - mib(7), 1ms, {}, mib(7)})).empty());
  const auto rest =
      only<BringIn>(t.moved(MemoryMoved{ClientId{2}, gib(12) - mib(16), 1ms, {}, mib(9)}));
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].bytes, mib(16));
  t.move_to(2, gib(12));
  EXPECT_EQ(t.state(2), ClientState::Running);
}

// A client may free what it has brought in before it says that it has: nothing is left of its order
// then, whatever the numbers say.
TEST_F(Rotation, WhatWasFreedBeforeItWasReportedIsNotWaitedFor) {
  const Bytes ahead = only<BringIn>(t.want(2)).at(0).bytes;
  t.step(MemoryChanged{ClientId{2}, gib(11), {}, {}});
  EXPECT_EQ(t.view(2).incoming, ahead);
  t.step(MemoryMoved{ClientId{2}, ahead - gib(1), 1ms});
  EXPECT_EQ(t.view(2).resident + t.view(2).incoming, ahead) << "what is free comes in again";
  t.told[ClientId{2}].in = t.view(2).incoming;
  t.pass(61s);
  const Bytes deficit = only<SendOut>(t.release(1, 60s)).at(0).bytes;
  t.move_to(1, gib(12) - deficit);
  t.move_to(2, gib(11));
  EXPECT_EQ(t.state(2), ClientState::Running);
}

TEST_F(Rotation, WhatWasFreedInsteadOfSentOutIsNotWaitedFor) {
  t.want(2);
  t.move_to(2, safe() - gib(12));
  t.pass(61s);
  const Bytes deficit = only<SendOut>(t.release(1, 60s)).at(0).bytes;
  // It sends out all that it has not freed, which is less than it was told to.
  t.step(MemoryChanged{ClientId{1}, gib(8), {}, gib(8)});
  EXPECT_EQ(t.view(1).outgoing, gib(8));
  t.step(MemoryMoved{ClientId{1}, {}, 1ms, deficit - gib(8)});
  EXPECT_EQ(t.view(1).outgoing, Bytes{});
  EXPECT_EQ(t.why(1).find("could not be moved"), std::string::npos) << t.why(1);
}

// Whole chunks go out for one of two orders: the other is as long as it was.
TEST_F(Rotation, MoreThanWasOrderedIsNotTakenFromAnotherOrder) {
  t.release(1, 1ms, false);
  t.want(2);
  t.move_to(2, safe() - gib(12));
  t.pass(1s);
  const Bytes first = t.told[ClientId{1}].out;
  t.step(OverheadMeasured{GpuId{0}, gib(6) + first});
  ASSERT_EQ(t.told[ClientId{1}].out, first + gib(2));
  const Bytes resident = t.view(1).resident - first - mib(200);
  t.step(MemoryMoved{ClientId{1}, resident, 1ms, {}, {}, gib(2), {}});
  EXPECT_EQ(t.view(1).outgoing, gib(2));
  EXPECT_NE(t.refused(MemoryMoved{ClientId{1}, resident, 1ms, {}, {}, gib(2) + Bytes{1}, {}}), "");
}

// The room for what was freed is given away; then something else comes in its place.
TEST_F(Rotation, AnOrderMayBringInWhatWasAllocatedSince) {
  const Bytes ahead = only<BringIn>(t.want(2)).at(0).bytes;
  t.step(MemoryChanged{ClientId{2}, gib(1), {}, {}});
  EXPECT_EQ(t.view(2).incoming, gib(1));
  t.step(MemoryChanged{ClientId{2}, gib(12), {}, {}});
  t.move_to(2, ahead);
  EXPECT_EQ(t.view(2).resident, ahead);
  EXPECT_EQ(t.view(2).incoming, Bytes{});
}

TEST_F(Rotation, WhoDoesNotMakeRoomRestsLongerAndLonger) {
  t.release(1, 1ms, false);
  t.want(2);
  t.move_to(2, safe() - gib(12));
  const auto ordered = only<SendOut>(t.pass(13s));
  ASSERT_EQ(ordered.size(), 1u);
  MemoryMoved nothing{ClientId{1}, gib(12), 1ms, ordered[0].bytes};
  for (const Duration rest : {100ms, 200ms, 400ms, 800ms, 1600ms, 3200ms}) {
    EXPECT_TRUE(only<SendOut>(t.moved(nothing)).empty());
    EXPECT_TRUE(only<SendOut>(t.pass(rest - 1ns)).empty());
    EXPECT_EQ(only<SendOut>(t.pass(1ns)).size(), 1u);
  }
  t.move_to(1, gib(12) - ordered[0].bytes);
  t.move_to(2, gib(12));
  EXPECT_EQ(t.state(2), ClientState::Running);
}

TEST_F(Rotation, WhoCannotBringItsMemoryInSaysWhenItTriesAgain) {
  t.want(2);
  const Bytes ahead = safe() - gib(12);
  EXPECT_TRUE(only<BringIn>(t.moved(MemoryMoved{ClientId{2}, {}, 1ms, {}, ahead})).empty());
  EXPECT_EQ(t.why(2),
            "waits for 12GiB of GPU memory that could not be moved; tried again in 100.0ms");
  EXPECT_EQ(only<BringIn>(t.pass(100ms)).size(), 1u);
}

// --- what cannot move --------------------------------------------------------------------------

TEST(Residency, PinnedMemoryMustLeaveRoomForWhatWasPromised) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  t.client(2);
  t.step(MemoryFound{ClientId{1}, gib(12), {}, gib(8)});  // the rest is on the host
  const Bytes left = t.core.snapshot().gpus[0].safe_limit - gib(12);
  const Bytes more = left + Bytes{1};
  const Decisions d = t.step(MemoryChanged{ClientId{2}, more, more, {}, false});
  ASSERT_EQ(only<MemoryRefused>(d).size(), 1u) << "client 1 could not come back";
  EXPECT_EQ(only<MemoryRefused>(d)[0].allowed, left);
  const Decisions fits = t.step(MemoryChanged{ClientId{2}, left, left, {}, false});
  EXPECT_TRUE(only<MemoryRefused>(fits).empty());
  EXPECT_EQ(t.view(2).pinned, left);
}

// --- what cannot move, and waits for room ------------------------------------------------------

TEST_F(Rotation, GrowthThatCanNeverFitIsRefused) {
  t.step(MemoryChanged{ClientId{1}, gib(12), gib(6), gib(12)});
  const Decisions d = t.allocate(2, gib(13));
  ASSERT_EQ(only<MemoryRefused>(d).size(), 1u);
  EXPECT_EQ(only<MemoryRefused>(d)[0].allowed, gib(12)) << "what it has stays";
}

TEST_F(Rotation, WhatIsBroughtAlongCountsAsItIs) {
  t.client(3);
  t.step(MemoryFound{ClientId{3}, gib(6), gib(1), gib(2)});
  EXPECT_EQ(t.view(3).allocated, gib(6));
  EXPECT_EQ(t.view(3).resident, gib(2));
  EXPECT_EQ(t.view(3).pinned, gib(1));
  t.want(3);
  EXPECT_EQ(t.state(3), ClientState::Waiting);
  EXPECT_NE(t.refused(MemoryFound{ClientId{3}, gib(17), {}, {}}), "") << "more than there is";
}

// One that comes back late to a scheduler that was started anew: until then what it has was
// nobody's, and taken for overhead.
TEST(Residency, WhatIsBroughtAlongIsOverheadNoMore) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  const auto safe = [&] { return t.core.snapshot().gpus[0].safe_limit; };
  t.step(OverheadMeasured{GpuId{0}, gib(10)});
  t.client(2);
  EXPECT_EQ(safe(), gib(6) - mib(300));
  t.step(MemoryFound{ClientId{2}, gib(10), {}, gib(8)});
  EXPECT_EQ(safe(), gib(14)) << "its context was there as well";
  t.step(MemoryFound{ClientId{2}, gib(10), {}, gib(8)});
  EXPECT_EQ(safe(), gib(14)) << "once";
  t.client(3);
  t.step(MemoryFound{ClientId{3}, gib(2), {}, gib(2)});
  EXPECT_EQ(safe(), gib(16) - mib(500) - mib(300) * 3) << "came behind the measurement";
  t.step(OverheadMeasured{GpuId{0}, gib(1)});
  t.client(4);
  t.step(MemoryFound{ClientId{4}, gib(1), {}, gib(1)});
  EXPECT_EQ(safe(), gib(15)) << "less than one would guess is what was measured";
}

// While clients are still to come back, their memory looks like overhead.
TEST(Residency, AnOverheadThatMayBeClientsIsNoMoreThanTheEstimate) {
  TestCore t;
  t.gpu(0);
  const auto safe = [&] { return t.core.snapshot().gpus[0].safe_limit; };
  const Bytes estimate{gib(16).count / 100 * 10};
  const OverheadMeasured first{GpuId{0}, gib(15), 0, true};
  EXPECT_EQ(t.core.safe_limit_with(first), gib(16) - estimate);
  t.step(first);
  EXPECT_EQ(safe(), gib(16) - estimate);
  t.client(1);
  t.step(MemoryFound{ClientId{1}, gib(10), {}, gib(10)});
  EXPECT_EQ(safe(), gib(16) - estimate) << "one is still missing";
  t.client(2);
  t.step(MemoryFound{ClientId{2}, gib(4), {}, gib(4)});
  EXPECT_EQ(safe(), gib(16) - mib(1100)) << "known before anything else is measured";
  t.client(3);
  EXPECT_EQ(safe(), gib(16) - mib(1400)) << "a new one takes something for itself";
  t.step(OverheadMeasured{GpuId{0}, gib(3), 3});
  EXPECT_EQ(safe(), gib(13)) << "what is measured later counts as it is";
}

TEST_F(Rotation, WhoIsOverItsLimitIsProtectedNoLonger) {
  t.want(2);
  t.move_to(2, safe() - gib(12));
  t.now += 1s;
  const Decisions d = t.step(LimitsChanged{TenantId{1}, {.memory = gib(4)}});
  EXPECT_EQ(only<Drop>(d).size(), 1u) << "somebody waits for the room";
  EXPECT_EQ(only<MemoryRefused>(t.allocate(1, gib(12) + Bytes{1})).size(), 1u);
}

TEST(Residency, WhoIsAloneKeepsWhatItHasOverItsLimitAndTheGpus) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  t.allocate(1, gib(12));
  t.want(1);
  EXPECT_TRUE(only<Drop>(t.step(LimitsChanged{TenantId{1}, {.memory = gib(4)}})).empty());
  EXPECT_TRUE(only<Drop>(t.step(OverheadMeasured{GpuId{0}, gib(5)})).empty());
  EXPECT_EQ(t.state(1), ClientState::Running);
}

// Who alone has more than there is keeps it until somebody else waits whose memory fits. Then all
// that is needed leaves at once: what is over, and what the other needs.
TEST(Residency, WhoHasMoreThanThereIsMakesRoomForAnotherByOneOrder) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  t.allocate(1, gib(12));
  t.want(1);
  t.client(2);
  t.step(OverheadMeasured{GpuId{0}, gib(5)});
  const Bytes safe = t.core.snapshot().gpus[0].safe_limit;
  ASSERT_LT(safe, gib(12));
  t.allocate(2, mib(1));
  t.want(2);
  t.release(1, t.now.time_since_epoch(), false);
  const auto orders = only<SendOut>(t.pass(60s));
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].bytes, gib(12) - safe + mib(1));
  t.obey(t.move_to(1, gib(12) - orders[0].bytes));
  EXPECT_EQ(t.state(2), ClientState::Running);
}

}  // namespace
}  // namespace nvshare::core
