#include "wire/credit.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

namespace nvshare::wire {
namespace {

TEST(Credit, IsTakenAndGivenBackToTheByte) {
  Credit credit{};
  EXPECT_FALSE(take(credit, 1)) << "there is none at first";
  EXPECT_FALSE(give(credit, 1));
  hand_out(credit, 100, 150);
  EXPECT_FALSE(take(credit, 101));
  EXPECT_TRUE(take(credit, 100));
  EXPECT_FALSE(take(credit, 1));
  EXPECT_TRUE(give(credit, 150)) << "also what was asked for is freed into it";
  EXPECT_FALSE(give(credit, 1)) << "no more than the cap";
  EXPECT_EQ(withdraw(credit, 100), 100u);
  EXPECT_EQ(withdraw(credit, 100), 50u);
  EXPECT_TRUE(give(credit, 7));
  EXPECT_EQ(revoke(credit), 7u);
  EXPECT_FALSE(give(credit, 1));
  EXPECT_FALSE(take(credit, 1));
}

TEST(Credit, NonsenseInThePageIsNoCredit) {
  Credit credit{};
  credit.cap = 10;
  credit.bytes = UINT64_MAX;
  EXPECT_FALSE(give(credit, 1)) << "more left than there may be";
  credit.cap = UINT64_MAX;
  EXPECT_FALSE(give(credit, 1)) << "no sum wraps";
  credit.bytes = 5;
  EXPECT_FALSE(give(credit, UINT64_MAX));
}

// What the program has, and what is left, is what was handed out less what was taken back and told:
// whatever happens in between.
TEST(Credit, NothingIsLostOrMadeInARace) {
  constexpr int kRounds = 200'000;
  Credit credit{};
  std::atomic<bool> done{false};
  std::uint64_t has = 0;
  std::uint64_t asked = 0;
  std::uint64_t told = 0;
  std::thread program([&] {
    std::minstd_rand dice(1);
    for (int i = 0; i < kRounds; ++i) {
      const std::uint64_t bytes = dice() % 100;
      if (dice() % 2 == 0) {
        if (!take(credit, bytes)) asked += bytes;
        has += bytes;
      } else if (has >= bytes) {
        has -= bytes;
        if (!give(credit, bytes)) told += bytes;
      }
    }
    done = true;
  });
  std::minstd_rand dice(2);
  std::uint64_t out = 0;
  std::uint64_t back = 0;
  while (!done) {
    const std::uint64_t bytes = dice() % 300;
    switch (dice() % 4) {
      case 0:
        back += withdraw(credit, bytes);
        break;
      case 1:
        back += revoke(credit);
        break;
      default:
        hand_out(credit, bytes, 300);
        out += bytes;
    }
  }
  program.join();
  back += revoke(credit);
  EXPECT_EQ(asked + out, has + told + back);
  EXPECT_EQ(credit.bytes.load(), 0u);
}

// A free that meets a revocation: either that has found the bytes or the scheduler is told of them,
// and nothing is left behind.
TEST(Credit, AFreeThatMeetsARevocationCountsOnce) {
  constexpr int kRounds = 300'000;
  Credit credit{};
  std::atomic<int> begun{0};
  std::atomic<int> ended{0};
  bool kept = false;
  int wrong = 0;
  // Awake, so that both go on at the same moment; but not when the other cannot run.
  const auto wait_for = [](const std::atomic<int>& word, int round) {
    for (int i = 0; word.load() != round; ++i) {
      if (i > 1000) std::this_thread::yield();
    }
  };
  std::thread program([&] {
    for (int round = 1; round <= kRounds; ++round) {
      wait_for(begun, round);
      kept = give(credit, 10);
      ended = round;
    }
  });
  for (int round = 1; round <= kRounds; ++round) {
    hand_out(credit, 0, 10);
    begun = round;
    // Now earlier and now later.
    for (volatile int i = 0; i < round % 64;) i = i + 1;
    const std::uint64_t found = revoke(credit);
    wait_for(ended, round);
    wrong += found != (kept ? 10u : 0u) || credit.bytes.load() != 0 ? 1 : 0;
    credit.bytes = 0;
  }
  program.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace nvshare::wire
