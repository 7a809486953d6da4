#include "interposer/meter.h"

#include <gtest/gtest.h>

#include "interposer/limit_text.h"

namespace nvshare::interposer {
namespace {

TEST(Meter, OnlyTimeWithWorkCounts) {
  Meter meter;
  meter.begin(100);
  EXPECT_EQ(meter.used(1000), 0u);
  meter.submitted(1000);
  meter.submitted(1500);  // it is running already
  EXPECT_EQ(meter.used(2000), 1000u);
  meter.idle(3000);
  EXPECT_EQ(meter.used(9000), 2000u);
  EXPECT_EQ(meter.idle_since(), 3000u);
  meter.submitted(10'000);
  meter.idle(10'500);
  EXPECT_EQ(meter.used(20'000), 2500u);
}

TEST(Meter, AnEndBeforeItsBeginningCountsNothing) {
  Meter meter;
  meter.begin(0);
  meter.submitted(1000);
  meter.idle(900);  // an older completion
  EXPECT_EQ(meter.used(5000), 0u);
  EXPECT_EQ(meter.idle_since(), 1000u);
  EXPECT_FALSE(meter.busy());
}

TEST(Meter, AGrantBeginsWithNothingUsed) {
  Meter meter;
  meter.begin(0);
  meter.submitted(0);
  meter.idle(700);
  meter.begin(1000);
  EXPECT_EQ(meter.used(5000), 0u);
}

// In flight: depth() markers of launches() each. Plays a stream that is always full.
uint64_t in_flight_after(uint64_t kernel, int rounds) {
  Stride stride;
  for (int i = 0; i < rounds; ++i) stride.learn(stride.launches() * stride.depth() * kernel);
  return stride.launches() * stride.depth() * kernel;
}

TEST(Stride, WorkInFlightIsBoundedInTimeWhateverAKernelTakes) {
  for (const uint64_t kernel : {1'000u, 8'000u, 20'000u, 100'000u, 300'000u}) {
    const uint64_t in_flight = in_flight_after(kernel, 50);
    EXPECT_LE(in_flight, Stride::kBound) << kernel;
    EXPECT_GE(in_flight, Stride::kBound / 4) << kernel;
  }
  // The shortest reach the most launches there may be, the longest two markers.
  EXPECT_EQ(in_flight_after(100, 50), Stride::kMost * Stride::kDeepest * 100u);
  EXPECT_EQ(in_flight_after(200'000'000, 50), 2 * 200'000'000u);
}

TEST(Stride, ComesBackFromLongKernels) {
  Stride stride;
  for (int i = 0; i < 10; ++i) stride.learn(800'000'000);
  EXPECT_EQ(stride.depth(), 2u);
  for (int i = 0; i < 20; ++i) stride.learn(stride.launches() * stride.depth() * 10'000);
  EXPECT_EQ(stride.depth(), Stride::kDeepest);
  EXPECT_GE(stride.launches(), 16u);
}

TEST(LimitText, AsTheRestOfTheProductReadsSizes) {
  EXPECT_EQ(parse_limit("4Gi"), 4ull << 30);
  EXPECT_EQ(parse_limit("512Mi"), 512ull << 20);
  EXPECT_EQ(parse_limit("64KiB"), 64ull << 10);
  EXPECT_EQ(parse_limit("3G"), 3'000'000'000ull);
  EXPECT_EQ(parse_limit("1048576"), 1048576ull);
  for (const char* wrong :
       {"", "Gi", "-1", "4Q", "4 Gi", "99999999999999999999", "18446744073709551615Ki"}) {
    EXPECT_EQ(parse_limit(wrong), 0u) << wrong;
  }
  EXPECT_EQ(parse_limit(nullptr), 0u);
}

}  // namespace
}  // namespace nvshare::interposer
