#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

using Told = TestBroker::Told;

// One client of 8 GiB, alone on a GPU of 16.
struct SleepTest : testing::Test {
  SleepTest() : tenant(t.tenant("chat")), client(t.join(tenant)) {
    EXPECT_EQ(t.ask_movable(client, gib(8)), Told::Available);
  }

  bool set(bool asleep, bool hold = false) {
    const auto changed = t.broker.set_asleep(tenant, asleep, hold, t.now);
    EXPECT_TRUE(changed) << changed.error().message;
    return changed && *changed;
  }
  bool asleep() const { return t.broker.core().sleep_of(tenant).has_value(); }
  Bytes resident() const { return t.broker.core().view(client)->resident; }
  // The client does what it was told.
  void obey() {
    for (const auto& out : t.outbox.take<wire::SwapOut>(client)) {
      t.moved(client, out.order, Bytes{static_cast<std::int64_t>(out.bytes)}, {});
    }
    for (const auto& in : t.outbox.take<wire::SwapIn>(client)) {
      t.moved(client, in.order, {}, Bytes{static_cast<std::int64_t>(in.bytes)});
    }
  }

  TestBroker t{quick()};
  TenantId tenant;
  ClientId client;
};

TEST_F(SleepTest, GivesEvenALoneClientAPlaceForAllOfIt) {
  EXPECT_EQ(t.arena.asked[client], Bytes{}) << "alone it needs none";
  EXPECT_TRUE(set(true));
  EXPECT_EQ(t.arena.asked[client], gib(8));
  obey();
  EXPECT_EQ(resident(), Bytes{});
  EXPECT_FALSE(t.gone(client)) << t.outbox.disconnected[client];
}

TEST_F(SleepTest, WhatFitsTheHostLeavesAndTheRestStays) {
  t.arena.limit = gib(3);
  set(true);
  obey();
  EXPECT_GE(resident(), gib(5));
  EXPECT_LE(resident(), gib(5) + mib(800)) << "chunks must be able to pass each other";
  EXPECT_EQ(t.broker.core().view(client)->leaveable, Bytes{}) << "it is not to be waited for";
  t.arena.limit = gib(1024);
  t.broker.sample(t.now);
  obey();
  EXPECT_EQ(resident(), Bytes{}) << "more as host memory comes";
}

TEST_F(SleepTest, HostMemoryThatOthersWerePromisedIsNotTheSleepers) {
  const ClientId one = t.join(t.tenant("one"));
  t.arena.limit = gib(5);
  // The two need 2 GiB each, and the sleeper gets what is left.
  ASSERT_EQ(t.ask_movable(one, gib(8)), Told::Wait);
  const Bytes promised = t.arena.asked[one] + t.arena.asked[client];
  ASSERT_GT(t.arena.asked[one], Bytes{});
  set(true);
  EXPECT_LE(t.arena.asked[one] + t.arena.asked[client], gib(5));
  EXPECT_GT(t.arena.asked[one] + t.arena.asked[client], promised);
}

TEST_F(SleepTest, TheNextLaunchBringsItBack) {
  set(true);
  obey();
  t.want(client);
  EXPECT_FALSE(asleep());
  obey();
  EXPECT_EQ(resident(), gib(8));
  EXPECT_NE(t.granted(client), 0u);
}

TEST_F(SleepTest, AHeldTenantWaitsForWake) {
  set(true, true);
  obey();
  t.want(client);
  t.pass(10min);
  EXPECT_EQ(t.granted(client), 0u);
  EXPECT_TRUE(set(false));
  obey();
  EXPECT_NE(t.granted(client), 0u);
}

TEST_F(SleepTest, AllocationsOfAHeldTenantComeWhenItIsWoken) {
  set(true, true);
  obey();
  EXPECT_EQ(t.ask_movable(client, gib(1)), Told::Wait);
  t.pass(1min);
  EXPECT_EQ(resident(), Bytes{});
  set(false);
  obey();
  EXPECT_EQ(resident(), gib(9));
}

TEST_F(SleepTest, ASecondTimeChangesNothingButCanHold) {
  EXPECT_FALSE(set(false)) << "it is awake";
  EXPECT_TRUE(set(true));
  EXPECT_FALSE(set(true));
  EXPECT_TRUE(set(true, true));
  EXPECT_FALSE(set(true)) << "somebody holds it: that is not undone by the way";
  EXPECT_TRUE(t.broker.core().sleep_of(tenant)->hold);
  EXPECT_TRUE(set(false));
  EXPECT_FALSE(t.broker.set_asleep(TenantId{99}, true, false, t.now));
}

TEST_F(SleepTest, WhatWasAllocatedWithoutAskingDoesNotWakeIt) {
  wire::Credit& credit = t.page_of.at(client)->movable_credit;
  ASSERT_TRUE(wire::take(credit, static_cast<std::uint64_t>(mib(2).count))) << "it was lent some";
  set(true);
  obey();
  t.broker.settle(t.now);
  EXPECT_TRUE(asleep());
  EXPECT_EQ(resident(), Bytes{});
  EXPECT_FALSE(wire::take(credit, 4096)) << "from now on it asks";
}

TEST_F(SleepTest, TheTraceSaysWhichClientSleptAndWhy) {
  set(true);
  obey();
  t.want(client);
  std::string all;
  for (const auto line : t.broker.trace().from(0, "chat", 100).lines)
    all += std::string(line) + "\n";
  EXPECT_NE(all.find("event=sleep tenant=chat"), std::string::npos) << all;
  EXPECT_NE(all.find("event=wake tenant=chat"), std::string::npos) << all;
  EXPECT_NE(all.find("was put to sleep"), std::string::npos) << all;
}

TEST_F(SleepTest, IdleOutPutsItToSleepByItself) {
  core::Config config = quick();
  config.idle_out = 5s;
  ASSERT_TRUE(t.broker.set_config(config, t.now));
  t.pass(5s);
  EXPECT_TRUE(asleep());
  obey();
  EXPECT_EQ(resident(), Bytes{});
  EXPECT_FALSE(t.gone(client)) << t.outbox.disconnected[client];
}

TEST_F(SleepTest, HostMemoryIsKeptWhileItSleepsAndGoesBackLater) {
  set(true);
  obey();
  t.pass(2 * Places::kLingers);
  t.broker.sample(t.now);
  t.now += 2 * Places::kLingers;
  t.broker.sample(t.now);
  EXPECT_TRUE(t.outbox.take<wire::ArenaNeed>(client).empty());
  set(false);
  obey();
  t.broker.sample(t.now);
  t.now += 2 * Places::kLingers;
  t.broker.sample(t.now);
  EXPECT_TRUE(t.outbox.take<wire::ArenaNeed>(client).empty()) << "it may sleep again";
  t.now += Places::kSleptLingers;
  t.broker.sample(t.now);
  EXPECT_FALSE(t.outbox.take<wire::ArenaNeed>(client).empty()) << "nobody needs it";
}

TEST_F(SleepTest, ATenantThatIsHeldIsRememberedWithoutProcesses) {
  const auto user = t.broker.tenant_for({TenantKind::User, "user-7", 7}, {}, t.now);
  ASSERT_TRUE(user);
  ASSERT_TRUE(t.broker.set_asleep(*user, true, true, t.now));
  t.now += 1h;
  t.broker.sample(t.now);
  EXPECT_NE(t.broker.find_tenant("user-7"), nullptr);
  ASSERT_TRUE(t.broker.set_asleep(*user, false, false, t.now));
  t.now += 1h;
  t.broker.sample(t.now);
  EXPECT_EQ(t.broker.find_tenant("user-7"), nullptr);
}

TEST_F(SleepTest, AnotherTakesTheRoom) {
  set(true);
  obey();
  const ClientId other = t.join(t.tenant("train"));
  EXPECT_EQ(t.ask_movable(other, gib(12)), Told::Available);
  t.want(other);
  EXPECT_NE(t.granted(other), 0u);
}

TEST_F(SleepTest, AfterARestartOfTheSchedulerItIsAwakeAndComesBack) {
  wire::Hello hello = TestBroker::hello();
  hello.allocated = static_cast<std::uint64_t>(gib(4).count);  // all of it on the host
  const ClientId back = t.join(t.tenant("back"), hello);
  t.want(back);
  const auto in = t.outbox.take<wire::SwapIn>(back);
  ASSERT_EQ(in.size(), 1u);
  t.moved(back, in[0].order, {}, gib(4));
  EXPECT_NE(t.granted(back), 0u);
}

}  // namespace
}  // namespace nvshare::daemon
