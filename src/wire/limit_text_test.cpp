#include "wire/limit_text.h"

#include <gtest/gtest.h>
#include <string.h>

namespace nvshare::wire {
namespace {

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

TEST(LimitText, SoFewBytesLackAUnit) {
  const auto lacks = [](const char* text) { return lacks_unit(text, strlen(text)); };
  for (const char* few : {"1", "500", "1048575", "1048575.9", "0.5", "00500"}) {
    EXPECT_TRUE(lacks(few)) << few;
  }
  for (const char* other :
       {"", "0", "0.0", "1048576", "500B", "500Mi", "1%", "99999999999999999999", "x"}) {
    EXPECT_FALSE(lacks(other)) << other;
  }
  EXPECT_EQ(parse_limit("500", kCard), 0u);
  EXPECT_EQ(parse_limit("500B", kCard), 500u);
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

TEST(LimitText, NoLimitIsUnderstoodToo) {
  for (const char* none : {"", "0"}) {
    EXPECT_TRUE(understands_limit(none)) << none;
    EXPECT_EQ(parse_limit(none, kCard), 0u) << none;
  }
  EXPECT_TRUE(understands_limit(nullptr));
  for (const char* good : {"4Gi", "1B", "1048576", "0.5%", "100%"}) {
    EXPECT_TRUE(understands_limit(good)) << good;
  }
  for (const char* wrong : {"4 Gi", "x", "0Gi", "0%", "101%", " ", "none", "1", "500", "0.5"}) {
    EXPECT_FALSE(understands_limit(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace nvshare::wire
