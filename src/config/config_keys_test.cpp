#include "config/config_keys.h"

#include <gtest/gtest.h>

#include <set>

namespace nvshare::config {
namespace {

using core::Config;

TEST(ConfigKeys, CoverEveryFieldOnce) {
  // Does not compile when a field is added or removed: then the list of keys must follow.
  const Config config;
  [[maybe_unused]] const auto& [policy, share_mode, window, turn, fair_turn, burst_window,
                                carryover, tail_billing, best_effort, sample_interval, drop_timeout,
                                end_overdue, reserve, reserve_base, reserve_process, quantum_mode,
                                quantum_fixed, multiplier, quantum_min, quantum_max, link, ageing,
                                idle_out] = config;
  EXPECT_EQ(config_keys().size(), 23u);
  std::set<std::string_view> names;
  for (const ConfigKey& key : config_keys()) {
    names.insert(key.name);
    EXPECT_FALSE(key.help.empty()) << key.name;
  }
  EXPECT_EQ(names.size(), config_keys().size());
}

TEST(ConfigKeys, EachChangesAFieldOfItsOwnAndSurvivesTheRoundTrip) {
  const std::vector<std::string_view> candidates{"metered", "wall",      "auto",   "turns",
                                                 "fixed",   "1234567ns", "1500ms", "12345",
                                                 "3Mi",     "7",         "true",   "false"};
  std::set<std::string> seen;
  for (const ConfigKey& key : config_keys()) {
    bool changed = false;
    for (std::string_view text : candidates) {
      Config config;
      if (!set_from_text(config, key, text) || config == Config{}) continue;
      changed = true;
      Config again;
      ASSERT_TRUE(set_from_text(again, key, text_of(config, key))) << key.name;
      EXPECT_EQ(again, config) << key.name << " from " << text;
      std::string all;
      for (const ConfigKey& other : config_keys()) all += text_of(config, other) + " ";
      seen.insert(all);
    }
    EXPECT_TRUE(changed) << key.name;
  }
  EXPECT_GE(seen.size(), config_keys().size());
}

TEST(ConfigKeys, DefaultsAsTextAreTheDefaults) {
  Config config;
  for (const ConfigKey& key : config_keys()) {
    ASSERT_TRUE(set_from_text(config, key, text_of(Config{}, key))) << key.name;
  }
  EXPECT_EQ(config, Config{});
  EXPECT_EQ(text_of(config, *find_config_key("window")), "2s");
  EXPECT_EQ(text_of(config, *find_config_key("reserve_base")), "500Mi");
  EXPECT_EQ(text_of(config, *find_config_key("end_overdue")), "false");
}

TEST(ConfigKeys, SayWhatIsWrongWithAText) {
  Config config;
  EXPECT_EQ(set_from_text(config, *find_config_key("policy"), "magic").error().message,
            "policy: 'magic' is not one of wall, weighted, hybrid, coordinated, dynamic, fair, "
            "metered");
  EXPECT_EQ(set_from_text(config, *find_config_key("turn"), "5").error().message,
            "turn: '5' has no known unit (examples: 10ms, 2s, 1h)");
  EXPECT_FALSE(set_from_text(config, *find_config_key("end_overdue"), "yes"));
  EXPECT_FALSE(set_from_text(config, *find_config_key("reserve_percent"), "10%"));
  EXPECT_EQ(find_config_key("windows"), nullptr);
  EXPECT_EQ(config, Config{});
}

#if NVSHARE_HAVE_TOML

TEST(ReadConfig, TakesValuesAndReportsEveryBadOneAtItsPlace) {
  const auto root = parse_toml(
      "window = \"1ms\"\n"
      "turn = \"2ms\"\n"
      "policy = \"fair\"\n"
      "share_mode = \"together\"\n"
      "carryover_percent = 101\n"
      "end_overdue = 1\n"
      "quantum_min = \"10min\"\n",
      "c.toml");
  ASSERT_TRUE(root);
  Problems problems("c.toml");
  TableReader reader(*root, "config", problems);
  Config config;
  read_config(reader, config);
  reader.finish();
  EXPECT_EQ(config.turn, 2ms);
  EXPECT_EQ(config.policy, core::ComputePolicy::Fair);
  EXPECT_EQ(problems.lines(),
            (std::vector<std::string>{
                // quantum_max is not in the file, so its problem stands at the table.
                "c.toml:1:1: config.quantum_max: 300.00s is not from 600.00s to 86400.00s",
                "c.toml:1:10: config.window: 1.0ms is not from 10.0ms to 3600.00s",
                "c.toml:4:14: config.share_mode: 'together' is not one of auto, turns, concurrent",
                "c.toml:5:21: config.carryover_percent: 101 is not from 0 to 100",
                "c.toml:6:15: config.end_overdue: is a whole number, not true or false",
            }));
}

#endif

}  // namespace
}  // namespace nvshare::config
