// Programs that allocate and free while others wait: whose turn it is then, and for how long.

#include "core/testing.h"

namespace nvshare::core {
namespace {

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
  TestCore t;
};

TEST_F(Growth, WhoHasNotRunStandsBehindThoseWhoWait) {
  t.allocate(3, gib(1));
  t.allocate(2, gib(12));
  t.obey(t.want(2));
  t.now += 1s;
  t.allocate(3, gib(12));
  t.obey(t.want(3));
  const Decisions over = t.pass(40s);
  ASSERT_EQ(only<Drop>(over).at(0).client, ClientId{1});
  t.obey(over);
  t.obey(t.release(1, 40s));
  EXPECT_EQ(t.state(2), ClientState::Running);
  EXPECT_EQ(t.state(3), ClientState::Waiting);
}

TEST_F(Growth, WhoRunsAndGrowsGoesOnWithItsQuantum) {
  t.allocate(2, gib(4));  // idle: its memory can go
  t.allocate(3, gib(12));
  t.now += 10s;
  ASSERT_EQ(only<Drop>(t.allocate(1, gib(12))).at(0).client, ClientId{1});
  t.obey(t.want(3));
  t.obey(t.release(1, 30s));
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
  t.obey(t.want(2));
  t.now += 3s;
  ASSERT_EQ(only<Drop>(t.allocate(1, gib(10))).at(0).client, ClientId{1});
  const auto out = only<SendOut>(t.release(1, 4s));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].client, ClientId{2}) << "what came in ahead of its turn";
}

TEST_F(Growth, RoomThatWasGivenBackInAQuantumIsKeptUntilItIsOver) {
  t.allocate(2, gib(12));
  t.obey(t.want(2));
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
  t.obey(t.want(2));
  for (Bytes most = gib(10) + mib(1); t.state(1) == ClientState::Running; most += mib(1)) {
    t.now += 100ms;
    ASSERT_EQ(only<Drop>(t.allocate(1, most)).size(), 1u);
    const Decisions makes_room = t.release(1, 100ms);
    t.now += 2s;  // in which it is made
    t.obey(makes_room);
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
  t.obey(t.want(1));
  t.now += 10s;
  t.allocate(2, gib(12));
  t.obey(t.release(2, 10s));  // it is behind the first, and makes room for it
  ASSERT_EQ(t.state(1), ClientState::Running);
  const Decisions over = t.pass(60s);
  ASSERT_EQ(only<Drop>(over).at(0).client, ClientId{1});
  t.obey(over);
  t.obey(t.release(1, 30s));
  ASSERT_EQ(t.state(2), ClientState::Running);
  EXPECT_NE(t.why(1).find("next switch in 60.00s"), std::string::npos) << t.why(1);
}

// The driver gives whole pages: memory that takes more than it has fits where that does.
TEST(Pages, RoomIsWhatTheDriverTakes) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  t.client(2);
  const auto view = [&](std::uint64_t id) { return *t.core.view(ClientId{id}); };
  const auto ask = [&](std::uint64_t id, Bytes bytes) {
    t.step(MemoryChanged{ClientId{id}, view(id).allocated + bytes, {}, view(id).resident});
    return view(id).resident == view(id).allocated;
  };
  const Bytes safe = t.core.snapshot().gpus[0].safe_limit;
  EXPECT_TRUE(ask(1, gib(7)));
  t.step(MemoryRounded{ClientId{1}, gib(1)});
  EXPECT_EQ(view(1).rounded, gib(1));
  EXPECT_FALSE(ask(2, safe - gib(8) + Bytes{1}));
  t.step(MemoryChanged{ClientId{2}, {}, {}, {}});
  EXPECT_TRUE(ask(2, safe - gib(8)));
  EXPECT_EQ(t.refused(MemoryRounded{ClientId{1}, gib(17)}), "no such amount of memory in pages");
  const Bytes most = safe - gib(1);
  const Decisions d = t.step(MemoryChanged{ClientId{1}, most + Bytes{1}, {}, gib(7)});
  ASSERT_EQ(only<MemoryRefused>(d).size(), 1u);
  EXPECT_EQ(only<MemoryRefused>(d)[0].allowed, most);
  EXPECT_EQ(d[0].reason.why, Why::LargerInPages);
}

TEST(Pages, WhatIsAwayTakesNone) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  t.client(2);
  const auto view = [&](std::uint64_t id) { return *t.core.view(ClientId{id}); };
  t.step(MemoryFound{ClientId{1}, gib(8), {}, gib(8)});
  t.step(MemoryRounded{ClientId{1}, gib(2)});
  t.step(MemoryMoved{.client = ClientId{1}, .resident = gib(4)});
  EXPECT_EQ(view(1).rounded, gib(1));
  t.step(MemoryFound{ClientId{2}, gib(9), {}, gib(9)});
  t.want(1);
  // 10 GiB of 14.4 for the first: the second sends out what is missing, in pages.
  const Bytes safe = t.core.snapshot().gpus[0].safe_limit;
  t.now += 1h;
  const Decisions d = t.step(Tick{});
  const auto out = only<SendOut>(d);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].bytes, gib(10) + gib(9) - safe);
}

}  // namespace
}  // namespace nvshare::core
