#include "daemon/lease/status_push.h"

#include <gtest/gtest.h>

namespace nvshare::daemon {
namespace {

using namespace std::chrono_literals;

constexpr Time kStart{100s};

PushPlan plan_of(Duration interval) {
  PushPlan plan;
  plan.set_interval(interval);
  return plan;
}

TEST(PushPlan, TheFirstIsDueAtOnce) {
  const PushPlan plan = plan_of(5s);
  ASSERT_TRUE(plan.due());
  EXPECT_LE(*plan.due(), kStart);
}

TEST(PushPlan, OneIsUnderWayAtATime) {
  PushPlan plan = plan_of(5s);
  plan.began(kStart);
  plan.changed();
  EXPECT_EQ(plan.due(), std::nullopt);
  plan.ended(kStart + 1s, true);
  EXPECT_EQ(plan.due(), kStart + 1s) << "the change that came meanwhile";
}

TEST(PushPlan, WithoutAChangeTheIntervalCounts) {
  PushPlan plan = plan_of(5s);
  plan.began(kStart);
  plan.ended(kStart + 1s, true);
  EXPECT_EQ(plan.due(), kStart + 5s);
  plan.set_interval(7s);
  EXPECT_EQ(plan.due(), kStart + 7s);
  plan.changed();
  EXPECT_LE(*plan.due(), kStart + 1s);
}

TEST(PushPlan, AFailingReceiverIsTriedWithGrowingPauses) {
  PushPlan plan = plan_of(200ms);
  Time now = kStart;
  for (const Duration pause : {1s, 2s, 4s, 8s, 16s, 30s, 30s}) {
    plan.began(now);
    plan.ended(now, false);
    EXPECT_EQ(plan.pause(), pause);
    plan.changed();
    EXPECT_EQ(plan.due(), now + pause) << "a change shortens no pause";
    now += pause;
  }
  for (int i = 0; i < 100; ++i) plan.ended(now, false);
  EXPECT_EQ(plan.pause(), PushPlan::kLongestPause);
  plan.began(now);
  plan.ended(now, true);
  EXPECT_EQ(plan.pause(), 0s);
  EXPECT_EQ(plan.due(), now + 200ms);
}

}  // namespace
}  // namespace nvshare::daemon
