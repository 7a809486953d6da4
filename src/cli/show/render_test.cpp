#include "cli/show/render.h"

#include <gtest/gtest.h>

#include "cli/commands/doctor.h"
#include "cli/show/table.h"

namespace nvshare::cli {
namespace {

Status example() {
  Status status;
  status.scheduler = {"0.1.0",
                      1,
                      3725s,
                      true,
                      "metered",
                      true,
                      "/tmp/nvshare-1000",
                      {mib(512), gib(1), gib(64), "machine"}};
  status.gpus = {
      {0, "GPU-0", "NVIDIA H200", gib(140), gib(3), 97.04, 2, 1, mib(512), mib(256), mib(64)},
      {1, "GPU-1", "NVIDIA H200", gib(140), std::nullopt, std::nullopt, 0, 0, {}, {}, {}}};
  TenantInfo train;
  train.name = "train";
  train.cores = 40;
  train.memory = gib(4);
  train.share = 39.84;
  train.processes = {
      {4711, "python", 0, "running", gib(1), mib(512), 5s, 7ms, 120, mib(512), mib(64), {}, {}},
      {4712, "python", 1, "idle", gib(1), gib(1), 0ns, 0ns, 0, {}, {}, {}, {}}};
  TenantInfo serve;
  serve.name = "a-service-with-a-name-that-is-much-too-long";
  serve.priority = 3;
  serve.paused = true;
  serve.placed = {1};
  serve.placed_why = "placed on GPU 1: it was idle; GPU 0 had 1 program";
  status.tenants = {train, serve};
  status.foreign = {{99, 0, mib(1), "xorg"}};
  return status;
}

TEST(Render, Status) {
  EXPECT_EQ(status_text(example(), false),
            "nvshare-scheduler 0.1.0 (private, /tmp/nvshare-1000), policy metered, up 1h02min\n"
            "\n"
            "GPU  MODEL               MEMORY  SWAPPED  MOVING   BUSY  PROCESSES  RUNNING\n"
            "  0  NVIDIA H200  3GiB / 140GiB   512MiB  320MiB  97.0%          2        1\n"
            "  1  NVIDIA H200     - / 140GiB        -       -      -          0        0\n"
            "host memory for swapping: 512MiB needed, 1GiB used, 64GiB possible (limited by the "
            "machine)\n"
            "\n"
            "NAME                          CORES   GETS       MEMORY  SWAPPED  PRIORITY  STATE    "
            "PROCESSES  GPU\n"
            "train                           40%  39.8%  2GiB / 4GiB   512MiB         0  running  "
            "        2  0,1\n"
            "a-service-with-a-name-that..      -      -       0B / -        -         3  paused   "
            "        0  1\n"
            "a-service-with-a-name-that-is-much-too-long was placed on GPU 1: it was idle; GPU 0 "
            "had 1 program\n"
            "\n"
            "not under nvshare:\n"
            "PID  PROGRAM  GPU  MEMORY\n"
            " 99  xorg       0    1MiB\n");
}

TEST(Render, LeasesOfAGpuAreOneLineBelowTheTable) {
  Status status = example();
  EXPECT_EQ(status_text(status, false).find("leases"), std::string::npos);
  status.gpus[1].leases = GpuLeasesInfo{"HIGH_PRESSURE", 91.04, 85, 78, 2, 4, 3};
  const std::string text = status_text(status, false);
  EXPECT_NE(
      text.find("          0        0\n"
                "leases on GPU 1: 2 / 4, 3 waiting, HIGH_PRESSURE, load 91.0% (marks 78-85%)\n"
                "host memory"),
      std::string::npos)
      << text;
  status.gpus[1].leases = GpuLeasesInfo{"UNKNOWN", std::nullopt, 85, 78, 0, 4, 0};
  EXPECT_NE(status_text(status, false).find("leases on GPU 1: 0 / 4, 0 waiting, UNKNOWN, load - "),
            std::string::npos);
}

TEST(Render, WhyTellsOfLeasesBeforeLimits) {
  WhyInfo why;
  why.limits = LimitsInfo{40, gib(8), 0, "file", "group", "default"};
  why.leases = {{"0123", "asr", "ASR", 0, true, 7, "held for 1.00s, ends in 29.00s"},
                {"4567", "inner", "NMT", 1, false, std::nullopt, "waits for 0ms"}};
  why.leases_total = 5;
  EXPECT_EQ(why_text("asr", why),
            "asr has no process on a GPU\n"
            "lease 0123 of ASR (pid 7) on GPU 0: held for 1.00s, ends in 29.00s\n"
            "request 4567 of NMT in inner on GPU 1: waits for 0ms\n"
            "and 3 more: nvshare lease list\n"
            "limits: cores 40% (file), memory 8GiB (group), priority 0 (default)\n");
}

TEST(Render, PlacementsTakeFewLines) {
  Status status = example();
  status.tenants = std::vector<TenantInfo>(11, status.tenants.back());
  const std::string text = status_text(status, false);
  EXPECT_TRUE(text.find("\n3 more were placed: nvshare why NAME\n") != std::string::npos) << text;
}

TEST(Render, GpusAreNoColumnWhereThereIsOne) {
  Status status = example();
  status.gpus.pop_back();
  EXPECT_EQ(status_text(status, false).find("PROCESSES  GPU"), std::string::npos);
}

TEST(Render, WhyBeginsWithWhereARunWasPlaced) {
  WhyInfo why;
  why.placed = "placed on GPU 1: it was idle; GPU 0 had 1 program";
  EXPECT_EQ(why_text("train", why),
            "train was placed on GPU 1: it was idle; GPU 0 had 1 program\n"
            "train has no process on a GPU\n");
  why.processes = {{"train", 7, 1, "python", "runs"}};
  EXPECT_EQ(why_text("train", why),
            "train was placed on GPU 1: it was idle; GPU 0 had 1 program\n"
            "python (pid 7) on GPU 1: runs\n");
}

TEST(Render, WhatIsDeclaredAndNotThereIsSaid) {
  WhyInfo why;
  why.declared = true;
  why.limits = LimitsInfo{40, gib(8), 0, "file", "group", "default"};
  EXPECT_EQ(why_text("user-0", why),
            "user-0 is declared, and has no process now\n"
            "limits: cores 40% (file), memory 8GiB (group), priority 0 (default)\n");
  Status status;
  status.declared = {"user-0", "container-web"};
  const auto last_line = [&] {
    const std::string text = status_text(status, false);
    return text.substr(text.rfind('\n', text.size() - 2) + 1);
  };
  EXPECT_EQ(last_line(), "declared, without a process now: user-0, container-web\n");
  status.declared.assign(11, "x");
  EXPECT_EQ(last_line(), "declared, without a process now: x, x, x, x, x, x, x, x and 3 more\n");
}

TEST(Render, StatusOfNothing) {
  Status status;
  status.scheduler.version = "0.1.0";
  status.scheduler.scheduling = false;
  EXPECT_EQ(status_text(status, false),
            "nvshare-scheduler 0.1.0 (system, ), policy , up 0s, SCHEDULING IS OFF\n"
            "\nno GPU is known yet\n\nno program runs under nvshare\n");
  EXPECT_EQ(processes_text(status, false), "no program runs under nvshare\n");
}

TEST(Render, HostMemoryIsShownWhereSomeIsNeededOrUsed) {
  Status status;
  const auto shown = [&](ArenaInfo arena) {
    status.scheduler.arena = std::move(arena);
    const std::string text = status_text(status, false);
    const std::size_t at = text.find("host memory");
    return at == text.npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_EQ(shown({{}, {}, gib(8), "machine"}), "");
  EXPECT_EQ(shown({{}, gib(1), gib(8), "cgroup"}),
            "host memory for swapping: 0B needed, 1GiB used, 8GiB possible (limited by a cgroup)");
  EXPECT_EQ(shown({gib(1), {}, gib(8), ""}),
            "host memory for swapping: 1GiB needed, 0B used, 8GiB possible")
      << "of a scheduler that does not tell what it is limited by";
  EXPECT_EQ(shown({gib(12), gib(8), gib(8), "arena_limit"}),
            "host memory for swapping: 12GiB needed, 8GiB used, 8GiB possible (limited by "
            "arena_limit), 4GiB short");
}

TEST(Render, Processes) {
  EXPECT_EQ(processes_text(example(), false),
            " PID  NAME   PROGRAM  GPU  STATE    MEMORY  ON GPU  PINNED   USED  HELD BACK\n"
            "4711  train  python     0  running    1GiB  512MiB   64MiB  5.00s      7.0ms\n"
            "4712  train  python     1  idle       1GiB    1GiB       -    0ns        0ns\n");
}

TEST(Render, ColourChangesNoLetterAndNoPlace) {
  std::string text = status_text(example(), true);
  EXPECT_NE(text.find("\033[32mrunning\033[0m"), std::string::npos);
  for (std::size_t at; (at = text.find("\033[")) != text.npos;) {
    text.erase(at, text.find('m', at) - at + 1);
  }
  // Blanks at the end of a line may stand before the colour ends.
  EXPECT_EQ(text, status_text(example(), false));
}

TEST(Render, WhatOthersNamedDoesNotReachTheTerminal) {
  Status status = example();
  status.tenants[0].processes[0].program = "a\033[2Jb\nc\x9b";
  const std::string text = processes_text(status, false);
  EXPECT_NE(text.find("a?[2Jb?c?"), std::string::npos) << text;
  EXPECT_EQ(short_text("abcdef", 4), "ab..");
  EXPECT_EQ(short_text("abcd", 4), "abcd");
}

TEST(Render, ATenantsStateIsThatOfItsBusiestProcess) {
  TenantInfo tenant;
  tenant.name = "x";
  tenant.processes.resize(2);
  tenant.processes[0].state = "idle";
  tenant.processes[1].state = "ready";
  Status status;
  status.tenants = {tenant};
  EXPECT_NE(status_text(status, false).find(" ready "), std::string::npos);
  status.tenants[0].processes[1].state = "idle";
  EXPECT_NE(status_text(status, false).find(" idle "), std::string::npos);
}

TEST(Render, WhoWaitsForItsMemoryOrIsMovedOutIsSaidToMove) {
  Status status;
  status.tenants.resize(1);
  status.tenants[0].processes.resize(1);
  ProcessInfo& process = status.tenants[0].processes[0];
  const auto shown = [&](const char* state, Bytes incoming, Bytes outgoing) {
    process.state = state;
    process.incoming = incoming;
    process.outgoing = outgoing;
    const std::string text = processes_text(status, false);
    const std::string found = text.find("moving in") != text.npos    ? "in"
                              : text.find("moving out") != text.npos ? "out"
                                                                     : "-";
    const std::string tenants = status_text(status, false);
    EXPECT_EQ(tenants.find("moving " + found) != tenants.npos, found != "-") << tenants;
    return found;
  };
  EXPECT_EQ(shown("waiting", mib(1), {}), "in");
  EXPECT_EQ(shown("idle", {}, mib(1)), "out");
  EXPECT_EQ(shown("waiting", mib(1), mib(1)), "out") << "that comes first";
  EXPECT_EQ(shown("waiting", {}, {}), "-");
  EXPECT_EQ(shown("stopping", {}, mib(1)), "-") << "it still runs";
}

TEST(Render, Findings) {
  const std::vector<Finding> findings{{Level::Good, "nvshare 0.1.0", ""},
                                      {Level::Warning, "scheduling is off", "turn it on"},
                                      {Level::Problem, "no driver", "install one"}};
  EXPECT_EQ(findings_text(findings, false),
            "ok      nvshare 0.1.0\n"
            "warning scheduling is off: turn it on\n"
            "problem no driver: install one\n"
            "\n1 problem, 1 warning\n");
  EXPECT_TRUE(has_problem(findings));
  EXPECT_FALSE(has_problem({findings[0], findings[1]}));
  EXPECT_EQ(findings_text({findings[0]}, false), "ok      nvshare 0.1.0\n\nall is well\n");
  EXPECT_EQ(findings_json({findings[2]}),
            "{\n  \"healthy\": false,\n  \"findings\": [\n    {\n      \"level\": \"problem\",\n"
            "      \"what\": \"no driver\",\n      \"advice\": \"install one\"\n    }\n  ]\n}\n");
}

TEST(Render, AProbeIsReadAsItWasWritten) {
  const auto probe = read_probe(write_probe({"0.1.0", "cuInit", 100, 13000, 2}));
  ASSERT_TRUE(probe);
  EXPECT_EQ(probe->library_version, "0.1.0");
  EXPECT_EQ(probe->failed, "cuInit");
  EXPECT_EQ(probe->error, 100);
  EXPECT_EQ(probe->driver_version, 13000);
  EXPECT_EQ(probe->devices, 2);
  for (const char* line : {"", "[]", "{}", R"({"library":1})"}) EXPECT_FALSE(read_probe(line));
}

// A user with two runs, one of them with a run inside.
Status tree() {
  const auto make = [](const char* name, const char* kind, const char* parent) {
    TenantInfo tenant;
    tenant.name = name;
    tenant.kind = kind;
    tenant.parent = parent;
    return tenant;
  };
  const auto process = [](long pid, const char* state) {
    ProcessInfo one;
    one.pid = pid;
    one.state = state;
    one.allocated = gib(1);
    return one;
  };
  Status status;
  status.tenants = {make("user-1", "user", ""), make("one", "run", "user-1"),
                    make("user-2", "user", ""), make("two", "run", "user-1")};
  status.tenants[1].processes = {process(10, "idle")};
  status.tenants[3].processes = {process(20, "running")};
  return status;
}

std::string tenants_of(const Status& status) {
  const std::string text = status_text(status, false);
  return text.substr(text.rfind("\n\n") + 2);
}

TEST(RenderTree, PlainRunsAreShownWithoutTheirUser) {
  EXPECT_EQ(tenants_of(tree()),
            "NAME  CORES  GETS    MEMORY  SWAPPED  PRIORITY  STATE    PROCESSES\n"
            "one       -     -  1GiB / -        -         0  idle             1\n"
            "two       -     -  1GiB / -        -         0  running          1\n");
  Status status = tree();
  status.scheduler.is_private = true;
  status.tenants[0].priority = 10;
  EXPECT_EQ(tenants_of(status), tenants_of(tree())) << "the priority of a private user";
  status.tenants.resize(1);
  EXPECT_EQ(tenants_of(status), "no program runs under nvshare\n") << "its runs have ended";
}

TEST(Render, APriorityThatALeaseLendsIsShownAsSuch) {
  Status status = example();
  status.tenants[0].lent = 8;
  status.tenants[1].lent = 2;  // its own is 3
  const std::string text = status_text(status, false);
  EXPECT_NE(text.find(" 8 (lease)  running"), std::string::npos) << text;
  EXPECT_NE(text.find("         3  paused"), std::string::npos) << text;
}

TEST(RenderTree, PartsStandBelowALimitedUser) {
  Status status = tree();
  status.tenants[0].cores = 30;
  status.tenants[0].share = 29.9;
  EXPECT_EQ(tenants_of(status),
            "NAME    CORES   GETS    MEMORY  SWAPPED  PRIORITY  STATE    PROCESSES\n"
            "user-1    30%  29.9%  2GiB / -        -         0  running          2\n"
            "  one       -      -  1GiB / -        -         0  idle             1\n"
            "  two       -      -  1GiB / -        -         0  running          1\n");
}

TEST(RenderTree, APauseIsThatOfAllParts) {
  Status status = tree();
  status.tenants[0].paused = true;
  const std::string text = tenants_of(status);
  EXPECT_EQ(text.find("running"), text.npos) << text;
  EXPECT_EQ(text.find("idle"), text.npos) << text;
}

TEST(RenderTree, ARunInsideARunShowsTheTree) {
  Status status = tree();
  status.tenants[3].parent = "one";
  EXPECT_EQ(tenants_of(status),
            "NAME     CORES  GETS    MEMORY  SWAPPED  PRIORITY  STATE    PROCESSES\n"
            "user-1       -     -  2GiB / -        -         0  running          2\n"
            "  one        -     -  2GiB / -        -         0  running          2\n"
            "    two      -     -  1GiB / -        -         0  running          1\n");
  const std::string processes = processes_text(status, false);
  EXPECT_EQ(processes.find("20"), processes.rfind("20")) << "each process once\n" << processes;
}

TEST(RenderTree, WhyNamesThePart) {
  WhyInfo why;
  why.processes = {{"user-1", 10, 0, "a", "runs"}, {"two", 20, 1, "b", "waits"}};
  EXPECT_EQ(why_text("user-1", why),
            "a (pid 10) on GPU 0: runs\nb (pid 20) in two on GPU 1: waits\n");
}

TEST(TenantLine, SaysThatALimitIsBelowWhatIsInUse) {
  TenantInfo tenant;
  tenant.name = "train";
  tenant.memory = gib(4);
  const auto add = [&](long gpu, Bytes allocated) {
    ProcessInfo& one = tenant.processes.emplace_back();
    one.gpu = gpu;
    one.allocated = allocated;
  };
  add(0, gib(3));
  add(1, gib(4));
  EXPECT_EQ(tenant_line(tenant), "train: cores 100%, memory 4GiB, priority 0\n");
  add(0, gib(3));
  EXPECT_EQ(tenant_line(tenant),
            "train: cores 100%, memory 4GiB (6GiB in use: kept, and no more is given), "
            "priority 0\n");
  tenant.fullest = gib(7);
  EXPECT_NE(tenant_line(tenant).find("7GiB in use"), std::string::npos) << "with its parts";
}

}  // namespace
}  // namespace nvshare::cli
