// Host memory for what leaves the GPU: who has how much of it, and what it leaves room for.

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

using Told = TestBroker::Told;

struct HostMemoryOfTwo : TwoThatDoNotFit {
  HostMemoryOfTwo() : TwoThatDoNotFit(true) {}
};

TEST_F(HostMemoryOfTwo, IsMadeAheadOfNeed) {
  const Bytes over = gib(20) - safe();
  for (const ClientId id : {one, two}) {
    EXPECT_GE(t.arena.asked[id], over + mib(256));
    EXPECT_LE(t.arena.asked[id], over + mib(256) + mib(256));
  }
  t.broker.places().ready(one, 42, gib(1), t.now);
  EXPECT_EQ(t.outbox.handed_over[one], std::vector<int>{42});
  EXPECT_EQ(only<wire::Arena>(one).bytes, static_cast<std::uint64_t>(gib(1).count));
  const Bytes before = t.broker.places().used();
  t.broker.places().failed(two, gib(1), "no memory", t.now);
  EXPECT_EQ(t.broker.places().used(), before - gib(1));
  t.broker.sample(t.now);
  EXPECT_EQ(t.broker.places().used(), before) << "tried again";
  t.broker.leave(one, t.now);
  EXPECT_LT(t.broker.places().used(), before);
  t.broker.places().ready(one, 42, gib(1), t.now);
  EXPECT_EQ(t.outbox.handed_over[one].size(), 1u) << "it is gone";
}

// Who waits holds some of its memory on the GPU: that leaves, and needs a place to go to.
TEST_F(HostMemoryOfTwo, IsThereBeforeTheGpuHoldsLess) {
  const auto ahead = only<wire::SwapIn>(two);
  t.moved(two, ahead.order, {}, Bytes{static_cast<std::int64_t>(ahead.bytes)});
  for (const ClientId id : {one, two}) t.broker.places().ready(id, 42, t.arena.asked[id], t.now);
  const Bytes before = t.arena.asked[two];
  t.broker.gpu_measured(GpuId{0}, {}, {}, Overhead{gib(16) - safe() + gib(2), 2}, t.now);
  EXPECT_TRUE(t.outbox.take<wire::Drop>(one).empty()) << "it runs on";
  EXPECT_EQ(only<wire::SwapOut>(two).bytes, static_cast<std::uint64_t>(gib(2).count));
  EXPECT_EQ(t.arena.asked[two], before + gib(2));
}

TEST(SwappingArena, IsThereBeforeAnotherProcessTakesRoomForItself) {
  core::Config config = quick();
  config.reserve_per_process = gib(1);
  TestBroker t(config);
  const ClientId one = t.join(t.tenant("a"));
  const ClientId two = t.join(t.tenant("b"));
  EXPECT_EQ(t.ask_movable(one, gib(10)), Told::Available);
  EXPECT_EQ(t.ask_movable(two, gib(3)), Told::Available);
  t.want(one);
  EXPECT_EQ(t.ask_movable(two, gib(3)), Told::Wait);
  t.want(two);
  t.join(t.tenant("c"));
  EXPECT_TRUE(t.outbox.take<wire::Drop>(one).empty()) << "it runs on";
  EXPECT_EQ(t.outbox.take<wire::SwapOut>(two).size(), 1u);
}

// It leaves at link speed then, instead of at the speed at which host memory is made.
struct WaitingForHostMemory : HostMemoryOfTwo {
  bool dropped() { return !t.outbox.take<wire::Drop>(one).empty(); }
  void give_all() {
    const Bytes all = t.arena.asked[one] - t.broker.clients().at(one).arena.given;
    t.broker.places().ready(one, 42, all, t.now);
  }
  void sample_later(Duration after) {
    t.pass(after);
    t.broker.sample(t.now);
  }
  wire::Word& untaken() { return t.page_of.at(one)->program.arena_untaken; }
};

TEST_F(WaitingForHostMemory, WhoRunsIsLeftAloneUntilItIsReady) {
  t.pass(2s);  // its quantum is one
  EXPECT_FALSE(dropped());
  untaken() = static_cast<std::uint64_t>(t.arena.asked[one].count);
  give_all();
  sample_later(2s);
  EXPECT_FALSE(dropped()) << "it has it, and has not pinned it yet";
  untaken() = 0;
  sample_later(1s);
  EXPECT_TRUE(dropped());
}

TEST_F(WaitingForHostMemory, AProgramNeedsAMomentToSayThatItHasIt) {
  t.pass(2s);
  give_all();
  t.broker.sample(t.now);
  EXPECT_FALSE(dropped());
  sample_later(1s);
  EXPECT_TRUE(dropped());
}

// What a program says of itself, and cannot be, is not believed.
TEST_F(WaitingForHostMemory, MoreThanItWasGivenOfLateIsNotBelieved) {
  untaken() = ~std::uint64_t{0};
  t.broker.places().ready(one, 42, gib(1), t.now);
  sample_later(2s);
  EXPECT_EQ(t.broker.clients().at(one).arena.coming, t.arena.asked[one]);
  give_all();
  sample_later(Places::kTaken);
  EXPECT_EQ(t.broker.clients().at(one).arena.coming, Bytes{});
  EXPECT_EQ(t.broker.clients().at(one).arena.ready, t.arena.asked[one]);
}

class ReturningArena : public HostMemoryOfTwo {
 protected:
  static constexpr Duration kLong = Places::kLingers + 1s;
  void SetUp() override {
    t.broker.places().ready(one, 42, t.arena.asked[one], t.now);
    t.broker.places().ready(two, 42, t.arena.asked[two], t.now);
    t.arena.asked.clear();
  }
  void sample_for(Duration length) {
    for (const Time until = t.now + length; t.now < until;) {
      t.pass(500ms);
      t.broker.sample(t.now);
    }
  }
  void returns(ClientId id, Bytes bytes) {
    auto message = wire::make<wire::ArenaReturned>();
    message.bytes = static_cast<std::uint64_t>(bytes.count);
    t.say(id, message);
  }
  Bytes has(ClientId id) const { return t.broker.clients().at(id).arena.given; }
};

TEST_F(ReturningArena, WhoIsAloneIsAskedForAllOfItAfterAWhile) {
  const Bytes all = has(two);
  sample_for(kLong);
  EXPECT_TRUE(t.outbox.take<wire::ArenaNeed>(two).empty()) << "it is needed";
  t.broker.leave(one, t.now);
  sample_for(1s);
  EXPECT_TRUE(t.outbox.take<wire::ArenaNeed>(two).empty()) << "somebody may come";
  sample_for(kLong);
  EXPECT_EQ(only<wire::ArenaNeed>(two).bytes, 0u);
  EXPECT_EQ(has(two), all) << "it counts until it is back";
  returns(two, gib(1));
  EXPECT_EQ(has(two), all - gib(1));
  EXPECT_EQ(t.broker.places().used(), all - gib(1));
  sample_for(kLong);
  EXPECT_FALSE(t.outbox.take<wire::ArenaNeed>(two).empty()) << "what is left is asked for again";
  returns(two, all - gib(1));
  EXPECT_EQ(t.broker.places().used(), Bytes{});
  t.outbox.take<wire::ArenaNeed>(two);
  sample_for(kLong);
  EXPECT_TRUE(t.outbox.take<wire::ArenaNeed>(two).empty());
  EXPECT_TRUE(t.arena.asked.empty()) << "and not made again";
  EXPECT_FALSE(t.gone(two));
}

TEST_F(ReturningArena, ALittleMoreThanNeededStays) {
  const Bytes unit = mib(256);
  t.free(two, unit, unit);
  sample_for(kLong);
  EXPECT_TRUE(t.outbox.take<wire::ArenaNeed>(two).empty());
  t.free(two, gib(1), gib(1));
  sample_for(kLong);
  const auto need = t.outbox.take<wire::ArenaNeed>(two);
  ASSERT_FALSE(need.empty());
  EXPECT_LT(need[0].bytes, static_cast<std::uint64_t>(has(two).count));
}

// The need grows while memory is on its way back: it is told first, and made again when it is gone.
TEST_F(ReturningArena, WhatIsNeededAgainIsMadeAgain) {
  t.broker.leave(one, t.now);
  sample_for(kLong);
  ASSERT_FALSE(t.outbox.take<wire::ArenaNeed>(two).empty());
  const ClientId other = t.join(t.tenant("c"));
  EXPECT_EQ(t.ask_movable(other, gib(10)), Told::Wait);
  const std::uint64_t need = only<wire::ArenaNeed>(two).bytes;
  EXPECT_GT(need, 0u) << "no more is to be given back";
  EXPECT_EQ(t.arena.asked[two], Bytes{});
  const Bytes had = has(two);
  returns(two, gib(1));
  EXPECT_FALSE(t.gone(two)) << "the messages crossed";
  const Bytes missing = Bytes{static_cast<std::int64_t>(need)} - (had - gib(1));
  EXPECT_EQ(t.arena.asked[two], std::max(Bytes{}, missing));
  EXPECT_GT(t.arena.asked[two], Bytes{});
}

// A piece that arrives while others go back is needed. The client would send it back otherwise, and
// be taken for one that gives back what it was not asked for.
TEST_F(ReturningArena, APieceThatArrivesRaisesWhatIsEnough) {
  t.broker.leave(one, t.now);
  sample_for(kLong);
  ASSERT_EQ(only<wire::ArenaNeed>(two).bytes, 0u);
  const ClientId other = t.join(t.tenant("c"));
  EXPECT_EQ(t.ask_movable(other, gib(10)), Told::Wait);
  const std::uint64_t need = only<wire::ArenaNeed>(two).bytes;
  t.broker.places().ready(two, 42, gib(1), t.now);
  EXPECT_EQ(only<wire::ArenaNeed>(two).bytes, need + static_cast<std::uint64_t>(gib(1).count));
}

TEST_F(ReturningArena, NobodyGivesBackWhatHeWasNotAskedFor) {
  returns(one, mib(64));
  EXPECT_TRUE(t.gone(one));
  t.broker.leave(one, t.now);
  sample_for(kLong);
  returns(two, has(two) + Bytes{1});
  EXPECT_TRUE(t.gone(two)) << "more than it has";
}

// Of what it was given, some did not arrive.
struct MissingArena : ReturningArena {
  void misses(ClientId id, Bytes bytes) {
    auto message = wire::make<wire::ArenaMissing>();
    message.bytes = static_cast<std::uint64_t>(bytes.count);
    t.say(id, message);
  }
  void sample_after(Duration after) {
    t.pass(after);
    t.broker.sample(t.now);
  }
  // What is made for it now, handed over at once.
  Bytes made(ClientId id) {
    const Bytes bytes = std::exchange(t.arena.asked[id], {});
    if (bytes.count > 0) t.broker.places().ready(id, 42, bytes, t.now);
    return bytes;
  }
  const Bytes unit = mib(256);
};

TEST_F(MissingArena, CountsNoMoreAndIsMadeAgain) {
  const Bytes all = has(one);
  sample_after(2 * Places::kNoticed);
  EXPECT_EQ(t.broker.clients().at(one).arena.ready, all);
  misses(one, gib(2));
  EXPECT_EQ(has(one), all - gib(2));
  EXPECT_EQ(t.broker.places().used(), all - gib(2) + has(two));
  EXPECT_EQ(t.broker.clients().at(one).arena.ready, all - gib(2)) << "the core knows";
  EXPECT_EQ(made(one), Bytes{}) << "not at once";
  sample_after(Places::kShortWait);
  EXPECT_EQ(made(one), unit) << "one piece, to see";
  sample_after(Places::kNoticed / 2);
  EXPECT_EQ(made(one), Bytes{}) << "it may still be missed";
  sample_after(Places::kNoticed);
  EXPECT_EQ(made(one), gib(2) - unit);
  EXPECT_EQ(has(one), all);
  EXPECT_FALSE(t.gone(one));
}

TEST_F(MissingArena, IsMadeEverMoreSeldomWhileItDoesNotArrive) {
  misses(one, gib(1));
  misses(one, gib(1));  // of the same burst
  Duration wait = Places::kShortWait;
  for (int i = 0; i < 8; ++i) {
    sample_after(wait - 1ms);
    EXPECT_EQ(made(one), Bytes{});
    sample_after(1ms);
    EXPECT_EQ(made(one), unit);
    misses(one, unit);
    wait = std::min(2 * wait, Places::kLongWait);
  }
  sample_after(wait);
  EXPECT_EQ(made(one), unit);
  sample_after(Places::kNoticed);
  EXPECT_EQ(made(one), gib(2) - unit) << "the files are closed";
}

TEST_F(MissingArena, NobodyMissesWhatHeWasNotGiven) {
  misses(one, has(one) + Bytes{1});
  EXPECT_TRUE(t.gone(one));
}

TEST(SwappingArena, WhoComesBackSaysWhatItHas) {
  TestBroker t;
  auto hello = TestBroker::hello();
  hello.allocated = static_cast<std::uint64_t>(gib(8).count);
  hello.resident = static_cast<std::uint64_t>(gib(6).count);
  const ClientId one = t.join(t.tenant("a"), hello);
  EXPECT_EQ(t.broker.places().used(), gib(2)) << "at least where its memory is";
  auto kept = wire::make<wire::ArenaKept>();
  kept.bytes = static_cast<std::uint64_t>(gib(5).count);
  t.say(one, kept);
  EXPECT_EQ(t.broker.places().used(), gib(5));
  t.say(one, kept);
  EXPECT_TRUE(t.gone(one)) << "once";
  const ClientId two = t.join(t.tenant("b"));
  kept.bytes = ~std::uint64_t{0};
  t.say(two, kept);
  EXPECT_EQ(t.broker.clients().at(two).arena.given, gib(16)) << "never more than its GPU";
}

TEST(SwappingArena, AClientNeverHasLessThanNone) {
  TestBroker t;
  auto hello = TestBroker::hello();
  hello.allocated = static_cast<std::uint64_t>(gib(4).count);
  const ClientId one = t.join(t.tenant("a"), hello);
  auto missing = wire::make<wire::ArenaMissing>();
  missing.bytes = hello.allocated;
  t.say(one, missing);
  t.say(one, wire::make<wire::ArenaKept>());
  EXPECT_EQ(t.broker.clients().at(one).arena.given, Bytes{});
  auto back = wire::make<wire::ArenaReturned>();
  back.bytes = std::uint64_t{1} << 40;
  t.say(one, back);
  EXPECT_TRUE(t.gone(one));
  EXPECT_EQ(t.broker.places().used(), Bytes{});
}

TEST(SwappingArena, AloneNobodyNeedsAny) {
  TestBroker t;
  const ClientId one = t.join(t.tenant("a"));
  EXPECT_EQ(t.ask_movable(one, gib(14)), Told::Available);
  t.broker.sample(t.now);
  EXPECT_TRUE(t.arena.asked.empty());
}

// Frameworks take a part of what they are told is free, all at once.
TEST(SwappingArena, WhatItLeavesRoomForIsInThePage) {
  TestBroker t;
  const auto room = [&](ClientId id) {
    return Bytes{static_cast<std::int64_t>(t.page(id).room.load())};
  };
  t.arena.limit = gib(4);
  const ClientId one = t.join(t.tenant("a"));
  const ClientId two = t.join(t.tenant("b"));
  const Bytes safe = *t.broker.core().safe_limit(GpuId{0});
  EXPECT_EQ(room(two), safe);
  EXPECT_EQ(t.ask_movable(one, gib(12)), Told::Available);
  EXPECT_LT(room(two), safe);
  EXPECT_GT(room(two), safe - gib(12)) << "some of the other's memory can leave";
  EXPECT_EQ(t.ask_movable(two, room(two) + Bytes{1}), Told::Refused);
  const Bytes before = room(two);
  EXPECT_EQ(t.ask_movable(two, mib(512)), Told::Available);
  EXPECT_EQ(room(two), before) << "whatever it has of it";
  EXPECT_EQ(t.ask_movable(two, before - mib(512)), Told::Wait);
  EXPECT_EQ(room(two), before);
  EXPECT_EQ(room(one), gib(12)) << "nothing more";
  EXPECT_EQ(t.ask_movable(one, Bytes{1}), Told::Refused);
  t.free(two, gib(1));
  EXPECT_GT(room(one), gib(12));
  t.arena.limit = gib(64);
  t.broker.sample(t.now);
  EXPECT_EQ(room(one), safe);
  t.arena.limit = Bytes{};
  t.broker.sample(t.now);
  EXPECT_EQ(room(one), gib(12));
  t.broker.leave(two, t.now);
  EXPECT_EQ(room(one), *t.broker.core().safe_limit(GpuId{0})) << "alone it needs none";
}

// Unified memory goes to the host without it.
TEST(SwappingArena, IsNothingToManagedMemory) {
  TestBroker t;
  t.arena.limit = Bytes{};
  t.broker.set_backend(wire::Backend::Managed);
  const ClientId one = t.join(t.tenant("a"));
  const ClientId two = t.join(t.tenant("b"));
  EXPECT_EQ(t.ask_movable(one, gib(12)), Told::Available);
  const Bytes safe = *t.broker.core().safe_limit(GpuId{0});
  EXPECT_EQ(t.page(two).room, static_cast<std::uint64_t>(safe.count));
}

TEST_F(ReturningArena, WhatSomebodyHasAlreadyIsNotNeededTwice) {
  t.arena.limit = t.broker.places().used();
  t.free(two, gib(10), gib(10));
  EXPECT_NE(t.ask_movable(two, gib(10)), Told::Refused);
}

TEST_F(ReturningArena, WhatItHasItselfIsThereForItself) {
  t.free(two, gib(9), gib(9));
  t.arena.limit = gib(9);  // 6 GiB of which the other has
  EXPECT_NE(t.ask_movable(two, gib(5)), Told::Refused);
}

TEST(SwappingArena, OfOtherGpusIsNotThere) {
  TestBroker t;
  t.arena.limit = gib(16);
  constexpr Uuid kOther{9};
  ASSERT_TRUE(t.broker.add_gpu(kOther, "Another", gib(16), t.now));
  const ClientId one = t.join(t.tenant("a"));
  const ClientId two = t.join(t.tenant("b"));
  EXPECT_EQ(t.ask_movable(one, gib(12)), Told::Available);
  const std::uint64_t before = t.page(two).room;
  auto hello = TestBroker::hello();
  std::memcpy(hello.gpu, kOther.data(), kOther.size());
  const ClientId three = t.join(t.tenant("c"), hello);
  const ClientId four = t.join(t.tenant("d"), hello);
  EXPECT_EQ(t.ask_movable(three, gib(10)), Told::Available);
  EXPECT_EQ(t.ask_movable(four, gib(10)), Told::Wait);
  const Bytes room{static_cast<std::int64_t>(t.page(two).room.load())};
  EXPECT_LT(room.count, static_cast<std::int64_t>(before));
  EXPECT_EQ(t.ask_movable(two, room + Bytes{1}), Told::Refused);
  EXPECT_EQ(t.ask_movable(two, room), Told::Wait);
}

TEST(SwappingArena, WhatHasNoPlaceOnTheHostIsNotPromised) {
  TestBroker t;
  t.arena.limit = gib(4);
  const ClientId one = t.join(t.tenant("a"));
  const ClientId two = t.join(t.tenant("b"));
  EXPECT_EQ(t.ask_movable(one, gib(12)), Told::Available);
  EXPECT_EQ(t.ask_movable(two, gib(12)), Told::Refused);
  EXPECT_NE(t.lines.find("of host memory would be needed"), std::string::npos);
  EXPECT_EQ(t.ask_movable(two, gib(2)), Told::Available) << "fits without";
  EXPECT_LE(t.broker.places().used(), gib(4));
}

// --- less of it than was promised --------------------------------------------------------------

struct LessThanPromised : HostMemoryOfTwo {
  // As when something else takes so much of the GPU.
  void less_fits(Bytes by) {
    t.broker.gpu_measured(GpuId{0}, {}, {}, Overhead{gib(16) - safe() + by, 2}, t.now);
  }
  Bytes made(ClientId id) const { return t.broker.clients().at(id).arena.made; }
};

TEST_F(LessThanPromised, WhatIsThereIsGivenAllTheSame) {
  const Bytes before = made(one);
  t.arena.limit = t.broker.places().used() + mib(600);
  less_fits(gib(1));
  t.broker.sample(t.now);
  EXPECT_EQ(made(one), before + mib(576)) << "in whole pieces of 64 MiB";
  EXPECT_EQ(made(two), before);
  EXPECT_LE(t.broker.places().used(), t.arena.limit);
}

TEST_F(LessThanPromised, WhoCanHaveAllItNeedsIsFirst) {
  const Bytes before = made(one);
  t.broker.places().failed(one, gib(2), "no memory", t.now);
  t.broker.places().failed(two, gib(1), "no memory", t.now);
  t.arena.limit = t.broker.places().used() + gib(1) + mib(512);
  t.broker.sample(t.now);
  EXPECT_EQ(made(two), before);
  EXPECT_EQ(made(one), before - gib(2) + mib(512));
}

// It would stand still for seconds, and find no place.
TEST_F(LessThanPromised, NobodyIsToldToLeaveToWhatIsNotThere) {
  t.arena.limit = {};
  for (const ClientId id : {one, two}) t.broker.places().failed(id, made(id), "no memory", t.now);
  for (int i = 0; i < 100; ++i) {
    t.pass(1s);
    t.broker.sample(t.now);
  }
  EXPECT_TRUE(t.outbox.take<wire::Drop>(one).empty());
  EXPECT_TRUE(t.outbox.take<wire::SwapOut>(one).empty());
}

TEST(SwappingArena, WhereThereNeverWasAnyNobodyIsToldToLeave) {
  TestBroker t{quick()};
  t.arena.limit = Bytes{};
  const ClientId one = t.join(t.tenant("a"));
  const ClientId two = t.join(t.tenant("b"));
  for (const ClientId id : {one, two}) EXPECT_EQ(t.ask_movable(id, gib(7)), Told::Available);
  t.broker.gpu_measured(GpuId{0}, {}, {}, Overhead{gib(3), 2}, t.now);
  t.pass(10s);
  for (const ClientId id : {one, two}) EXPECT_TRUE(t.outbox.take<wire::SwapOut>(id).empty());
}

TEST(SwappingArena, ManagedMemoryLeavesWithoutIt) {
  TestBroker t{quick()};
  t.arena.limit = Bytes{};
  t.broker.set_backend(wire::Backend::Managed);
  const ClientId one = t.join(t.tenant("a"));
  const ClientId two = t.join(t.tenant("b"));
  EXPECT_EQ(t.ask_movable(one, gib(10)), Told::Available);
  t.want(one);
  EXPECT_EQ(t.ask_movable(two, gib(10)), Told::Wait);
  t.want(two);
  t.broker.sample(t.now);
  t.pass(2s);
  EXPECT_FALSE(t.outbox.take<wire::Drop>(one).empty());
}

// A client that keeps what it was given, and comes back again and again.
TEST_F(TwoThatDoNotFit, WhatAProcessKeepsIsNotGivenTwice) {
  const Bytes has = t.broker.clients().at(one).arena.given;
  ASSERT_GT(has, Bytes{});
  const Bytes used = t.broker.places().used();
  t.arena.held_by[4711] = t.broker.places().given();
  EXPECT_EQ(t.broker.places().lingering(), Bytes{}) << "its clients are counted with it";
  EXPECT_EQ(t.broker.places().used(), used);
  t.broker.leave(one, t.now);
  t.broker.leave(two, t.now);
  EXPECT_EQ(t.broker.places().used(), t.arena.held_by[4711]) << "nobody is, and it is still there";
  EXPECT_EQ(t.broker.places().given(), t.arena.held_by[4711]);
  auto hello = TestBroker::hello();
  hello.allocated = hello.resident = static_cast<std::uint64_t>(gib(1).count);
  const ClientId again = t.join(t.tenant("again"), hello);
  auto kept = wire::make<wire::ArenaKept>();
  kept.bytes = static_cast<std::uint64_t>(has.count);
  t.say(again, kept);
  EXPECT_EQ(t.broker.places().given(), t.arena.held_by[4711]) << "counted once";
  t.arena.held_by.clear();
  EXPECT_EQ(t.broker.places().given(), has);
}

TEST_F(TwoThatDoNotFit, WhatIsKeptIsThereForNobodyElse) {
  t.arena.held_by[99] = gib(1023);
  EXPECT_EQ(t.ask_movable(one, gib(4)), TestBroker::Told::Refused);
  t.arena.held_by.clear();
  EXPECT_NE(t.ask_movable(one, gib(4)), TestBroker::Told::Refused);
}

}  // namespace
}  // namespace nvshare::daemon
