#include "config/arbiter_keys.h"

#include <gtest/gtest.h>

#include <set>

namespace nvshare::config {
namespace {

using core::ArbiterConfig;
using core::Refusal;
using core::UsageRules;
using Lines = std::vector<std::string>;

TEST(ArbiterKeys, CoverEveryFieldOnce) {
  // Does not compile when a field is added or removed: then the list of keys must follow.
  [[maybe_unused]] const auto& [cache_ttl, high_water, low_water, boosts, long_audio, high_boost,
                                low_boost, boost_lasts] = UsageRules{};
  [[maybe_unused]] const auto& [usage, slots, queue, classes] = ArbiterConfig{};
  EXPECT_EQ(arbiter_keys().size(), 8u + 2u);
  std::set<std::string_view> names;
  for (const ArbiterKey& key : arbiter_keys()) {
    names.insert(key.name);
    EXPECT_FALSE(key.help.empty()) << key.name;
  }
  EXPECT_EQ(names.size(), arbiter_keys().size());
}

TEST(ArbiterKeys, AnIntervalNeedsATtlOfOneAndAHalf) {
  UsageRules rules;
  rules.cache_ttl = 1200ms;
  EXPECT_EQ(ttl_problem(rules, 800ms), std::nullopt);
  EXPECT_EQ(ttl_problem(rules, 801ms),
            "usage_cache_ttl: 1.20s is less than 1.5 times usage_sample_interval, 801.0ms");
}

#if NVSHARE_HAVE_TOML

struct Read {
  ArbiterConfig config;
  Duration interval = kFirstUsageInterval;
  Lines problems;
};

Read read(const std::string& toml) {
  Read read;
  const auto document = parse_toml(toml, "s.toml");
  EXPECT_TRUE(document);
  Problems problems("s.toml");
  TableReader root(*document, "", problems);
  auto table = root.table("arbiter");
  read_arbiter(root, table ? &*table : nullptr, problems, read.config, read.interval);
  if (table) table->finish();
  root.finish();
  read.problems = problems.lines();
  return read;
}

TEST(ReadArbiter, WithoutTablesEverythingIsAsItIs) {
  const Read all = read("");
  EXPECT_EQ(all.config, ArbiterConfig{});
  EXPECT_EQ(all.interval, 800ms);
  EXPECT_EQ(all.problems, Lines{});
}

TEST(ReadArbiter, ReadsEveryKey) {
  const Read all = read(R"([arbiter]
usage_sample_interval = "500ms"
usage_cache_ttl = "3s"
usage_high_water = 90
usage_low_water = 70.5
usage_boosts = false
usage_long_audio = "4s"
usage_high_boost = 5
usage_low_boost = 6
usage_boost_lasts = "9s"
lease_slots = 2
lease_queue = 7
[classes.NMT]
max_wait = "1s"
[classes.OCR]
priority = 60
busy = "FALLBACK_CPU"
slots = 1
)");
  EXPECT_EQ(all.problems, Lines{});
  EXPECT_EQ(all.interval, 500ms);
  const UsageRules rules{3s, 90, 70.5, false, 4s, 5, 6, 9s};
  EXPECT_EQ(all.config.usage, rules);
  EXPECT_EQ(all.config.slots, 2);
  EXPECT_EQ(all.config.queue, 7);
  ASSERT_EQ(all.config.classes.size(), 5u);
  EXPECT_EQ(all.config.classes[1].max_wait, 1s);
  EXPECT_EQ(all.config.classes[1].priority, 80) << "what is not named stays";
  const core::TaskClass ocr{"OCR", 60, 3s, 30s, Refusal::FallbackCpu, Refusal::Wait, 1};
  EXPECT_EQ(all.config.classes[4], ocr);
}

TEST(ReadArbiter, ReportsWrongValuesInALineEach) {
  EXPECT_EQ(read("[arbiter]\nlease_slots = 0\nusage_high_water = \"high\"\nusage_low_water = 91\n"
                 "usage_sample_interval = \"5s\"\nlease_slot = 3\n")
                .problems,
            (Lines{
                "s.toml:2:15: arbiter.lease_slots: 0 is not from 1 to 1024",
                "s.toml:3:20: arbiter.usage_high_water: is a text, not a number",
                "s.toml:4:19: arbiter.usage_low_water: 91 is not below usage_high_water, 85",
                "s.toml:5:25: arbiter.usage_sample_interval: 5.00s is not from 50.0ms to 2.00s",
                "s.toml:6:1: arbiter.lease_slot: unknown key; did you mean 'lease_slots'?",
            }));
  EXPECT_EQ(read("[classes.OCR]\npriority = 101\nbusy = \"RUN\"\n").problems,
            (Lines{"s.toml:1:1: classes.OCR.priority: 101 is not from 0 to 100",
                   "s.toml:3:8: classes.OCR.busy: 'RUN' is not one of WAIT, SKIP, FALLBACK_CPU"}));
  EXPECT_EQ(read("[arbiter]\nusage_cache_ttl = \"1s\"\n").problems,
            (Lines{"s.toml:2:19: arbiter.usage_cache_ttl: 1.00s is less than 1.5 times "
                   "usage_sample_interval, 800.0ms"}));
}

#endif

}  // namespace
}  // namespace nvshare::config
