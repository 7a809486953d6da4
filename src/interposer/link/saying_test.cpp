#include "interposer/link/saying.h"

#include <gtest/gtest.h>

namespace nvshare::interposer::link {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

TEST(Saying, IsDueOnceUntilTheNextWelcome) {
  Saying saying;
  EXPECT_TRUE(saying.is_due(5 * kSecond));
  EXPECT_FALSE(saying.is_due(6 * kSecond));
  EXPECT_FALSE(saying.is_due(500 * kSecond));
}

TEST(Saying, IsDueAgainAtASecondRefusal) {
  Saying saying;
  EXPECT_TRUE(saying.is_due(5 * kSecond));
  saying.welcome();
  EXPECT_TRUE(saying.is_due(500 * kSecond)) << "the welcome came soon after the first refusal";
}

TEST(Saying, IsDueOnceAMinute) {
  Saying saying;
  EXPECT_TRUE(saying.is_due(5 * kSecond));
  saying.welcome();
  EXPECT_FALSE(saying.is_due(6 * kSecond));
  EXPECT_FALSE(saying.is_due(64 * kSecond));
  EXPECT_TRUE(saying.is_due(65 * kSecond)) << "the refusal still holds after the minute";
}

}  // namespace
}  // namespace nvshare::interposer::link
