#include "daemon/gpus.h"

#include <gtest/gtest.h>

namespace nvshare::daemon {
namespace {

TEST(Overhead, IsWhatIsUsedBesideWhatClientsHave) {
  OverheadEstimate estimate;
  EXPECT_EQ(estimate.add(mib(600), Bytes{0}), mib(600));
  EXPECT_EQ(estimate.add(gib(2), gib(3)), Bytes{0}) << "asked for, and not taken yet";
}

TEST(Overhead, MemoryThatWasJustFreedIsNone) {
  OverheadEstimate estimate;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(estimate.add(gib(61), gib(60)), gib(1));
  EXPECT_EQ(estimate.add(gib(61), gib(10)), gib(1));
}

TEST(Overhead, WhatStaysIsBelievedAfterAWhile) {
  OverheadEstimate estimate;
  estimate.add(gib(1), Bytes{0});
  Bytes last{};
  for (int i = 0; i < 5; ++i) last = estimate.add(gib(3), Bytes{0});
  EXPECT_EQ(last, gib(3));
}

TEST(Sampler, WithoutTheLibrarySaysSo) {
  const auto sampler = GpuSampler::open("libnvshare-no-such-library.so.1");
  ASSERT_FALSE(sampler);
  EXPECT_NE(sampler.error().message.find("libnvshare-no-such-library"), std::string::npos);
}

}  // namespace
}  // namespace nvshare::daemon
