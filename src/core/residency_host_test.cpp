// The host memory that clients leave to: it is made ahead of need, but that takes a while.

#include "core/residency.h"
#include "core/testing.h"

namespace nvshare::core {
namespace {

// Two clients of 12 GiB on a GPU that can safely hold 14.4. The first runs, for 60 s.
struct HostMemory : testing::Test {
  HostMemory() {
    t.two_that_do_not_fit();
    const Bytes ahead = only<BringIn>(t.want(2)).at(0).bytes;
    t.move_to(2, ahead, Duration{ahead.count});  // about a byte in a nanosecond
  }
  Decisions comes(Bytes bytes) { return t.step(HostMemoryComing{ClientId{1}, bytes}); }
  TestCore t{fixed_quantum()};
};

TEST_F(HostMemory, WhoRunsIsLeftAloneUntilItIsThere) {
  t.pass(50s);
  comes(gib(10));
  EXPECT_TRUE(only<Drop>(t.pass(11s)).empty());
  EXPECT_NE(t.why(2).find("until the host memory that others move to is there"), std::string::npos)
      << t.why(2);
  EXPECT_TRUE(only<Drop>(comes(gib(1))).empty());
  EXPECT_EQ(only<Drop>(comes({})).size(), 1u);
}

TEST_F(HostMemory, WhileItsQuantumLastsNothingIsWaitedForButThat) {
  t.pass(50s);
  comes(gib(10));
  EXPECT_NE(t.why(2).find("next switch in 10"), std::string::npos) << t.why(2);
}

TEST_F(HostMemory, NobodyWaitsForItForEver) {
  t.pass(50s);
  comes(gib(100));
  EXPECT_TRUE(only<Drop>(t.pass(39s)).empty());
  EXPECT_EQ(only<Drop>(t.pass(1s)).size(), 1u);
}

TEST_F(HostMemory, ALittleIsWaitedForALittle) {
  t.pass(50s);
  comes(mib(100));
  EXPECT_EQ(only<Drop>(t.pass(11s)).size(), 1u);
}

TEST_F(HostMemory, WhatIsReadyIsEnoughForWhatMustLeave) {
  t.pass(50s);
  t.step(HostMemoryComing{ClientId{1}, gib(2), gib(10)});
  EXPECT_EQ(only<Drop>(t.pass(10s)).size(), 1u);
}

TEST_F(HostMemory, WhoNeedsMoreAgainAndAgainGainsNothing) {
  t.pass(59s);
  for (int i = 0; i < 20; ++i) {
    comes(gib(10));
    EXPECT_TRUE(only<Drop>(t.pass(1s)).empty());
  }
  comes(gib(100));
  EXPECT_EQ(only<Drop>(t.pass(2s)).size(), 1u) << "21 s after its quantum";
}

// It may also not be true.
TEST_F(HostMemory, WhoIsWaitedForInVainIsNotBelievedAgain) {
  t.pass(50s);
  comes(gib(10));
  t.pass(31s);
  t.obey(t.release(1, 81s));
  ASSERT_EQ(t.state(2), ClientState::Running);
  t.pass(60s);
  t.obey(t.release(2, 60s));
  ASSERT_EQ(t.state(1), ClientState::Running);
  comes(gib(9));
  EXPECT_EQ(only<Drop>(t.pass(60s)).size(), 1u);
}

TEST_F(HostMemory, WhoIsOverItsLimitIsNotWaitedFor) {
  t.pass(1s);
  comes(gib(10));
  const Limits less{.core_percent = 100, .memory = gib(1)};
  EXPECT_EQ(only<Drop>(t.step(LimitsChanged{TenantId{1}, less})).size(), 1u);
}

// However many make room, one after the other: who waits for them waits once.
TEST(HostMemoryOfSeveral, IsWaitedForOnce) {
  TestCore t(fixed_quantum());
  t.gpu(0);
  for (int id = 1; id <= 3; ++id) {
    t.client(id);
    t.allocate(id, gib(4));
    t.want(id);
  }
  t.client(4);
  t.allocate(4, gib(13));
  t.want(4);
  const auto comes = [&t](int id, Bytes bytes) {
    return t.step(HostMemoryComing{TestCore::cid(id), bytes});
  };
  comes(1, gib(100));
  EXPECT_TRUE(only<Drop>(t.pass(89s)).empty());
  comes(2, gib(100));
  comes(1, {});
  EXPECT_FALSE(only<Drop>(t.pass(1s)).empty());
}

// A program that waits for something else for a moment is not idle.
TEST_F(HostMemory, AMomentWithoutWorkIsNotTheEndOfTheWait) {
  t.pass(50s);
  comes(gib(10));
  t.pass(11s);
  EXPECT_TRUE(only<SendOut>(t.release(1, 61s, false)).empty());
  EXPECT_TRUE(only<SendOut>(t.pass(1s)).empty());
  t.want(1);
  EXPECT_EQ(t.state(1), ClientState::Running);
  EXPECT_TRUE(only<SendOut>(t.release(1, 1s, false)).empty());
  EXPECT_EQ(only<SendOut>(t.pass(13s)).size(), 1u) << "12 GiB at about 1 GiB/s";
}

TEST_F(HostMemory, OfNobodyOrLessThanNoneIsAnError) {
  t.refused(HostMemoryComing{ClientId{9}, gib(1)});
  t.refused(HostMemoryComing{ClientId{1}, Bytes{-1}});
  t.refused(HostMemoryComing{ClientId{1}, kMostMemory + Bytes{1}});
  t.refused(HostMemoryComing{ClientId{1}, {}, Bytes{-1}});
}

// Memory that was never written to is gone in no time. To take that for the speed of the link would
// be to move everything whenever somebody pauses.
TEST_F(HostMemory, WhatWasNotCopiedSaysNothingOfTheLink) {
  t.pass(60s);
  const Bytes out = only<SendOut>(t.release(1, 60s)).at(0).bytes;
  MemoryMoved left{ClientId{1}, gib(12) - out, 1ms};
  left.spared = out;
  const Bytes in = only<BringIn>(t.moved(left)).at(0).bytes;
  MemoryMoved came{ClientId{2}, gib(12), 1ms};
  came.spared = in;
  t.moved(came);
  ASSERT_EQ(t.state(2), ClientState::Running);
  EXPECT_TRUE(only<SendOut>(t.release(2, 1s, false)).empty());
  EXPECT_TRUE(only<SendOut>(t.pass(5s)).empty());
}

}  // namespace
}  // namespace nvshare::core
