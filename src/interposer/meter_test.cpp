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

TEST(Meter, TheGpusOwnClockIsBelievedWhenItSaysLess) {
  Meter meter;
  meter.begin(0);
  meter.submitted(1000);
  meter.idle(5000, 3000);
  EXPECT_EQ(meter.used(9000), 3000u);
  meter.submitted(10'000);
  meter.idle(11'000, 3000);  // never more than the time there was
  EXPECT_EQ(meter.used(20'000), 4000u);
}

// What the GPU was done before that was seen is a gap when more comes behind it; but at first it is
// how long it took to begin.
TEST(Meter, WhatWasSeenLateIsAGap) {
  Meter meter;
  meter.begin(0);
  meter.submitted(1000);
  meter.idle(5000, 3000);
  meter.submitted(5100);
  EXPECT_EQ(meter.gaps(), 100u);
  meter.idle(9000, 3000);
  EXPECT_EQ(meter.gaps(), 100u);
  meter.submitted(9200);
  EXPECT_EQ(meter.gaps(), 100u + 900u + 200u);
  meter.begin(20'000);
  meter.submitted(20'100);
  EXPECT_EQ(meter.gaps(), 0u);
}

TEST(Meter, AGrantBeginsWithNothingUsed) {
  Meter meter;
  meter.begin(0);
  meter.submitted(0);
  meter.idle(700);
  meter.begin(1000);
  EXPECT_EQ(meter.used(5000), 0u);
}

TEST(Grace, IsLongForWhoCameBackSoon) {
  constexpr uint64_t kUsed = 100'000'000;
  Grace grace;
  EXPECT_EQ(grace.lasts(kUsed, 0), Grace::kShort);
  grace.asked(1000);  // the first time ever
  EXPECT_EQ(grace.lasts(kUsed, 0), Grace::kShort);
  grace.over(1000);
  grace.asked(1000 + Grace::kLong);  // it would not have helped
  EXPECT_EQ(grace.lasts(kUsed, 0), Grace::kShort);
  grace.over(1000);
  grace.asked(1000 + Grace::kLong - 1);
  EXPECT_EQ(grace.lasts(kUsed, 0), Grace::kLong);
  grace.asked(1001 + Grace::kLong);  // behind a turn that was cut off
  EXPECT_EQ(grace.lasts(kUsed, 0), Grace::kLong);
  grace.over(1000);  // in vain
  EXPECT_EQ(grace.lasts(kUsed, 0), Grace::kShort);
  grace.asked(100'000'000);
  EXPECT_EQ(grace.lasts(kUsed, 0), Grace::kShort);
}

TEST(Grace, IsShortInATurnOfWhichMuchIsUnused) {
  Grace grace;
  grace.over(1000);
  grace.asked(2000);
  EXPECT_EQ(grace.lasts(300'000, 0), Grace::kLong);  // its first pause, at the beginning
  EXPECT_EQ(grace.lasts(8'000'000, Grace::kLong + 1'000'000), Grace::kLong);
  EXPECT_EQ(grace.lasts(8'000'000, Grace::kLong + 1'000'001), Grace::kShort);
}

// Plays a stream whose window is always full, and says how much is in flight in the end.
uint64_t in_flight(Window& window, uint64_t kernel, uint64_t bound = Ahead::kLeast,
                   int rounds = 100) {
  const auto full = [&] { return window.launches() * kernel; };
  for (int i = 0; i < rounds; ++i) window.learn(full(), bound);
  return full();
}

// What lies between the first of its work and the last; neither before nor behind.
TEST(Meter, GapsAreBetweenWork) {
  Meter meter;
  meter.begin(100);
  meter.submitted(150);
  meter.idle(250);
  EXPECT_EQ(meter.gaps(), 0u);
  meter.submitted(280);
  meter.submitted(290);
  meter.idle(300);
  meter.submitted(310);
  EXPECT_EQ(meter.gaps(), 40u);
  meter.idle(400);
  EXPECT_EQ(meter.gaps(), 40u);
  meter.begin(500);
  meter.submitted(600);
  EXPECT_EQ(meter.gaps(), 0u);
}

TEST(Window, WorkInFlightIsBoundedInTimeWhateverAKernelTakes) {
  for (const uint64_t bound : {Ahead::kLeast, Ahead::kMost}) {
    for (const uint64_t kernel : {8'000u, 20'000u, 100'000u, 300'000u, 700'000u}) {
      Window window;
      const uint64_t time = in_flight(window, kernel, bound);
      EXPECT_LE(time, bound) << kernel;
      EXPECT_GE(time, bound / 4) << kernel;
    }
  }
  // The shortest reach the most launches there may be, the longest the fewest.
  Window shortest;
  EXPECT_EQ(in_flight(shortest, 100), Window::kMost * 100u);
  Window longest;
  EXPECT_EQ(in_flight(longest, 200'000'000), Window::kFewest * 200'000'000u);
}

// Much is in flight within a turn, and little at its end: whoever is next waits for it.
TEST(Window, FollowsWhatIsLeftOfATurn) {
  constexpr uint64_t kTurn = 20'000'000;
  constexpr uint64_t kKernel = 50'000;
  Window window;
  EXPECT_GE(in_flight(window, kKernel, Ahead::of(kTurn, 0), 50), Ahead::kMost / 2);
  for (uint64_t used = 0; used < kTurn; used += kKernel * window.stride()) {
    in_flight(window, kKernel, Ahead::of(kTurn, used), 1);
  }
  EXPECT_LE(in_flight(window, kKernel, Ahead::of(kTurn, kTurn), 0), 3 * Ahead::kLeast / 2);
}

TEST(Window, FollowsWhenKernelsChange) {
  Window window;
  in_flight(window, 200'000'000);
  EXPECT_GE(in_flight(window, 10'000), Ahead::kLeast / 4);
  EXPECT_EQ(in_flight(window, 5'000'000), Window::kFewest * 5'000'000u);
}

// A marker behind each launch costs little when launches are few; many are marked in strides.
TEST(Window, NeverNeedsMoreMarkersThanThereAre) {
  Window window;
  for (const uint64_t age :
       {0ull, 1'000'000ull, 700'000ull, 3'000'000ull, 0ull, 0ull, 1'500'000ull}) {
    for (int i = 0; i < 7; ++i) {
      window.learn(age, Ahead::kLeast);
      EXPECT_GE(window.launches(), Window::kFewest);
      EXPECT_GE(window.stride(), 1u);
      EXPECT_LE(window.launches() / window.stride(), Window::kMarkers);
    }
  }
}

constexpr uint64_t kCard = 150'109'880'320;

TEST(LimitText, AsTheRestOfTheProductReadsSizes) {
  EXPECT_EQ(parse_limit("4Gi", kCard), 4ull << 30);
  EXPECT_EQ(parse_limit("512Mi", kCard), 512ull << 20);
  EXPECT_EQ(parse_limit("1.5Gi", kCard), 1536ull << 20);
  EXPECT_EQ(parse_limit("0.125KiB", kCard), 128u);
  EXPECT_EQ(parse_limit("64KiB", kCard), 64ull << 10);
  EXPECT_EQ(parse_limit("3G", kCard), 3'000'000'000ull);
  EXPECT_EQ(parse_limit("300M", kCard), 300'000'000ull);
  EXPECT_EQ(parse_limit("8K", kCard), 8'000ull);
  EXPECT_EQ(parse_limit("1048576", kCard), 1048576ull);
  for (const char* wrong :
       {"", "Gi", "-1", "4Q", "4 Gi", "4gi", "4Gi ", "1.Gi", ".5Gi", "1.5.5Gi", "1,5Gi", "1e9",
        "1.1234567Gi", "99999999999999999999", "18446744073709551615Ki"}) {
    EXPECT_EQ(parse_limit(wrong, kCard), 0u) << wrong;
  }
  EXPECT_EQ(parse_limit(nullptr, kCard), 0u);
}

TEST(LimitText, PercentOfTheCard) {
  EXPECT_EQ(parse_limit("100%", kCard), kCard);
  EXPECT_EQ(parse_limit("50%", kCard), kCard / 2);
  EXPECT_EQ(parse_limit("12.5%", kCard), kCard / 8);
  EXPECT_EQ(parse_limit("33%", 1001), 330u) << "rounded down";
  EXPECT_EQ(parse_limit("99%", UINT64_MAX), 18262276632972456098ull) << "nothing wraps";
  for (const char* wrong : {"%", "0%", "101%", "-5%", "5 %", "5%%", "5%B", "100.1%"}) {
    EXPECT_EQ(parse_limit(wrong, kCard), 0u) << wrong;
  }
}

}  // namespace
}  // namespace nvshare::interposer
