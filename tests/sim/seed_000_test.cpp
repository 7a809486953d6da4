// Every number of the walk-throughs and tables in the requirement on concurrent compute limits
// (seed 000), under the policies that they describe. Window 2000 ms, saturating clients.

#include "scenarios.h"

namespace nvshare::sim {
namespace {

using core::ComputePolicy;

struct Who {
  const char* name;
  int cores;
  Duration arrives{};
};

Report play(ComputePolicy policy, const std::vector<Who>& clients, Duration lasts = 2s) {
  Scenario scenario = one_gpu(policy, lasts);
  for (const Who& who : clients) {
    scenario.clients.push_back(saturating(who.name, who.cores));
    scenario.clients.back().arrives = who.arrives;
  }
  return sim::play(scenario);
}

long run_ms(const Report& r, std::size_t i) {
  return ms(r.clients[i].run);
}
long throttled_ms(const Report& r, std::size_t i) {
  return r.clients[i].first_throttle ? ms(r.clients[i].first_throttle->time_since_epoch()) : -1;
}
long busy(const Report& r) {
  return std::lround(r.gpus[0].utilization_percent);
}

// 1.2: both reach 1000 ms at T=1000 and the GPU idles from 1000 to 2000.
TEST(Seed000, Section12WallChargesOverlapTwice) {
  const Report r = play(ComputePolicy::Wall, {{"A", 50}, {"B", 50}});
  EXPECT_EQ(throttled_ms(r, 0), 1000);
  EXPECT_EQ(throttled_ms(r, 1), 1000);
  EXPECT_EQ(busy(r), 50);
}

// 3.1: at T=1000 500 ms are billed and nobody stops; at T=2000 both have used 1000 ms.
TEST(Seed000, Section31WeightedFillsTheWindow) {
  const Report r = play(ComputePolicy::Weighted, {{"A", 50}, {"B", 50}});
  EXPECT_EQ(throttled_ms(r, 0), 2000);
  EXPECT_EQ(throttled_ms(r, 1), 2000);
  EXPECT_EQ(busy(r), 100);
  const Report half = play(ComputePolicy::Weighted, {{"A", 50}, {"B", 50}}, 1s);
  EXPECT_EQ(throttled_ms(half, 0), -1);
  EXPECT_EQ(throttled_ms(half, 1), -1);
}

// 3.2: B (20 %) stops at 800 ms, A (50 %) at 1400 ms; 70 % busy.
TEST(Seed000, Section32WeightedFollowsTheNumberRunning) {
  const Report r = play(ComputePolicy::Weighted, {{"A", 50}, {"B", 20}});
  EXPECT_EQ(throttled_ms(r, 1), 800);
  EXPECT_EQ(throttled_ms(r, 0), 1400);
  EXPECT_EQ(run_ms(r, 0), 1400);
  EXPECT_EQ(run_ms(r, 1), 800);
  EXPECT_EQ(busy(r), 70);
}

// 6.1, point 2: 80 % + 80 % under weighted: neither is ever stopped.
TEST(Seed000, Section61WeightedOverCommitVoidsLimits) {
  const Report r = play(ComputePolicy::Weighted, {{"A", 80}, {"B", 80}}, 20s);
  EXPECT_EQ(throttled_ms(r, 0), -1);
  EXPECT_EQ(throttled_ms(r, 1), -1);
}

// 6.1, point 3: A alone until 500, both until 1500, B alone until 2000; each runs 1500 ms.
TEST(Seed000, Section61LateJoiner) {
  const Report r = play(ComputePolicy::Weighted, {{"A", 50}, {"B", 50, 500ms}});
  EXPECT_EQ(throttled_ms(r, 0), 1500);
  EXPECT_EQ(throttled_ms(r, 1), 2000);
  EXPECT_EQ(run_ms(r, 0), 1500);
  EXPECT_EQ(run_ms(r, 1), 1500);
}

struct Row {
  ComputePolicy policy;
  std::vector<long> run;
  long busy;
  Duration lasts = 2s;
};

void expect_rows(const std::vector<Who>& clients, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    SCOPED_TRACE(std::string(core::name_of(row.policy)));
    const Report r = play(row.policy, clients, row.lasts);
    for (std::size_t i = 0; i < row.run.size(); ++i) EXPECT_EQ(run_ms(r, i), row.run[i]) << i;
    EXPECT_EQ(busy(r), row.busy);
  }
}

TEST(Seed000, Scenario1FiftyFifty) {
  expect_rows({{"A", 50}, {"B", 50}}, {{ComputePolicy::Wall, {1000, 1000}, 50},
                                       {ComputePolicy::Weighted, {2000, 2000}, 100},
                                       {ComputePolicy::Coordinated, {1000, 1000}, 100},
                                       {ComputePolicy::Dynamic, {2000, 2000}, 100}});
}

// Under `dynamic` A has its 1000 ms and then B its 1200 ms: one round is 2200 ms.
TEST(Seed000, Scenario2FiftySixty) {
  expect_rows({{"A", 50}, {"B", 60}}, {{ComputePolicy::Wall, {1000, 1200}, 60},
                                       {ComputePolicy::Weighted, {2000, 2000}, 100},
                                       {ComputePolicy::Coordinated, {909, 1091}, 100},
                                       {ComputePolicy::Dynamic, {1000, 1200}, 100, 2200ms}});
}

TEST(Seed000, Scenario3ThreeTimesThirty) {
  expect_rows({{"A", 30}, {"B", 30}, {"C", 30}},
              {{ComputePolicy::Wall, {600, 600, 600}, 30},
               {ComputePolicy::Weighted, {1800, 1800, 1800}, 90},
               {ComputePolicy::Coordinated, {600, 600, 600}, 90},
               {ComputePolicy::Dynamic, {1800, 1800, 1800}, 90}});
}

// 6.5: weighted while the limits fit, full price and one at a time above 100 %.
TEST(Seed000, Section65HybridKeepsLimitsWhenOverCommitted) {
  expect_rows({{"A", 50}, {"B", 50}}, {{ComputePolicy::Hybrid, {2000, 2000}, 100}});
  const Report r = play(ComputePolicy::Hybrid, {{"A", 50}, {"B", 60}}, 20s);
  EXPECT_LE(r.clients[0].share_percent, 50.5);
  EXPECT_LE(r.clients[1].share_percent, 60.5);
  EXPECT_EQ(busy(r), 100);
}

// 6.2: round robin shares out in proportion, like coordinated, within one of its turns.
TEST(Seed000, Section62FairIsProportional) {
  const Report r = play(ComputePolicy::Fair, {{"A", 50}, {"B", 60}}, 20s);
  EXPECT_NEAR(r.clients[0].share_percent, 100.0 * 50 / 110, 0.5);
  EXPECT_NEAR(r.clients[1].share_percent, 100.0 * 60 / 110, 0.5);
  EXPECT_EQ(busy(r), 100);
}

}  // namespace
}  // namespace nvshare::sim
