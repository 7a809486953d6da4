// Years, and meters that show what cannot be.

#include "core/testing.h"

namespace nvshare::core {
namespace {

constexpr Duration kYear = 24h * 365;

// However many windows pass while nothing is billed, it is one step. Afterwards the present window
// counts and nothing that was before it.
TEST(Extremes, ALifetimeWithoutSchedulingIsOneStep) {
  Config config;
  config.policy = ComputePolicy::Wall;
  config.window = 100ms;
  TestCore t(config);
  t.gpu(0);
  t.client(1, 50);
  t.want(1);
  t.now += 30ms;
  t.step(SchedulingSwitched{false});
  t.now += 100 * kYear;
  t.step(SchedulingSwitched{true});
  EXPECT_EQ(only<Grant>(t.release(1, 0ms)).size(), 1u);
  EXPECT_EQ(t.core.snapshot().shares[0].billed, 30ms);
  EXPECT_TRUE(only<Drop>(t.pass(50ms - 1ns)).empty());
  EXPECT_EQ(only<Drop>(t.pass(1ns)).size(), 1u);
}

// A debt that takes longer to pay off than there are numbers for times: the wait is long, never
// over at once.
TEST(Extremes, ADebtOfYearsIsWaitedFor) {
  for (ComputePolicy policy : {ComputePolicy::Metered, ComputePolicy::Coordinated}) {
    SCOPED_TRACE(std::string(name_of(policy)));
    Config config;
    config.policy = policy;
    config.window = 60s;
    TestCore t(config);
    t.gpu(0);
    t.client(1, 1);
    t.want(1);
    t.pass(10s);
    ASSERT_EQ(t.state(1), ClientState::Overdue);
    t.now += 3 * kYear;
    t.release(1, 3 * kYear);
    ASSERT_EQ(t.state(1), ClientState::Waiting);
    EXPECT_GT(*t.core.next_wakeup(), t.now);
    EXPECT_EQ(t.why(1).find(" now"), std::string::npos) << t.why(1);
  }
}

// What was used for years counts when others are next, at the smallest of limits as well.
TEST(Extremes, WhoHasUsedYearsIsNotNext) {
  Config config;
  config.share_mode = ShareMode::Turns;
  config.carryover_percent = 0;  // no debt: both may run
  TestCore t(config);
  t.gpu(0);
  t.client(1, 1);
  t.client(2, 1);
  t.want(1);
  t.want(2);
  t.pass(10s);
  ASSERT_EQ(t.state(1), ClientState::Overdue);
  ASSERT_EQ(t.state(2), ClientState::Overdue);
  t.release(2, 0ms);
  t.now += 3 * kYear;
  t.release(1, 3 * kYear);
  ASSERT_EQ(t.state(2), ClientState::Running);
  t.now += 2s;  // client 1 may run as well from here on
  EXPECT_EQ(only<Grant>(t.release(2, 1us)).at(0).client, ClientId{2});
}

// A meter and gaps beyond all measure say nothing of what handing over takes.
TEST(Extremes, AMeterThatLiesDoesNotLengthenTurns) {
  constexpr Duration kMost = Duration::max();
  Config config;
  config.share_mode = ShareMode::Turns;
  TestCore t(config);
  t.gpu(0);
  t.client(1);
  t.client(2);
  t.want(1);
  t.want(2);
  for (int i = 0; i < 3; ++i) {
    const int holder = t.state(1) == ClientState::Running ? 1 : 2;
    t.now += 5ms;
    const auto grants = only<Grant>(t.step(Released{t.cid(holder), kMost, true, kMost}));
    EXPECT_EQ(grants.at(0).budget, config.turn);
  }
}

}  // namespace
}  // namespace nvshare::core
