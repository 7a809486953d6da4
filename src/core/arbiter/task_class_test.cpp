#include "core/arbiter/task_class.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace nvshare::core {
namespace {

std::string all_problems(const TaskClass& one) {
  std::string all;
  for (const std::string& problem : problems(std::vector{one})) all += problem + "\n";
  return all;
}

TEST(TaskClass, TheDefaultsOfTheRequirementAreUsable) {
  const auto classes = default_classes();
  EXPECT_TRUE(problems(classes).empty());
  ASSERT_EQ(classes.size(), 4U);
  EXPECT_EQ(classes[0].priority, 90);
  EXPECT_EQ(classes[1].priority, 80);
  EXPECT_EQ(classes[2].priority, 70);
  EXPECT_EQ(classes[3].priority, 20);
  for (const TaskClass& one : classes) {
    const Refusal wanted = one.name == "SEMANTIC_REPAIR" ? Refusal::Skip : Refusal::Wait;
    EXPECT_EQ(one.pressure, wanted) << one.name;
  }
}

TEST(TaskClass, PrioritiesMapOntoThoseOfTenants) {
  EXPECT_EQ(tenant_priority(0), -10);
  EXPECT_EQ(tenant_priority(20), -6);
  EXPECT_EQ(tenant_priority(49), -1);
  EXPECT_EQ(tenant_priority(50), 0);
  EXPECT_EQ(tenant_priority(51), 1);
  EXPECT_EQ(tenant_priority(70), 4);
  EXPECT_EQ(tenant_priority(80), 6);
  EXPECT_EQ(tenant_priority(90), 8);
  EXPECT_EQ(tenant_priority(100), 10);
  for (int priority = 1; priority <= 100; ++priority) {
    EXPECT_LE(tenant_priority(priority - 1), tenant_priority(priority)) << priority;
  }
}

TEST(TaskClass, ValuesOutOfRangeAreNamed) {
  EXPECT_EQ(all_problems({"A", 101}), "classes.A.priority: 101 is not from 0 to 100\n");
  EXPECT_EQ(all_problems({"A", 50, -1ms}),
            "classes.A.max_wait: -1.0ms is not from 0s to 600.00s\n");
  EXPECT_NE(all_problems({"A", 50, 1s, 0s}).find("classes.A.hold_max"), std::string::npos);
  EXPECT_EQ(all_problems({"A", 50, 1s, 1s, Refusal::Wait, Refusal::Wait, 0}),
            "classes.A.slots: 0 is not 1 or more\n");
  EXPECT_NE(all_problems({"a b"}).find("a name has"), std::string::npos);
  EXPECT_NE(all_problems({""}).find("a name has"), std::string::npos);
}

TEST(TaskClass, ANameIsThereOnce) {
  const auto found = problems(std::vector<TaskClass>{{"A"}, {"A"}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front(), "classes.A: it is there twice");
}

TEST(TaskClass, NoneAndTooManyAreRefused) {
  EXPECT_EQ(problems(std::vector<TaskClass>{}).size(), 1U);
  std::vector<TaskClass> many;
  for (int i = 0; i <= kMostClasses; ++i) many.push_back({"c" + std::to_string(i)});
  EXPECT_EQ(problems(many).size(), 1U);
}

TEST(TaskClass, RefusalsHaveTheirNames) {
  for (const Refusal refusal : {Refusal::Wait, Refusal::Skip, Refusal::FallbackCpu}) {
    EXPECT_EQ(refusal_by_name(name_of(refusal)), refusal);
  }
  EXPECT_FALSE(refusal_by_name("wait"));
}

}  // namespace
}  // namespace nvshare::core
