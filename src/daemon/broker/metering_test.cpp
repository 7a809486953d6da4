#include "daemon/broker/metering.h"

#include <gtest/gtest.h>

#include <numeric>

namespace nvshare::daemon {
namespace {

using List = std::vector<Duration>;

TEST(ShareOut, LeavesWhatFitsAsItIs) {
  EXPECT_EQ(share_out(List{30ms, 20ms}, 100ms), (List{30ms, 20ms}));
  EXPECT_EQ(share_out(List{50ms, 50ms}, 100ms), (List{50ms, 50ms}));
  EXPECT_EQ(share_out(List{}, 100ms), List{});
}

TEST(ShareOut, ScalesInProportion) {
  EXPECT_EQ(share_out(List{100ms, 100ms}, 100ms), (List{50ms, 50ms}));
  EXPECT_EQ(share_out(List{90ms, 30ms}, 100ms), (List{75ms, 25ms}));
  EXPECT_EQ(share_out(List{100ms, 0ms}, 50ms), (List{50ms, 0ms}));
}

TEST(ShareOut, NeverExceedsTheTimeThereWas) {
  const List odd{7ns, 11ns, 13ns, 1ns};
  for (Duration wall = 0ns; wall < 40ns; ++wall) {
    const List billed = share_out(odd, wall);
    EXPECT_LE(std::accumulate(billed.begin(), billed.end(), Duration{}), wall);
    for (std::size_t i = 0; i < odd.size(); ++i) EXPECT_LE(billed[i], odd[i]);
  }
}

TEST(ShareOut, StandsAnyNumbers) {
  const Duration most = Duration::max();
  const List billed = share_out(List{most, most, most}, most);
  for (const Duration one : billed) EXPECT_EQ(one, most / 3);
  EXPECT_EQ(share_out(List{-5ms, 10ms}, 5ms), (List{0ms, 5ms}));
  EXPECT_EQ(share_out(List{10ms}, -5ms), List{0ms});
}

TEST(Believable, IsBetweenWhatWasSaidAndWhatIsPossible) {
  EXPECT_EQ(believable(5'000'000, 0ms, 10ms), 5ms);
  EXPECT_EQ(believable(5'000'000, 7ms, 10ms), 7ms);
  EXPECT_EQ(believable(50'000'000, 7ms, 10ms), 10ms);
  EXPECT_EQ(believable(UINT64_MAX, 0ms, 10ms), 10ms);
  EXPECT_EQ(believable(UINT64_MAX, 7ms, 0ms), 7ms);
}

}  // namespace
}  // namespace nvshare::daemon
