// The requirement on memory-aware scheduling (seed 002): its tables in sections 7, 8.2 and 8.3, the
// corrected reserve of 10.1, and the cases of its challenges.

#include "core/residency.h"
#include "scenarios.h"

namespace nvshare::sim {
namespace {

using core::ComputePolicy;

constexpr Bytes gb(std::int64_t n) {
  return {n * 1'000'000'000};
}

Scenario job(Duration lasts, Bytes memory = gib(16)) {
  return one_gpu(ComputePolicy::Metered, lasts, memory);
}

ClientSpec pod(const char* name, Bytes memory, Duration total) {
  ClientSpec spec = with_memory(saturating(name, 100, 2ms), memory);
  spec.work.total = total;
  return spec;
}

Bytes moved(const Report& report) {
  Bytes sum;
  for (const ClientReport& client : report.clients) sum += client.moved_in + client.moved_out;
  return sum;
}

double hours(const Report& report) {
  return static_cast<double>(report.lasted.count()) / 3.6e12;
}

// 8.2: switch time = bytes / bandwidth x 5.
TEST(Seed002, Section82SwitchTimes) {
  const core::Config config;
  EXPECT_EQ(core::switch_quantum(gb(10), gb(10), config), 10s) << "the bound is 10 s";
  EXPECT_EQ(core::switch_quantum(gb(10), gb(1), config), 50s);
  EXPECT_EQ(core::switch_quantum(gb(12), gb(1), config), 60s);
}

// 8.3, case 1: three times 4 GB in 16 GB run at the same time and nothing is switched.
TEST(Seed002, Section83ThreeThatFitRunTogether) {
  Scenario scenario = job(10min);
  for (const char* name : {"A", "B", "C"}) scenario.clients.push_back(pod(name, gib(4), 1h));
  const Report report = play(scenario);
  EXPECT_EQ(moved(report), Bytes{});
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(share_of(report, i), 100.0 / 3, 0.5);
}

// 8.3, case 2: two times 12 GB in 16 GB: one is in memory and runs, the other waits its turn.
TEST(Seed002, Section83TwoThatDoNotFitTakeTurns) {
  struct Watch : Observer {
    void after_step(const core::Event&, Time, const core::Decisions&,
                    const core::Core& core) override {
      const core::Snapshot s = core.snapshot();
      EXPECT_LE(s.gpus[0].running, 1);
      EXPECT_LE(s.gpus[0].resident, s.gpus[0].safe_limit);
    }
  } watch;
  Scenario scenario = job(1h);
  scenario.clients = {pod("A", gib(12), 2h), pod("B", gib(12), 2h)};
  const Report report = play(scenario, &watch);
  EXPECT_GT(report.clients[0].switches, 2);
  EXPECT_NEAR(share_of(report, 0), share_of(report, 1), 3);
  EXPECT_GE(share_of(report, 0) + share_of(report, 1), 100.0 * 5 / 6);  // quantum = 5 x cost
}

// 7, row 1: four pods of 12 GB, an hour of work each, take four hours, not fifteen.
TEST(Seed002, Section7FourTimesTwelve) {
  Scenario scenario = job(16h);
  scenario.link_per_second = gib(10);
  for (const char* name : {"A", "B", "C", "D"}) scenario.clients.push_back(pod(name, gib(12), 1h));
  const Report report = play(scenario);
  for (const ClientReport& client : report.clients) EXPECT_TRUE(client.finished);
  EXPECT_GE(hours(report), 4.0);
  EXPECT_LE(hours(report), 4.0 * 1.25);     // a switch costs a fifth of a quantum at the most
  scenario.link_per_second = gib(50);       // PCIe 5, and everything else as it is by default
  EXPECT_LT(hours(play(scenario)), 4.105);  // 4.10 h
  EXPECT_GT(moved(report), gib(12));
}

// 7, row 2: two pods of 12 GB that fit take as long as without sharing, and nothing moves.
TEST(Seed002, Section7TwoThatFit) {
  Scenario scenario = job(16h, gib(32));
  scenario.clients = {pod("A", gib(12), 1h), pod("B", gib(12), 1h)};
  const Report report = play(scenario);
  EXPECT_NEAR(hours(report), 2.0, 0.01);
  EXPECT_EQ(moved(report), Bytes{});
}

// 7, row 3: ten light pods of 1 GB finish in the half hour that one would take.
TEST(Seed002, Section7TenLightPods) {
  Scenario scenario = job(16h);
  for (int i = 0; i < 10; ++i) {
    ClientSpec spec = with_memory(bursty("light", 100, 1ms, 19ms), gib(1));
    spec.arrives = i * 2ms;
    spec.work.total = 90s;
    scenario.clients.push_back(spec);
  }
  const Report report = play(scenario);
  for (const ClientReport& client : report.clients) EXPECT_TRUE(client.finished);
  EXPECT_NEAR(hours(report), 0.5, 0.02);
  EXPECT_EQ(moved(report), Bytes{});
}

// 10.1: ten processes need 500 MB + 10 x 300 MB, which is more than 10 % of 16 GB.
TEST(Seed002, Section101ReserveCountsProcesses) {
  Scenario scenario = job(1s);
  for (int i = 0; i < 10; ++i) scenario.clients.push_back(saturating("p", 100));
  struct Watch : Observer {
    void after_step(const core::Event&, Time, const core::Decisions&,
                    const core::Core& core) override {
      safe = core.snapshot().gpus.empty() ? Bytes{} : core.snapshot().gpus[0].safe_limit;
    }
    Bytes safe;
  } watch;
  play(scenario, &watch);
  EXPECT_EQ(watch.safe, gib(16) - mib(500) - mib(3000));
}

// Challenge 2, case 1: A has run its quantum and B waits: switch. Case 2: A is done early: B at
// once.
TEST(Seed002, Challenge2SwitchesOnTimeOutAndOnCompletion) {
  Scenario timed = job(10min);
  timed.config.quantum_mode = core::QuantumMode::Fixed;
  timed.config.quantum_fixed = 30s;
  timed.clients = {pod("A", gib(12), 1h), pod("B", gib(12), 1h)};
  const Report report = play(timed);
  EXPECT_LE(report.clients[1].longest_wait, 31s);

  Scenario early = timed;
  early.clients[0].work.total = 5s;
  const Report done = play(early);
  EXPECT_EQ(ms(done.clients[0].finished->time_since_epoch()), 5000);
  EXPECT_LE(done.clients[1].longest_wait, 5500ms);
}

// Challenge 2, case 3: A runs and B, which waits, allocates more: A keeps its quantum.
TEST(Seed002, Challenge2GrowthOfAWaitingClientDoesNotCutTheQuantum) {
  Scenario scenario = job(2min);
  scenario.config.quantum_mode = core::QuantumMode::Fixed;
  scenario.config.quantum_fixed = 30s;
  scenario.clients = {pod("A", gib(12), 1h), pod("B", gib(8), 1h)};
  scenario.clients[1].memory.push_back({5s, gib(11)});
  auto report = run(scenario, true);
  ASSERT_TRUE(report);
  EXPECT_GE(report->clients[0].spans.at(0).to, Time{30s});
}

// Challenge 3: the second job goes to the idle GPU instead of waiting for the first.
TEST(Seed002, Challenge3AnIdleGpuComesFirst) {
  Scenario scenario = job(1min);
  scenario.gpus[0].count = 2;
  scenario.clients = {pod("A", gib(12), 30s), pod("B", gib(12), 30s)};
  scenario.clients[1].arrives = 1s;
  const Report report = play(scenario);
  EXPECT_NE(report.clients[0].gpu, report.clients[1].gpu);
  EXPECT_EQ(report.clients[1].wait, Duration{});
}

}  // namespace
}  // namespace nvshare::sim
