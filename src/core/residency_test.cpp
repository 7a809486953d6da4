#include "core/residency.h"

#include "core/testing.h"

namespace nvshare::core {
namespace {

Config fixed_quantum() {
  Config config;
  config.quantum_mode = QuantumMode::Fixed;
  return config;
}

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

// All move what they are told to.
void obey(TestCore& t, const Decisions& told) {
  for (const SendOut& order : only<SendOut>(told)) {
    const int id = static_cast<int>(order.client.value);
    obey(t, t.move_to(id, t.view(id).resident - order.bytes));
  }
  for (const BringIn& order : only<BringIn>(told)) {
    const int id = static_cast<int>(order.client.value);
    obey(t, t.move_to(id, t.view(id).resident + order.bytes));
  }
}

// Two clients of 12 GiB on a GPU that can safely hold 14.4: the second waits, and only what is
// missing moves.
struct Rotation : testing::Test {
  Rotation() {
    t.gpu(0);
    t.client(1);
    t.client(2);
    t.allocate(1, gib(12));
    t.want(1);
    t.allocate(2, gib(12));
  }
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
  EXPECT_EQ(only<Drop>(t.pass(3s)).size(), 1u);  // now the other way round after quantum_min
}

// The first quantum rests on a guess of 1 GiB/s; the first move shows what a switch really costs.
TEST_F(Rotation, TheFirstMoveReplacesTheGuess) {
  t.now += 1s;
  t.want(2);
  EXPECT_NE(t.why(2).find("next switch in 59.00s"), std::string::npos) << t.why(2);
  t.move_to(2, safe() - gib(12), 50ms);
  EXPECT_NE(t.why(2).find("next switch in 1.00s"), std::string::npos) << t.why(2);
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

// Memory that is allocated before the first launch begins a quantum, which may be long over when
// the rest of the memory has come.
TEST(Residency, WhoHadToWaitForItsFirstTurnHasAWholeOne) {
  TestCore t(fixed_quantum());  // 60 s
  t.gpu(0);
  t.client(1);
  t.client(2);
  t.allocate(1, gib(12));
  t.want(1);
  t.now += 1s;
  t.allocate(2, gib(2));
  t.allocate(2, gib(12));
  t.want(2);
  ASSERT_EQ(only<Drop>(t.pass(60s)).at(0).client, ClientId{1});
  const Bytes out = only<SendOut>(t.release(1, 60s)).at(0).bytes;
  t.now += 1s;
  t.move_to(1, gib(12) - out);
  t.move_to(2, gib(12));
  EXPECT_EQ(t.state(2), ClientState::Running);
  EXPECT_TRUE(only<Drop>(t.pass(59s)).empty());
  EXPECT_EQ(only<Drop>(t.pass(2s)).size(), 1u);
}

// Three that do not fit together: who allocates before it runs for the first time does not pass
// the one that waits already; who grows while it runs goes on where it was.
struct Growth : testing::Test {
  Growth() : t(fixed_quantum()) {
    t.gpu(0);  // of which 14.4 GiB are safe
    for (int i : {1, 2, 3}) t.client(i);
    t.allocate(1, gib(10));
    t.want(1);
    t.now += 20s;
  }
  void obey(const Decisions& told) { nvshare::core::obey(t, told); }
  TestCore t;
};

TEST_F(Growth, WhoHasNotRunStandsBehindThoseWhoWait) {
  t.allocate(3, gib(1));
  t.allocate(2, gib(12));
  obey(t.want(2));
  t.now += 1s;
  t.allocate(3, gib(12));
  obey(t.want(3));
  const Decisions over = t.pass(40s);
  ASSERT_EQ(only<Drop>(over).at(0).client, ClientId{1});
  obey(over);
  obey(t.release(1, 40s));
  EXPECT_EQ(t.state(2), ClientState::Running);
  EXPECT_EQ(t.state(3), ClientState::Waiting);
}

TEST_F(Growth, WhoRunsAndGrowsGoesOnWithItsQuantum) {
  t.allocate(2, gib(4));  // idle: its memory can go
  t.allocate(3, gib(12));
  t.now += 10s;
  ASSERT_EQ(only<Drop>(t.allocate(1, gib(12))).at(0).client, ClientId{1});
  obey(t.want(3));
  obey(t.release(1, 30s));
  EXPECT_EQ(t.state(1), ClientState::Running) << "before the one that waits";
  EXPECT_NE(t.why(3).find("next switch in 30.00s"), std::string::npos) << t.why(3);
}

// It was granted the GPU before it had any memory, and has it still.
TEST(Residency, WhoseQuantumBeganWhileItRanKeepsItToo) {
  TestCore t(fixed_quantum());
  t.gpu(0);
  t.client(1);
  t.client(2);
  t.want(1);
  t.now += 1s;
  t.allocate(1, gib(8));
  t.allocate(2, gib(12));
  obey(t, t.want(2));
  t.now += 3s;
  ASSERT_EQ(only<Drop>(t.allocate(1, gib(10))).at(0).client, ClientId{1});
  const auto out = only<SendOut>(t.release(1, 4s));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].client, ClientId{2}) << "what came in ahead of its turn";
}

TEST_F(Growth, RoomThatWasGivenBackInAQuantumIsKeptUntilItIsOver) {
  t.allocate(2, gib(12));
  obey(t.want(2));
  const Decisions freed = t.step(MemoryChanged{ClientId{1}, gib(8), {}, gib(8)});
  EXPECT_TRUE(only<BringIn>(freed).empty());
  EXPECT_TRUE(only<Drop>(t.allocate(1, gib(10))).empty());
  EXPECT_EQ(t.state(1), ClientState::Running);
  t.step(MemoryChanged{ClientId{1}, gib(2), {}, gib(2)});
  EXPECT_EQ(t.told[ClientId{2}].in, gib(12) - t.view(2).resident) << "all of it has room now";
}

// Whatever it does with its memory meanwhile.
TEST_F(Growth, NobodyWaitsForLongerThanAQuantumForWhoGrowsAgainAndAgain) {
  t.allocate(2, gib(12));
  obey(t.want(2));
  for (Bytes most = gib(10) + mib(1); t.state(1) == ClientState::Running; most += mib(1)) {
    t.now += 100ms;
    ASSERT_EQ(only<Drop>(t.allocate(1, most)).size(), 1u);
    const Decisions makes_room = t.release(1, 100ms);
    t.now += 2s;  // in which it is made
    obey(makes_room);
  }
  EXPECT_EQ(t.state(2), ClientState::Running);
  EXPECT_LE(t.now, Time{} + 60s + 3s);
}

TEST_F(Growth, WhoIsMovedOutMeanwhileBeginsAnew) {
  t.allocate(2, gib(4));
  t.want(2);
  t.release(1, 20s, false);
  ASSERT_EQ(t.state(2), ClientState::Running);
  t.allocate(1, gib(12));
  obey(t.want(1));
  t.now += 10s;
  t.allocate(2, gib(12));
  obey(t.release(2, 10s));  // it is behind the first, and makes room for it
  ASSERT_EQ(t.state(1), ClientState::Running);
  const Decisions over = t.pass(60s);
  ASSERT_EQ(only<Drop>(over).at(0).client, ClientId{1});
  obey(over);
  obey(t.release(1, 30s));
  ASSERT_EQ(t.state(2), ClientState::Running);
  EXPECT_NE(t.why(1).find("next switch in 60.00s"), std::string::npos) << t.why(1);
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
  t.step(OverheadMeasured{GpuId{0}, gib(16) - gib(12) - kLargestChunk + Bytes{1}});
  EXPECT_TRUE(only<BringIn>(t.want(2)).empty());
  EXPECT_EQ(only<BringIn>(t.step(OverheadMeasured{GpuId{0}, gib(4) - kLargestChunk})).size(), 1u);
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
  for (const Duration rest : {100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms}) {
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

}  // namespace
}  // namespace nvshare::core
