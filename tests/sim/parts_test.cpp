// Tenants that are parts of one another, in virtual time: each level keeps its own limit, and parts
// share what their tenant has.

#include "scenarios.h"

namespace nvshare::sim {
namespace {

using core::ComputePolicy;

TenantSpec tenant(const char* name, int cores, std::optional<std::string> part_of = {}) {
  return {.name = name, .limits = {.core_percent = cores, .memory = {}}, .part_of = part_of};
}

ClientSpec part(const char* of, ClientSpec spec) {
  spec.part_of = of;
  return spec;
}

Scenario metered(Duration lasts = 20s) {
  return one_gpu(ComputePolicy::Metered, lasts);
}

TEST(Parts, ThreeRunsOfATenantWithThirtyPercentHaveThirtyTogether) {
  Scenario s = metered();
  s.tenants = {tenant("user", 30)};
  for (const char* name : {"a", "b", "c"}) {
    s.clients.push_back(part("user", saturating(name, 100, 2ms)));
  }
  const Report report = play(s);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(share_of(report, i), 10, 0.5) << i;
}

TEST(Parts, ATenantOfFortyWithTwoRunsBesideOneOfSixty) {
  Scenario s = metered();
  s.tenants = {tenant("a", 40)};
  for (const char* name : {"a1", "a2"}) {
    ClientSpec run = part("a", saturating(name, 100, 2ms));
    run.processes = 2;
    s.clients.push_back(run);
  }
  s.clients.push_back(saturating("b", 60, 2ms));
  const Report report = play(s);
  EXPECT_NEAR(share_of(report, 0), 20, 0.5);
  EXPECT_NEAR(share_of(report, 1), 20, 0.5);
  EXPECT_NEAR(share_of(report, 2), 60, 1);
}

TEST(Parts, APartKeepsItsOwnLimitAndTheOthersHaveTheRest) {
  Scenario s = metered();
  s.tenants = {tenant("user", 50)};
  s.clients = {part("user", saturating("small", 10, 1ms)),
               part("user", saturating("other", 100, 1ms)), saturating("beside", 100, 1ms)};
  const Report report = play(s);
  EXPECT_NEAR(share_of(report, 0), 10, 0.5);
  EXPECT_NEAR(share_of(report, 1), 40, 1);
  EXPECT_NEAR(share_of(report, 2), 50, 1);
}

// What parts with lower limits leave of their tenant's is not saved up for a part that comes later.
TEST(Parts, WhatThePartsCannotUseIsNotSavedUp) {
  for (const bool alone : {true, false}) {
    Scenario s = metered(70s);
    s.tenants = {tenant("user", 30)};
    ClientSpec late = part("user", saturating("late", 100, 1ms));
    late.arrives = 60s;
    s.clients = {part("user", saturating("small", 10, 1ms)), late};
    if (!alone) s.clients.push_back(saturating("beside", 100, 1ms));
    const Report report = play(s);
    EXPECT_NEAR(share_of(report, 0), 10, 0.5) << alone;
    EXPECT_NEAR(share_of(report, 1) * 7, 20, 3) << alone;  // of the last ten seconds
  }
}

TEST(Parts, LimitsOfPartsAboveTheirTenantsShrinkInProportion) {
  Scenario s = metered();
  s.tenants = {tenant("user", 30)};
  s.clients = {part("user", saturating("a", 30, 1ms)), part("user", saturating("b", 15, 1ms)),
               saturating("beside", 60, 1ms)};
  const Report report = play(s);
  EXPECT_NEAR(share_of(report, 0), 20, 0.7);
  EXPECT_NEAR(share_of(report, 1), 10, 0.7);
  EXPECT_NEAR(share_of(report, 2), 60, 1);
}

TEST(Parts, FourLevelsEachKeepTheirLimit) {
  Scenario s = metered();
  s.tenants = {tenant("pod", 60), tenant("container", 40, "pod"), tenant("run", 30, "container")};
  s.clients = {part("run", saturating("inner", 100, 1ms)),
               part("container", saturating("middle", 100, 1ms)),
               part("pod", saturating("outer", 100, 1ms)), saturating("beside", 100, 1ms)};
  const Report report = play(s);
  EXPECT_LE(share_of(report, 0), 30.5);
  EXPECT_LE(share_of(report, 0) + share_of(report, 1), 40.5);
  const double pod = share_of(report, 0) + share_of(report, 1) + share_of(report, 2);
  EXPECT_NEAR(pod, 60, 1);
  EXPECT_NEAR(share_of(report, 3), 40, 1);
}

// A user is no better off with three runs than with one.
TEST(Parts, UsersWithoutLimitsShareEquallyWhateverTheirRuns) {
  Scenario s = metered();
  s.tenants = {tenant("alice", 100), tenant("bob", 100)};
  for (const char* name : {"a1", "a2", "a3"}) {
    s.clients.push_back(part("alice", saturating(name, 100, 2ms)));
  }
  s.clients.push_back(part("bob", saturating("b", 100, 2ms)));
  const Report report = play(s);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(share_of(report, i), 100.0 / 6, 1) << i;
  EXPECT_NEAR(share_of(report, 3), 50, 1);
}

TEST(Parts, ALimitOfARunIsAPromiseWhateverOtherUsersHave) {
  Scenario s = metered();
  s.tenants = {tenant("alice", 100), tenant("bob", 100)};
  s.clients = {part("alice", saturating("promised", 30, 2ms))};
  for (const char* name : {"b1", "b2", "b3", "b4"}) {
    s.clients.push_back(part("bob", saturating(name, 100, 2ms)));
  }
  const Report report = play(s);
  EXPECT_NEAR(share_of(report, 0), 30, 0.7);
}

// All below one user without limits: the same as without the user.
TEST(Parts, ATenantWithoutALimitChangesNothingForItsOnlyParts) {
  Scenario flat = metered(10s);
  flat.clients = {saturating("a", 30, 2ms), bursty("b", 60, 40ms, 20ms), saturating("c", 100, 1ms)};
  flat.clients[0].limits.priority = 3;
  Scenario nested = flat;
  nested.tenants = {tenant("user", 100)};
  nested.tenants[0].limits.priority = core::kHighestPriority;
  for (ClientSpec& client : nested.clients) client.part_of = "user";
  const Report one = play(flat);
  const Report other = play(nested);
  // The one run without a limit is the only part of its kind, so that it has all that is its due.
  for (std::size_t i = 0; i < one.clients.size(); ++i) {
    EXPECT_EQ(one.clients[i].gpu_time, other.clients[i].gpu_time) << i;
  }
}

TEST(Parts, PartsThatAreIdleLeaveTheirPartToTheOthers) {
  Scenario s = metered();
  s.tenants = {tenant("user", 40)};
  ClientSpec late = part("user", saturating("late", 100, 1ms));
  late.arrives = 10s;
  s.clients = {part("user", saturating("early", 100, 1ms)), late, saturating("b", 60, 1ms)};
  const Report report = play(s);
  EXPECT_NEAR(share_of(report, 0), 30, 1);  // 40, then 20
  EXPECT_NEAR(share_of(report, 1), 10, 1);
  EXPECT_NEAR(share_of(report, 2), 60, 1);
}

TEST(Parts, ALimitThatATenantGetsLaterHoldsForAllItsParts) {
  Scenario s = metered();
  s.tenants = {tenant("user", 100)};
  s.tenants[0].changes = {{10s, {.core_percent = 20, .memory = {}}}};
  s.clients = {part("user", saturating("a", 100, 1ms)), part("user", saturating("b", 100, 1ms)),
               saturating("beside", 100, 1ms)};
  const Report report = play(s);
  EXPECT_NEAR(share_of(report, 0), 17.5, 1);  // 25, then 10
  EXPECT_NEAR(share_of(report, 1), 17.5, 1);
  EXPECT_NEAR(share_of(report, 2), 65, 1);
}

TEST(Parts, ALimitThatATenantLosesBindsNoneOfItsParts) {
  Scenario s = metered();
  s.tenants = {tenant("user", 20)};
  s.tenants[0].changes = {{10s, {.core_percent = 100, .memory = {}}}};
  s.clients = {part("user", saturating("a", 100, 1ms)), part("user", saturating("b", 10, 1ms))};
  const Report report = play(s);
  EXPECT_NEAR(share_of(report, 0) + share_of(report, 1), 60, 1);  // 20, then 100
  EXPECT_NEAR(share_of(report, 1), 10, 1);
}

// Its clients do not begin anew then, as if they had used nothing: also while one of them runs.
TEST(Parts, ATenantThatGetsItsFirstPartHasNothingAheadOfOthers) {
  for (int i = 0; i < 10; ++i) {
    Scenario s = metered(20s);
    ClientSpec late = part("a", saturating("late", 100, 1ms));
    late.arrives = 10s + i * 37ms;
    s.clients = {saturating("a", 100, 1ms), saturating("b", 100, 1ms), late};
    s.clients[0].processes = 2;
    EXPECT_NEAR(share_of(play(s), 1), 50, 1) << i;
  }
}

// A run inside a run: the outer one's own processes are one part more.
TEST(Parts, ARunInsideARunSharesWithItsProcesses) {
  Scenario s = metered();
  ClientSpec inner = part("outer", saturating("inner", 100, 1ms));
  inner.arrives = 10s;
  s.clients = {saturating("outer", 40, 1ms), inner, saturating("beside", 60, 1ms)};
  const Report report = play(s);
  EXPECT_NEAR(share_of(report, 0), 30, 1);  // 40, then 20
  EXPECT_NEAR(share_of(report, 1), 10, 1);
  EXPECT_NEAR(share_of(report, 2), 60, 1);
}

// Kernels far above a turn: what a part runs over its tenant pays.
TEST(Parts, LongKernelsOfPartsArePaidByTheTenant) {
  Scenario s = metered(60s);
  s.tenants = {tenant("user", 20)};
  s.clients = {part("user", saturating("a", 100, 200ms)), part("user", saturating("b", 100, 200ms)),
               saturating("beside", 50, 1ms)};
  const Report report = play(s);
  EXPECT_NEAR(share_of(report, 0) + share_of(report, 1), 20, 1.5);
  EXPECT_NEAR(share_of(report, 2), 50, 1.5);
}

TEST(Parts, BurstyPartsHaveTheirTenantsLimit) {
  Scenario s = metered();
  s.tenants = {tenant("user", 40)};
  s.clients = {part("user", bursty("a", 100, 20ms, 20ms)),
               part("user", bursty("b", 100, 20ms, 20ms)), saturating("beside", 100, 1ms)};
  const Report report = play(s);
  EXPECT_NEAR(share_of(report, 0) + share_of(report, 1), 40, 1.5);
}

// Idle for a moment after each burst: the tenant is idle then too, and still owes.
TEST(Parts, ALoneBurstyPartHasItsTenantsLimit) {
  for (const Duration burst : {2ms, 20ms, 60ms}) {
    Scenario s = metered();
    s.tenants = {tenant("user", 10)};
    s.clients = {part("user", bursty("a", 100, burst, 1ms))};
    EXPECT_NEAR(share_of(play(s), 0), 10, 0.7) << to_text(burst);
    s.clients.push_back(saturating("beside", 100, 1ms));
    EXPECT_NEAR(share_of(play(s), 0), 10, 0.7) << to_text(burst);
  }
}

// A limit that goes while one part runs and others wait.
TEST(Parts, ALimitThatComesAndGoesOftenHarmsNothing) {
  Scenario s = metered(5s);
  s.tenants = {tenant("user", 50), tenant("inner", 40, "user")};
  for (int i = 1; i < 40; ++i) {
    const int limit = i % 2 == 0 ? 50 : 100;
    s.tenants[0].changes.push_back({i * 113ms, {.core_percent = limit, .memory = {}}});
    s.tenants[1].changes.push_back({i * 97ms, {.core_percent = 140 - limit, .memory = {}}});
  }
  s.clients = {part("user", saturating("a", 100, 1ms)), part("inner", saturating("b", 100, 3ms)),
               part("inner", saturating("c", 30, 1ms)), part("user", saturating("d", 100, 2ms))};
  for (ClientSpec& client : s.clients) client.processes = 2;
  const Report report = play(s);
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += share_of(report, i);
  EXPECT_GT(sum, 60);
}

TEST(Parts, APriorityOfAPartIsNoneAboveItsTenants) {
  Scenario s = metered();
  s.tenants = {tenant("alice", 100), tenant("bob", 100)};
  s.clients = {part("alice", saturating("a", 100, 1ms)), part("bob", saturating("b", 100, 1ms))};
  s.clients[0].limits.priority = 10;
  const Report report = play(s);
  EXPECT_NEAR(share_of(report, 0), 50, 1);
  EXPECT_NEAR(share_of(report, 1), 50, 1);
}

// Whatever the tenants with a limit have saved up, and however many parts they have.
TEST(Parts, BestEffortKeepsItsFloorBesideTenantsWithParts) {
  for (const int runs : {1, 3}) {
    Scenario s = metered();
    s.tenants = {tenant("A", 50), tenant("B", 49)};
    s.clients = {saturating("notebook", 100, 2ms)};
    for (int i = 0; i < runs; ++i) {
      s.clients.push_back(part("A", bursty("a", 100, 300ms, 300ms)));
      s.clients.push_back(part("B", bursty("b", 100, 300ms, 300ms)));
    }
    const Report report = play(s);
    EXPECT_GE(share_of(report, 0), 5) << runs;
    EXPECT_LE(report.clients[0].longest_wait, 250ms) << runs;
  }
}

// The limit of a user is worth as much as that of a run: its turns are as long.
TEST(Parts, AUsersLimitHandsOverNoMoreOftenThanARuns) {
  const auto turns_of = [](bool nested) {
    Scenario s = metered(10s);
    s.hand_over = 300us;
    ClientSpec four = saturating("run", nested ? 100 : 25, 1ms);
    four.processes = 4;
    if (nested) s.tenants = {tenant("user", 25)};
    s.clients = {nested ? part("user", four) : four};
    std::size_t turns = 0;
    const auto report = run(s, true);
    for (const ClientReport& client : report->clients) turns += client.spans.size();
    return turns;
  };
  EXPECT_LE(turns_of(true), turns_of(false) * 11 / 10) << turns_of(false);
}

// --- the requirement's policies ----------------------------------------------------------------

class PartsInWindows : public ::testing::TestWithParam<ComputePolicy> {};

TEST_P(PartsInWindows, TogetherStayWithinTheirTenantsLimit) {
  Scenario s = one_gpu(GetParam(), 40s);
  s.tenants = {tenant("user", 30)};
  s.clients = {part("user", saturating("a", 100, 1ms)), part("user", saturating("b", 20, 1ms)),
               saturating("beside", 60, 1ms)};
  const Report report = play(s);
  EXPECT_LE(share_of(report, 0) + share_of(report, 1), 31);
  EXPECT_GE(share_of(report, 0) + share_of(report, 1), GetParam() == ComputePolicy::Wall ? 14 : 28);
  EXPECT_LE(share_of(report, 1), 21);
}

TEST_P(PartsInWindows, AChangedLimitOfATenantHoldsForItsParts) {
  Scenario s = one_gpu(GetParam(), 40s);
  s.tenants = {tenant("user", 100)};
  s.tenants[0].changes = {{20s, {.core_percent = 10, .memory = {}}}};
  s.clients = {part("user", saturating("a", 40, 1ms)), part("user", saturating("b", 100, 1ms)),
               saturating("beside", 60, 1ms)};
  const Report report = play(s);
  Scenario half = s;
  half.lasts = 20s;
  const Report before = play(half);
  const auto in_second_half = [&](int place) {
    return 2 * share_of(report, place) - share_of(before, place);
  };
  EXPECT_LE(in_second_half(0) + in_second_half(1), 12);
}

INSTANTIATE_TEST_SUITE_P(Policies, PartsInWindows,
                         ::testing::Values(ComputePolicy::Wall, ComputePolicy::Weighted,
                                           ComputePolicy::Hybrid, ComputePolicy::Coordinated,
                                           ComputePolicy::Dynamic, ComputePolicy::Fair),
                         [](const auto& one) { return std::string(core::name_of(one.param)); });

}  // namespace
}  // namespace nvshare::sim
