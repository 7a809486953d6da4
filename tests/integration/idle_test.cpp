#include <algorithm>
#include <chrono>
#include <thread>

#include "integration/preloaded.h"

// When a program that has nothing to do gives the GPU back.
namespace nvshare::integration {
namespace {

class Idle : public Preloaded {
 protected:
  // Works for so long, so many times, with pauses in between; how often it gave the GPU back.
  template <typename Wait>
  std::uint64_t returned(int times, Duration work, Wait wait) {
    const std::uint64_t before = scheduler().returned();
    for (int i = 0; i < times; ++i) {
      EXPECT_OK(spin(nullptr, work));
      EXPECT_OK(call<FunctionId::cuStreamSynchronize>(CUstream{}));
      wait();
    }
    return scheduler().returned() - before;
  }
  void expect_long_pauses_to_be_others() {
    EXPECT_GE(returned(20, 300us, [] { std::this_thread::sleep_for(20ms); }), 15u);
  }
};

TEST_F(Idle, WhoIsIdleGivesTheGpuBack) {
  scheduler().open();
  expect_long_pauses_to_be_others();
}

// Others could not have used what is shorter than handing over and back. On a busy machine pauses
// become longer than they were meant to be: one of several tries will do.
TEST_F(Idle, WhoComesBackAtOnceKeepsIt) {
  constexpr int kTimes = 20;
  constexpr int kTries = 20;
  scheduler().open();
  const auto almost_at_once = [] {  // awake: asleep it might be milliseconds
    const auto until = std::chrono::steady_clock::now() + 700us;
    while (std::chrono::steady_clock::now() < until) {
    }
  };
  std::uint64_t fewest = kTimes;
  for (int i = 0; i < kTries && fewest > kTimes / 5; ++i) {
    fewest = std::min(fewest, returned(kTimes, 8ms, almost_at_once));
  }
  EXPECT_LE(fewest, kTimes / 5);
  // It waits in vain once, and then no longer.
  expect_long_pauses_to_be_others();
}

}  // namespace
}  // namespace nvshare::integration
