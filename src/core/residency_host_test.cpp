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

// --- too little of it --------------------------------------------------------------------------

constexpr Bytes kPlenty = gib(100);

// Clients that do what they are told as far as they find host memory, which they look for.
struct ShortOfHostMemory : testing::Test {
  Bytes away(int id) const { return t.view(id).allocated - t.view(id).resident; }
  void send_out(ClientId id, Bytes bytes) {
    const int number = static_cast<int>(id.value);
    const Bytes goes = std::clamp(host[number] - away(number), Bytes{}, bytes);
    ++orders;
    if (goes < bytes) t.now += 2s;
    MemoryMoved how{id, t.view(number).resident - goes, 1ms};
    how.kept = bytes - goes;
    note(t.moved(how));
  }
  void note(const Decisions& decisions) {
    for (const Decision& d : decisions) todo.push_back(d.action);
  }
  void follow(const Action& action) {
    if (const auto* drop = std::get_if<Drop>(&action)) {
      ++drops;
      note(t.release(static_cast<int>(drop->client.value), 1s));
    } else if (const auto* out = std::get_if<SendOut>(&action)) {
      send_out(out->client, out->bytes);
    } else if (const auto* in = std::get_if<BringIn>(&action)) {
      note(t.moved({in->client, t.core.view(in->client)->resident + in->bytes, 1ms}));
    }
  }
  void play(Duration length) {
    for (const Time until = t.now + length; t.now < until;) {
      for (; !todo.empty() && t.now < until; todo.erase(todo.begin())) {
        follow(Action(todo.front()));
      }
      for (const int id : {1, 2}) ran[id] += t.state(id) == ClientState::Running ? 1 : 0;
      note(t.pass(1s));
    }
  }
  Decisions tell(int id, Bytes ready, Bytes coming = {}) {
    return t.step(HostMemoryComing{TestCore::cid(id), coming, ready});
  }

  TestCore t{fixed_quantum()};
  std::vector<Action> todo;
  std::map<int, Bytes> host{{1, kPlenty}, {2, kPlenty}, {3, kPlenty}};
  std::map<int, int> ran;  // seconds
  int orders = 0;
  int drops = 0;
};

// Client 1 would have to send out 9.6 GiB, and has a place for 8.6.
struct ShortByALittle : ShortOfHostMemory {
  ShortByALittle() {
    t.two_that_do_not_fit();
    host[1] = kLittle;
  }
  static constexpr Bytes kLittle = gib(8) + mib(600);
};

TEST_F(ShortByALittle, WhoCannotMakeRoomRunsOn) {
  note(t.want(2));
  play(3600s);
  EXPECT_GT(ran[1], 3500);
  EXPECT_EQ(ran[2], 0) << "there is no room for it";
  EXPECT_LE(orders, 25);
  EXPECT_NE(t.why(2).find("what others have has no place in host memory"), std::string::npos)
      << t.why(2);
  EXPECT_NE(t.why(2).find("at most 11GiB"), std::string::npos) << t.why(2);
}

TEST_F(ShortByALittle, WhatIsKnownIsNotTried) {
  tell(1, kLittle - gib(1), gib(1));
  note(t.want(2));
  play(3600s);
  EXPECT_EQ(ran[1], 3600);
  EXPECT_EQ(orders + drops, 0);
  host[1] = kPlenty;
  const Decisions now = tell(1, gib(10));
  EXPECT_EQ(only<Drop>(now).size(), 1u);
  note(now);
  play(2s);
  EXPECT_EQ(t.state(2), ClientState::Running);
}

TEST_F(ShortByALittle, WhatIsBeingMadeIsCountedOn) {
  tell(1, gib(1), gib(9));
  t.obey(t.want(2));
  EXPECT_EQ(only<Drop>(t.pass(60s + 30s)).size(), 1u);
}

TEST_F(ShortByALittle, MoreHostMemoryIsAReasonToTryAgain) {
  tell(1, gib(10));  // it finds less than it was given
  note(t.want(2));
  play(1200s);
  ASSERT_EQ(ran[2], 0);
  const int before = orders;
  host[1] += gib(2);
  note(tell(1, gib(10) + mib(500)));
  play(2s);
  EXPECT_EQ(orders, before) << "not by enough";
  note(tell(1, gib(12)));
  play(2s);
  EXPECT_EQ(t.state(2), ClientState::Running);
}

TEST_F(ShortByALittle, ItIsTriedAgainAllTheSame) {
  note(t.want(2));
  play(1200s);
  host[1] = kPlenty;
  play(301s + 60s);
  EXPECT_GT(ran[2], 0);
  const int before = orders;
  host[1] = kLittle;  // and who could is trusted again
  play(140s);
  EXPECT_GE(orders - before, 5) << "100 ms, 200 ms, 400 ms, 800 ms";
}

TEST_F(ShortByALittle, WhoNeedsLessPasses) {
  t.client(3);
  t.allocate(3, gib(6));
  tell(1, kLittle);
  note(t.want(2));
  note(t.want(3));
  play(61s);
  EXPECT_EQ(t.state(3), ClientState::Running);
}

// What came in ahead of its turn was not touched: it can always go back to where it came from.
TEST_F(ShortByALittle, WhatCameInVainGoesBack) {
  host[2] = gib(12);
  tell(2, {});
  note(t.want(2));
  play(3600s);
  EXPECT_GT(ran[1], 3500);
}

TEST_F(ShortByALittle, WhoHasLessWhenItHasStoppedIsToldToSendOutLess) {
  tell(1, gib(10));
  t.obey(t.want(2));
  ASSERT_EQ(only<Drop>(t.pass(60s)).size(), 1u);
  tell(1, gib(5));
  const auto ordered = only<SendOut>(t.release(1, 60s));
  ASSERT_EQ(ordered.size(), 1u);
  EXPECT_EQ(ordered[0].bytes, gib(5));
}

// Both fit; then something else takes 1 GiB of the GPU.
struct NoHostMemory : ShortOfHostMemory {
  NoHostMemory() {
    t.gpu(0);
    for (const int id : {1, 2}) {
      host[id] = {};
      t.client(id);
      t.allocate(id, gib(7));
      note(t.want(id));
    }
  }
  void less_fits() { note(t.step(OverheadMeasured{GpuId{0}, gib(3), 2})); }
};

TEST_F(NoHostMemory, NobodyIsToldToLeave) {
  for (const int id : {1, 2}) tell(id, {});
  less_fits();
  play(600s);
  EXPECT_EQ(orders, 0);
}

TEST_F(NoHostMemory, NobodyIsToldToLeaveAgainAndAgain) {
  less_fits();
  play(600s);
  EXPECT_LE(orders, 30);
}

TEST_F(NoHostMemory, AsMuchLeavesAsThereIsAPlaceFor) {
  for (const int id : {1, 2}) tell(id, id == 1 ? Bytes{} : mib(300));
  host[2] = mib(300);
  less_fits();
  play(10s);
  EXPECT_EQ(orders, 1);
  EXPECT_EQ(away(2), mib(300));
}

// A client finds no room: what was in its way is a guess until the next measurement. Memory that
// fits by what is known is not refused for a guess.
TEST(HostMemoryGuess, NoMemoryIsRefusedForAGuess) {
  TestCore t;
  t.gpu(0);
  t.step(HostMeasured{gib(3)});
  for (int client : {1, 2}) {
    t.client(client);
    t.step(HostMemoryComing{ClientId{static_cast<std::uint64_t>(client)}, {}, Bytes{}});
  }
  EXPECT_TRUE(only<MemoryRefused>(t.allocate(1, gib(8))).empty());
  const Bytes promised = *t.core.promised_limit(GpuId{0});
  t.step(OverheadMeasured{.gpu = GpuId{0}, .overhead = gib(16) - promised, .found = gib(5)});
  EXPECT_EQ(t.core.safe_limit(GpuId{0}), gib(11));
  EXPECT_EQ(t.core.promised_limit(GpuId{0}), promised);
  EXPECT_TRUE(only<MemoryRefused>(t.allocate(2, gib(8))).empty());
  t.step(ClientGone{ClientId{1}});
  EXPECT_TRUE(only<MemoryRefused>(t.allocate(2, promised)).empty()) << "alone on the card";
  EXPECT_EQ(t.refused(OverheadMeasured{.gpu = GpuId{0}, .found = gib(17)}),
            "more was found than the GPU has");
  EXPECT_EQ(t.refused(OverheadMeasured{.gpu = GpuId{0}, .found = Bytes{-1}}),
            "more was found than the GPU has");
}

}  // namespace
}  // namespace nvshare::core
