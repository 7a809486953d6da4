#include "interposer/meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

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

// A program that launches kernels as fast as it can, and waits when its window is full: in turns,
// with markers as in markers.cpp, in virtual time.
class Launches {
 public:
  static constexpr uint64_t kLaunch = 5'000;

  explicit Launches(uint64_t kernel) : kernel_(kernel) {}
  void kernel(uint64_t takes) { kernel_ = takes; }

  // What was in flight, in GPU time.
  struct InFlight {
    uint64_t most = 0;
    uint64_t at_end = 0;
    uint64_t idle = 0;  // how long the GPU had nothing to do
  };
  InFlight turn(uint64_t budget) {
    InFlight seen;
    const uint64_t begin = now_;
    gpu_done_ = now_;
    while (now_ - begin < budget) {
      const uint64_t ahead = Ahead::of(budget, now_ - begin);
      retire();
      if (!markers_.empty() && submitted_ - done_ >= window_.launches(ahead)) {
        now_ = markers_.front().done_at;
        continue;
      }
      now_ += kLaunch;
      if (now_ > gpu_done_ + kLaunch) seen.idle += now_ - gpu_done_ - kLaunch;
      gpu_done_ = std::max(gpu_done_, now_) + kernel_;
      ++submitted_;
      const uint64_t marked = markers_.empty() ? done_ : markers_.back().count;
      if (submitted_ - marked >= Window::stride(window_.launches(ahead))) place(ahead);
      seen.most = std::max(seen.most, gpu_done_ - now_);
    }
    seen.at_end = gpu_done_ > now_ ? gpu_done_ - now_ : 0;
    now_ = std::max(now_, gpu_done_);
    retire();
    done_ = submitted_;
    now_ += 10'000'000;  // others have theirs
    return seen;
  }

 private:
  struct Placed {
    uint64_t count, placed_at, done_at, tells_of;
  };
  void place(uint64_t ahead) {
    const uint64_t behind = submitted_ - done_;
    markers_.push_back({submitted_, now_, gpu_done_, window_.tells(behind, ahead) ? behind : 0});
  }
  void retire() {
    for (; !markers_.empty() && markers_.front().done_at <= now_; markers_.pop_front()) {
      const Placed& oldest = markers_.front();
      done_ = oldest.count;
      if (oldest.tells_of > 0) window_.learn(now_ - oldest.placed_at, oldest.tells_of);
    }
  }

  Window window_;
  std::deque<Placed> markers_;
  uint64_t kernel_;
  uint64_t submitted_ = 0;
  uint64_t done_ = 0;
  uint64_t now_ = 1'000'000'000;
  uint64_t gpu_done_ = 0;
};

constexpr uint64_t kKernels[] = {6'000, 20'000, 100'000, 300'000, 700'000, 2'000'000, 200'000'000};

// Much is in flight within a turn, and little at its end: whoever is next waits for it. However
// short or long turns are, from the third one on.
TEST(Window, WorkInFlightIsBoundedInTimeWhateverAKernelTakes) {
  for (const uint64_t turn : {5'000'000u, 20'000'000u, 150'000'000u}) {
    for (const uint64_t kernel : kKernels) {
      SCOPED_TRACE(testing::Message() << kernel << " ns in turns of " << turn);
      Launches launches(kernel);
      for (int i = 0; i < 30; ++i) {
        const Launches::InFlight seen = launches.turn(turn);
        const uint64_t fewest = (Window::kFewest + 1) * kernel;
        EXPECT_LE(seen.most, std::max(fewest, 5 * Ahead::kMost / 4)) << i;
        EXPECT_LE(seen.at_end, std::max(fewest, 5 * Ahead::kLeast / 4)) << i;
        if (i < 3 || turn < 20'000'000) continue;
        EXPECT_LE(seen.idle, turn / 1000) << i;
        const uint64_t many =
            std::min<uint64_t>(Window::kMost * (kernel - Launches::kLaunch), Ahead::kMost);
        EXPECT_GE(seen.most, many / 2) << i;
      }
    }
  }
}

TEST(Window, FollowsWhenKernelsChange) {
  for (const uint64_t first : kKernels) {
    for (const uint64_t then : kKernels) {
      SCOPED_TRACE(testing::Message() << first << " ns, then " << then);
      Launches launches(first);
      for (int i = 0; i < 10; ++i) launches.turn(50'000'000);
      launches.kernel(then);
      for (int i = 0; i < 10; ++i) launches.turn(50'000'000);
      const Launches::InFlight seen = launches.turn(50'000'000);
      EXPECT_LE(seen.most, std::max((Window::kFewest + 1) * then, 5 * Ahead::kMost / 4));
      EXPECT_LE(seen.idle, 50'000u);
    }
  }
}

TEST(Window, LearnsOfMany) {
  Window window;
  for (int i = 0; i < 5; ++i) window.learn(0, 1);
  const uint32_t launches = window.launches(Ahead::kMost);
  EXPECT_EQ(launches, 64u);
  EXPECT_FALSE(window.tells(31, Ahead::kMost));
  EXPECT_TRUE(window.tells(32, Ahead::kMost));
  EXPECT_TRUE(window.tells(16, Ahead::kLeast));
  window.learn(3 * Ahead::kMost / 8, 32);  // 64 would take three quarters of what they may
  EXPECT_EQ(window.launches(Ahead::kMost), 64u);
  window.learn(6 * Ahead::kMost / 8, 32);
  EXPECT_EQ(window.launches(Ahead::kMost), 55u);
}

TEST(Window, NeverNeedsMoreMarkersThanThereAre) {
  for (uint32_t launches = Window::kFewest; launches <= Window::kMost; ++launches) {
    EXPECT_GE(Window::stride(launches), 1u);
    EXPECT_LE(launches / Window::stride(launches), Window::kMarkers);
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
