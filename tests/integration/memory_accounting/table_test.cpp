#include "interposer/memory/table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace nvshare::interposer {
namespace {

TEST(MemoryTable, AgreesWithAMapThroughAnyHistory) {
  std::mt19937_64 random(7);
  memory::Table<uint64_t> table;
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> expected;
  for (int step = 0; step < 200000; ++step) {
    // Now growing, now shrinking; addresses as devices have them, and few, so that they come again.
    const bool grow = (step / 20000) % 2 == 0;
    const uint64_t number = 0x7f0000000000 + (random() % 5000) * 512;
    const auto tag = static_cast<uint32_t>(random() % 3);
    if (random() % 10 < (grow ? 7u : 3u)) {
      ASSERT_TRUE(table.hold());
      uint64_t replaced = 0;
      const bool known = expected.count({number, tag}) != 0;
      const uint64_t before = known ? expected[{number, tag}] : 0;
      const uint64_t value = random();
      ASSERT_EQ(table.put(number, tag, value, replaced), known);
      ASSERT_EQ(replaced, before);
      expected[{number, tag}] = value;
    } else {
      const uint64_t* found = table.find(number, tag);
      const auto place = expected.find({number, tag});
      ASSERT_EQ(found != nullptr, place != expected.end());
      if (found != nullptr) {
        ASSERT_EQ(*found, place->second);
        expected.erase(place);
      }
      table.remove(number, tag);
    }
    ASSERT_EQ(table.size(), expected.size());
  }
  size_t seen = 0;
  table.remove_if([&](uint64_t number, uint32_t tag, uint64_t& value) {
    EXPECT_EQ((expected[{number, tag}]), value);
    ++seen;
    return true;
  });
  EXPECT_EQ(seen, expected.size());
  EXPECT_EQ(table.size(), 0u);
}

TEST(MemoryTable, PlacesThatAreHeldAreThere) {
  memory::Table<uint64_t> table;
  constexpr uint64_t kMany = 1000;
  for (uint64_t i = 0; i < kMany; ++i) ASSERT_TRUE(table.hold());
  uint64_t replaced = 0;
  for (uint64_t i = 0; i < kMany; ++i) EXPECT_FALSE(table.put(i, 0, i, replaced));
  for (uint64_t i = 0; i < kMany; ++i) EXPECT_EQ(*table.find(i, 0), i);
  for (int i = 0; i < 100000; ++i) {
    ASSERT_TRUE(table.hold());
    table.unhold();
  }
  EXPECT_EQ(table.size(), kMany);
}

}  // namespace
}  // namespace nvshare::interposer
