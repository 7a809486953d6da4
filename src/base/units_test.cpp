#include "base/units.h"

#include <gtest/gtest.h>

namespace nvshare {
namespace {

TEST(ParseBytes, TakesBinaryAndDecimalUnits) {
  EXPECT_EQ(*parse_bytes("4Gi"), gib(4));
  EXPECT_EQ(*parse_bytes("4GiB"), gib(4));
  EXPECT_EQ(*parse_bytes("1.5Gi"), mib(1536));
  EXPECT_EQ(*parse_bytes("64Ki"), kib(64));
  EXPECT_EQ(*parse_bytes("2G"), Bytes{2'000'000'000});
  EXPECT_EQ(*parse_bytes("1048576"), mib(1));
  EXPECT_EQ(*parse_bytes("0"), Bytes{0});
}

TEST(ParseBytes, RefusesWhatIsNotASizeAndSaysWhy) {
  EXPECT_EQ(parse_bytes("").error().message, "empty size (examples: 4Gi, 512Mi, 2G)");
  EXPECT_EQ(parse_bytes("-4Gi").error().message, "'-4Gi' is negative");
  EXPECT_EQ(parse_bytes("four").error().message, "'four' is not a size (examples: 4Gi, 512Mi, 2G)");
  EXPECT_EQ(parse_bytes("4Qi").error().message,
            "'4Qi' has no known unit (examples: 4Gi, 512Mi, 2G)");
  EXPECT_EQ(parse_bytes("9999999999Gi").error().message, "'9999999999Gi' is too large");
  EXPECT_FALSE(parse_bytes("nan"));
  EXPECT_FALSE(parse_bytes("inf"));
  EXPECT_FALSE(parse_bytes("1e3"));
}

TEST(ParseDuration, NeedsAUnit) {
  EXPECT_EQ(*parse_duration("10ms"), 10ms);
  EXPECT_EQ(*parse_duration("1.5s"), 1500ms);
  EXPECT_EQ(*parse_duration("2min"), 120s);
  EXPECT_FALSE(parse_duration("10"));
  EXPECT_FALSE(parse_duration("-1s"));
  EXPECT_FALSE(parse_duration("10 parsecs"));
}

TEST(ParseNumber, TakesFiniteNumbersAlone) {
  EXPECT_EQ(*parse_number("84.5"), 84.5);
  EXPECT_EQ(*parse_number("-3"), -3);
  EXPECT_FALSE(parse_number("inf"));
  EXPECT_FALSE(parse_number("nan"));
  EXPECT_FALSE(parse_number("4x"));
  EXPECT_FALSE(parse_number(""));
}

TEST(ParseInteger, KeepsTheRange) {
  EXPECT_EQ(*parse_integer("40", 1, 100), 40);
  EXPECT_EQ(parse_integer("101", 1, 100).error().message,
            "'101' is not a whole number from 1 to 100");
  EXPECT_FALSE(parse_integer("0", 1, 100));
  EXPECT_FALSE(parse_integer("4x", 1, 100));
  EXPECT_FALSE(parse_integer("", 1, 100));
}

TEST(ToText, IsShort) {
  EXPECT_EQ(to_text(gib(4)), "4GiB");
  EXPECT_EQ(to_text(mib(1536)), "1.5GiB");
  EXPECT_EQ(to_text(Bytes{0}), "0B");
  EXPECT_EQ(to_text(1200ms), "1.20s");
  EXPECT_EQ(to_text(Duration{35ms}), "35.0ms");
  EXPECT_EQ(to_text(Duration{12us}), "12us");
}

}  // namespace
}  // namespace nvshare
