#include "interposer/moving/swap/extents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace nvshare::interposer::moving::swap {
namespace {

constexpr uint64_t kBase = 0x10000;
constexpr uint64_t kBytes = 64 * 1024;

TEST(Extents, GivesTheSmallestThatFitsAndJoinsWhatComesBack) {
  Pool<Extent> pool;
  Extents extents;
  EXPECT_EQ(extents.take(pool, 1), nullptr);
  ASSERT_TRUE(extents.add_range(pool, kBase, kBytes));
  EXPECT_EQ(extents.used_up_to(), kBase);
  Extent* parts[4];
  for (Extent*& part : parts) part = extents.take(pool, kBytes / 8);
  EXPECT_EQ(extents.used_up_to(), kBase + kBytes / 2);
  extents.give(pool, parts[1]);
  EXPECT_EQ(extents.take(pool, kBytes / 8)->address, kBase + kBytes / 8) << "not of the large rest";
  EXPECT_EQ(extents.take(pool, kBytes), nullptr);
  extents.give(pool, parts[3]);
  EXPECT_EQ(extents.used_up_to(), kBase + kBytes / 8 * 3);
  extents.give(pool, parts[0]);
  extents.give(pool, parts[2]);
  extents.give(pool, parts[1]);
  EXPECT_EQ(extents.largest(), kBytes);
  EXPECT_EQ(extents.free_bytes(), kBytes);
}

TEST(Extents, NothingCrossesFromOneRangeToTheNext) {
  Pool<Extent> pool;
  Extents extents;
  ASSERT_TRUE(extents.add_range(pool, kBase, kBytes));
  ASSERT_TRUE(extents.add_range(pool, kBase + kBytes, kBytes));
  EXPECT_EQ(extents.take(pool, kBytes + 1), nullptr);
  Extent* first = extents.take(pool, kBytes);
  Extent* second = extents.take(pool, kBytes);
  extents.give(pool, first);
  extents.give(pool, second);
  EXPECT_EQ(extents.largest(), kBytes);
  EXPECT_EQ(extents.free_bytes(), 2 * kBytes);
}

// Against a list of what is given out: nothing overlaps, nothing is lost, and what is refused
// really does not fit.
TEST(Extents, AgreeWithASimpleModel) {
  Pool<Extent> pool;
  Extents extents;
  ASSERT_TRUE(extents.add_range(pool, kBase, kBytes));
  std::map<uint64_t, Extent*> given;
  uint64_t free = kBytes;
  std::mt19937 dice(1);
  const auto largest_gap = [&] {
    uint64_t at = kBase;
    uint64_t largest = 0;
    for (const auto& [address, extent] : given) {
      EXPECT_GE(address, at) << "overlaps";
      largest = std::max(largest, address - at);
      at = address + extent->bytes;
    }
    EXPECT_EQ(extents.used_up_to(), at);
    return std::max(largest, kBase + kBytes - at);
  };
  for (int i = 0; i < 5000; ++i) {
    const uint64_t bytes = 1 + dice() % (dice() % 8 == 0 ? 8000 : 500);
    if (dice() % 2 == 0) {
      const bool fits = bytes <= largest_gap();
      Extent* extent = extents.take(pool, bytes);
      ASSERT_EQ(extent != nullptr, fits);
      if (extent == nullptr) continue;
      EXPECT_EQ(extent->bytes, bytes);
      given[extent->address] = extent;
      free -= bytes;
    } else if (!given.empty()) {
      auto one = given.begin();
      std::advance(one, static_cast<long>(dice() % given.size()));
      free += one->second->bytes;
      extents.give(pool, one->second);
      given.erase(one);
    }
    ASSERT_EQ(extents.free_bytes(), free);
    ASSERT_EQ(extents.largest(), largest_gap());
  }
}

TEST(Extents, ARangeOfWhichNothingIsGivenOutCanGo) {
  Pool<Extent> pool;
  Extents extents;
  ASSERT_TRUE(extents.add_range(pool, 0x1000, 0x1000));
  ASSERT_TRUE(extents.add_range(pool, 0x2000, 0x1000));
  Extent* part = extents.take(pool, 0x10);
  const uint64_t taken = part->address & ~uint64_t{0xfff};
  EXPECT_FALSE(extents.remove_free_range(pool, taken, 0x1000));
  EXPECT_FALSE(extents.remove_free_range(pool, 0x3000, 0x1000));
  EXPECT_TRUE(extents.remove_free_range(pool, 0x3000 - taken, 0x1000));
  EXPECT_EQ(extents.free_bytes(), 0x1000u - 0x10);
  extents.give(pool, part);
  EXPECT_TRUE(extents.remove_free_range(pool, taken, 0x1000));
  EXPECT_EQ(extents.free_bytes(), 0u);
  EXPECT_EQ(extents.take(pool, 1), nullptr);
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
