// Tenants that are parts of one another: what their limits mean for memory, pauses and debts.
// tests/sim/parts_test.cpp has the shares of GPU time.

#include "core/testing.h"

namespace nvshare::core {
namespace {

TenantId tid(int id) {
  return TenantId{static_cast<std::uint64_t>(id)};
}

class PartsTest : public ::testing::Test {
 protected:
  PartsTest() { core_.gpu(0); }
  void tenant(int id, Limits limits, std::optional<int> parent = std::nullopt) {
    core_.step(TenantAdded{tid(id), "t" + std::to_string(id), limits,
                           parent ? std::optional(tid(*parent)) : std::nullopt});
  }
  void client(int id, int of, std::optional<Bytes> limit = std::nullopt) {
    core_.step(ClientAdded{TestCore::cid(id), tid(of), GpuId{0}, limit});
  }
  // The reason of a refusal; nothing when the memory was given.
  std::optional<Reason> ask(int id, Bytes bytes) {
    for (const Decision& d : core_.allocate(id, bytes)) {
      if (std::holds_alternative<MemoryRefused>(d.action)) return d.reason;
    }
    return std::nullopt;
  }
  // The client has the GPU for so long in one kernel, and ends with its tenant.
  Duration run_once(int id, int parent, int cores, Duration kernel) {
    const Time begin = core_.now;
    tenant(id, {.core_percent = cores, .memory = {}}, parent);
    client(id, id);
    core_.want(id);
    while (core_.state(id) != ClientState::Running) core_.pass(1ms);
    const Duration waited = core_.now - begin;
    core_.now += kernel;
    core_.release(id, kernel, false);
    core_.step(ClientGone{TestCore::cid(id)});
    core_.step(TenantRemoved{tid(id)});
    return waited;
  }

  TestCore core_;
};

TEST_F(PartsTest, AParentMustBeThere) {
  EXPECT_EQ(core_.refused(TenantAdded{tid(1), "a", {}, tid(9)}), "parent tenant 9 is not known");
  EXPECT_EQ(core_.refused(TenantAdded{tid(1), "a", {}, tid(1)}), "parent tenant 1 is not known");
}

TEST_F(PartsTest, AParentStaysWhileItHasParts) {
  tenant(1, {});
  tenant(2, {}, 1);
  EXPECT_EQ(core_.refused(TenantRemoved{tid(1)}), "tenant 1 still has 1 parts");
  core_.step(TenantRemoved{tid(2)});
  core_.step(TenantRemoved{tid(1)});
}

TEST_F(PartsTest, TenantsAreNotInOneAnotherWithoutEnd) {
  tenant(1, {});
  for (int i = 2; i <= kDeepestTenant; ++i) tenant(i, {}, i - 1);
  EXPECT_EQ(core_.refused(TenantAdded{tid(99), "x", {}, tid(kDeepestTenant)}),
            "tenants are in one another 8 deep at most");
}

TEST_F(PartsTest, PartsHaveTheirTenantsMemoryTogether) {
  tenant(1, {.memory = gib(4)});
  tenant(2, {}, 1);
  tenant(3, {.memory = gib(3)}, 1);
  client(2, 2);
  client(3, 3);
  EXPECT_FALSE(ask(2, gib(2)));
  EXPECT_FALSE(ask(3, gib(2)));
  const auto refused = ask(3, gib(2) + Bytes{1});
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->why, Why::LimitExceeded);
  EXPECT_EQ(refused->level, tid(1));
  core_.step(MemoryChanged{TestCore::cid(2), {}, {}, {}});
  EXPECT_FALSE(ask(3, gib(3)));
  const auto own = ask(3, gib(3) + Bytes{1});
  ASSERT_TRUE(own);
  EXPECT_EQ(own->level, std::nullopt);  // its own limit
}

TEST_F(PartsTest, ClientsBesidePartsCountForTheSameLimit) {
  tenant(1, {.memory = gib(4)});
  client(1, 1);
  EXPECT_FALSE(ask(1, gib(3)));
  tenant(2, {}, 1);
  client(2, 2);
  EXPECT_TRUE(ask(2, gib(2)));
  EXPECT_FALSE(ask(2, gib(1)));
  EXPECT_TRUE(ask(1, gib(3) + Bytes{1}));
  core_.step(ClientGone{TestCore::cid(2)});
  EXPECT_FALSE(ask(1, gib(4)));
}

// NVSHARE_GPU_MEMORY_LIMIT of two processes of one run.
TEST_F(PartsTest, ClientsOfATenantThatBringTheSameLimitHaveItTogether) {
  tenant(1, {});
  client(1, 1, gib(1));
  client(2, 1, gib(1));
  client(3, 1);
  EXPECT_FALSE(ask(3, gib(5)));
  EXPECT_FALSE(ask(1, mib(600)));
  EXPECT_FALSE(ask(2, mib(424)));
  const auto refused = ask(2, mib(425));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->why, Why::OwnLimitExceeded);
  core_.step(ClientGone{TestCore::cid(1)});
  EXPECT_FALSE(ask(2, gib(1)));
}

TEST_F(PartsTest, APauseHoldsForAllParts) {
  tenant(1, {});
  tenant(2, {}, 1);
  client(2, 2);
  core_.want(2);
  EXPECT_EQ(core_.state(2), ClientState::Running);
  core_.step(TenantPaused{tid(1)});
  EXPECT_EQ(core_.state(2), ClientState::Stopping);
  core_.release(2, 1ms);
  EXPECT_EQ(core_.why(2), "t1 is paused; resume t1 to let it run");
  core_.step(TenantPaused{tid(2)});
  core_.step(TenantPaused{tid(1), false});
  EXPECT_NE(core_.state(2), ClientState::Running);  // its own pause still holds
  core_.step(TenantPaused{tid(2), false});
  EXPECT_EQ(core_.state(2), ClientState::Running);
}

TEST_F(PartsTest, ThePartIsToldWhoseLimitItWaitsFor) {
  tenant(1, {.core_percent = 10, .memory = {}});
  tenant(2, {}, 1);
  client(2, 2);
  core_.want(2);
  core_.now += 1s;
  core_.release(2, 1s);
  const auto why = core_.core.reason(TestCore::cid(2), core_.now);
  ASSERT_TRUE(why);
  EXPECT_EQ(why->why, Why::OverLimit);
  EXPECT_EQ(why->level, tid(1));
  EXPECT_NE(core_.why(2).find("limit is of t1"), std::string::npos) << core_.why(2);
}

// One kernel of 400 ms in each run, again and again, is worth 10 %.
TEST_F(PartsTest, ALoopOfRunsGainsNothing) {
  tenant(1, {});
  Duration used{};
  const Time begin = core_.now;
  for (int i = 2; i < 22; ++i) {
    run_once(i, 1, 10, 400ms);
    used += 400ms;
  }
  const double percent =
      100.0 * static_cast<double>(used.count()) / static_cast<double>((core_.now - begin).count());
  EXPECT_NEAR(percent, 10, 1);
}

// Nor where each run is so short that a new one's first allowance would do.
TEST_F(PartsTest, ALoopOfShortRunsGainsNothing) {
  tenant(1, {});
  Duration used{};
  const Time begin = core_.now;
  for (int i = 2; i < 402; ++i) {
    run_once(i, 1, 10, 4ms);
    used += 4ms;
  }
  const double percent =
      100.0 * static_cast<double>(used.count()) / static_cast<double>((core_.now - begin).count());
  EXPECT_NEAR(percent, 10, 1);
}

// A debt is nobody's but of those that are parts of the same tenant, and is paid off in time.
TEST_F(PartsTest, ADebtIsPaidOffAndNotInheritedByOthers) {
  tenant(1, {});
  tenant(100, {});
  run_once(2, 1, 10, 400ms);
  EXPECT_LT(run_once(3, 100, 10, 1ms), 10ms);
  EXPECT_GT(run_once(4, 1, 10, 1ms), 3s);
  core_.pass(60s);
  EXPECT_LT(run_once(5, 1, 10, 1ms), 10ms);
}

TEST_F(PartsTest, GpuTimeIsBilledAtEveryLevel) {
  tenant(1, {});
  tenant(2, {}, 1);
  client(1, 1);
  client(2, 2);
  core_.want(2);
  core_.now += 10ms;
  core_.release(2, 10ms, false);
  core_.want(1);
  core_.now += 5ms;
  core_.release(1, 5ms, false);
  std::map<TenantId, Duration> billed;
  for (const ShareView& share : core_.core.snapshot().shares) billed[share.tenant] = share.billed;
  EXPECT_EQ(billed[tid(1)], 15ms);
  EXPECT_EQ(billed[tid(2)], 10ms);
}

TEST_F(PartsTest, ATenantThatGetsPartsWhileItRunsLosesNothing) {
  tenant(1, {.core_percent = 50, .memory = gib(8)});
  client(1, 1);
  ASSERT_FALSE(ask(1, gib(2)));
  core_.want(1);
  ASSERT_EQ(core_.state(1), ClientState::Running);
  core_.now += 2ms;
  tenant(2, {}, 1);
  client(2, 2);
  core_.want(2);
  core_.now += 2ms;
  core_.release(1, 4ms, true);
  EXPECT_EQ(core_.state(2), ClientState::Running);
  core_.now += 5ms;
  core_.release(2, 5ms, false);
  while (core_.state(1) == ClientState::Waiting) core_.pass(1ms);
  EXPECT_EQ(core_.state(1), ClientState::Running);
  core_.step(ClientGone{TestCore::cid(1)});
  core_.step(ClientGone{TestCore::cid(2)});
  core_.step(TenantRemoved{tid(2)});
  core_.step(TenantRemoved{tid(1)});
}

}  // namespace
}  // namespace nvshare::core
