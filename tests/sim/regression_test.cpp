// What once went wrong, each with the shortest case that showed it. Found by tests/properties.

#include "core/testing.h"
#include "scenarios.h"

namespace nvshare {
namespace {

using namespace core;
using sim::play;
using sim::share_of;

sim::Scenario metered(Duration lasts) {
  return sim::one_gpu(ComputePolicy::Metered, lasts);
}

// It was charged for the hour that it had run without a limit, and would have waited for hours.
TEST(Regression, ALimitSetOnALoneRunnerCountsFromThenOn) {
  sim::Scenario scenario = metered(20s);
  scenario.clients = {sim::saturating("A", 100)};
  scenario.clients[0].changes = {{10s, Limits{50, {}, 0}}};
  EXPECT_NEAR(share_of(play(scenario), 0), (100 + 50) / 2.0, 0.5);
}

// A tenant without a limit saved what it did not use, and spent it once it had a limit.
TEST(Regression, WhoHadNoLimitHasSavedNothing) {
  sim::Scenario scenario = metered(20s);
  scenario.clients = {sim::saturating("A", 100, 2ms), sim::saturating("B", 100, 2ms)};
  scenario.clients[0].changes = {{10s, Limits{10, {}, 0}}};
  EXPECT_NEAR(share_of(play(scenario), 0), (50 + 10) / 2.0, 0.5);
}

// What was saved under a high limit was spent under the low one.
TEST(Regression, ALowerLimitTakesBackWhatItWouldNotHaveLetBeSaved) {
  sim::Scenario scenario = metered(2s);
  scenario.clients = {sim::bursty("A", 90, 3ms, 40ms)};
  scenario.clients[0].changes = {{1s, Limits{1, {}, 0}}};
  const double before = 100.0 * 3 / 43 / 2;  // a burst every 43 ms, for half the time
  EXPECT_LT(share_of(play(scenario), 0), before + 1.5);
}

// A newcomer was owed all the time that the lone runner before it had had.
TEST(Regression, ANewcomerDoesNotStarveWhoRanAloneForLong) {
  for (const auto mode : {ShareMode::Turns, ShareMode::Auto}) {
    sim::Scenario scenario = metered(20s);
    scenario.config.share_mode = mode;
    scenario.clients = {sim::saturating("A", 100, 2ms), sim::saturating("B", 100, 2ms)};
    scenario.clients[1].arrives = 10s;
    const sim::Report report = play(scenario);
    EXPECT_NEAR(share_of(report, 0), 75, 0.5);
    EXPECT_LT(report.clients[0].longest_wait, 100ms);
  }
}

// Its two processes were taken for less busy than they were, and it had two thirds of the GPU.
TEST(Regression, TwoProcessesAreNoMoreThanOneTenant) {
  sim::Scenario scenario = metered(20s);
  scenario.clients = {sim::saturating("A", 100, 2ms), sim::saturating("B", 100, 2ms)};
  scenario.clients[0].processes = 2;
  EXPECT_NEAR(share_of(play(scenario), 0), 50, 1);
}

// Entitlements were counted in hundredths of a percent: a thousand tenants without a limit, at
// least one hundredth each, left less than its limit to one that has one.
TEST(Regression, ManyTenantsDoNotCrowdOutALimit) {
  sim::Scenario scenario = metered(400s);
  scenario.clients = {sim::saturating("A", 95)};
  for (int i = 0; i < 2000; ++i) scenario.clients.push_back(sim::saturating("B", 100));
  EXPECT_NEAR(share_of(play(scenario), 0), 95, 1);
}

TEST(Regression, NothingIsBilledWhileSchedulingIsOff) {
  for (ComputePolicy policy : kComputePolicies) {
    SCOPED_TRACE(std::string(name_of(policy)));
    Config config;
    config.policy = policy;
    TestCore t(config);
    t.gpu(0);
    t.client(1, 50);
    t.step(SchedulingSwitched{false});
    t.want(1);
    t.pass(10s);
    t.step(SchedulingSwitched{true});
    t.release(1, 10s, false);
    EXPECT_EQ(t.core.snapshot().shares[0].billed, Duration::zero());
  }
}

// Who was moved out for another at the very moment the other asked stood before it in the queue.
TEST(Regression, WhoIsMovedOutStandsBehindWhoItWasMovedOutFor) {
  Config config;
  config.reserve_percent = 0;
  config.reserve_base = config.reserve_per_process = Bytes{};
  TestCore t(config);
  t.gpu(0);
  t.client(1);
  t.client(2);
  t.allocate(1, gib(13));
  t.want(1);
  t.allocate(2, gib(13));
  t.pass(10min);
  t.release(1, 10min, true);
  ASSERT_EQ(t.state(1), ClientState::Running);
  t.want(2);  // the first one's time is over: it stops, moves out, and waits again
  t.release(1, 0ns, true);
  ASSERT_EQ(t.state(1), ClientState::Waiting);
  const auto brought = only<BringIn>(t.move_to(1, gib(3)));
  ASSERT_EQ(brought.size(), 1u);
  EXPECT_EQ(brought[0].client, TestCore::cid(2));
}

TEST(Regression, ImpossibleMovesAreRefused) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  const Bytes least{std::numeric_limits<std::int64_t>::min()};
  const Bytes most{std::numeric_limits<std::int64_t>::max()};
  for (Bytes resident : {least, Bytes{-1}, Bytes{1}, most}) {
    EXPECT_NE(t.refused(MemoryMoved{TestCore::cid(1), resident, 1ms}), "");
  }
}

// A simulated client that is ended for ignoring a drop went on sending.
TEST(Regression, ASimulatedClientThatIsEndedHasLeft) {
  sim::Scenario scenario = metered(5s);
  scenario.config.drop_timeout = 10ms;
  scenario.config.end_overdue = true;
  scenario.clients = {sim::saturating("A", 50, 50ms), sim::saturating("B", 50)};
  EXPECT_NEAR(share_of(play(scenario), 1), 50, 1);
}

}  // namespace
}  // namespace nvshare
