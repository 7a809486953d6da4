#include <gtest/gtest.h>

#include <map>

#include "sim/scenario_file.h"
#include "sim/simulator.h"

namespace nvshare::sim {
namespace {

#if NVSHARE_HAVE_TOML

using Lines = std::vector<std::string>;

Lines errors_of(const std::string& toml) {
  return parse_scenario(toml, "s.toml").errors;
}

TEST(ScenarioLeases, AreReadWithClassesAndTheArbiter) {
  const ParsedScenario parsed = parse_scenario(R"(
[arbiter]
lease_slots = 2
usage_sample_interval = "500ms"
[classes.OCR]
priority = 60
hold_max = "10s"
[[client]]
name = "A"
workload = "bursty"
burst = "20ms"
every = "300ms"
lease = { class = "OCR", max_wait = "0s", hold_max = "4s", busy = "FALLBACK_CPU", audio = "9s", hold = "50ms", refused = "retry" }
[[client]]
name = "B"
workload = "bursty"
[client.lease]
class = "ASR"
[[client]]
name = "C"
)",
                                               "s.toml");
  ASSERT_EQ(parsed.errors, Lines{});
  const Scenario& s = parsed.scenario;
  EXPECT_EQ(s.arbiter.slots, 2);
  EXPECT_EQ(s.usage_sample_interval, 500ms);
  ASSERT_EQ(s.arbiter.classes.size(), 5u);
  EXPECT_EQ(s.arbiter.classes[4].hold_max, 10s);
  const ClientSpec& a = s.clients[0];
  EXPECT_EQ(a.work.every, 300ms);
  ASSERT_TRUE(a.lease);
  EXPECT_EQ(a.lease->asks.task_class, "OCR");
  EXPECT_EQ(a.lease->asks.max_wait, 0s);
  EXPECT_EQ(a.lease->asks.hold_max, 4s);
  EXPECT_EQ(a.lease->asks.refusal, core::Refusal::FallbackCpu);
  EXPECT_EQ(a.lease->asks.audio, 9s);
  EXPECT_EQ(a.lease->asks.gpu_hold, 50ms);
  EXPECT_EQ(a.lease->refused, Refused::Retry);
  ASSERT_TRUE(s.clients[1].lease);
  EXPECT_EQ(s.clients[1].lease->asks.task_class, "ASR");
  EXPECT_EQ(s.clients[1].lease->asks.max_wait, std::nullopt) << "the class's";
  EXPECT_EQ(s.clients[1].lease->refused, Refused::Skip);
  EXPECT_EQ(s.clients[2].lease, std::nullopt);
}

TEST(ScenarioLeases, AreWrongInALineEach) {
  EXPECT_EQ(
      errors_of("[arbiter]\nlease_slots = 0\n[classes.NMT]\npriorty = 3\n"
                "[[client]]\nname = \"A\"\nworkload = \"bursty\"\n"
                "lease = { class = \"OCR\", max_wait = \"-1s\", hold_max = \"0s\" }\n"
                "[[client]]\nname = \"B\"\nlease = { class = \"ASR\", refused = \"wait\" }\n"
                "[[client]]\nname = \"C\"\nworkload = \"bursty\"\nlease = { clas = \"ASR\" }\n"
                "[[client]]\nname = \"D\"\nworkload = \"bursty\"\nlease = \"ASR\"\n"
                "[[client]]\nname = \"E\"\nevery = \"1s\"\n"
                "[[client]]\nname = \"F\"\nworkload = \"bursty\"\nevery = \"0s\"\ngap = \"1s\"\n"),
      (Lines{
          "s.toml:2:15: arbiter.lease_slots: 0 is not from 1 to 1024",
          "s.toml:4:1: classes.NMT.priorty: unknown key; did you mean 'priority'?",
          "s.toml:8:19: client.lease.class: 'OCR' is not one of ASR, NMT, TTS, SEMANTIC_REPAIR",
          "s.toml:8:37: client.lease.max_wait: '-1s' is negative",
          "s.toml:8:55: client.lease.hold_max: 0ns is not from 1.0ms to 86400.00s",
          "s.toml:11:9: client.lease: is only used by the workload 'bursty'",
          "s.toml:11:36: client.lease.refused: 'wait' is not one of skip, retry, fallback",
          "s.toml:15:9: client.lease.class: is missing: whose lease it is",
          "s.toml:15:11: client.lease.clas: unknown key; did you mean 'class'?",
          "s.toml:19:9: client.lease: is a text, not a table",
          "s.toml:22:9: client.every: is only used by the workload 'bursty'",
          "s.toml:26:9: client.every: 0ns is not from 1ns to 31622400.00s",
          "s.toml:27:7: client.gap: is not used with 'every'",
      }));
}

TEST(ScenarioLeases, TheArbiterWouldHaveNothingToDoWithout) {
  EXPECT_EQ(errors_of("[arbiter]\nlease_slots = 2\n[classes.NMT]\npriority = 3\n"
                      "[[client]]\nname = \"A\"\n"),
            (Lines{"s.toml:1:1: arbiter: is only used by clients with a lease",
                   "s.toml:3:1: classes: is only used by clients with a lease"}));
}

// Both marks are passed, the repair is shed first, the rest comes to its turn, training goes on.
TEST(ScenarioLeases, Seed003IsWhatTheRequirementWants) {
  const auto parsed = parse_scenario(find_built_in("seed-003")->toml, "seed-003");
  const auto report = run(parsed.scenario, true);
  ASSERT_TRUE(report);
  std::map<std::string, ServiceReport> services;
  for (const ServiceReport& one : report->services) services[one.name] = one;
  ASSERT_EQ(services.size(), 6u);
  const ServiceReport& repair = services["repair"];
  EXPECT_GE(repair.acquired, 10u) << "before the training comes";
  EXPECT_GE(repair.skipped, 45u);
  EXPECT_EQ(repair.fell_back, repair.skipped);
  EXPECT_EQ(repair.timed_out, 0u);
  for (const char* name : {"asr", "nmt", "rush", "recording"}) {
    EXPECT_EQ(services[name].acquired, services[name].requests) << name;
  }
  EXPECT_GE(services["tts"].acquired, services["tts"].requests - 5);
  EXPECT_LE(services["asr"].wait_p99, services["nmt"].wait_p99);
  EXPECT_LE(services["nmt"].wait_p99, services["tts"].wait_p99);

  const PressureReport& pressure = report->gpus[0].pressure;
  EXPECT_GE(pressure.times_high, 3);
  EXPECT_EQ(pressure.raised, 15s);
  EXPECT_EQ(pressure.unknown, 0s);
  ASSERT_FALSE(pressure.spans.empty());
  EXPECT_EQ(pressure.spans.back().state, core::Admission::Normal) << "in the end";
  for (const PressureSpan& span : pressure.spans) {
    if (span.state == core::Admission::High) {
      EXPECT_GT(span.time.from, Time{20s});
    }
  }
  for (const ClientReport& client : report->clients) {
    if (client.name == "training") {
      EXPECT_GT(client.share_percent, 10);
    }
  }
}

#endif

}  // namespace
}  // namespace nvshare::sim
