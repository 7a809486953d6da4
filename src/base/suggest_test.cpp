#include "base/suggest.h"

#include <gtest/gtest.h>

namespace nvshare {
namespace {

const std::vector<std::string_view> kWords{"memory", "memory_limit", "cores", "gpu"};

TEST(Closest, FindsWhatWasMeant) {
  EXPECT_EQ(closest("memroy", kWords), "memory");
  EXPECT_EQ(closest("memory-limit", kWords), "memory_limit");
  EXPECT_EQ(closest("core", kWords), "cores");
  EXPECT_EQ(closest("gpus", kWords), "gpu");
}

TEST(Closest, StaysSilentWhenNothingIsNear) {
  EXPECT_EQ(closest("colour", kWords), std::nullopt);
  EXPECT_EQ(closest("", kWords), std::nullopt);
  EXPECT_EQ(closest(std::string(100000, 'm'), kWords), std::nullopt);
}

TEST(DidYouMean, IsReadyToPutBehindAMessage) {
  EXPECT_EQ(did_you_mean("memroy", kWords), "; did you mean 'memory'?");
  EXPECT_EQ(did_you_mean("colour", kWords), "");
}

TEST(Join, PutsCommasBetween) {
  EXPECT_EQ(join({"a", "b", "c"}), "a, b, c");
  EXPECT_EQ(join({}), "");
}

}  // namespace
}  // namespace nvshare
