#include "interposer/gate/meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

namespace nvshare::interposer::gate {
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

TEST(Stuck, SeemsWhatDoesNotMoveForLong) {
  constexpr uint64_t kMs = 1'000'000;
  Stuck stuck(1000 * kMs);
  EXPECT_FALSE(stuck.seems(900 * kMs, 1000 * kMs));
  EXPECT_FALSE(stuck.seems(900 * kMs, 1500 * kMs));
  EXPECT_TRUE(stuck.seems(900 * kMs, 1501 * kMs));
  stuck.let_through(1505 * kMs);
  EXPECT_FALSE(stuck.seems(900 * kMs, 2505 * kMs));
  EXPECT_TRUE(stuck.seems(900 * kMs, 2506 * kMs));
  EXPECT_FALSE(stuck.seems(2510 * kMs, 2530 * kMs)) << "it moves";
}

// Work that waits for one call of the host after the other gets on.
TEST(Stuck, HelpsAgainSoonWhatThatHelps) {
  constexpr uint64_t kMs = 1'000'000;
  uint64_t now = 1000 * kMs;
  uint64_t done = now;
  Stuck stuck(now);
  for (int calls = 0; calls < 10; now += kMs) {
    if (!stuck.seems(done, now)) continue;
    ++calls;
    stuck.let_through(now + 5 * kMs);
    done = now += 6 * kMs;
  }
  EXPECT_LE(now, 1000 * kMs + 9000 * kMs);
}

// Kernels that take longer than one is patient for: few are let in behind the last.
TEST(Stuck, DoesNotSeemForEverWhatIsSlow) {
  constexpr uint64_t kMs = 1'000'000;
  for (uint64_t kernel = 450 * kMs; kernel < 5000 * kMs; kernel += kMs) {
    uint64_t now = 1000 * kMs;
    uint64_t next_done = now + kernel;
    uint64_t done = now;
    int in_flight = 2;
    int let_in = 0;
    Stuck stuck(now);
    for (; in_flight > 0 && let_in < 20; now += kMs) {
      if (now >= next_done) {
        done = now;
        next_done = now + kernel;
        --in_flight;
      }
      if (stuck.seems(done, now)) {
        ++in_flight;
        ++let_in;
        stuck.let_through(now);
      }
    }
    EXPECT_LE(let_in, 8) << kernel;
  }
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

// A program that launches kernels, and waits when its window is full: in turns, in virtual time.
// Markers are placed and looked at as markers.cpp and records.cpp do, but none moves.
class Launches {
 public:
  static constexpr uint64_t kLaunch = 5'000;
  static constexpr uint64_t kLook = 250'000;  // of the link's thread

  explicit Launches(uint64_t kernel) : kernel_(kernel) {}
  // From one launch to the next; and after so many it waits for them (0: never).
  void kind(uint64_t kernel, uint64_t apart = kLaunch, uint64_t step = 0) {
    kernel_ = kernel;
    apart_ = apart;
    step_ = step;
  }

  // What was in flight, in GPU time.
  struct InFlight {
    uint64_t most = 0;
    uint64_t at_end = 0;
    uint64_t idle = 0;  // how long the GPU had nothing to do
    uint64_t markers = 0;
  };
  InFlight turn(uint64_t budget) {
    InFlight seen;
    const uint64_t begin = now_;
    gpu_done_ = now_;
    while (now_ - begin < budget) {
      const uint64_t ahead = Ahead::of(budget, now_ - begin);
      if (now_ - looked_at_ >= kLook) retire();
      if (!markers_.empty() && submitted_ - done_ >= window_.launches(ahead)) {
        now_ = std::max(now_, markers_.front().done_at);
        retire();
        continue;
      }
      now_ += apart_;
      if (now_ > gpu_done_ + apart_) seen.idle += now_ - gpu_done_ - apart_;
      gpu_done_ = std::max(gpu_done_, now_) + kernel_;
      ++submitted_;
      const uint64_t stride = Window::stride(window_.launches(ahead));
      if (submitted_ - marked_ >= stride) {
        retire();
        place(ahead);
        ++seen.markers;
      }
      seen.most = std::max(seen.most, gpu_done_ - now_);
      if (step_ != 0 && submitted_ % step_ == 0) {  // who waits places a marker
        place(ahead);
        wait();
      }
    }
    seen.at_end = gpu_done_ > now_ ? gpu_done_ - now_ : 0;
    wait();
    now_ += 10'000'000;  // others have theirs
    return seen;
  }

 private:
  struct Placed {
    uint64_t count, placed_at, done_at, behind;
    bool like_all;
  };
  void place(uint64_t ahead) {
    const uint64_t behind = submitted_ - done_;
    markers_.push_back({submitted_, now_, gpu_done_, behind, window_.is_like_all(behind, ahead)});
    marked_ = submitted_;
  }
  void retire() {
    looked_at_ = now_;
    for (; !markers_.empty() && markers_.front().done_at <= now_; markers_.pop_front()) {
      const Placed& oldest = markers_.front();
      done_ = oldest.count;
      const uint64_t age = now_ - oldest.placed_at;
      if (age > 0) window_.learn(age, oldest.behind, oldest.like_all);
    }
  }
  void wait() {
    now_ = std::max(now_, gpu_done_);
    retire();
    done_ = marked_ = submitted_;
  }

  Window window_;
  std::deque<Placed> markers_;
  uint64_t kernel_;
  uint64_t apart_ = kLaunch;
  uint64_t step_ = 0;
  uint64_t submitted_ = 0;
  uint64_t marked_ = 0;
  uint64_t done_ = 0;
  uint64_t now_ = 1'000'000'000;
  uint64_t looked_at_ = 0;
  uint64_t gpu_done_ = 0;
};

constexpr uint64_t kKernels[] = {6'000, 20'000, 100'000, 300'000, 700'000, 2'000'000, 200'000'000};
constexpr uint64_t kMuch = 5 * Ahead::kMost / 4;

// What cannot be less, whatever was learnt.
uint64_t fewest(uint64_t kernel) {
  return (Window::kFewest + 1) * kernel;
}

// Learns of a window that is always full, and says how much is in flight in the end.
uint64_t settled(Window& window, uint64_t kernel, uint64_t bound) {
  for (int i = 0; i < 100; ++i) {
    const uint64_t launches = window.launches(bound);
    window.learn(launches * kernel, launches, true);
  }
  return window.launches(bound) * kernel;
}

TEST(Window, SettlesWithinWhatMayBeInFlight) {
  for (const uint64_t bound : {Ahead::kLeast, Ahead::kMost}) {
    for (const uint64_t kernel : {8'000u, 20'000u, 100'000u, 300'000u, 700'000u}) {
      Window window;
      const uint64_t time = settled(window, kernel, bound);
      EXPECT_LE(time, bound) << kernel;
      EXPECT_GE(time, bound / 2) << kernel;
    }
    // The shortest reach the most launches there may be, the longest the fewest.
    Window shortest;
    EXPECT_EQ(settled(shortest, 100, bound), Window::kMost * 100u);
    Window longest;
    EXPECT_EQ(settled(longest, 200'000'000, bound), Window::kFewest * 200'000'000u);
    EXPECT_GE(settled(longest, 10'000, bound), bound / 2);
    EXPECT_EQ(settled(longest, 5'000'000, bound), Window::kFewest * 5'000'000u);
  }
}

// Much is in flight within a turn, and little at its end: whoever is next waits for it. However
// short or long turns are, and from the first one on; that the GPU has enough to do from the
// fourth.
TEST(Window, WorkInFlightIsBoundedInTimeWhateverAKernelTakes) {
  for (const uint64_t turn : {5'000'000u, 20'000'000u, 150'000'000u}) {
    for (const uint64_t kernel : kKernels) {
      SCOPED_TRACE(testing::Message() << kernel << " ns in turns of " << turn);
      Launches launches(kernel);
      for (int i = 0; i < 30; ++i) {
        const Launches::InFlight seen = launches.turn(turn);
        EXPECT_LE(seen.most, std::max(fewest(kernel), kMuch)) << i;
        EXPECT_LE(seen.at_end, std::max(fewest(kernel), kMuch / 2)) << i;
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
      launches.kind(then);
      for (int i = 0; i < 10; ++i) launches.turn(50'000'000);
      const Launches::InFlight seen = launches.turn(50'000'000);
      EXPECT_LE(seen.most, std::max(fewest(then), kMuch));
      EXPECT_LE(seen.idle, 50'000u);
    }
  }
}

// Also of a program that never has half of what it may have in flight.
TEST(Window, FollowsWhenWorkIsWaitedFor) {
  for (const uint64_t step : {100u, 200u, 250u, 350u}) {
    SCOPED_TRACE(step);
    Launches launches(7'000);
    for (int i = 0; i < 10; ++i) launches.turn(50'000'000);
    launches.kind(100'000, Launches::kLaunch, step);
    for (int i = 0; i < 10; ++i) launches.turn(50'000'000);
    EXPECT_LE(launches.turn(50'000'000).most, kMuch);
  }
}

// Nor does one that is about as fast as the GPU learn that there may be more, however late it is
// seen how far that is. But not each of its launches is marked.
TEST(Window, LearnsNothingWrongOfWhoIsSlow) {
  for (const uint64_t kernel : {4'000u, 28'000u, 45'000u, 98'000u}) {
    for (const uint64_t apart : {kernel - 2'000, kernel + 2'000, 2 * kernel}) {
      SCOPED_TRACE(testing::Message() << kernel << " ns every " << apart);
      Launches launches(kernel);
      launches.kind(kernel, apart);
      Launches::InFlight seen;
      for (int i = 0; i < 10; ++i) seen = launches.turn(50'000'000);
      if (kernel < 50'000) {
        EXPECT_LE(seen.markers, 50'000'000 / apart / 5);
      }
      launches.kind(kernel);
      EXPECT_LE(launches.turn(50'000'000).most, 2 * Ahead::kMost);
    }
  }
}

TEST(Window, LearnsOfMany) {
  Window window;
  for (int i = 0; i < 5; ++i) window.learn(0, 1, true);
  EXPECT_EQ(window.launches(Ahead::kMost), 64u);
  EXPECT_FALSE(window.is_like_all(31, Ahead::kMost));
  EXPECT_TRUE(window.is_like_all(32, Ahead::kMost));
  EXPECT_TRUE(window.is_like_all(16, Ahead::kLeast));
  window.learn(3 * Ahead::kMost / 8, 32, true);  // 64 would take three quarters of what they may
  EXPECT_EQ(window.launches(Ahead::kMost), 64u);
  window.learn(6 * Ahead::kMost / 8, 32, true);
  EXPECT_EQ(window.launches(Ahead::kMost), 55u);
  window.learn(Ahead::kMost / 3, 1, false);  // which may be that it was seen late
  EXPECT_EQ(window.launches(Ahead::kMost), 55u);
}

TEST(Window, NeverNeedsMoreMarkersThanThereAre) {
  for (uint32_t launches = Window::kFewest; launches <= Window::kMost; ++launches) {
    EXPECT_GE(Window::stride(launches), 1u);
    EXPECT_LE(launches / Window::stride(launches), Window::kMarkers);
  }
}

}  // namespace
}  // namespace nvshare::interposer::gate
