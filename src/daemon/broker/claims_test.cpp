// What clients say in their hellos that they have, after the scheduler was away.

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

wire::Hello claim(Bytes allocated, Bytes resident, Bytes pinned = {}) {
  auto hello = TestBroker::hello();
  hello.allocated = static_cast<std::uint64_t>(allocated.count);
  hello.resident = static_cast<std::uint64_t>(resident.count);
  hello.pinned = static_cast<std::uint64_t>(pinned.count);
  return hello;
}

// Clients whose memory moves in whole chunks, as the library's does: less than one comes in only
// when it is all that is missing.
struct Claims : testing::Test {
  static constexpr Bytes kChunk = mib(256);
  core::ClientView view(ClientId id) const { return *t.broker.core().view(id); }
  const core::MemoryAccount& memory(ClientId id) const { return t.broker.clients().at(id).memory; }
  ClientId join(const std::string& name, const wire::Hello& hello, core::Limits limits = {}) {
    const ClientId id = t.join(t.tenant(name, limits), hello);
    absent[id] = Bytes{static_cast<std::int64_t>(hello.allocated - hello.resident)};
    here[id] = Bytes{static_cast<std::int64_t>(hello.resident - hello.pinned)};
    return id;
  }
  static Bytes whole(Bytes bytes) { return kChunk * (bytes.count / kChunk.count); }
  void obey(ClientId id) {
    for (const auto& order : t.outbox.take<wire::SwapOut>(id)) {
      const Bytes bytes{static_cast<std::int64_t>(order.bytes)};
      const Bytes out = std::min(here[id], whole(bytes + kChunk - Bytes{1}));
      here[id] -= out;
      absent[id] += out;
      t.moved(id, order.order, out, {});
    }
    for (const auto& order : t.outbox.take<wire::SwapIn>(id)) {
      const Bytes bytes{static_cast<std::int64_t>(order.bytes)};
      const Bytes in = absent[id] <= bytes ? absent[id] : whole(bytes);
      here[id] += in;
      absent[id] -= in;
      t.moved(id, order.order, {}, in);
    }
  }
  // Whether it has worked within that time; the others obey, too, and give back what they hold.
  bool runs(ClientId id, const std::vector<ClientId>& others = {}, Duration within = 20s) {
    for (Duration passed{}; passed < within; passed += 100ms) {
      for (const ClientId other : others) {
        obey(other);
        t.outbox.take<wire::Drop>(other);
        if (const std::uint64_t grant = t.granted(other)) t.release(other, grant, 1ms, true);
      }
      obey(id);
      if (const std::uint64_t grant = t.granted(id)) {
        t.release(id, grant, 1ms, true);
        if (absent[id] == Bytes{}) return true;  // otherwise the library gives it back unused
      }
      t.pass(100ms);
      t.broker.sample(t.now);
    }
    return false;
  }

  TestBroker t{quick()};  // 16 GiB, of which 14.4 are safe
  std::map<ClientId, Bytes> absent;
  std::map<ClientId, Bytes> here;
};

TEST_F(Claims, AClientAboveItsLimitRunsAndGetsNoMore) {
  const ClientId one = join("a", claim(gib(6), gib(2)), {.memory = gib(4)});
  EXPECT_EQ(view(one).allocated, gib(6));
  t.want(one);
  EXPECT_TRUE(runs(one)) << *t.broker.core().explain(one, t.now);
  EXPECT_EQ(t.ask_movable(one, Bytes{1}), TestBroker::Told::Refused);
  t.free(one, gib(3), gib(3));
  EXPECT_EQ(t.ask_movable(one, gib(1)), TestBroker::Told::Available);
}

// What is above the limit is not believed to be there, and room is made for it all the same.
TEST_F(Claims, SoDoesOneThatIsThereAsAWhole) {
  const ClientId other = t.join(t.tenant("b"));
  ASSERT_EQ(t.ask_movable(other, gib(10)), TestBroker::Told::Available);
  here[other] = gib(10);
  t.want(other);
  const ClientId one = join("a", claim(gib(6), gib(6)), {.memory = gib(4)});
  EXPECT_EQ(view(one).resident, gib(4));
  t.want(one);
  EXPECT_TRUE(runs(one, {other})) << *t.broker.core().explain(one, t.now);
  EXPECT_EQ(view(one).resident, gib(6));
  EXPECT_TRUE(runs(other, {one}));
}

TEST_F(Claims, AClaimThatEndsLeavesNobodyWaiting) {
  const ClientId liar = join("liar", claim(gib(12), gib(12), gib(12)));
  const ClientId one = join("a", claim(gib(10), gib(8)));
  EXPECT_EQ(view(one).allocated, gib(10));
  EXPECT_EQ(view(one).resident, gib(4)) << "beside what the other one claims";
  t.want(one);
  EXPECT_FALSE(runs(one, {}, 3s));
  t.broker.leave(liar, t.now);
  EXPECT_FALSE(memory(one).is_doubted());
  EXPECT_TRUE(runs(one, {}, 1s)) << *t.broker.core().explain(one, t.now);
}

// A claim takes nothing from those who have been given their memory.
TEST_F(Claims, AClaimTakesNothingFromOthers) {
  const ClientId one = t.join(t.tenant("a"));
  ASSERT_EQ(t.ask_movable(one, gib(12)), TestBroker::Told::Available);
  t.want(one);
  EXPECT_NE(t.granted(one), 0u);
  const ClientId liar = join("liar", claim(gib(14), gib(14), gib(14)));
  EXPECT_EQ(view(liar).resident, gib(4));
  EXPECT_EQ(view(liar).pinned, gib(4));
  EXPECT_EQ(view(one).resident, gib(12));
}

// Unified memory is where the driver has put it: together they claim more than the card has.
TEST_F(Claims, TogetherTheyMayHaveMoreThanTheGpu) {
  t.broker.set_backend(wire::Backend::Managed);
  std::vector<ClientId> all;
  for (const char* name : {"a", "b", "c"}) {
    all.push_back(join(name, claim(gib(8), gib(name[0] == 'c' ? 7 : 8))));
  }
  EXPECT_EQ(view(all[2]).allocated, gib(8));
  EXPECT_EQ(view(all[2]).resident, Bytes{});
  for (const ClientId one : all) t.want(one);
  for (int round = 0; round < 3; ++round) {
    for (const ClientId one : all) {
      std::vector<ClientId> others = all;
      std::erase(others, one);
      EXPECT_TRUE(runs(one, others)) << *t.broker.core().explain(one, t.now);
    }
  }
  for (const ClientId one : all) {
    EXPECT_FALSE(memory(one).is_doubted());
    EXPECT_EQ(view(one).resident, here[one]);
    EXPECT_EQ(view(one).allocated, gib(8));
  }
  EXPECT_TRUE(t.outbox.disconnected.empty());
}

}  // namespace
}  // namespace nvshare::daemon
