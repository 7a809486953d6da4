#include "sim/scenario_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "sim/simulator.h"

namespace nvshare::sim {
namespace {

using Lines = std::vector<std::string>;

#if NVSHARE_HAVE_TOML

Lines errors_of(const std::string& toml) {
  return parse_scenario(toml, "s.toml").errors;
}

Scenario good(const std::string& toml) {
  const ParsedScenario parsed = parse_scenario(toml, "s.toml");
  EXPECT_EQ(parsed.errors, Lines{});
  return parsed.scenario;
}

TEST(ParseScenario, FillsInDefaults) {
  const Scenario s = good("[[client]]\nname = \"A\"\n");
  EXPECT_EQ(s.name, "s");
  EXPECT_EQ(s.lasts, Scenario{}.lasts);
  EXPECT_EQ(s.link_per_second, Scenario{}.link_per_second);
  EXPECT_EQ(s.config, core::Config{});
  ASSERT_EQ(s.gpus.size(), 1u);
  EXPECT_EQ(s.gpus[0].memory, gib(16));
  EXPECT_EQ(s.gpus[0].count, 1);
  ASSERT_EQ(s.clients.size(), 1u);
  const ClientSpec& a = s.clients[0];
  EXPECT_EQ(a.limits, core::Limits{});
  EXPECT_EQ(a.processes, 1);
  EXPECT_EQ(a.gpu, std::nullopt);
  EXPECT_EQ(a.leaves, std::nullopt);
  EXPECT_TRUE(a.memory.empty());
  EXPECT_TRUE(a.changes.empty());
  EXPECT_EQ(a.work.kind, WorkloadKind::Saturating);
  EXPECT_EQ(a.work.kernel, 0s);
  EXPECT_EQ(a.work.total, std::nullopt);
}

TEST(ParseScenario, ReadsEveryKey) {
  const Scenario s = good(R"(
name = "all"
about = "every key"
lasts = "10s"
lasts_under = { dynamic = "11s" }
link_per_second = "20Gi"
hand_over = "50us"
[config]
policy = "fair"
window = "1s"
[[gpu]]
memory = "80Gi"
count = 2
[[gpu]]
memory = "24Gi"
[[client]]
name = "A"
cores = 40
memory_limit = "20Gi"
priority = -3
processes = 2
gpu = 2
arrives = "1s"
leaves = "9s"
memory = [{ at = "0s", allocated = "4Gi" }, { at = "2s", allocated = "8Gi" }]
changes = [{ at = "2s", cores = 50 }, { at = "3s", priority = 4 }]
workload = "phases"
kernel = "3ms"
burst = "5ms"
gap = "6ms"
total = "7s"
phases = [{ kind = "bursty", lasts = "1s" }, { kind = "idle", lasts = "2s" }]
)");
  EXPECT_EQ(s.name, "all");
  EXPECT_EQ(s.about, "every key");
  EXPECT_EQ(s.lasts, 10s);
  EXPECT_EQ(s.lasts_under.at(core::ComputePolicy::Dynamic), 11s);
  EXPECT_EQ(s.link_per_second, gib(20));
  EXPECT_EQ(s.hand_over, 50us);
  EXPECT_EQ(s.config.policy, core::ComputePolicy::Fair);
  EXPECT_EQ(s.config.window, 1s);
  ASSERT_EQ(s.gpus.size(), 2u);
  EXPECT_EQ(s.gpus[0].count, 2);
  EXPECT_EQ(s.gpus[1].memory, gib(24));
  const ClientSpec& a = s.clients.at(0);
  EXPECT_EQ(a.limits.core_percent, 40);
  EXPECT_EQ(a.limits.memory, gib(20));
  EXPECT_EQ(a.limits.priority, -3);
  EXPECT_EQ(a.processes, 2);
  EXPECT_EQ(a.gpu, 2);
  EXPECT_EQ(a.arrives, 1s);
  EXPECT_EQ(a.leaves, 9s);
  ASSERT_EQ(a.memory.size(), 2u);
  EXPECT_EQ(a.memory[1].at, 2s);
  EXPECT_EQ(a.memory[1].allocated, gib(8));
  ASSERT_EQ(a.changes.size(), 2u);
  EXPECT_EQ(a.changes[0].limits.core_percent, 50);
  EXPECT_EQ(a.changes[0].limits.priority, -3) << "what is not named stays";
  EXPECT_EQ(a.changes[1].limits.core_percent, 50);
  EXPECT_EQ(a.changes[1].limits.priority, 4);
  EXPECT_EQ(a.changes[1].limits.memory, gib(20));
  EXPECT_EQ(a.work.kind, WorkloadKind::Phases);
  EXPECT_EQ(a.work.kernel, 3ms);
  EXPECT_EQ(a.work.burst, 5ms);
  EXPECT_EQ(a.work.gap, 6ms);
  EXPECT_EQ(a.work.total, 7s);
  ASSERT_EQ(a.work.phases.size(), 2u);
  EXPECT_EQ(a.work.phases[0].kind, WorkloadKind::Bursty);
  EXPECT_EQ(a.work.phases[1].lasts, 2s);
}

TEST(ParseScenario, GivesEachWorkloadItsDefaults) {
  const Scenario s = good(R"(
[[client]]
name = "f"
workload = "fine"
[[client]]
name = "l"
workload = "long-kernels"
[[client]]
name = "b"
workload = "bursty"
memory = "12Gi"
[[client]]
name = "s"
workload = "silent"
[[client]]
name = "i"
workload = "idle"
[[client]]
name = "p"
workload = "phases"
phases = [{ kind = "fine", lasts = "1s" }, { kind = "long-kernels", lasts = "1s" }]
[[client]]
name = "q"
workload = "phases"
phases = [{ kind = "fine", lasts = "1s" }, { kind = "idle", lasts = "1s" }]
)");
  EXPECT_EQ(s.clients[0].work.kernel, 10us);
  EXPECT_EQ(s.clients[0].work.kind, WorkloadKind::Saturating);
  EXPECT_EQ(s.clients[1].work.kernel, 200ms);
  EXPECT_EQ(s.clients[1].work.kind, WorkloadKind::Saturating);
  EXPECT_EQ(s.clients[2].work.burst, 60ms);
  EXPECT_EQ(s.clients[2].work.gap, 40ms);
  ASSERT_EQ(s.clients[2].memory.size(), 1u);
  EXPECT_EQ(s.clients[2].memory[0].allocated, gib(12));
  EXPECT_EQ(s.clients[3].work.kind, WorkloadKind::Silent);
  EXPECT_EQ(s.clients[4].work.kind, WorkloadKind::Idle);
  EXPECT_EQ(s.clients[5].work.kernel, 200ms) << "the longest of its phases";
  EXPECT_EQ(s.clients[6].work.kernel, 10us);
}

TEST(ParseScenario, ReportsEverythingAtOnceWithItsPlace) {
  EXPECT_EQ(errors_of("lasts = \"2 parsecs\"\n"
                      "colour = \"red\"\n"
                      "[config]\n"
                      "policy = \"magic\"\n"
                      "window = \"1ms\"\n"
                      "[[gpu]]\n"
                      "memory = \"-4Gi\"\n"
                      "[[client]]\n"
                      "cores = 0\n"
                      "[[client]]\n"
                      "name = \"B\"\n"
                      "cores = 101\n"
                      "memroy = \"1Gi\"\n"
                      "[[client]]\n"
                      "name = \"B\"\n"
                      "gpu = 1\n"
                      "  workload = \"lazy\"\n"),
            (Lines{
                "s.toml:1:9: lasts: '2 parsecs' has no known unit (examples: 10ms, 2s, 1h)",
                "s.toml:2:1: colour: unknown key (known: name, about, lasts, lasts_under, "
                "link_per_second, hand_over, config, host, arbiter, classes, client, gpu, tenant)",
                "s.toml:4:10: config.policy: 'magic' is not one of wall, weighted, hybrid, "
                "coordinated, dynamic, fair, metered",
                "s.toml:5:10: config.window: 1.0ms is not from 10.0ms to 3600.00s",
                "s.toml:7:10: gpu.memory: '-4Gi' is negative",
                "s.toml:8:1: client.name: is missing: each client needs one",
                "s.toml:9:9: client.cores: 0 is not from 1 to 100",
                "s.toml:12:9: client.cores: 101 is not from 1 to 100",
                "s.toml:13:1: client.memroy: unknown key; did you mean 'memory'?",
                "s.toml:15:8: client.name: there is another client 'B'",
                "s.toml:16:7: client.gpu: 1 is not from 0 to 0",
                "s.toml:17:14: client.workload: 'lazy' is not one of saturating, fine, bursty, "
                "long-kernels, phases, silent, idle",
            }));
}

TEST(ParseScenario, ReportsParentsThatAreUnknown) {
  EXPECT_EQ(errors_of("[[tenant]]\nname = \"user\"\npart_of = \"pod\"\n"
                      "[[client]]\nname = \"A\"\npart_of = \"usr\"\n"
                      "[[client]]\nname = \"B\"\npart_of = 3\n"),
            (Lines{
                "s.toml:3:11: tenant.part_of: there is no tenant 'pod' before it",
                "s.toml:6:11: client.part_of: there is no tenant 'usr' before it",
                "s.toml:9:11: client.part_of: is a whole number, not a text",
            }));
}

// A parent comes before its parts, so that no tenant can be a part of itself.
TEST(ParseScenario, ReportsParentsInACircle) {
  EXPECT_EQ(errors_of("[[tenant]]\nname = \"one\"\npart_of = \"two\"\n"
                      "[[tenant]]\nname = \"two\"\npart_of = \"one\"\n"
                      "[[client]]\nname = \"A\"\npart_of = \"A\"\n"),
            (Lines{
                "s.toml:3:11: tenant.part_of: there is no tenant 'two' before it",
                "s.toml:9:11: client.part_of: there is no tenant 'A' before it",
            }));
}

TEST(ParseScenario, ReportsPartsThatAreTooDeep) {
  std::string tree = "[[tenant]]\nname = \"1\"\n";
  for (int i = 2; i < core::kDeepestTenant; ++i) {
    tree += fmt::format("[[tenant]]\nname = \"{}\"\npart_of = \"{}\"\n", i, i - 1);
  }
  good(tree + "[[client]]\nname = \"A\"\npart_of = \"7\"\n");
  tree += "[[tenant]]\nname = \"8\"\npart_of = \"7\"\n";
  EXPECT_EQ(errors_of(tree + "[[client]]\nname = \"A\"\npart_of = \"8\"\n"
                             "[[client]]\nname = \"B\"\npart_of = \"A\"\n"),
            (Lines{"s.toml:26:11: client.part_of: tenants are in one another 8 deep at most"}));
}

TEST(ParseScenario, ReportsPartsAboveTheirParents) {
  const std::string user =
      "[[tenant]]\nname = \"user\"\ncores = 30\nmemory_limit = \"4Gi\"\npriority = 1\n";
  EXPECT_EQ(errors_of(user + "[[tenant]]\nname = \"outer\"\npart_of = \"user\"\ncores = 20\n"
                             "[[client]]\nname = \"A\"\npart_of = \"user\"\ncores = 31\n"
                             "memory_limit = \"5Gi\"\npriority = 2\n"
                             "[[client]]\nname = \"B\"\npart_of = \"outer\"\ncores = 25\n"
                             "memory_limit = \"5Gi\"\n"),
            (Lines{
                "s.toml:13:9: client.cores: 31 is above the limit of 'user', which is 30",
                "s.toml:14:16: client.memory_limit: 5GiB is above the limit of 'user', which is "
                "4GiB",
                "s.toml:15:12: client.priority: 2 is above the limit of 'user', which is 1",
                "s.toml:19:9: client.cores: 25 is above the limit of 'outer', which is 20",
                "s.toml:20:16: client.memory_limit: 5GiB is above the limit of 'user', which is "
                "4GiB",
            }));
  good(user + "[[client]]\nname = \"A\"\npart_of = \"user\"\ncores = 30\npriority = 1\n");
  good(user + "[[client]]\nname = \"A\"\npart_of = \"user\"\n");
}

TEST(ParseScenario, ReportsSyntaxErrorsWithTheirPlace) {
  const Lines errors = errors_of("name = \"x\"\n[[client]\n");
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].rfind("s.toml:2:", 0), 0u) << errors[0];
}

TEST(ParseScenario, ReportsWrongTypes) {
  EXPECT_EQ(errors_of("name = 3\n"
                      "config = 1\n"
                      "gpu = \"big\"\n"
                      "client = [1, { name = 2, cores = \"40\", memory = 5, arrives = 1.5 },\n"
                      "{ name = \"B\", processes = true, changes = {}, memory_limit = 4 }]\n"),
            (Lines{
                "s.toml:1:8: name: is a whole number, not a text",
                "s.toml:2:10: config: is a whole number, not a table",
                "s.toml:3:7: gpu: is a text, not a list of tables",
                "s.toml:4:11: client: is a whole number, not a table",
                "s.toml:4:23: client.name: is a whole number, not a text",
                "s.toml:4:34: client.cores: is a text, not a whole number",
                "s.toml:4:49: client.memory: is a whole number, not a size such as \"4Gi\" or a "
                "list of { at, allocated }",
                "s.toml:4:62: client.arrives: is a number with a fraction, not a text such as "
                "\"10ms\"",
                "s.toml:5:27: client.processes: is true or false, not a whole number",
                "s.toml:5:43: client.changes: is a table, not a list of tables",
                "s.toml:5:62: client.memory_limit: is a whole number, not a text such as \"4Gi\"",
            }));
}

TEST(ParseScenario, ReportsTimesOutOfOrder) {
  EXPECT_EQ(
      errors_of(
          "lasts = \"5s\"\n"
          "[[client]]\n"
          "name = \"A\"\n"
          "arrives = \"3s\"\n"
          "leaves = \"2s\"\n"
          "[[client]]\n"
          "name = \"B\"\n"
          "arrives = \"5s\"\n"
          "[[client]]\n"
          "name = \"C\"\n"
          "leaves = \"4s\"\n"
          "memory = [{ at = \"2s\", allocated = \"1Gi\" }, { at = \"1s\", allocated = \"2Gi\" },"
          " {}]\n"
          "changes = [{ at = \"3s\", cores = 10 }, { at = \"3s\", cores = 20 }, { at = \"4s\" }]"
          "\n"),
      (Lines{
          "s.toml:5:10: client.leaves: 2.00s is not later than it arrives (3.00s)",
          "s.toml:8:11: client.arrives: 5.00s is not before the end of the scenario (5.00s)",
          "s.toml:12:52: client.memory.at: 1.00s is not later than the step before (2.00s)",
          "s.toml:12:79: client.memory.at: is missing: each step needs its time",
          "s.toml:12:79: client.memory.allocated: is missing: how much it then has",
          "s.toml:13:46: client.changes.at: 3.00s is not later than the step before (3.00s)",
          "s.toml:13:73: client.changes.at: 4.00s is not before the client leaves (4.00s)",
      }));
}

TEST(ParseScenario, ReportsMemoryThatFitsNowhere) {
  EXPECT_EQ(errors_of("[[gpu]]\nmemory = \"16Gi\"\n"
                      "[[gpu]]\nmemory = \"80Gi\"\n"
                      "[[client]]\nname = \"A\"\nmemory = \"90Gi\"\n"
                      "[[client]]\nname = \"B\"\nmemory = \"40Gi\"\ngpu = 0\n"
                      "[[client]]\nname = \"C\"\nmemory = \"40Gi\"\ngpu = 1\n"
                      "[[client]]\nname = \"D\"\nmemory = \"40Gi\"\ngpu = 7\n"),
            (Lines{
                "s.toml:7:10: client.memory: 90GiB fits on no GPU: the largest has 80GiB, of which "
                "72GiB can be used",
                "s.toml:10:10: client.memory: 40GiB does not fit on GPU 0: it has 16GiB, of which "
                "14.4GiB can be used",
                "s.toml:19:7: client.gpu: 7 is not from 0 to 1",
            }));
}

// The core places by load and learns of a client's size only later.
TEST(ParseScenario, WantsAGpuNamedWhereAClientDoesNotFitEveryOne) {
  const std::string gpus = "[[gpu]]\nmemory = \"80Gi\"\n[[gpu]]\nmemory = \"8Gi\"\n";
  EXPECT_EQ(errors_of(gpus + "[[client]]\nname = \"A\"\nmemory = \"40Gi\"\n"),
            (Lines{"s.toml:7:10: client.memory: 40GiB does not fit on every GPU, and it may be "
                   "placed on any: name a gpu (GPU 1 has 8GiB, of which 7.2GiB can be used)"}));
  good(gpus + "[[client]]\nname = \"A\"\nmemory = \"40Gi\"\ngpu = 0\n");
  good(gpus + "[[client]]\nname = \"A\"\nmemory = \"7Gi\"\n");
}

TEST(ParseScenario, ReportsMemoryAboveTheClientsOwnLimit) {
  const std::string client = "[[client]]\nname = \"A\"\nmemory_limit = \"8Gi\"\n";
  EXPECT_EQ(errors_of(client + "memory = \"9Gi\"\n"),
            (Lines{"s.toml:4:10: client.memory: 9GiB is more than its memory_limit of 8GiB"}));
  EXPECT_EQ(errors_of(client + "memory = \"3Gi\"\nprocesses = 3\n"),
            (Lines{"s.toml:4:10: client.memory: 3 processes of 3GiB is more than its memory_limit "
                   "of 8GiB"}));
  good(client + "memory = \"4Gi\"\nprocesses = 2\n");
}

TEST(ParseScenario, KnowsTheLimitAtEachStepOfMemory) {
  const std::string client =
      "[[client]]\nname = \"A\"\nmemory_limit = \"8Gi\"\narrives = \"500ms\"\n"
      "memory = [{ at = \"0s\", allocated = \"6Gi\" }, { at = \"1s\", allocated = \"9Gi\" }]\n";
  EXPECT_EQ(errors_of(client + "changes = [{ at = \"1501ms\", memory_limit = \"9Gi\" }]\n"),
            (Lines{"s.toml:5:70: client.memory.allocated: 9GiB is more than its memory_limit of "
                   "8GiB"}));
  good(client + "changes = [{ at = \"1500ms\", memory_limit = \"9Gi\" }]\n");
  good(client +
       "changes = [{ at = \"1s\", memory_limit = \"9Gi\" }, { at = \"1600ms\", memory_limit = "
       "\"1Gi\" }]\n");
}

// 16 GiB, of which each process keeps 2 GiB free and the system 0.5 GiB: alone 13.5 GiB can be
// used, by two 11.5 GiB.
TEST(ParseScenario, CountsWhoIsThereAtTheSameTime) {
  const std::string config = "[config]\nreserve_per_process = \"2Gi\"\nreserve_base = \"512Mi\"\n";
  const std::string a = "[[client]]\nname = \"A\"\nmemory = \"12Gi\"\nleaves = \"1s\"\n";
  const std::string b = "[[client]]\nname = \"B\"\nworkload = \"idle\"\n";
  EXPECT_EQ(errors_of(config + a + b),
            (Lines{"s.toml:6:10: client.memory: 12GiB does not fit on GPU 0: it has 16GiB, of "
                   "which 11.5GiB can be used while 2 processes are there"}));
  EXPECT_EQ(errors_of(config + a + b + "arrives = \"999ms\"\n").size(), 1u);
  EXPECT_EQ(errors_of(config + b + "leaves = \"1ms\"\n" + a).size(), 1u);
  EXPECT_EQ(errors_of(config + a + "processes = 2\n").size(), 1u);
  for (const std::string& toml : {config + a, config + a + b + "arrives = \"1s\"\n",
                                  config + b + "leaves = \"500ms\"\n" + a + "arrives = \"500ms\"\n",
                                  config + a + "gpu = 0\n" + b + "gpu = 1\n[[gpu]]\ncount = 2\n"}) {
    const auto report = run(good(toml));
    EXPECT_TRUE(report) << toml << report.error().message;
  }
}

// Work that is done frees its place earlier than the file can tell.
TEST(ParseScenario, DoesNotCountOnWhoMayBeFinished) {
  const Scenario s = good(R"(
[config]
reserve_per_process = "2Gi"
[[client]]
name = "A"
memory = "12Gi"
total = "500ms"
[[client]]
name = "B"
arrives = "600ms"
memory = "12Gi"
)");
  EXPECT_TRUE(run(s));
}

TEST(ParseScenario, JudgesSizesEvenWhenASettingIsWrong) {
  const std::string large = "[[client]]\nname = \"A\"\nmemory = \"20Gi\"\n";
  EXPECT_EQ(errors_of("[config]\nwindow = \"1ms\"\nreserve_percent = 95\n" + large),
            (Lines{"s.toml:2:10: config.window: 1.0ms is not from 10.0ms to 3600.00s",
                   "s.toml:3:19: config.reserve_percent: 95 is not from 0 to 90",
                   "s.toml:6:10: client.memory: 20GiB does not fit on GPU 0: it has 16GiB, of "
                   "which 14.4GiB can be used"}));
  // A wrong window says nothing about the reserve.
  EXPECT_EQ(errors_of("[config]\nwindow = \"1ms\"\nreserve_percent = 0\nreserve_base = \"0\"\n"
                      "[[client]]\nname = \"A\"\nmemory = \"15Gi\"\n")
                .size(),
            1u);
  // How large a GPU is that has no known size, nobody knows.
  EXPECT_EQ(errors_of("[[gpu]]\nmemory = \"80GG\"\n" + large).size(), 1u);
}

TEST(ParseScenario, ReportsSettingsTheWorkloadWouldIgnore) {
  EXPECT_EQ(
      errors_of("[[client]]\nname = \"A\"\nburst = \"1s\"\nphases = []\n"
                "[[client]]\nname = \"B\"\nworkload = \"idle\"\nkernel = \"1ms\"\n"
                "[[client]]\nname = \"C\"\nworkload = \"phases\"\n"
                "[[client]]\nname = \"D\"\nworkload = \"phases\"\n"
                "phases = [{ kind = \"phases\", lasts = \"0s\" }]\n"),
      (Lines{
          "s.toml:3:9: client.burst: is only used by the workload 'bursty'",
          "s.toml:4:10: client.phases: is only used by the workload 'phases'",
          "s.toml:8:10: client.kernel: is only used by workloads that use the GPU",
          "s.toml:9:1: client.phases: is missing: the workload 'phases' needs them",
          "s.toml:15:20: client.phases.kind: 'phases' is not one of saturating, fine, bursty, "
          "long-kernels, silent, idle",
          "s.toml:15:38: client.phases.lasts: 0ns is not from 1ns to 31622400.00s",
      }));
}

TEST(ParseScenario, ReportsBadNamesAndNoClients) {
  EXPECT_EQ(errors_of("name = \"x\"\n"),
            (Lines{"s.toml:1:1: client: is missing: a scenario needs at least one [[client]]"}));
  EXPECT_EQ(errors_of("[[client]]\nname = \"a/b\"\n[[client]]\nname = \"\"\n").size(), 2u);
  EXPECT_EQ(errors_of("client = []\n").size(), 1u);
}

TEST(BuiltIns, AllParseAndSayWhatTheyShow) {
  for (const BuiltIn& one : built_in_scenarios()) {
    const ParsedScenario parsed = parse_scenario(one.toml, std::string(one.name));
    EXPECT_EQ(parsed.errors, Lines{});
    EXPECT_EQ(parsed.scenario.name, one.name);
    EXPECT_FALSE(parsed.scenario.about.empty()) << one.name;
  }
}

// What the requirement expects of memory: pods that fit stay, pods that do not take turns.
TEST(BuiltIns, PlayUnderEveryPolicy) {
  for (const BuiltIn& one : built_in_scenarios()) {
    for (core::ComputePolicy policy : core::kComputePolicies) {
      SCOPED_TRACE(std::string(one.name) + " under " + std::string(core::name_of(policy)));
      Scenario scenario = parse_scenario(one.toml, std::string(one.name)).scenario;
      scenario.config.policy = policy;
      const auto report = run(scenario);
      ASSERT_TRUE(report) << report.error().message;
      for (const ClientReport& client : report->clients) {
        EXPECT_GT(client.gpu_time, 0s) << client.name;
        if (one.name == "seed-002-co-locate") {
          EXPECT_EQ(client.moved_out, Bytes{0});
        }
        if (one.name == "seed-002-oversubscribed") {
          EXPECT_GT(client.moved_out, gib(1));
        }
        if (one.name == "seed-002-4x12") {
          ASSERT_TRUE(client.finished);
          EXPECT_LT(*client.finished - Time{}, 5h) << "the requirement hopes for 4";
        }
      }
    }
  }
}

#else

TEST(ParseScenario, SaysThatTheBuildHasNoToml) {
  EXPECT_EQ(parse_scenario("name = 1", "s.toml").errors,
            Lines{"s.toml: this build has no TOML support"});
}

#endif

TEST(BuiltIns, AreThoseOfTheRequirementAndOurs) {
  std::set<std::string_view> names;
  for (const BuiltIn& one : built_in_scenarios()) names.insert(one.name);
  EXPECT_EQ(names, (std::set<std::string_view>{
                       "seed-000-1", "seed-000-2", "seed-000-3", "seed-000-3.1", "seed-000-3.2",
                       "seed-000-6.1-late-joiner", "seed-002-co-locate", "seed-002-oversubscribed",
                       "seed-002-4x12", "seed-003", "workstation", "two-80g-jobs"}));
  ASSERT_NE(find_built_in("seed-000-3.2"), nullptr);
  EXPECT_EQ(find_built_in("seed-000-3.2")->name, "seed-000-3.2");
  EXPECT_EQ(find_built_in("nowhere"), nullptr);
}

}  // namespace
}  // namespace nvshare::sim
