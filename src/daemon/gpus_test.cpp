#include "daemon/gpus.h"

#include <gtest/gtest.h>

#include "daemon/testing.h"

namespace nvshare::daemon {
namespace {

constexpr Time kStart{100s};
constexpr Time kLater = kStart + OverheadEstimate::kSettles;

TEST(Overhead, IsWhatIsUsedBesideWhatClientsHave) {
  OverheadEstimate estimate(kStart);
  EXPECT_EQ(estimate.add(mib(600), Bytes{0}, kLater), mib(600));
  EXPECT_EQ(estimate.add(gib(2), gib(3), kLater), Bytes{0}) << "asked for, and not taken yet";
}

TEST(Overhead, MemoryThatWasJustFreedIsNone) {
  OverheadEstimate estimate(kStart);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(estimate.add(gib(61), gib(60), kLater), gib(1));
  EXPECT_EQ(estimate.add(gib(61), gib(10), kLater), gib(1));
}

TEST(Overhead, WhatStaysIsBelievedAfterAWhile) {
  OverheadEstimate estimate(kStart);
  estimate.add(gib(1), Bytes{0}, kLater);
  std::optional<Bytes> last;
  for (int i = 0; i < 5; ++i) last = estimate.add(gib(3), Bytes{0}, kLater);
  EXPECT_EQ(last, gib(3));
}

// Programs that have memory are not back yet when the scheduler starts again.
TEST(Overhead, IsNotKnownUntilProgramsAreBack) {
  OverheadEstimate estimate(kStart);
  EXPECT_FALSE(estimate.add(gib(60), Bytes{0}, kStart));
  EXPECT_FALSE(estimate.add(gib(60), Bytes{0}, kLater - 1ns));
  EXPECT_EQ(estimate.add(gib(60), gib(59), kLater), gib(1));
}

TEST(Overhead, AClaimDoesNotHideWhatOthersHave) {
  TestBroker t;
  core::Limits limits;
  limits.memory = gib(2);
  const TenantId tenant = t.tenant("a", limits);
  auto hello = TestBroker::hello();
  hello.allocated = static_cast<std::uint64_t>(gib(12).count);
  hello.pinned = hello.resident = hello.allocated;
  t.join(tenant, hello);
  EXPECT_EQ(resident_on(t.broker, GpuId{0}), gib(2)) << "what its limit allows";
  hello.allocated = hello.pinned = hello.resident = std::uint64_t{200} << 40;
  t.join(tenant, hello);
  EXPECT_TRUE(t.ask(t.join(t.tenant("b")), gib(1)));
  EXPECT_EQ(resident_on(t.broker, GpuId{0}), gib(3));
}

TEST(Sampler, WithoutTheLibrarySaysSo) {
  const auto sampler = GpuSampler::open("libnvshare-no-such-library.so.1");
  ASSERT_FALSE(sampler);
  EXPECT_NE(sampler.error().message.find("libnvshare-no-such-library"), std::string::npos);
}

}  // namespace
}  // namespace nvshare::daemon
