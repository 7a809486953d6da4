#include "daemon/broker/trace.h"

#include <gtest/gtest.h>

namespace nvshare::daemon {
namespace {

TEST(Trace, LinesOfOneTenantOrOfAll) {
  Trace trace;
  trace.add("grant", "a", 1, {{"budget", 5}, {"why", "two words"}});
  trace.add("grant", "b", 2, {});
  trace.add("drop", "a", 1, {});
  const Trace::Part all = trace.from(0, "", 10);
  ASSERT_EQ(all.lines.size(), 3u);
  EXPECT_EQ(all.lines[0].substr(0, 5), "time=");
  EXPECT_NE(all.lines[0].find("Z event=grant tenant=a client=1 budget=5 why=\"two words\""),
            std::string_view::npos)
      << all.lines[0];
  EXPECT_EQ(all.next, 3u);
  const Trace::Part of_a = trace.from(0, "a", 10);
  ASSERT_EQ(of_a.lines.size(), 2u);
  EXPECT_NE(of_a.lines[1].find("event=drop"), std::string_view::npos);
  EXPECT_EQ(of_a.next, 3u);
  EXPECT_TRUE(trace.from(3, "", 10).lines.empty());
}

TEST(Trace, LeasesAreAmongTheLinesOfTheirTenant) {
  Trace trace;
  trace.add("grant", "a", 1, {});
  trace.add_lease("lease_asked", "a", " lease=7 class=ASR");
  trace.add_lease("lease_asked", "", " lease=8 class=ASR");
  const Trace::Part of_a = trace.from(0, "a", 10);
  ASSERT_EQ(of_a.lines.size(), 2u);
  EXPECT_TRUE(of_a.lines[1].ends_with("Z event=lease_asked tenant=a lease=7 class=ASR"))
      << of_a.lines[1];
  EXPECT_TRUE(trace.has("a"));
  EXPECT_FALSE(trace.has("b"));
  const Trace::Part all = trace.from(2, "", 10);
  ASSERT_EQ(all.lines.size(), 1u);
  EXPECT_TRUE(all.lines[0].ends_with("Z event=lease_asked lease=8 class=ASR")) << all.lines[0];
}

TEST(Trace, IsReadInParts) {
  Trace trace;
  for (int i = 0; i < 10; ++i) trace.add("e", "a", static_cast<std::uint64_t>(i), {});
  std::uint64_t from = 0;
  int seen = 0;
  for (int parts = 0; parts < 4; ++parts) {
    const Trace::Part part = trace.from(from, "", 3);
    for (const std::string_view line : part.lines) {
      EXPECT_NE(line.find("client=" + std::to_string(seen++)), std::string_view::npos);
    }
    EXPECT_EQ(part.end, 10u);
    from = part.next;
  }
  EXPECT_EQ(seen, 10);
  EXPECT_EQ(from, 10u);
}

TEST(Trace, KeepsTheLastLinesAndSaysWhatIsLost) {
  Trace trace;
  for (std::size_t i = 0; i < Trace::kKept + 5; ++i) trace.add("e", "a", i, {});
  const Trace::Part part = trace.from(2, "", Trace::kKept + 5);
  EXPECT_EQ(part.lines.size(), Trace::kKept);
  EXPECT_NE(part.lines[0].find("client=5"), std::string_view::npos);
  EXPECT_EQ(part.lost, 3u);
  EXPECT_EQ(trace.from(5, "", 1).lost, 0u);
  // A number of a scheduler that was there before.
  const Trace::Part later = trace.from(1'000'000, "", 10);
  EXPECT_TRUE(later.lines.empty());
  EXPECT_EQ(later.next, Trace::kKept + 5);
}

}  // namespace
}  // namespace nvshare::daemon
