#include "daemon/settings.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

namespace nvshare::daemon {
namespace {

Loaded load(std::optional<std::string_view> file,
            std::map<std::string, std::string> variables = {}) {
  return load_settings(file, "scheduler.toml", [&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

TEST(Settings, EveryOneIsToldAboutAndCanBeSetToWhatItIs) {
  Settings settings;
  for (const Setting& one : all_settings()) {
    EXPECT_FALSE(one.help.empty()) << one.name;
    EXPECT_FALSE(one.range.empty()) << one.name;
    EXPECT_FALSE(one.variables.empty()) << one.name;
    const auto set = set_setting(settings, one.name, text_of(settings, one.name));
    EXPECT_TRUE(set) << set.error().message;
  }
  EXPECT_EQ(settings.core, core::Config{});
}

TEST(Settings, TheEnvironmentGoesBeforeNothing) {
  const Loaded loaded = load({}, {{"NVSHARE_TURN", "10ms"},
                                  {"NVSHARE_MAX_CLIENTS", "7"},
                                  {"NVSHARE_WHEN_LOST", "wait"},
                                  {"NVSHARE_LOG_LEVEL", "warning"},
                                  {"NVSHARE_RUN_DIR", "/tmp/x"},
                                  {"NVSHARE_DEFAULT_MEMORY", "4Gi"},
                                  {"NVSHARE_DEFAULT_CORES", "30"}});
  EXPECT_TRUE(loaded.problems.empty());
  EXPECT_EQ(loaded.settings.core.turn, 10ms);
  EXPECT_EQ(loaded.settings.max_clients, 7);
  EXPECT_EQ(loaded.settings.when_lost, wire::WhenLost::Wait);
  EXPECT_EQ(loaded.settings.log_level, Level::Warning);
  EXPECT_EQ(loaded.settings.run_directory, "/tmp/x");
  EXPECT_EQ(loaded.settings.default_limits().memory, gib(4));
  EXPECT_EQ(loaded.settings.default_limits().core_percent, 30);
}

TEST(Settings, TheRequirementsVariablesCountInTheirOwnUnits) {
  const Loaded loaded = load({}, {{"NVSHARE_COMPUTE_WINDOW_MS", "3000"},
                                  {"NVSHARE_QUOTA_SAMPLE_INTERVAL_MS", "50"},
                                  {"NVSHARE_QUOTA_CARRYOVER_PERCENT", "80"},
                                  {"NVSHARE_DROP_TAIL_BILLING_PERCENT", "70"},
                                  {"NVSHARE_SWITCH_TIME_MODE", "fixed"},
                                  {"NVSHARE_SWITCH_TIME_FIXED", "30"},
                                  {"NVSHARE_SWITCH_TIME_MULTIPLIER", "6"},
                                  {"NVSHARE_MEMORY_RESERVE_PERCENT", "15"}});
  EXPECT_TRUE(loaded.problems.empty());
  const core::Config& config = loaded.settings.core;
  EXPECT_EQ(config.window, 3s);
  EXPECT_EQ(config.sample_interval, 50ms);
  EXPECT_EQ(config.carryover_percent, 80);
  EXPECT_EQ(config.tail_billing_percent, 70);
  EXPECT_EQ(config.quantum_mode, core::QuantumMode::Fixed);
  EXPECT_EQ(config.quantum_fixed, 30s);
  EXPECT_EQ(config.quantum_multiplier, 6);
  EXPECT_EQ(config.reserve_percent, 15);
}

TEST(Settings, EveryProblemOfTheEnvironmentIsTold) {
  const Loaded loaded = load({}, {{"NVSHARE_TURN", "10"},
                                  {"NVSHARE_COMPUTE_WINDOW_MS", "5000000"},
                                  {"NVSHARE_MAX_CLIENTS", "0"},
                                  {"NVSHARE_WHEN_LOST", "sulk"}});
  EXPECT_EQ(loaded.problems.size(), 4u);
  std::string all;
  for (const std::string& one : loaded.problems) all += one + "\n";
  EXPECT_NE(all.find("NVSHARE_TURN: '10' has no known unit"), std::string::npos) << all;
  EXPECT_NE(all.find("NVSHARE_COMPUTE_WINDOW_MS: 5000.00s is not from 10.0ms to 3600.00s"),
            std::string::npos)
      << all;
  EXPECT_NE(all.find("NVSHARE_MAX_CLIENTS: "), std::string::npos) << all;
  EXPECT_NE(all.find("NVSHARE_WHEN_LOST: 'sulk' is not one of run, wait"), std::string::npos);
}

TEST(Settings, WhatIsWrongIsToldInTheUsersOwnWords) {
  const auto problem = [](const char* variable, const char* value) {
    const Loaded loaded = load({}, {{variable, value}});
    return loaded.problems.size() == 1 ? loaded.problems[0] : "";
  };
  EXPECT_EQ(problem("NVSHARE_COMPUTE_WINDOW_MS", "abc"),
            "NVSHARE_COMPUTE_WINDOW_MS: 'abc' is not a number of ms (window is 10.0ms to "
            "3600.00s)");
  EXPECT_EQ(problem("NVSHARE_SWITCH_TIME_FIXED", "5000m")
                .find("NVSHARE_SWITCH_TIME_FIXED: '5000m' is not a number of s (quantum_fixed is "),
            0u);
  EXPECT_EQ(problem("NVSHARE_QUOTA_CARRYOVER_PERCENT", "70%"),
            "NVSHARE_QUOTA_CARRYOVER_PERCENT: '70%' is not a whole number from 0 to 100");
  EXPECT_EQ(problem("NVSHARE_QUOTA_CARRYOVER_PERCENT", "99999999999"),
            "NVSHARE_QUOTA_CARRYOVER_PERCENT: '99999999999' is not a whole number from 0 to 100");
  EXPECT_EQ(problem("NVSHARE_DROP_TAIL_BILLING_PERCENT", "101"),
            "NVSHARE_DROP_TAIL_BILLING_PERCENT: 101 is not from 0 to 100");
}

TEST(Settings, OneAtATimeKeepsToItsRangeAndChangesNothingOnError) {
  Settings settings;
  EXPECT_FALSE(set_setting(settings, "turn", "1h"));
  EXPECT_FALSE(set_setting(settings, "quantum_min", "400s")) << "above quantum_max";
  EXPECT_EQ(settings.core, core::Config{});
  EXPECT_NE(set_setting(settings, "trun", "5ms").error().message.find("did you mean 'turn'"),
            std::string::npos);
  EXPECT_TRUE(set_setting(settings, "turn", "6ms"));
  EXPECT_EQ(settings.core.turn, 6ms);
}

#if NVSHARE_HAVE_TOML

TEST(SettingsFile, IsReadAndTheEnvironmentGoesBeforeIt) {
  const Loaded loaded = load(
      "turn = \"7ms\"\nreserve_percent = 20\nend_overdue = true\n"
      "max_clients = 9\nwhen_lost = \"wait\"\n",
      {{"NVSHARE_MAX_CLIENTS", "10"}});
  EXPECT_TRUE(loaded.problems.empty());
  EXPECT_EQ(loaded.settings.core.turn, 7ms);
  EXPECT_EQ(loaded.settings.core.reserve_percent, 20);
  EXPECT_TRUE(loaded.settings.core.end_overdue);
  EXPECT_EQ(loaded.settings.max_clients, 10);
  EXPECT_EQ(loaded.settings.when_lost, wire::WhenLost::Wait);
}

TEST(SettingsFile, TheArenaIsASizeOrAPartOfWhatThereIs) {
  EXPECT_EQ(load("").settings.arena_limit.of(gib(100)), gib(100));
  EXPECT_EQ(load("arena_limit = \"25%\"\n").settings.arena_limit.of(gib(100)), gib(25));
  EXPECT_EQ(load("arena_limit = \"8Gi\"\n").settings.arena_limit.of(gib(100)), gib(8));
  for (const char* wrong : {"0%", "101%", "%", "-1", "much"}) {
    EXPECT_EQ(load(fmt::format("arena_limit = \"{}\"\n", wrong)).problems.size(), 1u) << wrong;
  }
}

TEST(SettingsFile, TheMemoryBackendHasAName) {
  EXPECT_EQ(load("").settings.memory_backend, wire::Backend::Swap);
  EXPECT_EQ(load("memory_backend = \"native\"\n").settings.memory_backend, wire::Backend::Native);
  EXPECT_EQ(load("memory_backend = \"default\"\n").problems.size(), 1u);
}

TEST(SettingsFile, BoundsThatMoveTogetherAreFine) {
  const Loaded loaded = load("quantum_min = \"400s\"\nquantum_max = \"600s\"\n");
  EXPECT_TRUE(loaded.problems.empty()) << loaded.problems.front();
  EXPECT_EQ(loaded.settings.core.quantum_max, 600s);
}

TEST(SettingsFile, EveryProblemHasItsPlace) {
  const Loaded loaded =
      load("trun = \"7ms\"\nmax_clients = -1\nturn = [1]\nreserve_percent = 200\n");
  ASSERT_EQ(loaded.problems.size(), 4u);
  EXPECT_EQ(loaded.problems[0].rfind("scheduler.toml:1:1: trun: ", 0), 0u) << loaded.problems[0];
  EXPECT_NE(loaded.problems[0].find("did you mean 'turn'"), std::string::npos);
  EXPECT_EQ(loaded.problems[1].rfind("scheduler.toml:2:", 0), 0u) << loaded.problems[1];
  EXPECT_EQ(loaded.problems[2].rfind("scheduler.toml:3:", 0), 0u) << loaded.problems[2];
  EXPECT_EQ(loaded.problems[3].rfind("scheduler.toml:4:", 0), 0u) << loaded.problems[3];
  EXPECT_EQ(load("turn =").problems.size(), 1u);
}

TEST(SettingsFile, WhatIsPrintedIsRead) {
  Settings settings;
  settings.core.turn = 12345us;
  settings.run_directory = "/tmp/a \"b\" \\c";
  settings.default_memory = mib(1500);
  const Loaded loaded = load(to_file(settings));
  ASSERT_TRUE(loaded.problems.empty()) << loaded.problems.front();
  for (const Setting& one : all_settings()) {
    EXPECT_EQ(text_of(loaded.settings, one.name), text_of(settings, one.name)) << one.name;
  }
}

#else

TEST(SettingsFile, WithoutTomlAFileIsAProblem) {
  EXPECT_EQ(load("turn = \"7ms\"\n").problems.size(), 1u);
}

#endif

TEST(Settings, TheArbitersComeFromTheFileWithTheirClasses) {
  const Loaded loaded = load(R"(
usage_high_water = 90.5
usage_low_water = 70
usage_boosts = false
usage_boost_lasts = "3s"
lease_slots = 2
http_listen = "off"
[classes.NMT]
max_wait = "1s"
[classes.OCR]
priority = 60
busy = "FALLBACK_CPU"
slots = 1
)");
  EXPECT_TRUE(loaded.problems.empty()) << loaded.problems.front();
  const core::ArbiterConfig& arbiter = loaded.settings.arbiter;
  EXPECT_EQ(arbiter.usage.high_water, 90.5);
  EXPECT_FALSE(arbiter.usage.boosts);
  EXPECT_EQ(arbiter.usage.boost_lasts, 3s);
  EXPECT_EQ(arbiter.slots, 2);
  ASSERT_EQ(arbiter.classes.size(), 5u);
  EXPECT_EQ(arbiter.classes[1].max_wait, 1s);
  EXPECT_EQ(arbiter.classes[1].priority, 80) << "what the file does not say stays";
  EXPECT_EQ(arbiter.classes[4].name, "OCR");
  EXPECT_EQ(arbiter.classes[4].busy, core::Refusal::FallbackCpu);
  const Loaded again = load(to_file(loaded.settings));
  EXPECT_TRUE(again.problems.empty()) << again.problems.front();
  EXPECT_EQ(again.settings.arbiter, arbiter);
}

TEST(Settings, BadClassesAreToldWithTheirPlace) {
  const auto problems = [](const char* file) {
    std::string all;
    for (const std::string& one : load(file).problems) all += one + "\n";
    return all;
  };
  EXPECT_NE(problems("[classes.NMT]\npriority = 101").find("classes.NMT.priority: 101"),
            std::string::npos);
  EXPECT_NE(problems("[classes.NMT]\nbusy = \"never\"").find("scheduler.toml:2"),
            std::string::npos);
  EXPECT_NE(problems("[classes.NMT]\nprio = 7").find("prio"), std::string::npos);
  EXPECT_NE(problems("[classes.\"a b\"]\npriority = 7").find("a name has"), std::string::npos);
  EXPECT_NE(problems("classes = 3").find("classes"), std::string::npos);
}

TEST(Settings, ThePushOfTheStatusHasAUrlThatNeedsNoName) {
  Settings settings;
  EXPECT_EQ(text_of(settings, "status_push_url"), "off");
  EXPECT_TRUE(set_setting(settings, "status_push_url", "http://10.1.2.3:8080/nodes/a"));
  EXPECT_EQ(settings.status_push_url, "http://10.1.2.3:8080/nodes/a");
  const auto refused = set_setting(settings, "status_push_url", "http://dispatcher/s");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "status_push_url: 'http://dispatcher/s' is not http://HOST:PORT/PATH with a numeric "
            "HOST or localhost");
  EXPECT_EQ(settings.status_push_url, "http://10.1.2.3:8080/nodes/a") << "nothing has changed";
  for (const char* off : {"off", ""}) {
    ASSERT_TRUE(set_setting(settings, "status_push_url", "http://localhost/s"));
    EXPECT_TRUE(set_setting(settings, "status_push_url", off));
    EXPECT_EQ(text_of(settings, "status_push_url"), "off");
  }
  EXPECT_TRUE(set_setting(settings, "status_push_interval", "200ms"));
  EXPECT_FALSE(set_setting(settings, "status_push_interval", "99ms"));
  EXPECT_FALSE(set_setting(settings, "status_push_interval", "2h"));
  EXPECT_TRUE(find_setting("status_push_url")->changeable);
}

TEST(Settings, MarksChangeTogetherOrNotAtAll) {
  Settings settings;
  EXPECT_FALSE(set_setting(settings, "usage_high_water", "70")) << "below the low one";
  EXPECT_FALSE(set_settings(settings, {{"usage_high_water", "70"}, {"usage_low_water", "x"}}));
  EXPECT_EQ(settings.arbiter.usage, core::UsageRules{});
  EXPECT_TRUE(set_settings(settings, {{"usage_high_water", "70"}, {"usage_low_water", "60"}}));
  EXPECT_EQ(settings.arbiter.usage.high_water, 70);
  EXPECT_FALSE(set_setting(settings, "usage_cache_ttl", "1100ms")) << "readings are 800 ms apart";
  EXPECT_TRUE(set_setting(settings, "usage_cache_ttl", "1200ms"));
  EXPECT_FALSE(set_setting(settings, "usage_sample_interval", "801ms"));
  EXPECT_FALSE(set_setting(settings, "usage_high_water", "nan"));
  EXPECT_FALSE(set_setting(settings, "usage_sample_interval", "10ms"));
  EXPECT_FALSE(set_setting(settings, "usage_sample_interval", "3s"));
  EXPECT_EQ(find_setting("usage_high_water")->range, "0 to 100");
  EXPECT_EQ(find_setting("lease_slots")->range, "1 to 1024");
}

}  // namespace
}  // namespace nvshare::daemon
