#include "daemon/broker/broker.h"

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

using wire::Watch;

core::Limits with_memory(Bytes memory) {
  core::Limits limits;
  limits.memory = memory;
  return limits;
}

core::Limits with_cores(int cores) {
  core::Limits limits;
  limits.core_percent = cores;
  return limits;
}

// --- coming and going --------------------------------------------------------------------------

TEST(BrokerHello, TellsTheClientWhatItNeeds) {
  TestBroker t;
  core::Limits limits = with_memory(gib(4));
  limits.core_percent = 40;
  const auto welcome = t.try_join(t.tenant("train", limits), TestBroker::hello());
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->magic, wire::kMagic);
  EXPECT_STREQ(welcome->tenant, "train");
  EXPECT_EQ(welcome->watch, Watch::Metered);
  const wire::Page& page = *t.pages.back();
  EXPECT_EQ(page.magic, wire::kPageMagic);
  EXPECT_EQ(page.scheduler.core_limit, 40u);
  EXPECT_EQ(page.scheduler.memory_limit, static_cast<std::uint64_t>(gib(4).count));
  EXPECT_EQ(page.scheduler.grant, 0u);
  EXPECT_EQ(page.scheduler.watch, static_cast<std::uint64_t>(Watch::Metered));
}

TEST(BrokerHello, RefusesWhatItDoesNotUnderstand) {
  TestBroker t;
  const TenantId tenant = t.tenant("a");
  auto message = TestBroker::hello();
  message.magic = 1;
  EXPECT_FALSE(t.try_join(tenant, message));
  message = TestBroker::hello();
  message.major = wire::kMajor + 1;
  EXPECT_NE(t.try_join(tenant, message).error().message.find("protocol"), std::string::npos);
  message = TestBroker::hello();
  message.minor = wire::kMinor + 1;
  EXPECT_TRUE(t.try_join(tenant, message)) << "a newer minor version only appends";
  message = TestBroker::hello();
  message.allocated = UINT64_MAX;
  EXPECT_FALSE(t.try_join(tenant, message));
  message = TestBroker::hello();
  message.gpu[0] = 99;
  EXPECT_NE(t.try_join(tenant, message).error().message.find("GPU-630203"), std::string::npos);
  EXPECT_EQ(t.broker.clients().size(), 1u);
}

TEST(BrokerHello, WithoutNvmlGpusAreTakenAsDescribedAndBounded) {
  TestBroker t;
  t.broker.accept_claimed_gpus();
  const TenantId tenant = t.tenant("a");
  auto message = TestBroker::hello();
  message.gpu[0] = 99;
  message.gpu_memory = 1000;
  EXPECT_FALSE(t.try_join(tenant, message));
  message.gpu_memory = UINT64_MAX;
  EXPECT_FALSE(t.try_join(tenant, message));
  for (int i = 0; i < 100; ++i) {
    message.gpu[0] = static_cast<std::uint8_t>(100 + i);
    message.gpu_memory = static_cast<std::uint64_t>(gib(8).count);
    EXPECT_EQ(static_cast<bool>(t.try_join(tenant, message)), i < Broker::kMostClaimedGpus);
  }
  message.gpu[0] = 100;
  EXPECT_TRUE(t.try_join(tenant, message)) << "one that is known already";
}

TEST(BrokerHello, TakesOverWhatAReturningClientHas) {
  TestBroker t;
  const TenantId tenant = t.tenant("a", with_memory(gib(2)));
  auto message = TestBroker::hello();
  message.allocated = static_cast<std::uint64_t>(gib(1).count);
  const ClientId client = t.join(tenant, message);
  EXPECT_EQ(t.page(client).tenant_allocated, message.allocated);
  EXPECT_TRUE(t.ask(client, gib(1)));
  EXPECT_FALSE(t.ask(client, Bytes{1}));
}

TEST(BrokerHello, AReturningClientOverItsLimitIsTakenAndGetsNoMore) {
  TestBroker t;
  const TenantId tenant = t.tenant("a", with_memory(gib(2)));
  auto message = TestBroker::hello();
  message.allocated = static_cast<std::uint64_t>(gib(3).count);
  const ClientId client = t.join(tenant, message);
  EXPECT_NE(t.lines.find("event=client_over_limit"), std::string::npos);
  EXPECT_EQ(t.broker.core().view(client)->allocated, gib(3)) << "what it really has";
  EXPECT_EQ(t.page(client).tenant_allocated, message.allocated);
  EXPECT_FALSE(t.ask(client, Bytes{1}));
  EXPECT_NE(t.lines.find("over the memory limit: 3GiB used of 2GiB allowed"), std::string::npos);
  t.free(client, gib(1));
  EXPECT_FALSE(t.ask(client, Bytes{1}));
  t.free(client, gib(1));
  EXPECT_TRUE(t.ask(client, gib(1)));
  t.free(client, gib(2));
  EXPECT_FALSE(t.gone(client));
  EXPECT_EQ(t.broker.core().view(client)->allocated, Bytes{0});
  t.free(client, Bytes{1});
  EXPECT_TRUE(t.gone(client));
}

TEST(BrokerHello, WhatDoesNotFitBesideOthersIsNoMatterOfALimit) {
  TestBroker t;
  const ClientId first = t.join(t.tenant("a"));
  ASSERT_TRUE(t.ask(first, gib(10)));
  auto message = TestBroker::hello();
  message.allocated = message.resident = static_cast<std::uint64_t>(gib(8).count);
  const ClientId late = t.join(t.tenant("b"), message);
  EXPECT_FALSE(t.ask(late, Bytes{1}));
  EXPECT_NE(t.lines.find("can be made free beside what cannot move"), std::string::npos);
  t.free(first, gib(10));
  EXPECT_TRUE(t.ask(late, Bytes{1}));
}

TEST(BrokerHello, ARaisedLimitLeavesRoomAgain) {
  TestBroker t;
  const TenantId tenant = t.tenant("a", with_memory(gib(2)));
  auto message = TestBroker::hello();
  message.allocated = static_cast<std::uint64_t>(gib(3).count);
  const ClientId client = t.join(tenant, message);
  ASSERT_TRUE(t.broker.set_limits(tenant, with_memory(gib(4)), t.now));
  EXPECT_FALSE(t.ask(client, gib(2)));
  EXPECT_TRUE(t.ask(client, gib(1)));
  EXPECT_EQ(t.broker.core().view(client)->allocated, gib(4));
}

TEST(BrokerTenants, ARunsNameIsItsOwnUntilItsLastClientIsGone) {
  TestBroker t;
  const TenantId tenant = t.tenant("train");
  const ClientId client = t.join(tenant);
  EXPECT_FALSE(t.broker.begin_run({TenantKind::Run, "train", 1}, {}, t.now));
  t.broker.end_run(tenant, t.now);
  EXPECT_NE(t.broker.find_tenant("train"), nullptr) << "a process of it has outlived the run";
  t.broker.leave(client, t.now);
  EXPECT_EQ(t.broker.find_tenant("train"), nullptr);
  EXPECT_TRUE(t.broker.begin_run({TenantKind::Run, "train", 1}, {}, t.now));
}

TEST(BrokerTenants, ARunThatIsConnectedStaysWithoutClients) {
  TestBroker t;
  const TenantId tenant = t.tenant("train");
  t.broker.leave(t.join(tenant), t.now);
  t.now += 1h;
  t.broker.sample(t.now);
  EXPECT_NE(t.broker.find_tenant("train"), nullptr);
  t.broker.end_run(tenant, t.now);
  EXPECT_EQ(t.broker.find_tenant("train"), nullptr);
}

TEST(BrokerTenants, AUsersDebtIsNotForgottenAtOnce) {
  TestBroker t;
  const TenantName name{TenantKind::User, "user-1000", 1000};
  const auto tenant = t.broker.tenant_for(name, {}, t.now);
  ASSERT_TRUE(tenant);
  t.broker.leave(t.join(*tenant), t.now);
  t.now += Tenants::kTenantLingers - 1ns;
  t.broker.sample(t.now);
  EXPECT_EQ(*t.broker.tenant_for(name, {}, t.now), *tenant);
  t.now += 1ns;
  t.broker.sample(t.now);
  EXPECT_EQ(t.broker.find_tenant("user-1000"), nullptr);
}

// Nor before it is paid off, however long that takes.
TEST(BrokerTenants, AUsersDebtIsNotForgottenBeforeItIsPaidOff) {
  TestBroker t;
  const TenantName name{TenantKind::User, "user-1000", 1000};
  const auto tenant = t.broker.tenant_for(name, with_cores(1), t.now);
  ASSERT_TRUE(tenant);
  const ClientId client = t.join(*tenant);
  t.want(client);
  const std::uint64_t grant = t.granted(client);
  t.now += 1s;  // one kernel
  t.release(client, grant, 1s);
  t.broker.leave(client, t.now);
  t.now += 90s;
  t.broker.sample(t.now);
  EXPECT_NE(t.broker.find_tenant("user-1000"), nullptr);
  t.now += 10s;
  t.broker.sample(t.now);
  EXPECT_EQ(t.broker.find_tenant("user-1000"), nullptr);
}

// What a run has left is paid off at the run's limit.
TEST(BrokerTenants, AUsersDebtIsAlsoWhatItsRunsHaveLeft) {
  TestBroker t;
  const TenantName name{TenantKind::User, "user-1000", 1000};
  const auto user = t.broker.tenant_for(name, {}, t.now);
  ASSERT_TRUE(user);
  const auto run = t.broker.begin_run({TenantKind::Run, "train", 1000}, with_cores(1), t.now,
                                      wire::Backend::Default, false, *user);
  ASSERT_TRUE(run);
  const ClientId client = t.join(*run);
  t.want(client);
  const std::uint64_t grant = t.granted(client);
  t.now += 1s;  // one kernel
  t.release(client, grant, 1s);
  t.broker.leave(client, t.now);
  t.broker.end_run(*run, t.now);
  t.now += 90s;
  t.broker.sample(t.now);
  EXPECT_NE(t.broker.find_tenant("user-1000"), nullptr);
  t.now += 10s;
  t.broker.sample(t.now);
  EXPECT_EQ(t.broker.find_tenant("user-1000"), nullptr);
}

TEST(BrokerTenants, LimitsThatSomebodyHasSetStay) {
  TestBroker t;
  const TenantName name{TenantKind::User, "user-1000", 1000};
  const auto tenant = t.broker.tenant_for(name, {}, t.now);
  ASSERT_TRUE(t.broker.set_limits(*tenant, with_cores(30), t.now));
  t.now += 24h;
  t.broker.sample(t.now);
  ASSERT_NE(t.broker.find_tenant("user-1000"), nullptr);
  EXPECT_EQ(t.broker.find_tenant("user-1000")->limits.core_percent, 30);
}

TEST(BrokerTenants, AreBounded) {
  TestBroker t;
  for (std::size_t i = 0; i < Tenants::kMostTenants; ++i) t.tenant("t" + std::to_string(i));
  const auto one_more = t.broker.begin_run({TenantKind::Run, "one-more", 0}, {}, t.now);
  ASSERT_FALSE(one_more);
  EXPECT_EQ(one_more.error().message,
            "the scheduler serves 4096 tenants, as many as it can: end runs, or reset limits");
}

TEST(BrokerTenants, AUserDoesNotMakeRoomForItsOwnRun) {
  TestBroker t;
  const auto user = t.broker.tenant_for({TenantKind::User, "user-1000", 1000}, {}, t.now);
  t.now += 1s;
  const auto other = t.broker.tenant_for({TenantKind::User, "user-1001", 1001}, {}, t.now);
  for (std::size_t i = 2; i < Tenants::kMostTenants; ++i) t.tenant("t" + std::to_string(i));
  const auto begin = [&](const std::string& name) {
    return t.broker.begin_run({TenantKind::Run, name, 1000}, {}, t.now, wire::Backend::Default,
                              false, *user);
  };
  const auto run = begin("one-more");
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_EQ(t.broker.tenants().at(*run).parent, *user);
  EXPECT_FALSE(t.broker.tenants().contains(*other)) << "the next one that nobody uses";
}

TEST(BrokerTenants, WhoHasBeenAwayLongestMakesRoom) {
  TestBroker t;
  for (std::size_t i = 0; i < Tenants::kMostTenants; ++i) {
    const TenantName name{TenantKind::User, "user-" + std::to_string(i), 0};
    const auto tenant = t.broker.tenant_for(name, {}, t.now);
    if (i == 0) t.join(*tenant);
    if (i == 1) {
      ASSERT_TRUE(t.broker.set_limits(*tenant, with_cores(50), t.now));
    }
    if (i == 2) {
      ASSERT_TRUE(t.broker.set_paused(*tenant, true, t.now));
    }
    t.now += 1ms;
  }
  t.tenant("one-more");
  EXPECT_NE(t.broker.find_tenant("user-0"), nullptr) << "it is there";
  EXPECT_NE(t.broker.find_tenant("user-1"), nullptr) << "somebody has set its limits";
  EXPECT_NE(t.broker.find_tenant("user-2"), nullptr) << "it is paused";
  EXPECT_EQ(t.broker.find_tenant("user-3"), nullptr);
  EXPECT_NE(t.broker.find_tenant("user-4"), nullptr);
}

// --- how they are watched ----------------------------------------------------------------------

TEST(BrokerWatch, OnlyALoneUnlimitedClientIsFree) {
  EXPECT_EQ(watch_of(1, {}, false), Watch::Free);
  EXPECT_EQ(watch_of(2, {}, false), Watch::Metered);
  EXPECT_EQ(watch_of(1, with_cores(99), false), Watch::Metered);
  EXPECT_EQ(watch_of(1, {}, true), Watch::Metered);
}

TEST(BrokerWatch, FollowsWhoIsThere) {
  TestBroker t;
  const TenantId tenant = t.tenant("a");
  const auto welcome = t.try_join(tenant, TestBroker::hello());
  EXPECT_EQ(welcome->watch, Watch::Free);
  const ClientId first{welcome->client};
  t.page_of[first] = t.pages.back().get();
  EXPECT_TRUE(t.outbox.sent[first].empty()) << "the welcome says it all";
  const ClientId second = t.join(t.tenant("b"));
  ASSERT_EQ(t.outbox.take<wire::Mode>(first).at(0).watch, Watch::Metered);
  EXPECT_EQ(t.page(first).watch, static_cast<std::uint64_t>(Watch::Metered));
  EXPECT_TRUE(t.outbox.take<wire::Mode>(second).empty());
  t.broker.leave(second, t.now);
  ASSERT_EQ(t.outbox.take<wire::Mode>(first).at(0).watch, Watch::Free);
  ASSERT_TRUE(t.broker.set_limits(tenant, with_cores(50), t.now));
  ASSERT_EQ(t.outbox.take<wire::Mode>(first).at(0).watch, Watch::Metered);
  ASSERT_TRUE(t.broker.set_limits(tenant, with_cores(100), t.now));
  ASSERT_EQ(t.outbox.take<wire::Mode>(first).at(0).watch, Watch::Free);
  ASSERT_TRUE(t.broker.set_paused(tenant, true, t.now));
  ASSERT_EQ(t.outbox.take<wire::Mode>(first).at(0).watch, Watch::Metered);
}

// --- grants ------------------------------------------------------------------------------------

struct BrokerGrants : testing::Test {
  static core::Config turns() {
    core::Config config;
    config.share_mode = core::ShareMode::Turns;
    return config;
  }
  BrokerGrants() : a(t.tenant("a")), b(t.tenant("b")), one(t.join(a)), two(t.join(b)) {}
  TestBroker t{turns()};
  TenantId a;
  TenantId b;
  ClientId one;
  ClientId two;
};

TEST_F(BrokerGrants, TwoClientsTakeTurnsAndGrantsAreNumberedUpwards) {
  t.want(one);
  const std::uint64_t first = t.granted(one);
  EXPECT_NE(first, 0u);
  EXPECT_EQ(t.page(one).grant, first);
  t.want(two);
  EXPECT_EQ(t.granted(two), 0u);
  t.pass(1s);
  ASSERT_EQ(t.outbox.take<wire::Drop>(one).at(0).grant, first);
  t.release(one, first, 1s, true);
  EXPECT_EQ(t.page(one).grant, 0u);
  const std::uint64_t second = t.granted(two);
  EXPECT_GT(second, first);
  t.release(two, second, 1ms);
  EXPECT_GT(t.granted(one), second);
  EXPECT_TRUE(t.outbox.disconnected.empty());
}

TEST_F(BrokerGrants, WhoHoldsNoneCannotRelease) {
  t.release(one, 1, 1ms);
  EXPECT_TRUE(t.gone(one));
}

TEST_F(BrokerGrants, AnotherGrantThanTheOneHeldIsAnError) {
  t.want(one);
  t.release(one, t.granted(one) + 1, 1ms);
  EXPECT_TRUE(t.gone(one));
}

TEST_F(BrokerGrants, AskingTwiceIsAnError) {
  t.want(two);
  t.want(one);
  t.want(one);
  EXPECT_TRUE(t.gone(one));
  t.want(two);
  EXPECT_TRUE(t.gone(two)) << "while it holds one";
}

TEST_F(BrokerGrants, NonsenseIsAnError) {
  t.broker.packet(one, nullptr, t.now);
  EXPECT_TRUE(t.gone(one));
  t.say(two, TestBroker::hello());
  EXPECT_TRUE(t.gone(two));
  const ClientId three = t.join(a);
  t.say(three, wire::make<wire::Grant>());
  EXPECT_TRUE(t.gone(three));
  const ClientId four = t.join(a);
  auto moved = wire::make<wire::MemoryMoved>();
  moved.in = 1;
  t.say(four, moved);
  EXPECT_TRUE(t.gone(four));
}

TEST_F(BrokerGrants, AnUnknownTypeIsPassedOver) {
  auto message = wire::make<wire::Grant>();
  message.header.type = 999;
  t.say(one, message);
  EXPECT_FALSE(t.gone(one));
}

TEST_F(BrokerGrants, ADeadHoldersTurnGoesToTheNext) {
  t.want(one);
  t.want(two);
  EXPECT_NE(t.granted(one), 0u);
  EXPECT_EQ(t.granted(two), 0u);
  t.broker.leave(one, t.now);
  EXPECT_NE(t.granted(two), 0u);
  t.broker.leave(one, t.now);  // is not known any more
  t.want(one);
  EXPECT_FALSE(t.gone(one));
}

TEST_F(BrokerGrants, MoreThanTheTimeSinceTheGrantIsNotBelieved) {
  t.want(one);
  const std::uint64_t grant = t.granted(one);
  t.now += 10ms;
  auto message = wire::make<wire::Released>();
  message.grant = grant;
  message.used = UINT64_MAX;
  t.say(one, message);
  EXPECT_FALSE(t.gone(one));
  EXPECT_EQ(t.billed(a), 10ms);
}

TEST_F(BrokerGrants, WhoIgnoresADropIsReportedAndByConfigurationEnded) {
  core::Config config = turns();
  config.end_overdue = true;
  ASSERT_TRUE(t.broker.set_config(config, t.now));
  t.want(one);
  t.want(two);
  t.pass(config.drop_timeout + 1s);
  EXPECT_NE(t.lines.find("event=client_overdue client=1"), std::string::npos);
  EXPECT_TRUE(t.outbox.ended.contains(one));
  EXPECT_NE(t.granted(two), 0u) << "nobody waits for it";
}

TEST_F(BrokerGrants, APausedTenantIsStopped) {
  t.want(one);
  const std::uint64_t grant = t.granted(one);
  ASSERT_TRUE(t.broker.set_paused(a, true, t.now));
  ASSERT_TRUE(t.broker.set_paused(a, true, t.now)) << "already so";
  EXPECT_EQ(t.outbox.take<wire::Drop>(one).size(), 1u);
  t.release(one, grant, 1ms, true);
  t.pass(1s);
  EXPECT_EQ(t.granted(one), 0u);
  ASSERT_TRUE(t.broker.set_paused(a, false, t.now));
  EXPECT_NE(t.granted(one), 0u);
}

TEST_F(BrokerGrants, ALimitChangesAtOnceAndIsTold) {
  core::Limits limits = with_memory(gib(1));
  limits.core_percent = 25;
  limits.priority = 3;
  ASSERT_TRUE(t.broker.set_limits(a, limits, t.now));
  const auto told = t.outbox.take<wire::Limits>(one);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].core_limit, 25);
  EXPECT_EQ(told[0].priority, 3);
  EXPECT_EQ(told[0].memory_limit, static_cast<std::uint64_t>(gib(1).count));
  EXPECT_EQ(t.page(one).core_limit, 25u);
  EXPECT_TRUE(t.outbox.take<wire::Limits>(two).empty());
  EXPECT_FALSE(t.ask(one, gib(1) + Bytes{1}));
  limits.core_percent = 101;
  EXPECT_FALSE(t.broker.set_limits(a, limits, t.now));
  EXPECT_EQ(t.broker.find_tenant("a")->limits.core_percent, 25);
}

TEST_F(BrokerGrants, SwitchedOffEveryoneRuns) {
  ASSERT_TRUE(t.broker.set_scheduling(false, t.now));
  t.want(one);
  t.want(two);
  EXPECT_NE(t.granted(one), 0u);
  EXPECT_NE(t.granted(two), 0u);
  ASSERT_TRUE(t.broker.set_scheduling(true, t.now));
  EXPECT_EQ(t.outbox.take<wire::Drop>(one).size(), 1u);
}

// An hour alone has cost nobody anything: it is not held against who comes back.
TEST_F(BrokerGrants, AnHourAloneIsNoDebt) {
  t.broker.leave(two, t.now);
  t.want(one);
  EXPECT_NE(t.granted(one), 0u);
  t.pass(1h);
  t.broker.leave(one, t.now);
  one = t.join(a);
  two = t.join(b);
  t.want(one);
  t.want(two);
  std::map<ClientId, Duration> had;
  for (int i = 0; i < 1000; ++i) {
    for (const ClientId id : {one, two}) {
      const std::uint64_t grant = t.granted(id);
      if (grant == 0) continue;
      t.pass(5ms);
      had[id] += 5ms;
      t.release(id, grant, 5ms, true);
    }
  }
  EXPECT_GT(had[one], had[two] / 2);
  EXPECT_GT(had[two], had[one] / 2);
}

}  // namespace
}  // namespace nvshare::daemon
