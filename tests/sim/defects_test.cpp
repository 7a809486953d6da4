// Defects known from other schedulers of this kind, one test each. Each says what they do wrong.

#include "core/testing.h"
#include "scenarios.h"

namespace nvshare::sim {
namespace {

using core::ComputePolicy;
using core::TestCore;

Scenario metered(Duration lasts = 60s) {
  return one_gpu(ComputePolicy::Metered, lasts);
}

// "25 % with a 1 s kernel gives 67 %": the overrun of a long kernel is forgiven.
TEST(PeerDefects, OneSecondKernelsUnder25PercentGet25) {
  Scenario scenario = metered(400s);
  scenario.clients = {saturating("A", 25, 1s)};
  EXPECT_NEAR(share_of(play(scenario), 0), 25, 0.5);
}

// "50 % beside an unlimited client gives 26 %".
TEST(PeerDefects, FiftyPercentBesideAnUnlimitedClientGets50) {
  Scenario scenario = metered();
  scenario.clients = {saturating("A", 50, 2ms), saturating("B", 100, 2ms)};
  const Report report = play(scenario);
  EXPECT_NEAR(share_of(report, 0), 50, 0.5);
  EXPECT_NEAR(share_of(report, 1), 50, 0.5);
}

// "50 % with three idle 50 % clients gives 27 %": idle clients are counted as running.
TEST(PeerDefects, FiftyPercentWithThreeIdleClientsGets50) {
  for (ComputePolicy policy : core::kComputePolicies) {
    SCOPED_TRACE(std::string(core::name_of(policy)));
    Scenario scenario = one_gpu(policy, 60s);
    scenario.clients = {saturating("A", 50, 2ms)};
    for (const char* name : {"B", "C", "D"}) {
      scenario.clients.push_back(saturating(name, 50));
      scenario.clients.back().work.kind = WorkloadKind::Idle;
    }
    EXPECT_NEAR(share_of(play(scenario), 0), 50, 0.5);
  }
}

// "A 25 % pod with 4 processes gives 100 %": every process gets the whole quota again.
TEST(PeerDefects, FourProcessesInA25PercentTenantGet25Together) {
  for (ComputePolicy policy : core::kComputePolicies) {
    SCOPED_TRACE(std::string(core::name_of(policy)));
    Scenario scenario = one_gpu(policy, 60s);
    scenario.clients = {saturating("A", 25, 2ms)};
    scenario.clients[0].processes = 4;
    EXPECT_NEAR(share_of(play(scenario), 0), 25, 0.5);
  }
}

// "A client that ignores the drop gives 100 % and the timer spins".
TEST(PeerDefects, AClientThatIgnoresTheDropIsReportedChargedAndWorkedAround) {
  TestCore t;
  t.gpu(0);
  t.client(1, 25);
  t.client(2);
  t.want(1);
  t.want(2);
  const auto decisions = t.pass(10min);
  ASSERT_EQ(core::only<core::Overdue>(decisions).size(), 1u);
  EXPECT_EQ(core::only<core::Overdue>(decisions)[0].client, TestCore::cid(1));
  EXPECT_EQ(core::only<core::Grant>(decisions).at(0).client, TestCore::cid(2));  // the others go on
  EXPECT_LT(t.ticks, 10);                                                        // nothing spins
  // It comes back after ten minutes: charged in full, so it waits for half an hour.
  t.release(1, 1ms);
  t.release(2, 1ms, false);
  EXPECT_TRUE(core::only<core::Grant>(t.pass(29min)).empty());
  EXPECT_EQ(core::only<core::Grant>(t.pass(2min)).size(), 1u);
}

TEST(PeerDefects, AClientThatIgnoresTheDropIsEndedWhenConfigured) {
  core::Config config;
  config.end_overdue = true;
  TestCore t(config);
  t.gpu(0);
  t.client(1, 25);
  t.want(1);
  EXPECT_TRUE(core::only<core::Overdue>(t.pass(1min)).at(0).end);
}

// The tenant of such a client gets nothing more through its other processes.
TEST(PeerDefects, AnOverdueClientsSiblingsWait) {
  TestCore t;
  t.gpu(0);
  t.client(1, 25);
  t.step(core::ClientAdded{TestCore::cid(2), core::TenantId{1}, core::GpuId{0}});
  t.want(1);
  t.want(2);
  EXPECT_TRUE(core::only<core::Grant>(t.pass(1min)).empty());
  EXPECT_EQ(t.why(2), "waits because another of its processes does not stop when told to");
}

// "Small clients pass a big waiting one without bound".
TEST(PeerDefects, SmallClientsDoNotStarveABigOne) {
  Scenario scenario = metered(10min);
  scenario.config.quantum_mode = core::QuantumMode::Fixed;
  scenario.config.quantum_fixed = 10s;
  for (int i = 0; i < 100; ++i) {  // a small one arrives every 5 s and stays for 30
    ClientSpec small = with_memory(saturating("small", 100, 2ms), gib(2));
    small.arrives = i * 5s;
    small.leaves = i * 5s + 30s;
    scenario.clients.push_back(small);
  }
  ClientSpec big = with_memory(saturating("big", 100, 2ms), gib(12));
  big.arrives = 31s;
  scenario.clients.push_back(big);
  const Report report = play(scenario);
  // First in line after whoever waited before it; then one quantum, the drain and the move.
  EXPECT_LE(report.clients.back().longest_wait, 40s);
  EXPECT_GE(share_of(report, 100), 10);
}

// "Rotation unreachable at defaults: of two clients that do not fit, the first keeps the GPU for
// ever".
TEST(PeerDefects, RotationHappensAtDefaults) {
  Scenario scenario = metered(10min);
  scenario.clients = {with_memory(saturating("A", 100, 2ms), gib(12)),
                      with_memory(saturating("B", 100, 2ms), gib(12))};
  const Report report = play(scenario);
  EXPECT_GT(share_of(report, 0), 30);
  EXPECT_GT(share_of(report, 1), 30);
}

// "Memory freed while others run is not offered to the queue".
TEST(PeerDefects, FreedMemoryIsOfferedAtOnce) {
  Scenario scenario = metered(60s);
  scenario.clients = {with_memory(saturating("A", 100, 2ms), gib(12)),
                      with_memory(saturating("B", 100, 2ms), gib(8))};
  scenario.clients[0].memory.push_back({3s, gib(2)});
  const Report report = play(scenario);
  EXPECT_LE(report.clients[1].longest_wait, 3200ms);
}

// "An overload flag that never clears": once the pressure is gone everybody runs again.
TEST(PeerDefects, PressureEnds) {
  Scenario scenario = metered(120s);
  scenario.clients = {with_memory(saturating("A", 100, 2ms), gib(6)),
                      with_memory(saturating("B", 100, 2ms), gib(6)),
                      with_memory(saturating("C", 100, 2ms), gib(12))};
  scenario.clients[2].leaves = 30s;
  struct Watch : Observer {
    void after_step(const core::Event&, Time now, const core::Decisions& decisions,
                    const core::Core&) override {
      if (now < Time{40s}) return;
      EXPECT_TRUE(core::only<core::SendOut>(decisions).empty());
      EXPECT_TRUE(core::only<core::BringIn>(decisions).empty());
    }
  } watch;
  const Report report = play(scenario, &watch);
  EXPECT_GT(share_of(report, 0), 35);
  EXPECT_GT(share_of(report, 1), 35);
}

// "Total memory assumed 16 GiB".
TEST(PeerDefects, TheGpusOwnSizeCounts) {
  for (int size : {8, 24, 139}) {
    TestCore t;
    t.gpu(0, gib(size));
    t.client(1);
    EXPECT_EQ(core::only<core::MemoryRefused>(t.allocate(1, gib(size))).size(), 1u);
    EXPECT_EQ(core::only<core::MemoryAvailable>(t.allocate(1, gib(size * 8 / 10))).size(), 1u);
  }
}

// "A lost API call lifts the limit to 100 %": what is not a limit is refused and the last one
// stays.
TEST(PeerDefects, ABadLimitKeepsTheLastGoodOne) {
  TestCore t;
  t.gpu(0);
  t.client(1, 25);
  EXPECT_FALSE(
      t.refused(core::LimitsChanged{core::TenantId{1}, {.core_percent = 0, .memory = {}}}).empty());
  EXPECT_FALSE(
      t.refused(core::LimitsChanged{core::TenantId{1}, {.core_percent = 250, .memory = {}}})
          .empty());
  EXPECT_EQ(t.core.snapshot().tenants[0].limits.core_percent, 25);
}

// Changing a limit must not give back what was used (seed 001, 2.3): 10 % of 10 s, 0.9 s used, then
// 90 %: 8.1 s are left in this window, not 9.
TEST(PeerDefects, ALimitChangeInMidWindowKeepsWhatWasUsed) {
  Scenario scenario = one_gpu(ComputePolicy::Wall, 10s);
  scenario.config.window = 10s;
  scenario.clients = {saturating("A", 10)};
  scenario.clients[0].changes = {{900ms, {.core_percent = 90, .memory = {}}}};
  const Report raised = play(scenario);
  EXPECT_EQ(ms(raised.clients[0].run), 9000);
  EXPECT_EQ(ms(raised.clients[0].first_throttle->time_since_epoch()), 9000);

  scenario.clients[0].limits.core_percent = 90;
  scenario.clients[0].changes = {{5s, {.core_percent = 10, .memory = {}}}};
  const Report lowered = play(scenario);
  EXPECT_EQ(ms(lowered.clients[0].run), 5000);  // 1 s was allowed: stopped at once
}

// Going back and forth between limits gains nothing under `metered` either.
TEST(PeerDefects, ChangingALimitOftenGainsNothing) {
  Scenario scenario = metered(60s);
  scenario.clients = {saturating("A", 20, 2ms)};
  for (int i = 1; i < 600; ++i) {
    scenario.clients[0].changes.push_back(
        {i * 100ms, {.core_percent = i % 2 == 0 ? 20 : 30, .memory = {}}});
  }
  EXPECT_NEAR(share_of(play(scenario), 0), 25, 0.5);
}

// A changed limit is in force within 200 ms.
TEST(PeerDefects, AChangedLimitIsEffectiveAtOnce) {
  Scenario before = metered(10s);
  before.clients = {saturating("A", 25, 2ms), saturating("B", 100, 2ms)};
  Scenario after = before;
  after.lasts = 20s;
  after.clients[0].changes = {{10s, {.core_percent = 75, .memory = {}}}};
  const double first = share_of(play(before), 0) * 10;
  const double second = share_of(play(after), 0) * 20 - first;
  EXPECT_NEAR(second / 10, 75, 1);  // 200 ms of the difference
}

// "Any invented GPU id makes a thread", register-then-close, events for the dead: all refused,
// nothing grows, nothing breaks.
TEST(PeerDefects, InventedIdsAndSuddenDeathsChangeNothing) {
  TestCore t;
  t.gpu(0);
  t.tenant(1);
  for (std::uint64_t id = 100; id < 300; ++id) {
    EXPECT_FALSE(
        t.refused(core::ClientAdded{core::ClientId{id}, core::TenantId{1}, core::GpuId{id}})
            .empty());
  }
  EXPECT_EQ(t.core.snapshot().gpus.size(), 1u);
  EXPECT_TRUE(t.core.snapshot().clients.empty());
  for (int i = 0; i < 1000; ++i) {
    t.step(core::ClientAdded{TestCore::cid(7), core::TenantId{1}, core::GpuId{0}});
    if (i % 2 == 0) t.want(7);
    t.step(core::ClientGone{TestCore::cid(7)});
    EXPECT_FALSE(t.refused(core::Released{TestCore::cid(7), 1ms, false}).empty());
  }
  EXPECT_TRUE(t.core.snapshot().clients.empty());
  EXPECT_EQ(t.core.next_wakeup(), std::nullopt);
}

// Serialising what fits costs 12 to 21 %: clients whose memory fits are never stopped for memory.
TEST(PeerDefects, ClientsThatFitAreNeverStoppedForMemory) {
  Scenario scenario = metered(60s);
  scenario.clients = {with_memory(saturating("A", 100, 2ms), gib(6)),
                      with_memory(saturating("B", 100, 2ms), gib(6))};
  const Report report = play(scenario);
  EXPECT_EQ(report.clients[0].switches + report.clients[1].switches, 0);
  EXPECT_GE(report.gpus[0].utilization_percent, 99.5);
}

// Only the one over its budget is stopped; the others run on (seed 001, 1.2).
TEST(PeerDefects, OnlyTheOneOverBudgetIsDropped) {
  core::Config config;
  config.policy = ComputePolicy::Weighted;
  TestCore t(config);
  t.gpu(0);
  t.client(1, 20);
  t.client(2, 70);
  t.want(1);
  t.want(2);
  const auto drops = core::only<core::Drop>(t.pass(900ms));
  ASSERT_EQ(drops.size(), 1u);
  EXPECT_EQ(drops[0].client, TestCore::cid(1));
  EXPECT_EQ(t.state(2), core::ClientState::Running);
}

// The tail between drop and release is billed, in full by default or by the requirement's knob.
TEST(PeerDefects, TheTailIsBilledAsMeasured) {
  for (int percent : {100, 70, 0}) {
    core::Config config;
    config.policy = ComputePolicy::Wall;
    config.tail_billing_percent = percent;
    TestCore t(config);
    t.gpu(0);
    t.client(1, 50);
    t.want(1);
    EXPECT_EQ(core::only<core::Drop>(t.pass(1s)).size(), 1u);
    t.now += 100ms;
    t.release(1, 1100ms);
    EXPECT_EQ(t.core.snapshot().shares[0].billed, 1000ms + 1ms * percent);
  }
}

// What a window was overrun by is taken from the next one, in full by default.
TEST(PeerDefects, OverrunsAreCarriedOver) {
  for (int percent : {100, 50, 0}) {
    core::Config config;
    config.policy = ComputePolicy::Wall;
    config.carryover_percent = percent;
    TestCore t(config);
    t.gpu(0);
    t.client(1, 50);
    t.want(1);
    t.pass(1s);
    t.now += 400ms;
    t.release(1, 1400ms);
    EXPECT_EQ(core::only<core::Grant>(t.pass(600ms)).size(), 1u);  // the next window
    const Time start = t.now;
    while (t.state(1) == core::ClientState::Running) t.pass(1ms);
    EXPECT_EQ(ms(t.now - start), 1000 - 4 * percent);
  }
}

}  // namespace
}  // namespace nvshare::sim
