#include "compare.h"

#include <gtest/gtest.h>

namespace nvshare::conformance {
namespace {

using Lines = std::vector<std::string>;

TEST(PlacedLines, AValueStandsUnderItsCallAndHeading) {
  EXPECT_EQ(placed_lines("memory  cuMemAlloc_v2(&a, 1) -> CUDA_SUCCESS\n"
                         "memory    aligned = yes\n"
                         "memory  -- how much\n"
                         "memory    first = 1\n"
                         "memory  ! cuMemFree_v2(a) -> CUDA_ERROR_UNKNOWN\n"
                         "streams  cuStreamQuery(nullptr) -> CUDA_SUCCESS\n"),
            (Lines{"memory  cuMemAlloc_v2(&a, 1) -> CUDA_SUCCESS",
                   "memory  cuMemAlloc_v2(&a, 1) | aligned = yes", "memory  [how much]",
                   "memory  [how much] | first = 1",
                   "memory  [how much] ! cuMemFree_v2(a) -> CUDA_ERROR_UNKNOWN",
                   "streams  cuStreamQuery(nullptr) -> CUDA_SUCCESS"}));
}

TEST(PlacedLines, TheResultIsNoPartOfThePlace) {
  EXPECT_EQ(placed_lines("a  f() -> ONE\na    x = 1\n")[1],
            placed_lines("a  f() -> TWO\na    x = 1\n")[1]);
}

TEST(Difference, NoneBetweenEquals) {
  EXPECT_EQ(difference({"a", "b"}, {"a", "b"}), Lines{});
  EXPECT_EQ(difference({}, {}), Lines{});
}

TEST(Difference, ChangedMissingAndExtraLines) {
  EXPECT_EQ(difference({"a", "b", "c"}, {"a", "x", "c"}), (Lines{"- b", "+ x"}));
  EXPECT_EQ(difference({"a", "b", "c"}, {"a", "c"}), (Lines{"- b"}));
  EXPECT_EQ(difference({"a", "c"}, {"a", "b", "c", "d"}), (Lines{"+ b", "+ d"}));
  EXPECT_EQ(difference({"a"}, {}), (Lines{"- a"}));
  EXPECT_EQ(difference({}, {"a"}), (Lines{"+ a"}));
}

TEST(ParseAllowed, ReasonsWithTheirLines) {
  const auto allowed =
      parse_allowed("# comment\n\nwhy: no JIT here\n- a\n+ b\n\nwhy:   another\n+ c\n");
  ASSERT_TRUE(allowed);
  ASSERT_EQ(allowed->size(), 2u);
  EXPECT_EQ((*allowed)[0].why, "no JIT here");
  EXPECT_EQ((*allowed)[0].lines, (Lines{"- a", "+ b"}));
  EXPECT_EQ((*allowed)[1].why, "another");
  EXPECT_TRUE(parse_allowed(""));
}

TEST(ParseAllowed, NothingWithoutAReason) {
  EXPECT_FALSE(parse_allowed("- a\n"));
  EXPECT_FALSE(parse_allowed("why:\n- a\n"));
  EXPECT_FALSE(parse_allowed("why: because\n"));
  EXPECT_FALSE(parse_allowed("why: because\nwhy: of this\n- a\n"));
  EXPECT_FALSE(parse_allowed("why: because\na\n"));
}

TEST(Judge, EveryDifferenceMustBeListedAndEveryListedOneMustOccur) {
  const std::vector<Allowed> allowed = {{"reason", {"- a", "+ b"}}};
  EXPECT_TRUE(judge({"- a", "+ b"}, allowed).good());
  EXPECT_TRUE(judge({}, {}).good());
  EXPECT_EQ(judge({"- a", "+ b", "+ c"}, allowed).unexplained, (Lines{"+ c"}));
  EXPECT_EQ(judge({"- a"}, allowed).stale, (Lines{"+ b"}));
  EXPECT_EQ(judge({"- a", "- a", "+ b"}, allowed).unexplained, (Lines{"- a"}));
}

}  // namespace
}  // namespace nvshare::conformance
