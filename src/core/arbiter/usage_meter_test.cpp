#include "core/arbiter/usage_meter.h"

#include <gtest/gtest.h>

namespace nvshare::core {
namespace {

constexpr Time kStart{100s};

struct World {
  Snapshot snapshot;
  UsageMeter meter;

  void tenant(std::uint64_t id, std::optional<std::uint64_t> parent = {}) {
    TenantView view;
    view.id = TenantId{id};
    if (parent) view.parent = TenantId{*parent};
    snapshot.tenants.push_back(view);
  }
  void bill(std::uint64_t tenant, int priority, Duration billed, std::uint64_t gpu = 0) {
    ShareView share;
    share.tenant = TenantId{tenant};
    share.gpu = GpuId{gpu};
    share.priority = priority;
    share.billed = billed;
    snapshot.shares.push_back(share);
  }
  void bills() { snapshot.shares.clear(); }
  std::optional<UsageSample> read(std::optional<int> seen, Duration after) {
    return meter.read(snapshot, GpuId{0}, seen, kStart + after, kStart + after);
  }
};

double in_the_way(const UsageSample& sample, int priority) {
  return sample.in_the_way[static_cast<std::size_t>(priority - kLowestPriority)];
}

TEST(Usage, WorkOfLowerPriorityIsNotInTheWay) {
  World w;
  w.tenant(1);
  w.tenant(2);
  w.bill(1, -5, 10s);
  w.bill(2, 8, 20s);
  EXPECT_EQ(w.read(100, 0s)->busy, 100);
  w.bills();
  w.bill(1, -5, 10s + 700ms);
  w.bill(2, 8, 20s + 200ms);
  const auto sample = w.read(95, 1s);
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->busy, 95) << "as NVML says";
  EXPECT_DOUBLE_EQ(in_the_way(*sample, -5), 95);
  EXPECT_DOUBLE_EQ(in_the_way(*sample, -4), 25);
  EXPECT_DOUBLE_EQ(in_the_way(*sample, 8), 25);
  EXPECT_NEAR(in_the_way(*sample, 9), 5, 1e-9);
}

TEST(Usage, APartIsNotCountedTwice) {
  World w;
  w.tenant(1);
  w.tenant(2, 1);
  w.bill(1, 0, 0s);
  w.bill(2, -5, 0s);
  w.read(0, 0s);
  w.bills();
  w.bill(1, 0, 900ms);   // with its part's
  w.bill(2, -5, 600ms);  // of these
  const auto sample = w.read({}, 1s);
  ASSERT_TRUE(sample);
  EXPECT_DOUBLE_EQ(sample->busy, 90);
  EXPECT_DOUBLE_EQ(in_the_way(*sample, 0), 30);
  EXPECT_DOUBLE_EQ(in_the_way(*sample, -5), 90);
}

// Runs that begin and end between two readings leave their bills with the tenant around them.
TEST(Usage, WorkOfARunThatHasEndedIsItsParents) {
  World w;
  w.tenant(1);
  w.tenant(2, 1);
  w.bill(1, -5, 5s);
  w.bill(2, -5, 4s);
  w.read({}, 0s);
  w.bills();
  w.snapshot.tenants.pop_back();
  w.bill(1, -5, 5s + 500ms);
  const auto sample = w.read({}, 1s);
  ASSERT_TRUE(sample);
  EXPECT_DOUBLE_EQ(sample->busy, 50);
  EXPECT_DOUBLE_EQ(in_the_way(*sample, 8), 0);
}

TEST(Usage, OneGpuHasNothingOfAnother) {
  World w;
  w.tenant(1);
  w.bill(1, 0, 0s, 1);
  w.read(0, 0s);
  w.bills();
  w.bill(1, 0, 1s, 1);
  EXPECT_EQ(w.read({}, 1s)->busy, 0);
}

TEST(Usage, WithoutAnyMeasureThereIsNoSample) {
  World w;
  EXPECT_FALSE(w.read({}, 0s)) << "one bill says nothing";
  EXPECT_TRUE(w.read({}, 1s));
  EXPECT_FALSE(w.read({}, 1s)) << "no time has passed";
}

}  // namespace
}  // namespace nvshare::core
