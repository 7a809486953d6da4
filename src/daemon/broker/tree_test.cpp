#include "daemon/broker/tree.h"

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

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

core::Limits with_priority(int priority) {
  core::Limits limits;
  limits.priority = priority;
  return limits;
}

// A user with two runs, and a run inside the first.
struct Tree : testing::Test {
  explicit Tree(const core::Limits& limits = {})
      : user(*t.broker.tenant_for({TenantKind::User, "user-1000", 1000}, limits, t.now)),
        one(run("one", user)),
        two(run("two", user)),
        inner(run("inner", one)) {}

  TenantId run(const std::string& name, TenantId parent, const core::Limits& limits = {}) {
    const auto id = try_run(name, parent, limits);
    EXPECT_TRUE(id) << id.error().message;
    return id ? *id : TenantId{};
  }
  Result<TenantId> try_run(const std::string& name, TenantId parent,
                           const core::Limits& limits = {}, std::uint32_t uid = 1000) {
    return t.broker.begin_run({TenantKind::Run, name, uid}, limits, t.now, wire::Backend::Default,
                              false, parent);
  }
  const TenantRecord* find(const char* name) { return t.broker.find_tenant(name); }
  std::string refused(TenantId id, const core::Limits& limits) {
    const auto set = t.broker.set_limits(id, limits, t.now);
    return set ? "" : set.error().message;
  }

  TestBroker t;
  TenantId user;
  TenantId one;
  TenantId two;
  TenantId inner;
};

TEST_F(Tree, PartsKnowTheirParents) {
  EXPECT_FALSE(find("user-1000")->parent);
  EXPECT_EQ(find("user-1000")->parts, (std::set{one, two}));
  EXPECT_EQ(find("inner")->parent, one);
  EXPECT_TRUE(is_below(t.broker.tenants(), inner, user));
  EXPECT_TRUE(is_below(t.broker.tenants(), inner, inner));
  EXPECT_FALSE(is_below(t.broker.tenants(), inner, two));
  EXPECT_EQ(t.broker.core().snapshot().tenants.at(3).parent, one) << "the core knows, too";
}

// --- how long they stay ------------------------------------------------------------------------

TEST_F(Tree, ARunStaysUntilItsLastPartEnds) {
  t.broker.end_run(one, t.now);
  EXPECT_NE(find("one"), nullptr) << "a run inside it is there";
  t.broker.end_run(inner, t.now);
  EXPECT_EQ(find("inner"), nullptr);
  EXPECT_EQ(find("one"), nullptr) << "its last part has ended";
  EXPECT_NE(find("user-1000"), nullptr);
}

TEST_F(Tree, AParentLingersFromItsLastPartOn) {
  t.now += 1h;
  t.broker.sample(t.now);
  ASSERT_NE(find("user-1000"), nullptr) << "it has parts";
  for (const TenantId id : {inner, one, two}) t.broker.end_run(id, t.now);
  t.now += Tenants::kTenantLingers - 1ns;
  t.broker.sample(t.now);
  EXPECT_NE(find("user-1000"), nullptr);
  t.now += 1ns;
  t.broker.sample(t.now);
  EXPECT_EQ(find("user-1000"), nullptr);
}

TEST_F(Tree, AnOccupiedRunStaysUntilItIsVacant) {
  t.broker.end_run(two, t.now, true);
  t.now += 1h;
  t.broker.sample(t.now);
  ASSERT_NE(find("two"), nullptr);
  const ClientId client = t.join(two);
  t.broker.set_vacant(two, t.now);
  EXPECT_NE(find("two"), nullptr) << "a client is there";
  t.broker.leave(client, t.now);
  EXPECT_EQ(find("two"), nullptr);
}

TEST_F(Tree, ARunIsTakenOverByItsUserOnceItsKeeperIsGone) {
  EXPECT_FALSE(try_run("two", user)) << "its keeper is there";
  const ClientId client = t.join(two);
  t.broker.end_run(two, t.now);
  EXPECT_FALSE(try_run("two", user, {}, 1001)) << "another user's";
  EXPECT_FALSE(try_run("two", one)) << "another place";
  EXPECT_FALSE(t.broker.tenant_for({TenantKind::User, "two", 1000}, {}, t.now));
  const auto again = try_run("two", user, with_cores(25));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(*again, two);
  EXPECT_EQ(find("two")->limits.core_percent, 25) << "as asked now";
  EXPECT_EQ(t.page(client).core_limit, 25u);
  t.broker.leave(client, t.now);
  EXPECT_NE(find("two"), nullptr) << "it has a keeper again";
}

TEST_F(Tree, IsBoundedInDepth) {
  TenantId at = inner;
  int more = 0;
  while (const auto next = try_run("deeper-" + std::to_string(more), at)) {
    at = *next;
    ASSERT_LT(++more, 100);
  }
  EXPECT_GT(more, 3);
}

// --- what they get -----------------------------------------------------------------------------

TEST_F(Tree, SharesOfAWholeTreeAreOfTheSameTime) {
  const ClientId a = t.join(one);
  const ClientId b = t.join(two);
  const auto share = [&](const char* name) { return find(name)->share_percent.value_or(-1); };
  const auto turns = [&](Duration of_a, Duration of_b) {
    for (const auto& [client, used] : {std::pair(a, of_a), std::pair(b, of_b)}) {
      t.want(client);
      const std::uint64_t grant = t.granted(client);
      ASSERT_GT(grant, 0u);
      t.now += used;
      t.release(client, grant, used);
    }
    t.now += 1s - of_a - of_b;
    t.broker.sample(t.now);
  };
  for (int i = 0; i < 4; ++i) turns(400ms, 200ms);
  EXPECT_NEAR(share("user-1000"), 60, 0.1);
  core::Limits changed = with_cores(50);
  ASSERT_EQ(refused(one, changed), "");
  for (const char* name : {"user-1000", "one", "two"}) EXPECT_EQ(share(name), -1) << name;
  turns(100ms, 200ms);
  EXPECT_NEAR(share("one"), 10, 0.1);
  EXPECT_NEAR(share("one") + share("two"), share("user-1000"), 0.1);
}

// --- limits ------------------------------------------------------------------------------------

TEST_F(Tree, APartHasNoLimitAboveItsLevels) {
  core::Limits limits = with_memory(gib(4));
  limits.core_percent = 30;
  ASSERT_EQ(refused(user, limits), "");
  EXPECT_EQ(refused(inner, with_cores(31)),
            "cores 31 is above the limit of 'user-1000', which is 30");
  EXPECT_EQ(refused(inner, with_memory(gib(5))),
            "memory 5GiB is above the limit of 'user-1000', which is 4GiB");
  EXPECT_EQ(refused(inner, with_priority(1)), "priority 1 is above the limit of 'one', which is 0");
  limits.core_percent = 20;
  EXPECT_EQ(refused(one, limits), "");
  EXPECT_EQ(refused(inner, with_cores(25)), "cores 25 is above the limit of 'one', which is 20");
  EXPECT_EQ(refused(inner, with_cores(20)), "");
  EXPECT_EQ(refused(inner, with_cores(100)), "") << "no limit of its own";
}

TEST_F(Tree, AParentCanBeLoweredBelowItsParts) {
  ASSERT_EQ(refused(one, with_cores(50)), "");
  ASSERT_EQ(refused(user, with_cores(30)), "");
  core::Limits same = with_memory(gib(1));
  same.core_percent = 50;
  EXPECT_EQ(refused(one, same), "") << "its cores stay as they are";
  EXPECT_EQ(tightest_limits(t.broker.tenants(), inner).core_percent, 30);
}

TEST_F(Tree, ANewPartIsCheckedForWhatItAsks) {
  core::Limits limits = with_memory(gib(4));
  limits.priority = -3;
  ASSERT_EQ(refused(user, limits), "");
  const TenantMap& tenants = t.broker.tenants();
  EXPECT_TRUE(check_part(tenants, user, {})) << "asks for nothing";
  EXPECT_TRUE(check_part(tenants, user, with_memory(gib(4))));
  EXPECT_FALSE(check_part(tenants, user, with_memory(gib(4) + Bytes{1})));
  EXPECT_FALSE(check_part(tenants, one, with_priority(-2)));
  EXPECT_TRUE(check_part(tenants, std::nullopt, with_priority(10)));
}

TEST_F(Tree, ProgramsSeeTheTightestLimitAndTheLeastRoom) {
  const ClientId first = t.join(inner);
  const ClientId second = t.join(two);
  ASSERT_TRUE(t.ask(first, gib(1)));
  ASSERT_TRUE(t.ask(second, gib(3)));
  EXPECT_EQ(t.page(first).memory_limit, 0u);
  EXPECT_EQ(t.page(first).tenant_allocated, static_cast<std::uint64_t>(gib(1).count));
  ASSERT_EQ(refused(user, with_memory(gib(8))), "");
  EXPECT_EQ(t.page(first).memory_limit, static_cast<std::uint64_t>(gib(8).count));
  EXPECT_EQ(t.page(first).tenant_allocated, static_cast<std::uint64_t>(gib(4).count))
      << "of both runs";
  EXPECT_EQ(t.outbox.take<wire::Limits>(first).back().memory_limit,
            static_cast<std::uint64_t>(gib(8).count));
  ASSERT_EQ(refused(one, with_memory(gib(6))), "");
  EXPECT_EQ(t.page(first).memory_limit, static_cast<std::uint64_t>(gib(6).count));
  EXPECT_EQ(t.page(first).tenant_allocated, static_cast<std::uint64_t>(gib(2).count))
      << "the user has room for 4 GiB";
  EXPECT_EQ(t.page(second).memory_limit, static_cast<std::uint64_t>(gib(8).count));
  t.free(second, gib(3));
  EXPECT_EQ(t.page(first).tenant_allocated, static_cast<std::uint64_t>(gib(1).count))
      << "its run has the least room";
  EXPECT_EQ(t.page(second).tenant_allocated, static_cast<std::uint64_t>(gib(1).count));
  ASSERT_EQ(refused(user, with_memory(gib(2))), "");
  EXPECT_EQ(t.page(first).memory_limit, static_cast<std::uint64_t>(gib(2).count));
  const ClientId late = t.join(two);
  EXPECT_EQ(t.page(late).memory_limit, static_cast<std::uint64_t>(gib(2).count));
  EXPECT_EQ(t.page(late).tenant_allocated, static_cast<std::uint64_t>(gib(1).count));
}

// Two clients under one limit never have credit: each could use up what the other counts on.
TEST_F(Tree, OnlyALoneClientUnderALimitHasCredit) {
  const auto has_credit = [&](ClientId id) {
    return t.page_of.at(id)->pinned_credit.cap.load() != 0;
  };
  const ClientId first = t.join(one);
  const ClientId second = t.join(two);
  ASSERT_TRUE(t.ask(first, mib(1)));
  ASSERT_TRUE(t.ask(second, mib(1)));
  EXPECT_TRUE(has_credit(first)) << "no limit is above both";
  EXPECT_TRUE(has_credit(second));
  ASSERT_EQ(refused(user, with_memory(gib(8))), "");
  EXPECT_FALSE(has_credit(first)) << "taken back with the limit of the parent";
  EXPECT_FALSE(has_credit(second));
  ASSERT_TRUE(t.ask(first, mib(1)));
  EXPECT_FALSE(has_credit(first));
  t.broker.leave(second, t.now);
  ASSERT_TRUE(t.ask(first, mib(1)));
  EXPECT_TRUE(has_credit(first)) << "it is alone under the limit";
}

TEST_F(Tree, AClientBelowALimitOrAPauseIsMetered) {
  const ClientId client = t.join(inner);
  EXPECT_EQ(t.page(client).watch, static_cast<std::uint64_t>(wire::Watch::Free));
  ASSERT_EQ(refused(user, with_cores(30)), "");
  EXPECT_EQ(t.page(client).watch, static_cast<std::uint64_t>(wire::Watch::Metered));
  EXPECT_EQ(t.page(client).core_limit, 30u);
  ASSERT_EQ(refused(user, {}), "");
  EXPECT_EQ(t.page(client).watch, static_cast<std::uint64_t>(wire::Watch::Free));
  ASSERT_TRUE(t.broker.set_paused(one, true, t.now));
  EXPECT_EQ(t.page(client).watch, static_cast<std::uint64_t>(wire::Watch::Metered));
}

// --- sums --------------------------------------------------------------------------------------

TEST_F(Tree, AParentHasWhatItsPartsHave) {
  const ClientId first = t.join(inner);
  const ClientId second = t.join(two);
  ASSERT_TRUE(t.ask(first, gib(1)));
  ASSERT_TRUE(t.ask(second, gib(2)));
  EXPECT_EQ(t.broker.allocated_by(*find("one"), GpuId{0}), gib(1));
  EXPECT_EQ(t.broker.allocated_by(*find("user-1000"), GpuId{0}), gib(3));
  EXPECT_FALSE(t.ask(first, gib(100)));
  EXPECT_EQ(find("inner")->refused, 1u);
  EXPECT_EQ(find("one")->refused, 1u);
  EXPECT_EQ(find("two")->refused, 0u);
  EXPECT_EQ(find("user-1000")->refused, 1u);
}

TEST_F(Tree, AParentsGpuTimeIsThatOfItsPartsAlsoOfThoseThatAreGone) {
  const ClientId first = t.join(inner);
  t.want(first);
  std::uint64_t grant = t.granted(first);
  t.broker.sample(t.now);
  EXPECT_EQ(find("user-1000")->wanting, 1);
  t.now += 1s;
  t.meter(first, grant, 400ms);
  t.broker.sample(t.now);
  EXPECT_EQ(t.broker.bills()[user], 400ms);
  EXPECT_EQ(t.broker.bills()[one], 400ms);
  EXPECT_EQ(t.broker.bills()[two], 0ms);
  ASSERT_TRUE(find("user-1000")->share_percent);
  EXPECT_NEAR(*find("user-1000")->share_percent, 40, 0.01);
  t.release(first, grant, 400ms);
  EXPECT_EQ(find("user-1000")->wanting, 0);
  EXPECT_EQ(wanted(*find("user-1000"), t.now), 1s);
  t.broker.leave(first, t.now);
  t.broker.end_run(inner, t.now);
  t.broker.end_run(one, t.now);
  ASSERT_EQ(find("one"), nullptr);
  EXPECT_EQ(t.broker.bills()[user], 400ms);
}

TEST_F(Tree, SleepOfAParentIsThatOfEachPart) {
  const ClientId first = t.join(inner);
  const ClientId second = t.join(two);
  ASSERT_TRUE(t.broker.set_asleep(user, true, true, t.now));
  EXPECT_TRUE(t.broker.clients().at(first).asleep);
  EXPECT_TRUE(t.broker.clients().at(second).asleep);
  EXPECT_FALSE(*t.broker.set_asleep(user, true, true, t.now)) << "already so";
  EXPECT_TRUE(*t.broker.set_asleep(two, false, false, t.now));
  EXPECT_TRUE(*t.broker.set_asleep(user, false, false, t.now));
  EXPECT_FALSE(t.broker.clients().at(first).asleep);
  EXPECT_FALSE(t.broker.clients().at(second).asleep);
}

}  // namespace
}  // namespace nvshare::daemon
