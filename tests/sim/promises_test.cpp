// Ways around a promise that a careless scheduler leaves open, one test each.

#include "core/testing.h"
#include "scenarios.h"

namespace nvshare::sim {
namespace {

using core::ComputePolicy;
using core::TestCore;

Scenario metered(Duration lasts = 60s) {
  return one_gpu(ComputePolicy::Metered, lasts);
}

// One short-lived process after the other: the tenant's debt outlives each of them.
TEST(Promises, ANewProcessDoesNotClearTheTenantsDebt) {
  for (ComputePolicy policy : core::kComputePolicies) {
    SCOPED_TRACE(std::string(core::name_of(policy)));
    core::Config config;
    config.policy = policy;
    TestCore t(config);
    t.gpu(0);
    t.tenant(1, 25);
    Duration used{};
    const Time end = t.now + 200s;
    for (int id = 10; t.now < end; ++id) {
      t.step(core::ClientAdded{TestCore::cid(id), core::TenantId{1}, core::GpuId{0}});
      t.want(id);
      while (t.state(id) != core::ClientState::Running && t.now < end) t.pass(1ms);
      if (t.now >= end) break;
      t.now += 400ms;  // one kernel, whatever it is told meanwhile
      t.release(id, 400ms, false);
      t.step(core::ClientGone{TestCore::cid(id)});
      used += 400ms;
    }
    EXPECT_NEAR(100.0 * static_cast<double>(used.count()) / 200e9, 25, 1.5);
  }
}

// A client that grows and shrinks all the time keeps what is left of its quantum, and no more.
TEST(Promises, GrowingAllTheTimeDoesNotKeepTheGpu) {
  for (bool fixed : {false, true}) {
    Scenario scenario = metered(300s);
    if (fixed) scenario.config.quantum_mode = core::QuantumMode::Fixed;
    scenario.config.quantum_fixed = 10s;
    scenario.clients = {with_memory(saturating("A", 100, 2ms), gib(12)),
                        with_memory(saturating("B", 100, 2ms), gib(12))};
    for (int i = 1; i < 600; ++i) {
      scenario.clients[0].memory.push_back({i * 500ms, i % 2 == 0 ? gib(12) : gib(12) + mib(1)});
    }
    const Report report = play(scenario);
    EXPECT_GE(share_of(report, 1), 30) << fixed;
    EXPECT_LE(report.clients[1].longest_wait, 75s) << fixed;
  }
}

// Who does not move its memory when told to is reported, and others are asked instead.
TEST(Promises, AClientThatDoesNotMoveItsMemoryIsWorkedAround) {
  TestCore t;
  t.gpu(0);
  for (int i : {1, 2, 3}) t.client(i);
  t.allocate(1, gib(8));
  t.allocate(2, gib(6));
  t.allocate(3, gib(5));
  t.now += 10min;
  core::Decisions all = t.want(3);
  for (const core::BringIn& in : core::only<core::BringIn>(all)) t.move_to(3, in.bytes);
  for (core::Decision& d : t.pass(2min)) all.push_back(d);
  const auto asked = core::only<core::SendOut>(all);
  ASSERT_GE(asked.size(), 2u);  // the second because the first did nothing
  EXPECT_NE(asked[0].client, asked[1].client);
  const auto overdue = core::only<core::Overdue>(all);
  ASSERT_FALSE(overdue.empty());
  EXPECT_EQ(overdue[0].client, asked[0].client);
  EXPECT_EQ(overdue.size(), 2u);  // once each
}

// Going up to "no limit" and back in the middle of a kernel forgives only what was done in between.
TEST(Promises, ALimitLiftedForAMomentForgivesThatMomentOnly) {
  TestCore t;
  t.gpu(0);
  t.client(1, 25);
  Duration used{};
  const Time end = t.now + 400s;
  t.want(1);
  while (t.now < end) {
    while (t.state(1) != core::ClientState::Running && t.now < end) t.pass(1ms);
    t.now += 990ms;
    t.step(core::LimitsChanged{core::TenantId{1}, {.core_percent = 100, .memory = {}}});
    t.step(core::LimitsChanged{core::TenantId{1}, {.core_percent = 25, .memory = {}}});
    t.now += 10ms;
    t.release(1, 1s);
    used += 1s;
  }
  EXPECT_LE(100.0 * static_cast<double>(used.count()) / 400e9, 25.5);
  EXPECT_GE(100.0 * static_cast<double>(used.count()) / 400e9, 20);
}

TEST(Promises, LongKernelsWithoutALimitLeaveTheLimitsAlone) {
  for (int limit : {95, 99}) {
    Scenario scenario = metered(800s);
    scenario.clients = {saturating("A", limit, 2ms), saturating("B", 100, 1s)};
    const Report report = play(scenario);
    EXPECT_NEAR(share_of(report, 0), 95, 1) << limit;
    EXPECT_NEAR(share_of(report, 1), 5, 1) << limit;
  }
}

// Bursts shorter than a turn get what they are promised beside somebody who always has work.
TEST(Promises, ShortBurstsBesideSaturating) {
  Scenario scenario = metered();
  scenario.clients = {bursty("A", 50, 3ms, 2ms), saturating("B", 100, 100us)};
  const Report report = play(scenario);
  EXPECT_NEAR(share_of(report, 0), 50, 1);
  EXPECT_NEAR(share_of(report, 1), 50, 1);
}

// A holder that hardly uses its turns does not keep an equal from its share.
TEST(Promises, AHolderThatHardlyUsesItsTurnsDoesNotStarveItsEqual) {
  for (int limit : {50, 100}) {
    TestCore t;
    t.gpu(0);
    t.client(1, limit);
    t.client(2, limit);
    t.want(1);
    t.want(2);
    Duration second{};
    const Time end = t.now + 20s;
    while (t.now < end) {
      const bool first_runs =
          t.state(1) == core::ClientState::Running || t.state(1) == core::ClientState::Stopping;
      const bool second_runs =
          t.state(2) == core::ClientState::Running || t.state(2) == core::ClientState::Stopping;
      t.pass(5ms);
      if (first_runs && t.state(1) == core::ClientState::Stopping) t.release(1, 100us);
      if (second_runs) {
        t.release(2, 5ms);
        second += 5ms;
      }
    }
    EXPECT_GE(100.0 * static_cast<double>(second.count()) / 20e9, 30) << limit;
  }
}

// A limit holds for a client that also waits for memory: what it earned meanwhile it may use.
TEST(Promises, WaitingForMemoryIsNotIdling) {
  Scenario scenario = metered(300s);
  scenario.config.quantum_mode = core::QuantumMode::Fixed;
  scenario.config.quantum_fixed = 10s;
  scenario.clients = {with_memory(saturating("A", 50, 2ms), gib(12)),
                      with_memory(saturating("B", 50, 2ms), gib(12))};
  const Report report = play(scenario);
  EXPECT_GE(share_of(report, 0), 42);
  EXPECT_GE(share_of(report, 1), 42);
  EXPECT_LE(share_of(report, 0), 50.5);
  EXPECT_LE(share_of(report, 1), 50.5);
}

TEST(Promises, DynamicGoesOnWithoutASilentClient) {
  Scenario scenario = one_gpu(ComputePolicy::Dynamic, 60s);
  scenario.clients = {saturating("A", 40, 2ms), saturating("B", 50, 2ms), saturating("C", 60, 2ms)};
  scenario.clients[1].work.kind = WorkloadKind::Silent;
  const Report report = play(scenario);
  EXPECT_LE(report.clients[0].longest_wait, 10s);
  EXPECT_LE(report.clients[2].longest_wait, 10s);
}

// A tenant that was ready across the end of a window starts the new one with its whole quota.
TEST(Promises, ANewWindowBringsAWholeQuota) {
  core::Config config;
  config.policy = ComputePolicy::Coordinated;
  TestCore t(config);
  t.gpu(0);
  t.client(1, 50);
  t.client(2, 50);
  t.want(1);
  t.now += 900ms;
  t.release(1, 900ms, false);
  t.want(2);
  t.want(1);
  t.now = Time{2050ms};
  t.step(core::Tick{});
  t.release(2, 1s, false);
  ASSERT_EQ(t.state(1), core::ClientState::Running);
  EXPECT_TRUE(core::only<core::Drop>(t.pass(900ms)).empty());
}

// Limits hold when clients are made to run together, too.
TEST(Promises, ConcurrentModeKeepsLimits) {
  Scenario scenario = metered();
  scenario.config.share_mode = core::ShareMode::Concurrent;
  scenario.clients = {saturating("A", 25, 2ms), saturating("B", 100, 2ms)};
  EXPECT_NEAR(share_of(play(scenario), 0), 25, 2);
  scenario.clients[0].work.kind = WorkloadKind::Silent;
  struct Watch : Observer {
    void after_step(const core::Event&, Time, const core::Decisions& decisions,
                    const core::Core&) override {
      overdue += core::only<core::Overdue>(decisions).size();
    }
    std::size_t overdue = 0;
  } watch;
  play(scenario, &watch);
  EXPECT_EQ(watch.overdue, 1u);
}

TEST(Promises, AnUnchangedLimitChangesNothing) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  t.want(1);
  EXPECT_TRUE(t.step(core::LimitsChanged{core::TenantId{1}, {.memory = {}}}).empty());
  EXPECT_TRUE(
      core::only<core::Drop>(t.step(core::LimitsChanged{core::TenantId{1}, {.memory = gib(4)}}))
          .empty());
}

}  // namespace
}  // namespace nvshare::sim
