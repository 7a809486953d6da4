// Host memory that clients of one home share, on its way from one to the other.

#include <bit>

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

constexpr Bytes kSlab{static_cast<std::int64_t>(wire::kSlabBytes)};
constexpr Bytes kChunk = mib(256);

Bytes bytes_of(std::uint64_t count) {
  return Bytes{static_cast<std::int64_t>(count)};
}

// A program as the library makes it: its chunks leave to slabs of its own.
struct Program {
  ClientId id;
  Peer peer;
  int here = 0;  // chunks
  int away = 0;
  std::map<SegmentId, Slabs> owns;
  std::map<SegmentId, Slabs> maps;
  std::optional<wire::SwapOut> order;  // waits for host memory
  std::uint64_t held_grant = 0;
  int turns = 0;

  Bytes host() const {
    Bytes sum{};
    for (const auto& [segment, slabs] : owns) sum += kSlab * std::popcount(slabs);
    return sum;
  }
};

struct Passing : testing::Test {
  void begin(Program& program, int number, const std::string& home, int chunks) {
    program.peer = {4000 + number, 1000, home};
    program.id = t.join(t.tenant("p" + std::to_string(number)), TestBroker::hello(), program.peer);
    t.arena.alive.insert(program.peer.pid);
    const auto told = t.ask_movable(program.id, kChunk * chunks);
    ASSERT_NE(told, TestBroker::Told::Refused);
    (told == TestBroker::Told::Available ? program.here : program.away) = chunks;
    t.want(program.id);
  }

  void hear_of_slabs(Program& program) {
    for (const auto& news : t.outbox.take<wire::ArenaShared>(program.id)) {
      program.owns[news.segment] |= news.owned;
      program.maps[news.segment] = news.there;
      say_slabs<wire::ArenaTaken>(program, news.segment, news.there);
    }
    for (const auto& yours : t.outbox.take<wire::ArenaYours>(program.id)) {
      EXPECT_EQ(yours.slabs & ~program.maps[yours.segment], 0u) << "it has not mapped these";
      program.owns[yours.segment] |= yours.slabs;
    }
    for (const auto& close : t.outbox.take<wire::ArenaClose>(program.id)) {
      EXPECT_EQ(close.slabs & program.owns[close.segment], 0u) << "these are its own";
      program.maps[close.segment] &= ~close.slabs;
      say_slabs<wire::ArenaClosed>(program, close.segment, close.slabs);
    }
    for (const auto& need : t.outbox.take<wire::ArenaNeed>(program.id)) {
      pass_slabs(program, std::max(bytes_of(need.bytes), kChunk * program.away));
    }
  }
  void pass_slabs(Program& program, Bytes enough) {
    for (auto& [segment, slabs] : program.owns) {
      while (slabs != 0 && program.host() - kSlab >= enough) {
        const Slabs first = slabs & ~(slabs - 1);
        slabs &= ~first;
        say_slabs<wire::ArenaPassed>(program, segment, first);
      }
    }
  }
  template <typename Message>
  void say_slabs(const Program& program, SegmentId segment, Slabs slabs) {
    auto message = wire::make<Message>();
    message.segment = segment;
    message.slabs = slabs;
    t.say(program.id, message);
  }

  void obey(Program& program) {
    for (const auto& out : t.outbox.take<wire::SwapOut>(program.id)) program.order = out;
    for (const auto& in : t.outbox.take<wire::SwapIn>(program.id)) {
      const auto chunks =
          std::min<std::int64_t>(program.away, bytes_of(in.bytes).count / kChunk.count);
      program.away -= static_cast<int>(chunks);
      program.here += static_cast<int>(chunks);
      t.moved(program.id, in.order, {}, kChunk * chunks);
    }
    if (!program.order) return;
    Bytes left = bytes_of(program.order->bytes);
    Bytes moved{};
    while (left > Bytes{} && program.here > 0 && program.host() >= kChunk * (program.away + 1)) {
      --program.here;
      ++program.away;
      moved += kChunk;
      left -= std::min(left, kChunk);
    }
    const bool done = left == Bytes{} || program.here == 0;
    const std::uint64_t order = program.order->order;
    program.order->bytes = static_cast<std::uint64_t>(left.count);
    if (done) program.order.reset();
    if (done || moved > Bytes{}) t.moved(program.id, order, moved, {}, done);
  }
  void work(Program& program) {
    if (const std::uint64_t grant = t.granted(program.id)) {
      EXPECT_EQ(program.away, 0) << "its memory is complete";
      program.held_grant = grant;
      ++program.turns;
    }
    if (t.outbox.take<wire::Drop>(program.id).empty() || program.held_grant == 0) return;
    t.release(program.id, std::exchange(program.held_grant, 0), 1ms, true);
  }
  void all_work(std::initializer_list<Program*> programs, int rounds) {
    for (int i = 0; i < rounds; ++i) {
      for (Program* program : programs) {
        hear_of_slabs(*program);
        obey(*program);
        work(*program);
      }
      EXPECT_LE(t.broker.places().used(), t.arena.limit);
      t.pass(10ms);
      if (i % 100 == 0) t.broker.sample(t.now);
    }
    for (const auto& [id, why] : t.outbox.disconnected) ADD_FAILURE() << id.value << ": " << why;
  }
  Bytes made() const {
    Bytes sum{};
    for (const auto& [id, bytes] : t.arena.asked) sum += bytes;
    return sum;
  }

  TestBroker t{quick()};
  Program one;
  Program two;
};

// 20 GiB on a card that can hold 14.4, and 1 GiB of host memory more than what is missing.
struct PassingInAFullArena : Passing {
  PassingInAFullArena() { t.arena.limit = gib(20) - mib(14'700) + gib(1); }
};

TEST_F(PassingInAFullArena, WhatIsMadeOnceChangesHandsForEver) {
  begin(one, 1, "home", 40);
  begin(two, 2, "home", 40);
  all_work({&one, &two}, 1000);
  const Bytes before = made();
  const int turns = one.turns + two.turns;
  all_work({&one, &two}, 1000);
  EXPECT_GE(one.turns + two.turns, turns + 6);
  EXPECT_EQ(made(), before);
  EXPECT_TRUE(t.arena.released.empty()) << "nothing goes back to the machine meanwhile";
}

TEST_F(PassingInAFullArena, ProgramsOfTwoHomesTakeTurnsToo) {
  begin(one, 1, "home", 40);
  begin(two, 2, "elsewhere", 40);
  all_work({&one, &two}, 3000);
  EXPECT_GE(std::min(one.turns, two.turns), 4);
  for (const auto& [segment, slabs] : one.maps) {
    EXPECT_FALSE(two.maps.contains(segment)) << "nobody maps memory of another home";
  }
}

TEST_F(PassingInAFullArena, SlabsOfADeadProgramComeBackWhenItsProcessHasEnded) {
  begin(one, 1, "home", 40);
  begin(two, 2, "home", 40);
  all_work({&one, &two}, 500);
  const bool first = one.host() > two.host();
  Program& dies = first ? one : two;
  Program& lives = first ? two : one;
  const Bytes had = dies.host();
  const Bytes used = t.broker.places().used();
  ASSERT_GT(had, gib(1));
  t.broker.leave(dies.id, t.now);
  all_work({&lives}, 100);
  EXPECT_GE(t.broker.places().lingering(), had);
  EXPECT_EQ(t.broker.places().used(), used);
  t.arena.alive.erase(dies.peer.pid);
  all_work({&lives}, 4000);
  EXPECT_EQ(t.broker.places().lingering(), Bytes{});
  EXPECT_EQ(t.broker.places().used(), Bytes{}) << "the other one is alone";
}

TEST_F(PassingInAFullArena, AProgramThatLiesIsDisconnected) {
  begin(one, 1, "home", 40);
  begin(two, 2, "home", 40);
  all_work({&one, &two}, 500);
  const auto [segment, slabs] = *one.owns.rbegin();
  say_slabs<wire::ArenaPassed>(two, segment, slabs);
  EXPECT_TRUE(t.gone(two.id));
  say_slabs<wire::ArenaClosed>(one, segment, slabs);
  EXPECT_TRUE(t.gone(one.id));
}

// Slabs that are shared are not the client's to report as its own host memory: it would keep them,
// and be given as much again.
TEST_F(PassingInAFullArena, AProgramThatReportsSlabsAsMissingIsDisconnected) {
  begin(one, 1, "home", 40);
  begin(two, 2, "home", 40);
  all_work({&one, &two}, 500);
  for (Program* program : {&one, &two}) {
    auto missing = wire::make<wire::ArenaMissing>();
    missing.bytes = static_cast<std::uint64_t>(kSlab.count);
    auto returned = wire::make<wire::ArenaReturned>();
    returned.bytes = missing.bytes;
    program == &one ? t.say(program->id, missing) : t.say(program->id, returned);
    EXPECT_TRUE(t.gone(program->id));
  }
}

TEST_F(PassingInAFullArena, ADeadProgramThatMapsSlabsOfOthersKeepsTheirPages) {
  begin(one, 1, "home", 40);
  begin(two, 2, "home", 40);
  all_work({&one, &two}, 500);
  const bool first = one.host() < two.host();
  Program& dies = first ? one : two;
  Program& lives = first ? two : one;
  std::map<SegmentId, Slabs> both;  // that one of them owns and the other one has mapped
  for (const auto& [segment, slabs] : lives.owns) {
    if ((slabs & dies.maps[segment]) != 0) both[segment] = slabs & dies.maps[segment];
  }
  ASSERT_FALSE(both.empty()) << "slabs are mapped ahead of need";
  t.broker.leave(dies.id, t.now);
  t.broker.leave(lives.id, t.now);
  t.arena.alive.erase(lives.peer.pid);
  t.broker.sample(t.now);
  for (const auto& [segment, slabs] : both) EXPECT_EQ(t.arena.released[segment] & slabs, 0u);
  t.arena.alive.erase(dies.peer.pid);
  t.broker.sample(t.now);
  EXPECT_EQ(t.broker.places().used(), Bytes{});
}

TEST_F(PassingInAFullArena, APassOfSlabsThatNobodyAskedForIsRefused) {
  begin(one, 1, "home", 40);
  begin(two, 2, "home", 40);
  hear_of_slabs(one);
  const auto [segment, slabs] = *one.owns.begin();
  ASSERT_NE(slabs, 0u);
  say_slabs<wire::ArenaPassed>(one, segment, slabs);
  EXPECT_TRUE(t.gone(one.id));
}

// A program of an older library does not know of slabs.
TEST_F(Passing, AnOlderProgramGetsHostMemoryOfItsOwn) {
  auto hello = TestBroker::hello();
  hello.minor = wire::kMinorSharedArena - 1;
  const ClientId old = t.join(t.tenant("old"), hello, {4001, 1000, "home"});
  EXPECT_EQ(t.ask_movable(old, gib(10)), TestBroker::Told::Available);
  begin(two, 2, "home", 40);
  EXPECT_FALSE(t.outbox.take<wire::Arena>(old).empty());
  EXPECT_TRUE(t.outbox.take<wire::ArenaShared>(old).empty());
  EXPECT_FALSE(t.outbox.take<wire::ArenaShared>(two.id).empty());
}

}  // namespace
}  // namespace nvshare::daemon
