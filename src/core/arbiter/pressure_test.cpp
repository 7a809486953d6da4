#include "core/arbiter/pressure.h"

#include <gtest/gtest.h>

#include <limits>

namespace nvshare::core {
namespace {

class PressureTest : public ::testing::Test {
 protected:
  Admission see(double busy, const std::array<double, kPriorities>& billed = {}) {
    now += 800ms;
    pressure.take(UsageSample::of(now, busy, billed), now, rules);
    return state();
  }
  Admission state(int priority = 0) const { return pressure.state(priority, now, rules); }
  void pass(Duration duration) {
    now += duration;
    pressure.look(now, rules);
  }

  UsageRules rules;
  Pressure pressure;
  Time now{1h};
};

std::array<double, kPriorities> billed_at(int priority, double percent) {
  std::array<double, kPriorities> billed{};
  billed[static_cast<std::size_t>(priority - kLowestPriority)] = percent;
  return billed;
}

TEST_F(PressureTest, IsUnknownWithoutASample) {
  EXPECT_EQ(state(), Admission::Unknown);
}

TEST_F(PressureTest, IsHighFromTheHighMarkToTheLowMark) {
  EXPECT_EQ(see(84.9), Admission::Normal);
  EXPECT_EQ(see(85), Admission::High);
  EXPECT_EQ(see(78.1), Admission::High);
  EXPECT_EQ(see(78), Admission::Normal);
  EXPECT_EQ(see(84.9), Admission::Normal);
  EXPECT_EQ(see(100), Admission::High);
}

TEST_F(PressureTest, TheMarksAreThoseOfTheRules) {
  rules.high_water = 50;
  rules.low_water = 40;
  EXPECT_EQ(see(50), Admission::High);
  EXPECT_EQ(see(41), Admission::High);
  EXPECT_EQ(see(40), Admission::Normal);
}

TEST_F(PressureTest, NewRulesJudgeTheLastSampleAgain) {
  EXPECT_EQ(see(80), Admission::Normal);
  rules.high_water = 80;
  pressure.look(now, rules);
  EXPECT_EQ(state(), Admission::High);
}

TEST_F(PressureTest, ASampleIsBelievedForItsTimeToLive) {
  see(90);
  pass(rules.cache_ttl);
  EXPECT_EQ(state(), Admission::High);
  pass(Duration{1});
  EXPECT_EQ(state(), Admission::Unknown);
}

TEST_F(PressureTest, AnOldStateDoesNotOutliveAGapInTheSamples) {
  see(90);
  pass(10s);
  EXPECT_EQ(see(70), Admission::Normal);
}

TEST_F(PressureTest, AnOlderSampleChangesNothing) {
  see(10);
  pressure.take(UsageSample::of(now - 1ms, 99), now, rules);
  EXPECT_EQ(state(), Admission::Normal);
  EXPECT_EQ(pressure.sample()->busy, 10);
}

TEST_F(PressureTest, SaysWhenASampleBecomesTooOld) {
  see(10);
  ASSERT_TRUE(pressure.next_change(now, rules));
  EXPECT_EQ(*pressure.next_change(now, rules), now + rules.cache_ttl + Duration{1});
}

TEST_F(PressureTest, WorkOfLowerPriorityIsInNobodysWay) {
  see(100, billed_at(-5, 95));
  EXPECT_EQ(state(8), Admission::Normal);
  EXPECT_EQ(state(-4), Admission::Normal);
  EXPECT_EQ(state(-5), Admission::High);
  EXPECT_EQ(state(-10), Admission::High);
  EXPECT_EQ(pressure.sample()->busy, 100);
}

TEST_F(PressureTest, WorkThatNobodyBillsIsInEverybodysWay) {
  see(95);
  EXPECT_EQ(state(10), Admission::High);
}

TEST_F(PressureTest, MoreBilledThanBusyIsNoUsageAtAll) {
  const UsageSample sample = UsageSample::of(now, 40, billed_at(-10, 60));
  EXPECT_EQ(sample.in_the_way.back(), 0);
  EXPECT_EQ(sample.in_the_way.front(), 40);
}

TEST_F(PressureTest, AHintRaisesBothMarksForAWhile) {
  see(88);
  pressure.raise(now, rules);
  EXPECT_EQ(pressure.marks(now, rules), (Marks{92, 85}));
  EXPECT_EQ(see(84), Admission::Normal);  // under the raised low mark
  EXPECT_EQ(see(91.9), Admission::Normal);
  EXPECT_EQ(see(92), Admission::High);
  pass(15s);
  EXPECT_EQ(pressure.marks(now, rules), (Marks{85, 78}));
}

TEST_F(PressureTest, HintsExtendAndDoNotAddUp) {
  pressure.raise(now, rules);
  pass(10s);
  pressure.raise(now, rules);
  EXPECT_EQ(pressure.marks(now, rules), (Marks{92, 85}));
  pass(14s);
  EXPECT_EQ(pressure.marks(now, rules), (Marks{92, 85}));
  pass(1s);
  EXPECT_EQ(pressure.marks(now, rules), (Marks{85, 78}));
}

TEST_F(PressureTest, TheMarksFallBackOnTime) {
  see(88);
  pressure.raise(now, rules);
  const Time raised = now;
  rules.cache_ttl = 1h;
  EXPECT_EQ(pressure.next_change(now, rules), raised + 15s);
  see(90);
  EXPECT_EQ(see(90), Admission::High);  // it was high before
}

TEST_F(PressureTest, WithoutBoostsAHintDoesNothing) {
  rules.boosts = false;
  pressure.raise(now, rules);
  EXPECT_EQ(pressure.marks(now, rules), (Marks{85, 78}));
}

TEST_F(PressureTest, ARaisedMarkCanStillBeReached) {
  rules.high_water = 98;
  rules.low_water = 97;
  pressure.raise(now, rules);
  EXPECT_EQ(pressure.marks(now, rules), (Marks{100, 99}));
  EXPECT_EQ(see(100), Admission::High);
  EXPECT_EQ(see(99), Admission::Normal);
}

std::string all_problems(const UsageRules& rules) {
  std::string all;
  for (const std::string& one : problems(rules)) all += one + "\n";
  return all;
}

TEST_F(PressureTest, RulesOutOfRangeAreNamed) {
  EXPECT_EQ(all_problems(rules), "");
  rules.high_water = 101;
  EXPECT_EQ(all_problems(rules), "usage_high_water: 101 is not from 0 to 100\n");
  rules.high_water = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(all_problems(rules), "usage_high_water: nan is not from 0 to 100\n");
  rules = {};
  rules.low_water = 85;
  EXPECT_EQ(all_problems(rules), "usage_low_water: 85 is not below usage_high_water, 85\n");
  rules = {};
  rules.low_boost = 14;
  EXPECT_EQ(all_problems(rules),
            "usage_low_boost: with it the low mark, 92, is not below the high one, 92\n");
  rules = {};
  rules.cache_ttl = 0s;
  EXPECT_NE(all_problems(rules).find("usage_cache_ttl"), std::string::npos);
}

}  // namespace
}  // namespace nvshare::core
