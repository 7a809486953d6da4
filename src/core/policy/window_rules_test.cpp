#include "core/policy/window_rules.h"

#include <gtest/gtest.h>

namespace nvshare::core {
namespace {

const Config kConfig;
constexpr Load kFits{.limit_sum = 100};
constexpr Load kOver{.limit_sum = 101};

TEST(WindowRules, WallIgnoresTheLoad) {
  EXPECT_EQ(wall_rules(kFits, kConfig), WindowRules{});
  EXPECT_EQ(wall_rules(kOver, kConfig), WindowRules{});
}

TEST(WindowRules, WeightedAlwaysDividesTheBill) {
  EXPECT_EQ(weighted_rules(kFits, kConfig), (WindowRules{.divide_bill = true}));
  EXPECT_EQ(weighted_rules(kOver, kConfig), (WindowRules{.divide_bill = true}));
}

TEST(WindowRules, HybridAndDynamicTurnSerialAboveOneHundred) {
  EXPECT_EQ(hybrid_rules(kFits, kConfig), weighted_rules(kFits, kConfig));
  EXPECT_EQ(hybrid_rules(kOver, kConfig), (WindowRules{.serial = true}));
  EXPECT_EQ(dynamic_rules(kFits, kConfig), weighted_rules(kFits, kConfig));
  EXPECT_EQ(dynamic_rules(kOver, kConfig), (WindowRules{.serial = true, .stretch_window = true}));
}

TEST(WindowRules, CoordinatedAndFairScaleQuotas) {
  EXPECT_EQ(coordinated_rules(kFits, kConfig), (WindowRules{.serial = true, .scale_quota = true}));
  EXPECT_EQ(fair_rules(kFits, kConfig),
            (WindowRules{.serial = true, .scale_quota = true, .turn = kConfig.fair_turn}));
}

TEST(WindowRules, EveryPolicyHasANameAndItsRules) {
  for (ComputePolicy policy : kComputePolicies) {
    EXPECT_EQ(policy_by_name(name_of(policy)), policy);
  }
  EXPECT_EQ(policy_by_name("best"), std::nullopt);
  EXPECT_EQ(window_policy(ComputePolicy::Wall), &wall_rules);
  EXPECT_EQ(window_policy(ComputePolicy::Dynamic), &dynamic_rules);
}

}  // namespace
}  // namespace nvshare::core
