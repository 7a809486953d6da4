// Programs that are larger than their GPU because they were started so.

#include <algorithm>
#include <random>

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

using Told = TestBroker::Told;

Bytes bytes_of(std::uint64_t count) {
  return Bytes{static_cast<std::int64_t>(count)};
}

struct Oversubscribing : testing::Test {
  TenantId tenant(const std::string& name, std::optional<Bytes> memory = {}) {
    core::Limits limits;
    limits.memory = memory;
    return *t.broker.begin_run({TenantKind::Run, name, 1000}, limits, t.now, wire::Backend::Managed,
                               true);
  }
  Bytes safe() const { return *t.broker.core().safe_limit(GpuId{0}); }
  const ClientRecord& record(ClientId id) const { return t.broker.clients().at(id); }
  core::ClientView view(ClientId id) const { return *t.broker.core().view(id); }
  // Does what it was told; everything moves as it is wanted.
  void obey(ClientId id) {
    for (const auto& order : t.outbox.take<wire::SwapOut>(id)) {
      t.moved(id, order.order, bytes_of(order.bytes), {});
    }
    for (const auto& order : t.outbox.take<wire::SwapIn>(id)) {
      t.moved(id, order.order, {}, bytes_of(order.bytes));
    }
  }

  TestBroker t{quick()};  // 16 GiB, of which 14.4 are safe
};

TEST_F(Oversubscribing, ItIsGivenWhatItAsksForAndRuns) {
  const ClientId one = t.join(tenant("a"));
  EXPECT_EQ(t.ask_movable(one, gib(10)), Told::Available);
  EXPECT_EQ(record(one).memory.beyond(), Bytes{});
  EXPECT_EQ(t.ask_movable(one, gib(20)), Told::Available);
  EXPECT_EQ(t.ask_movable(one, gib(2)), Told::Available);
  EXPECT_EQ(record(one).memory.allocated(), gib(32));
  EXPECT_EQ(record(one).memory.beyond(), gib(32) - safe());
  EXPECT_EQ(view(one).allocated, safe());
  EXPECT_EQ(view(one).resident, safe());
  EXPECT_EQ(t.page(one).tenant_allocated, static_cast<std::uint64_t>(gib(32).count));
  t.want(one);
  EXPECT_NE(t.granted(one), 0u);
}

TEST_F(Oversubscribing, ARefusalDoesNotSayThatTheGpuIsTooSmall) {
  const TenantId of = tenant("a", gib(20));
  EXPECT_EQ(t.ask_movable(t.join(of), gib(24)), Told::Refused);
  ASSERT_EQ(t.outbox.shortages[of].size(), 1u);
  EXPECT_EQ(t.outbox.shortages[of][0].gpu, 0u);
}

TEST_F(Oversubscribing, NobodyElseIs) {
  const auto plain =
      t.broker.begin_run({TenantKind::Run, "a", 1000}, {}, t.now, wire::Backend::Managed);
  const ClientId one = t.join(*plain);
  EXPECT_EQ(t.ask_movable(one, gib(20)), Told::Refused);
  EXPECT_EQ(bytes_of(t.allowed), safe());
  // The wish is for managed memory alone.
  const auto odd =
      t.broker.begin_run({TenantKind::Run, "b", 1000}, {}, t.now, wire::Backend::Swap, true);
  const ClientId two = t.join(*odd);
  EXPECT_EQ(t.ask_movable(two, gib(20)), Told::Refused);
}

TEST_F(Oversubscribing, ALimitHoldsToTheByte) {
  const TenantId of = tenant("a", gib(20));
  const ClientId one = t.join(of);
  const ClientId two = t.join(of);
  EXPECT_EQ(t.ask_movable(one, gib(20) + Bytes{1}), Told::Refused);
  EXPECT_EQ(bytes_of(t.allowed), gib(20));
  EXPECT_EQ(t.ask_movable(one, gib(20) - Bytes{1}), Told::Available);
  EXPECT_EQ(t.ask_movable(two, Bytes{2}), Told::Refused);
  EXPECT_EQ(t.allowed, 1u);
  EXPECT_NE(t.ask_movable(two, Bytes{1}), Told::Refused);
  EXPECT_FALSE(t.ask(one, Bytes{1}));
  t.free(one, gib(1), gib(1));
  EXPECT_EQ(t.ask_movable(one, gib(1) + Bytes{1}), Told::Refused);
  EXPECT_NE(t.ask_movable(one, gib(1)), Told::Refused);
}

TEST_F(Oversubscribing, ItTakesTurnsWithOthers) {
  const ClientId one = t.join(tenant("a"));
  const ClientId two = t.join(t.tenant("b"));
  EXPECT_EQ(t.ask_movable(one, gib(30)), Told::Available);
  t.want(one);
  std::uint64_t grant = t.granted(one);
  EXPECT_NE(grant, 0u);
  EXPECT_EQ(t.ask_movable(two, gib(10)), Told::Wait);
  t.want(two);
  for (int turn = 0; turn < 4; ++turn) {
    t.pass(2s);
    t.release(one, grant, 1s, true);
    obey(one);
    EXPECT_EQ(view(one).resident, safe() - gib(10));
    obey(two);
    const std::uint64_t of_two = t.granted(two);
    EXPECT_NE(of_two, 0u) << turn;
    t.pass(2s);
    t.release(two, of_two, 1s, true);
    obey(two);
    obey(one);
    grant = t.granted(one);
    EXPECT_NE(grant, 0u) << turn;
    EXPECT_EQ(view(one).resident, safe());
  }
  EXPECT_TRUE(t.outbox.disconnected.empty());
  EXPECT_EQ(record(one).memory.allocated(), gib(30));
}

// What is absent the core knows of, so it is not what is beyond.
TEST_F(Oversubscribing, WhatIsFreedIsCountedWhereItWas) {
  const ClientId one = t.join(tenant("a"));
  EXPECT_EQ(t.ask_movable(one, gib(30)), Told::Available);
  const Bytes beyond = gib(30) - safe();
  t.free(one, gib(4), gib(4));
  EXPECT_EQ(record(one).memory.beyond(), beyond - gib(4));
  EXPECT_EQ(view(one).allocated, safe());
  t.moved(one, 0, gib(2), {});
  EXPECT_EQ(view(one).resident, safe() - gib(2));
  t.free(one, gib(2), {});
  EXPECT_EQ(view(one).allocated, safe() - gib(2));
  EXPECT_EQ(view(one).resident, safe() - gib(2));
  EXPECT_EQ(record(one).memory.beyond(), beyond - gib(4));
  t.free(one, gib(24), gib(24));
  EXPECT_EQ(view(one).allocated, Bytes{});
  EXPECT_EQ(record(one).memory.beyond(), Bytes{});
  EXPECT_FALSE(t.gone(one));
}

TEST_F(Oversubscribing, MemoryThatCannotMoveFindsRoomBeside) {
  const ClientId one = t.join(tenant("a"));
  EXPECT_EQ(t.ask_movable(one, gib(30)), Told::Available);
  EXPECT_TRUE(t.ask(one, gib(1)));
  EXPECT_EQ(view(one).pinned, gib(1));
  EXPECT_EQ(view(one).allocated, safe());
  EXPECT_EQ(record(one).memory.allocated(), gib(31));
  EXPECT_FALSE(t.ask(one, gib(15))) << "this must fit";
  t.want(one);
  EXPECT_NE(t.granted(one), 0u);
}

TEST_F(Oversubscribing, ItShrinksWithTheRoom) {
  const ClientId one = t.join(tenant("a"));
  EXPECT_EQ(t.ask_movable(one, gib(30)), Told::Available);
  const Bytes before = safe();
  for (const char* name : {"b", "c", "d"}) t.join(t.tenant(name));
  ASSERT_LT(safe(), before);
  t.broker.sample(t.now);
  EXPECT_EQ(view(one).allocated, safe());
  EXPECT_EQ(view(one).resident, safe());
  t.want(one);
  EXPECT_NE(t.granted(one), 0u);
}

TEST_F(Oversubscribing, ItComesBackWithAllItHas) {
  auto hello = TestBroker::hello();
  hello.allocated = static_cast<std::uint64_t>(gib(30).count);
  hello.resident = static_cast<std::uint64_t>(gib(30).count);
  const ClientId one = t.join(tenant("a"), hello);
  EXPECT_EQ(view(one).allocated, safe());
  EXPECT_EQ(view(one).resident, safe());
  EXPECT_EQ(t.lines.find("client_over_limit"), std::string::npos);
  EXPECT_EQ(t.ask_movable(one, gib(1)), Told::Available);
  t.want(one);
  EXPECT_NE(t.granted(one), 0u);
}

// --- programs that say what cannot be

// It has never been lent anything, and what it writes to the page frees its memory all the same.
TEST_F(Oversubscribing, WhatIsFreedIntoThePageIsNotBeyondAnyMore) {
  const ClientId one = t.join(tenant("a"));
  EXPECT_EQ(t.ask_movable(one, gib(30)), Told::Available);
  const Bytes beyond = record(one).memory.beyond();
  t.page_of.at(one)->movable_credit.bytes = static_cast<std::uint64_t>(gib(4).count);
  t.broker.settle(t.now);
  EXPECT_EQ(record(one).memory.allocated(), gib(26));
  EXPECT_EQ(record(one).memory.beyond(), beyond - gib(4));
  EXPECT_EQ(view(one).allocated, safe());
  t.page_of.at(one)->movable_credit.bytes = static_cast<std::uint64_t>(gib(24).count);
  t.broker.settle(t.now);
  EXPECT_EQ(record(one).memory.beyond(), Bytes{});
  EXPECT_EQ(view(one).allocated, gib(2));
  EXPECT_EQ(t.lines.find("memory_not_booked"), std::string::npos);
}

TEST_F(Oversubscribing, WhatCannotMoveIsNeverBeyond) {
  auto hello = TestBroker::hello();
  hello.allocated = static_cast<std::uint64_t>(gib(18).count);
  hello.resident = hello.allocated;
  hello.pinned = static_cast<std::uint64_t>(gib(15).count);
  const ClientId one = t.join(tenant("a"), hello);
  EXPECT_EQ(record(one).memory.beyond(), gib(3)) << "more than is safe, but it is there";
  EXPECT_EQ(view(one).pinned, gib(15));
  auto pinned = wire::make<wire::MemoryPinned>();
  pinned.bytes = static_cast<std::uint64_t>(gib(1).count);
  t.say(one, pinned);
  EXPECT_FALSE(t.gone(one));
  EXPECT_EQ(record(one).memory.beyond(), gib(2));
  t.free(one, gib(2), gib(2));
  EXPECT_EQ(record(one).memory.beyond(), Bytes{});
}

// Memory that is waited for is counted, and will be pinned: it cannot make room for more of its
// kind.
TEST_F(Oversubscribing, WhatIsWaitedForIsNeverBeyond) {
  const ClientId one = t.join(tenant("a"));
  for (const char* name : {"b", "c"}) {
    EXPECT_EQ(t.ask_movable(t.join(t.tenant(name)), gib(7)), Told::Available);
  }
  EXPECT_EQ(t.ask_movable(one, gib(30)), Told::Wait);
  EXPECT_EQ(t.ask_pinned(one, gib(5)), Told::Wait);
  EXPECT_EQ(t.ask_pinned(one, gib(2)), Told::Wait);
  EXPECT_EQ(record(one).memory.awaited(), gib(7));
  const Bytes beyond = record(one).memory.beyond();
  EXPECT_EQ(t.ask_pinned(one, gib(8)), Told::Refused);
  EXPECT_EQ(t.lines.find("memory_not_booked"), std::string::npos);
  EXPECT_EQ(record(one).memory.beyond(), beyond) << "what was refused needs no room";
  EXPECT_EQ(view(one).allocated, gib(37) - beyond);
}

// --- whatever happens ---------------------------------------------------------------------------

// A program as the library makes it: memory in pieces, which move as a whole.
struct Program {
  ClientId id;
  std::vector<Bytes> here;
  std::vector<Bytes> away;
};

struct OversubscribingWorld : Oversubscribing, testing::WithParamInterface<unsigned> {
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random()) % n; }

  void allocate(Program& program) {
    const Bytes bytes = mib(256) * static_cast<std::int64_t>(1 + below(20));
    const Told told = t.ask_movable(program.id, bytes);
    if (told == Told::Refused) return;
    auto& to = told == Told::Available ? program.here : program.away;
    for (Bytes left = bytes; left > Bytes{}; left -= mib(256)) to.push_back(mib(256));
  }
  void free(Program& program) {
    auto& from = below(2) == 0 ? program.here : program.away;
    if (from.empty()) return;
    from.pop_back();
    t.free(program.id, mib(256), &from == &program.here ? mib(256) : Bytes{});
  }
  void send_out(Program& program, const wire::SwapOut& order) {
    Bytes out{};
    while (out < bytes_of(order.bytes) && !program.here.empty()) {
      out += program.here.back();
      program.away.push_back(program.here.back());
      program.here.pop_back();
    }
    t.moved(program.id, order.order, out, {});
  }
  void bring_in(Program& program, const wire::SwapIn& order) {
    Bytes in{};
    while (!program.away.empty() && in + program.away.back() <= bytes_of(order.bytes)) {
      in += program.away.back();
      program.here.push_back(program.away.back());
      program.away.pop_back();
    }
    t.moved(program.id, order.order, {}, in);
  }
  // In the order in which it was told.
  void obey(Program& program) {
    auto outs = t.outbox.take<wire::SwapOut>(program.id);
    auto ins = t.outbox.take<wire::SwapIn>(program.id);
    auto out = outs.begin();
    for (const auto& in : ins) {
      for (; out != outs.end() && out->order < in.order; ++out) send_out(program, *out);
      bring_in(program, in);
    }
    for (; out != outs.end(); ++out) send_out(program, *out);
  }
  // It works for a while; whether it could.
  bool work(Program& program) {
    t.outbox.take<wire::Drop>(program.id);
    const std::uint64_t grant = t.granted(program.id);
    if (grant != 0) t.release(program.id, grant, 1ms, true);
    return grant != 0;
  }

  std::mt19937 random{GetParam()};
};

// Nothing crosses on the way here: that is tried elsewhere.
TEST_P(OversubscribingWorld, EverybodyGetsToRun) {
  Program programs[] = {{t.join(tenant("large")), {}, {}}, {t.join(t.tenant("b")), {}, {}}};
  int worked[2] = {};
  const auto everybody_works = [&] {
    for (int i = 0; i < 3; ++i) {
      for (int n = 0; n < 2; ++n) {
        obey(programs[n]);
        worked[n] += work(programs[n]) ? 1 : 0;
      }
    }
    t.pass(100ms);
  };
  for (Program& program : programs) t.want(program.id);
  for (int i = 0; i < 300; ++i) {
    Program& program = programs[below(2)];
    switch (below(5)) {
      case 0:
      case 1:
        allocate(program);
        break;
      case 2:
        free(program);
        break;
      default:
        t.broker.sample(t.now);
    }
    everybody_works();
  }
  worked[0] = worked[1] = 0;
  for (int i = 0; i < 100; ++i) everybody_works();
  EXPECT_GT(worked[0], 3) << *t.broker.core().explain(programs[0].id, t.now);
  EXPECT_GT(worked[1], 3) << *t.broker.core().explain(programs[1].id, t.now);
  for (const auto& [id, why] : t.outbox.disconnected) ADD_FAILURE() << id.value << ": " << why;
  EXPECT_EQ(t.lines.find("memory_not_booked"), std::string::npos);
}
INSTANTIATE_TEST_SUITE_P(Seeds, OversubscribingWorld, testing::Range(0u, 40u));

}  // namespace
}  // namespace nvshare::daemon
