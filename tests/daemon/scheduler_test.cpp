// The real scheduler with programs that behave.

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <thread>
#include <utility>

#include "harness.h"
#include "softgpu/tenant.h"

namespace nvshare::daemon {
namespace {

constexpr std::uint64_t kGi = 1ull << 30;

SchedulerProcess::Setup turns() {
  return {.arguments = {}, .environment = {"NVSHARE_SHARE_MODE=turns", "NVSHARE_TURN=20ms"}};
}

TEST(Scheduler, FindsTheCardAndWelcomesAProgram) {
  SchedulerProcess scheduler;
  TestProgram program(scheduler);
  const auto welcome = program.hello();
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->tenant, "user-" + std::to_string(getuid()));
  EXPECT_EQ(welcome->watch, wire::Watch::Free);
  ASSERT_NE(program.page(), nullptr);
  EXPECT_EQ(program.page()->magic, wire::kPageMagic);
  EXPECT_EQ(program.page()->scheduler.core_limit, 100u);
  const json status = scheduler.status();
  EXPECT_EQ(status["gpus"][0]["memory"], 8 * kGi);
  EXPECT_EQ(status["tenants"][0]["processes"][0]["pid"], getpid());
}

// After a scheduler before this one they may have more on the card than there is room for.
TEST(Scheduler, WhoComesBackHearsItsOrdersBehindTheWelcome) {
  SchedulerProcess scheduler;
  TestProgram one(scheduler);
  TestProgram two(scheduler);
  ASSERT_TRUE(one.hello(6 * kGi, 6 * kGi));
  ASSERT_TRUE(one.want());
  ASSERT_TRUE(one.hear<wire::Grant>());
  ASSERT_TRUE(two.hello(6 * kGi, 6 * kGi));
  const auto out = two.hear<wire::SwapOut>();
  ASSERT_TRUE(out);
  EXPECT_GT(out->bytes, 0u);
}

// Who has had less is next, so one that was kept longer than its turn, as on a busy machine, waits
// for several of the other's.
TEST(Scheduler, TwoProgramsTakeTurns) {
  SchedulerProcess scheduler(turns());
  TestProgram one(scheduler);
  TestProgram two(scheduler);
  ASSERT_TRUE(one.hello());
  ASSERT_TRUE(two.hello());
  ASSERT_TRUE(one.want());
  auto grant = one.hear<wire::Grant>();
  ASSERT_TRUE(grant);
  EXPECT_EQ(one.page()->scheduler.grant, grant->grant);
  ASSERT_TRUE(two.want());
  std::uint64_t last = grant->grant;
  TestProgram* holder = &one;
  std::map<TestProgram*, int> turns_of;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (turns_of[&one] < 4 || turns_of[&two] < 4) {
    ASSERT_LT(std::chrono::steady_clock::now(), until) << turns_of[&one] << ", " << turns_of[&two];
    // Either is right: it is told to drop, or it gives back by itself.
    if (grant->budget == 0) {
      ASSERT_TRUE(holder->hear<wire::Drop>());
    } else {
      usleep(static_cast<useconds_t>(grant->budget / 1000));
    }
    if (turns_of[&two] == 1 && holder == &two) usleep(400'000);
    ASSERT_TRUE(holder->release(last, 20'000'000, true));
    ++turns_of[holder];
    do {
      pollfd heard[] = {{one.fd(), POLLIN, 0}, {two.fd(), POLLIN, 0}};
      ASSERT_GT(poll(heard, 2, 10'000), 0) << "nobody has the GPU, and both want it";
      ASSERT_EQ((heard[0].revents | heard[1].revents) & POLLHUP, 0) << scheduler.log();
      holder = heard[0].revents != 0 ? &one : &two;
      grant = holder->hear<wire::Grant>(std::chrono::milliseconds{0});
    } while (!grant);
    EXPECT_GT(grant->grant, last);
    last = grant->grant;
  }
  const json status = scheduler.status();
  EXPECT_GT(status["tenants"][0]["used"].get<std::int64_t>(), 0);
}

TEST(Scheduler, MemoryIsCountedAndALimitChangesLive) {
  SchedulerProcess scheduler;
  TestProgram program(scheduler);
  const auto welcome = program.hello();
  ASSERT_TRUE(welcome);
  EXPECT_EQ(program.ask_memory(kGi), true);
  EXPECT_EQ(program.page()->scheduler.tenant_allocated, kGi);
  EXPECT_EQ(program.ask_memory(100 * kGi), false);
  const json limited = scheduler.ask(
      {{"op", "limit"}, {"name", welcome->tenant}, {"cores", 30}, {"memory", 2 * kGi}});
  EXPECT_EQ(limited["tenant"]["memory"], 2 * kGi);
  const auto limits = program.hear<wire::Limits>();
  ASSERT_TRUE(limits);
  EXPECT_EQ(limits->core_limit, 30);
  EXPECT_EQ(program.page()->scheduler.memory_limit, 2 * kGi);
  EXPECT_EQ(program.ask_memory(kGi + 1), false);
  EXPECT_EQ(program.ask_memory(kGi), true);
  EXPECT_NE(scheduler.log().find("event=memory_refused"), std::string::npos);
}

// Two programs that do not fit beside each other: each is told to make room for the other, and has
// host memory to do so.
TEST(Scheduler, ProgramsMakeRoomForEachOther) {
  constexpr std::uint64_t kMi = kGi / 1024;
  SchedulerProcess scheduler(
      {.arguments = {},
       .environment = {"NVSHARE_SOFTGPU_MEMORY=1Gi", "NVSHARE_RESERVE_BASE=0Mi",
                       "NVSHARE_RESERVE_PER_PROCESS=0Mi", "NVSHARE_SWITCH_TIME_MODE=fixed",
                       "NVSHARE_SWITCH_TIME_FIXED=1"}});
  TestProgram one(scheduler);
  TestProgram two(scheduler);
  ASSERT_TRUE(one.hello());
  const auto welcome = two.hello();
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->backend, wire::Backend::Swap);
  EXPECT_EQ(one.ask_memory(600 * kMi, true), true);
  EXPECT_EQ(two.ask_memory(500 * kMi, true), true) << scheduler.log();
  const auto piece = one.hear<wire::ArenaShared>();
  ASSERT_TRUE(piece) << scheduler.log();
  struct stat about {};
  ASSERT_EQ(fstat(one.arena(), &about), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(about.st_size), piece->bytes);
  ASSERT_TRUE(one.want());
  const auto grant = one.hear<wire::Grant>();
  ASSERT_TRUE(grant);
  ASSERT_TRUE(two.want());
  ASSERT_TRUE(one.hear<wire::Drop>());
  ASSERT_TRUE(one.release(grant->grant, 1'000'000, false));
  const auto out = one.hear<wire::SwapOut>();
  ASSERT_TRUE(out) << scheduler.log();
  ASSERT_TRUE(one.moved(out->order, 600 * kMi, 0)) << "all of it, in one chunk";
  std::uint64_t came = 0;
  while (came < 500 * kMi) {
    const auto in = two.hear<wire::SwapIn>();
    ASSERT_TRUE(in) << scheduler.log();
    came += in->bytes;
    ASSERT_TRUE(two.moved(in->order, 0, in->bytes));
  }
  EXPECT_TRUE(two.hear<wire::Grant>()) << scheduler.log();
  const json status = scheduler.status();
  EXPECT_EQ(status["gpus"][0]["swapped"], 600 * kMi);
  EXPECT_GT(status["scheduler"]["arena_used"], 0);
}

TEST(Scheduler, WhoLooksIsToldAndIsNoClient) {
  SchedulerProcess scheduler({.arguments = {}, .environment = {"NVSHARE_DEFAULT_MEMORY=3Gi"}});
  TestProgram first(scheduler);
  const auto defaults = first.look();
  ASSERT_TRUE(defaults);
  EXPECT_EQ(defaults->memory_limit, 3 * kGi);
  EXPECT_EQ(defaults->allocated, 0u);
  EXPECT_TRUE(first.closed());
  EXPECT_TRUE(scheduler.status()["tenants"].empty()) << "made a tenant";

  TestProgram outside(scheduler);
  ASSERT_TRUE(outside.hello());
  EXPECT_EQ(outside.ask_memory(2 * kGi), true);
  const auto users = TestProgram(scheduler).look();
  ASSERT_TRUE(users);
  EXPECT_EQ(users->allocated, 2 * kGi);
  outside.close();

  TestProgram run(scheduler);
  ASSERT_TRUE(run.run_begin("train", 40, kGi));
  TestProgram inside(scheduler);
  ASSERT_TRUE(inside.hello());
  EXPECT_EQ(inside.ask_memory(kGi / 2), true);
  Forked below([&] {
    const auto view = TestProgram(scheduler).look();
    _exit(view && view->memory_limit == kGi && view->allocated == kGi / 2 ? 0 : 1);
  });
  EXPECT_EQ(below.wait(), 0);
  EXPECT_EQ(scheduler.clients(), 1);
}

TEST(Scheduler, WhoLooksInAnotherProtocolIsRefused) {
  SchedulerProcess scheduler;
  TestProgram stranger(scheduler);
  auto look = wire::make<wire::Look>();
  look.magic = wire::kMagic;
  look.major = wire::kMajor + 1;
  ASSERT_TRUE(stranger.say(look));
  EXPECT_FALSE(stranger.hear<wire::View>());
  EXPECT_NE(stranger.refused().find("speaks protocol"), std::string::npos) << stranger.refused();
}

TEST(Scheduler, ShowsWhoUsesTheGpuWithoutIt) {
  SchedulerProcess scheduler;
  softgpu::Tenant stranger;
  ASSERT_EQ(stranger.started(), "0");
  ASSERT_EQ(stranger.tell("alloc " + std::to_string(kGi)), "0");
  EXPECT_TRUE(eventually([&] {
    const json status = scheduler.status();
    return status["foreign"].size() == 1 && status["foreign"][0]["pid"] == stranger.pid() &&
           status["gpus"][0]["memory_used"].get<std::uint64_t>() >= kGi &&
           status["gpus"][0]["memory_safe"].get<std::uint64_t>() <= 7 * kGi;
  })) << scheduler.status();
}

TEST(Scheduler, WithoutNvmlTakesTheGpuAsDescribed) {
  SchedulerProcess scheduler({.arguments = {}, .environment = {}, .nvml = false});
  if (!scheduler.status()["gpus"].empty()) GTEST_SKIP() << "this machine has NVML";
  EXPECT_NE(scheduler.log().find("event=no_nvml"), std::string::npos);
  TestProgram program(scheduler);
  ASSERT_TRUE(program.hello());
  EXPECT_EQ(scheduler.status()["gpus"][0]["memory"], 8 * kGi);
}

TEST(Scheduler, SettingsChangeWhileItRuns) {
  SchedulerProcess scheduler;
  EXPECT_EQ(scheduler.ask({{"op", "set"}, {"name", "turn"}, {"value", "9ms"}})["ok"], true);
  const json settings = scheduler.ask({{"op", "config"}})["settings"];
  for (const json& one : settings) {
    if (one["name"] == "turn") {
      EXPECT_EQ(one["value"], "9ms");
    }
  }
  EXPECT_EQ(scheduler.ask({{"op", "scheduling"}, {"on", false}})["ok"], true);
}

// --- the process itself ------------------------------------------------------------------------

TEST(SchedulerProgram, EndsCleanlyWhenTold) {
  SchedulerProcess scheduler;
  struct stat socket {};
  ASSERT_EQ(stat(scheduler.program_socket().c_str(), &socket), 0);
  EXPECT_EQ(socket.st_mode & 0777, 0666u);
  scheduler.signal(SIGTERM);
  EXPECT_EQ(scheduler.wait().status, 0);
  EXPECT_FALSE(std::filesystem::exists(scheduler.program_socket()));
  EXPECT_FALSE(std::filesystem::exists(scheduler.control_socket()));
}

TEST(SchedulerProgram, IsAloneInItsFolder) {
  SchedulerProcess scheduler;
  const Ended second = scheduler.another({});
  ASSERT_TRUE(WIFEXITED(second.status));
  EXPECT_EQ(WEXITSTATUS(second.status), 1);
  EXPECT_EQ(second.err,
            "nvshare-scheduler: another scheduler runs in " + scheduler.folder() + "\n");
  EXPECT_TRUE(scheduler.status()["ok"].get<bool>());
}

TEST(SchedulerProgram, TakesTheFolderOfADeadOne) {
  SchedulerProcess scheduler;
  scheduler.signal(SIGKILL);
  scheduler.wait();
  ASSERT_TRUE(std::filesystem::exists(scheduler.program_socket()));
  Forked next([&] { scheduler.another({}); });
  EXPECT_TRUE(eventually([&] { return scheduler.status().contains("ok"); }));
  // It ends with its parent's help: the control socket tells which process it is.
  const json status = scheduler.status();
  kill(status["scheduler"]["pid"].get<pid_t>(), SIGTERM);
  EXPECT_EQ(next.wait(), 0);
}

TEST(SchedulerProgram, APrivateOneGoesWithItsLastProgram) {
  SchedulerProcess scheduler({.arguments = {"--private"}, .environment = {}});
  struct stat socket {};
  ASSERT_EQ(stat(scheduler.program_socket().c_str(), &socket), 0);
  EXPECT_EQ(socket.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(scheduler.control_socket().c_str(), &socket), 0);
  EXPECT_EQ(socket.st_mode & 0777, 0600u);
  {
    TestProgram program(scheduler);
    ASSERT_TRUE(program.hello());
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    EXPECT_TRUE(scheduler.alive()) << "somebody is there";
  }
  EXPECT_EQ(scheduler.wait().status, 0);
  EXPECT_FALSE(std::filesystem::exists(scheduler.program_socket()));
}

TEST(SchedulerProgram, APrivateOneThatNobodyNeedsGoes) {
  SchedulerProcess scheduler({.arguments = {"--private"}, .environment = {}});
  EXPECT_EQ(scheduler.wait().status, 0);
}

TEST(SchedulerProgram, BadSettingsAreOneLineEachAndExitCode2) {
  SchedulerProcess scheduler;
  setenv("NVSHARE_TURN", "5", 1);
  const Ended bad = scheduler.another({"--check-config"});
  unsetenv("NVSHARE_TURN");
  EXPECT_EQ(WEXITSTATUS(bad.status), 2);
  EXPECT_NE(bad.err.find("nvshare-scheduler: NVSHARE_TURN: '5' has no known unit"),
            std::string::npos);
  EXPECT_EQ(WEXITSTATUS(scheduler.another({"--check-config"}).status), 0);
  EXPECT_EQ(WEXITSTATUS(scheduler.another({"--config", "/nowhere/x.toml"}).status), 2);
  EXPECT_EQ(WEXITSTATUS(scheduler.another({"--ready-fd", "x"}).status), 2);
  EXPECT_EQ(WEXITSTATUS(scheduler.another({"--quick"}).status), 2);
}

// Before minor version 6 a run said nothing of GPUs, and its message was shorter.
TEST(Scheduler, ARunOfAnOlderVersionIsServedAndNotPlaced) {
  SchedulerProcess scheduler({.arguments = {}, .environment = {"NVSHARE_SOFTGPU_COUNT=2"}});
  TestProgram older(scheduler);
  auto begin = wire::make<wire::RunBegin>();
  begin.header.size = wire::RunBegin::kLeast;
  begin.magic = wire::kMagic;
  begin.major = wire::kMajor;
  begin.minor = wire::kMinorPlacement - 1;
  begin.core_limit = 100;
  wire::put_text(begin.name, sizeof begin.name, "older");
  ASSERT_TRUE(older.send_packet(&begin, wire::RunBegin::kLeast));
  const auto welcome = older.hear<wire::Welcome>();
  ASSERT_TRUE(welcome) << older.refused();
  EXPECT_EQ(welcome->gpu_count, 0u);
}

}  // namespace
}  // namespace nvshare::daemon
