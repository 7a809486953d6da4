#include "cli/show/lease_text.h"

#include <gtest/gtest.h>

namespace nvshare::cli {
namespace {

WallTime at(std::string_view second) {
  return *read_wall_time("2026-11-19T19:07:" + std::string(second) + "Z");
}

LeaseInfo active() {
  LeaseInfo lease;
  lease.id = "0123456789abcdef0123456789abcdef";
  lease.task_class = "NMT";
  lease.priority = 80;
  lease.active = true;
  lease.asked = at("00.000");
  lease.acquired = at("00.200");
  lease.ends = at("10.200");
  lease.uid = 1000;
  lease.pid = 4711;
  return lease;
}

LeaseInfo waiting() {
  LeaseInfo lease;
  lease.task_class = "ASR";
  lease.gpu = 1;
  lease.asked = at("01.000");
  lease.ends = at("04.000");
  lease.trace = "a\ttrace";
  return lease;
}

std::vector<LeaseGpuInfo> two_gpus(const char* first, const char* second) {
  std::vector<LeaseGpuInfo> gpus(2);
  gpus[0].state = first;
  gpus[1].gpu = 1;
  gpus[1].state = second;
  return gpus;
}

TEST(LeaseText, ListTellsForHowLongAndHowMuchLonger) {
  EXPECT_EQ(leases_text({active(), waiting()}, at("02.500"), false),
            "LEASE                             CLASS  GPU  STATE      FOR   LEFT  PRIORITY  USER  "
            "PROCESS  TRACE\n"
            "0123456789abcdef0123456789abcdef  NMT      0  active   2.30s  7.70s        80  1000  "
            "   4711  -\n"
            "-                                 ASR      1  waiting  1.50s  1.50s         0     -  "
            "      -  a?trace\n");
  EXPECT_EQ(leases_text({}, at("00.000"), false), "no lease is held, and no request waits\n");
}

TEST(LeaseText, ALeaseThatIsOverdueHasNothingLeft) {
  EXPECT_NE(leases_text({active()}, at("30.000"), false).find("   0ns  "), std::string::npos);
}

TEST(LeaseText, Classes) {
  const std::vector<ClassInfo> classes{{"NMT", 80, 3s, 30s, "WAIT", "WAIT", std::nullopt},
                                       {"SEMANTIC_REPAIR", 20, 300ms, 90s, "SKIP", "SKIP", 2}};
  EXPECT_EQ(classes_text(classes, false),
            "CLASS            PRIORITY  LONGEST WAIT  LONGEST HOLD  WHEN BUSY  UNDER PRESSURE  "
            "SLOTS\n"
            "NMT                    80         3.00s        30.00s  WAIT       WAIT              "
            "all\n"
            "SEMANTIC_REPAIR        20       300.0ms          1min  SKIP       SKIP                "
            "2\n");
}

TEST(LeaseText, Status) {
  LeaseStatus status;
  status.time = at("00.000");
  status.gpus = {{0, "HIGH_PRESSURE", 93.04, 300ms, 5, 4, 4, 95, 80, at("12.000")},
                 {1, "UNKNOWN", std::nullopt, std::nullopt, 0, 0, 4, 85, 70, std::nullopt}};
  status.classes = {{"NMT", {4, 3, 2, 1, 0, 1, 3, 20ms}}, {"ASR", {}}};
  EXPECT_EQ(lease_status_text(status, false),
            "GPU  STATE           LOAD      AGE  MARKS                      LEASES  WAITING\n"
            "  0  HIGH_PRESSURE  93.0%  300.0ms  80-95%, raised for 12.00s   4 / 4        5\n"
            "  1  UNKNOWN            -        -  70-85%                      0 / 4        0\n"
            "\n"
            "CLASS  GRANTED  TIMED OUT  SKIPPED  TO CPU  QUEUE FULL  TAKEN AWAY  MEAN WAIT\n"
            "NMT          4          3        2       1           0           1      5.0ms\n"
            "ASR          0          0        0       0           0           0          -\n");
  EXPECT_EQ(lease_status_text({}, false), "no GPU is known yet\n");
}

TEST(LeaseText, ChangesAreWhatIsNewWhatIsOverAndWhatIsGranted) {
  LeaseLook before;
  before.status.gpus = two_gpus("NORMAL", "NORMAL");
  before.leases = {active(), waiting()};
  LeaseLook after;
  after.status.gpus = two_gpus("HIGH_PRESSURE", "NORMAL");
  LeaseInfo granted = waiting();
  granted.active = true;
  granted.ends = at("33.500");
  after.leases = {granted};
  EXPECT_EQ(lease_changes_text(before, after, at("03.500")),
            "2026-11-19T19:07:03Z GPU 0: HIGH_PRESSURE\n"
            "2026-11-19T19:07:03Z NMT 0123456789abcdef0123456789abcdef of process 4711: its lease "
            "has ended on GPU 0\n"
            "2026-11-19T19:07:03Z ASR: has a lease on GPU 1 for 30.00s\n");
  EXPECT_EQ(lease_changes_text(after, after, at("04.500")), "");
  EXPECT_EQ(lease_changes_text({}, {{}, {waiting()}}, at("04.500")),
            "2026-11-19T19:07:04Z ASR: waits for GPU 1\n");
  EXPECT_EQ(lease_changes_text({{}, {waiting()}}, {}, at("04.500")),
            "2026-11-19T19:07:04Z ASR: waits no more for GPU 1\n");
}

TEST(LeaseText, ARenewalIsNoChange) {
  LeaseInfo renewed = active();
  renewed.ends = at("15.000");
  EXPECT_EQ(lease_changes_text({{}, {active()}}, {{}, {renewed}}, at("05.000")), "");
}

TEST(LeaseText, WithoutALeaseTheReasonAndTheTimeAreTold) {
  EXPECT_EQ(not_granted_text({"TIMEOUT", "", {}, "GPU_BUSY", 300ms, 1200ms}),
            "no lease within 300.0ms: all slots are taken; try again in 1.20s");
  EXPECT_EQ(not_granted_text({"SKIPPED", "", {}, "GPU_USAGE_HIGH", {}, 500ms}),
            "no lease: the GPU is under high load; try again in 500.0ms");
  EXPECT_EQ(not_granted_text({"QUEUE_FULL", "", {}, "GPU_BUSY", {}, 90s}),
            "no lease: too many requests wait; try again in 1min");
  EXPECT_EQ(not_granted_text({"FALLBACK_CPU", "", {}, "OTHER\n", {}, std::nullopt}),
            "no lease: OTHER?");
}

TEST(LeaseText, WhatIsTakenAwayHasAReason) {
  EXPECT_EQ(taken_away_text("OVERDUE"), "it was held for too long without a renewal");
  EXPECT_EQ(taken_away_text("GPU_GONE"), "its GPU is gone");
  EXPECT_EQ(taken_away_text(""), "the scheduler does not know it any more");
}

}  // namespace
}  // namespace nvshare::cli
