// What outlasts the scheduler: it is killed and started again.

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "harness.h"

namespace nvshare::daemon {
namespace {

constexpr std::uint64_t kGi = 1ull << 30;

std::string own_user() {
  return "user-" + std::to_string(getuid());
}

void kill_and_restart(SchedulerProcess& scheduler, const SchedulerProcess::Setup& setup) {
  scheduler.signal(SIGKILL);
  scheduler.wait();
  ASSERT_TRUE(scheduler.again(setup)) << scheduler.log();
}

void kill_and_restart(SchedulerProcess& scheduler) {
  kill_and_restart(scheduler, {});
}

json tenant(const SchedulerProcess& scheduler, const std::string& name) {
  const json status = scheduler.status();
  for (const json& one : status["tenants"]) {
    if (one["name"] == name) return one;
  }
  return nullptr;
}

std::string setting(const SchedulerProcess& scheduler, const std::string& name) {
  const json all = scheduler.ask({{"op", "config"}});
  for (const json& one : all["settings"]) {
    if (one["name"] == name) return one["value"].get<std::string>();
  }
  return "";
}

TEST(SchedulerRestart, KeepsLimitsPausesAndSettings) {
  SchedulerProcess scheduler;
  const json limited =
      scheduler.ask({{"op", "limit"}, {"name", own_user()}, {"cores", 30}, {"memory", 2 * kGi}});
  ASSERT_EQ(limited["kept"], true) << limited;
  ASSERT_EQ(scheduler.ask({{"op", "pause"}, {"name", "user-77"}, {"paused", true}})["kept"], true);
  ASSERT_EQ(scheduler.ask({{"op", "set"}, {"name", "turn"}, {"value", "9ms"}})["kept"], true);
  ASSERT_EQ(scheduler.ask({{"op", "scheduling"}, {"on", false}})["kept"], true);
  kill_and_restart(scheduler);
  EXPECT_EQ(tenant(scheduler, own_user())["cores"], 30);
  EXPECT_EQ(tenant(scheduler, "user-77")["paused"], true);
  EXPECT_EQ(setting(scheduler, "turn"), "9ms");
  EXPECT_EQ(scheduler.status()["scheduler"]["scheduling"], false);
  TestProgram program(scheduler);
  ASSERT_TRUE(program.hello());
  EXPECT_EQ(program.page()->scheduler.core_limit, 30u);
  EXPECT_EQ(program.page()->scheduler.memory_limit, 2 * kGi);
  // Nothing of it comes back once it is taken back.
  scheduler.ask({{"op", "limit"}, {"name", own_user()}, {"reset", true}});
  scheduler.ask({{"op", "pause"}, {"name", "user-77"}, {"paused", false}});
  scheduler.ask({{"op", "set"}, {"name", "turn"}, {"value", "5ms"}});
  scheduler.ask({{"op", "scheduling"}, {"on", true}});
  kill_and_restart(scheduler, {.arguments = {}, .environment = {"NVSHARE_TURN=7ms"}});
  EXPECT_TRUE(scheduler.status()["tenants"].empty()) << scheduler.status();
  EXPECT_EQ(setting(scheduler, "turn"), "7ms") << "the environment's";
  EXPECT_EQ(scheduler.status()["scheduler"]["scheduling"], true);
}

// The test is the keeper of the run, and its program as well.
TEST(SchedulerRestart, AProgramIsInItsRunBeforeItsKeeperIsBack) {
  SchedulerProcess scheduler;
  {
    TestProgram run(scheduler);
    ASSERT_TRUE(run.run_begin("train", 40, 4 * kGi));
    ASSERT_EQ(scheduler.ask({{"op", "limit"}, {"name", "train"}, {"cores", 25}})["ok"], true);
    ASSERT_EQ(scheduler.ask({{"op", "pause"}, {"name", "train"}, {"paused", true}})["ok"], true);
    scheduler.signal(SIGKILL);
    scheduler.wait();
  }
  ASSERT_TRUE(scheduler.again()) << scheduler.log();
  TestProgram program(scheduler);
  const auto welcome = program.hello();
  ASSERT_TRUE(welcome);
  EXPECT_STREQ(welcome->tenant, "train");
  EXPECT_EQ(program.page()->scheduler.core_limit, 25u);
  EXPECT_EQ(program.page()->scheduler.memory_limit, 4 * kGi);
  EXPECT_EQ(tenant(scheduler, "train")["paused"], true);
  TestProgram keeper(scheduler);
  ASSERT_TRUE(keeper.run_begin("train", 40, 4 * kGi)) << keeper.refused();
  EXPECT_EQ(tenant(scheduler, "train")["cores"], 25) << "the live limit holds";
  EXPECT_EQ(program.ask_memory(kGi), true) << "is not sent away and called back";
  EXPECT_EQ(scheduler.ask({{"op", "limit"}, {"name", "train"}, {"reset", true}})["tenant"]["cores"],
            40);
  program.close();
  keeper.close();
  EXPECT_TRUE(eventually([&] { return tenant(scheduler, "train").is_null(); }));
}

TEST(SchedulerRestart, ARunWhoseKeeperEndedMeanwhileIsGone) {
  SchedulerProcess scheduler;
  int began[2];
  ASSERT_EQ(pipe(began), 0);
  {
    Forked keeper([&] {
      TestProgram run(scheduler);
      if (!run.run_begin("train", 40) || write(began[1], "x", 1) != 1) _exit(1);
      pause();
    });
    char byte = 0;
    ASSERT_EQ(read(began[0], &byte, 1), 1);
    ASSERT_EQ(scheduler.ask({{"op", "limit"}, {"name", "train"}, {"cores", 25}})["kept"], true);
    scheduler.signal(SIGKILL);
    scheduler.wait();
    ASSERT_TRUE(scheduler.again());
    EXPECT_FALSE(tenant(scheduler, "train").is_null()) << "its keeper lives";
    keeper.kill_hard();
    keeper.wait();
    EXPECT_TRUE(eventually([&] { return tenant(scheduler, "train").is_null(); }))
        << "ends with its keeper, which has never come back";
  }
  TestProgram run(scheduler);
  ASSERT_TRUE(run.run_begin("train", 40)) << run.refused();
  EXPECT_EQ(tenant(scheduler, "train")["cores"], 40) << "another run";
}

TEST(SchedulerRestart, ATornStateIsSetAsideForTheOneBefore) {
  SchedulerProcess scheduler;
  ASSERT_EQ(scheduler.ask({{"op", "limit"}, {"name", "user-77"}, {"cores", 30}})["kept"], true);
  ASSERT_EQ(scheduler.ask({{"op", "limit"}, {"name", "user-77"}, {"cores", 20}})["kept"], true);
  scheduler.signal(SIGKILL);
  scheduler.wait();
  const std::string state = scheduler.folder() + "/state";
  struct stat about {};
  ASSERT_EQ(stat(state.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  std::filesystem::resize_file(state, std::filesystem::file_size(state) / 2);
  ASSERT_TRUE(scheduler.again());
  EXPECT_EQ(tenant(scheduler, "user-77")["cores"], 30);
  EXPECT_NE(scheduler.log().find("event=state_set_aside"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(state + ".bad"));
  scheduler.signal(SIGKILL);
  scheduler.wait();
  std::ofstream(state, std::ios::trunc) << "nonsense";
  std::ofstream(state + ".old", std::ios::trunc) << "nonsense";
  ASSERT_TRUE(scheduler.again()) << "starts all the same";
  EXPECT_TRUE(tenant(scheduler, "user-77").is_null());
}

TEST(SchedulerRestart, AStateThatCannotBeWrittenIsToldAndAllGoesOn) {
  SchedulerProcess scheduler(
      {.arguments = {}, .environment = {"NVSHARE_STATE_FILE=/proc/nowhere/state"}});
  const json answer = scheduler.ask({{"op", "limit"}, {"name", "user-77"}, {"cores", 30}});
  EXPECT_EQ(answer["ok"], true);
  EXPECT_EQ(answer["kept"], false);
  EXPECT_NE(scheduler.log().find("event=state_not_written"), std::string::npos);
  TestProgram program(scheduler);
  EXPECT_TRUE(program.hello());
}

TEST(SchedulerLimits, AMemoryLimitOfTheVariableIsToldAsSuch) {
  SchedulerProcess scheduler;
  TestProgram run(scheduler);
  ASSERT_TRUE(run.run_begin("train", 40, kGi, wire::kMemoryOfVariable));
  const auto sources = [&] { return tenant(scheduler, "train")["limits_from"]; };
  const json begun = {{"cores", "run"}, {"memory", "variable"}, {"priority", "run"}};
  EXPECT_EQ(sources(), begun);
  EXPECT_EQ(scheduler.ask({{"op", "why"}, {"name", "train"}})["limits_from"], begun);
  const auto limit = [&](json request) {
    request.update({{"op", "limit"}, {"name", "train"}});
    return scheduler.ask(request)["tenant"]["limits_from"]["memory"];
  };
  EXPECT_EQ(limit({{"memory", 2 * kGi}}), "limit");
  EXPECT_EQ(limit({{"reset", true}}), "variable") << "holds again";
  kill_and_restart(scheduler);
  EXPECT_EQ(sources(), begun);
  TestProgram program(scheduler);
  ASSERT_TRUE(program.hello());
  EXPECT_EQ(program.page()->scheduler.memory_limit, kGi);
}

TEST(SchedulerLimits, AResetIsTakenWhereTheParentWasLowered) {
  SchedulerProcess scheduler;
  TestProgram run(scheduler);
  ASSERT_TRUE(run.run_begin("train", 50));
  ASSERT_EQ(scheduler.ask({{"op", "limit"}, {"name", "train"}, {"cores", 45}})["ok"], true);
  ASSERT_EQ(scheduler.ask({{"op", "limit"}, {"name", own_user()}, {"cores", 30}})["ok"], true);
  const json reset = scheduler.ask({{"op", "limit"}, {"name", "train"}, {"reset", true}});
  EXPECT_EQ(reset["ok"], true) << reset;
  EXPECT_EQ(tenant(scheduler, "train")["cores"], 50);
  EXPECT_EQ(tenant(scheduler, "train")["limits_from"]["cores"], "run");
}

#if NVSHARE_HAVE_TOML

TEST(SchedulerTables, AUserHasItsLimitWithItsFirstProcess) {
  char name[] = "/tmp/nvshare-tables-XXXXXX";
  const int file = mkstemp(name);
  ASSERT_GE(file, 0);
  const std::string text =
      "[users." + std::to_string(getuid()) + "]\ncores = 40\nmemory = \"1Gi\"\n";
  ASSERT_EQ(write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(file);
  SchedulerProcess scheduler({.arguments = {"--config", name}, .environment = {}});
  {
    TestProgram program(scheduler);
    EXPECT_EQ(program.look()->memory_limit, kGi) << "before there is a tenant";
    TestProgram run(scheduler);
    EXPECT_FALSE(run.run_begin("train", 90, 4 * kGi)) << "a run does not raise it";
    EXPECT_EQ(run.refused(), "cores 90 is above the limit of '" + own_user() + "', which is 40");
  }
  TestProgram program(scheduler);
  ASSERT_TRUE(program.hello());
  EXPECT_EQ(program.page()->scheduler.core_limit, 40u);
  EXPECT_EQ(program.ask_memory(kGi + 1), false);
  EXPECT_EQ(tenant(scheduler, own_user())["limits_from"],
            (json{{"cores", "file"}, {"memory", "file"}, {"priority", "default"}}));
  EXPECT_EQ(scheduler.another({"--check-config", "--config", name}).status, 0);
  std::ofstream(name, std::ios::trunc) << "[users.no-such-user-here]\ncores = 40\n";
  EXPECT_NE(scheduler.another({"--check-config", "--config", name})
                .err.find(":1:8: users.no-such-user-here: this machine has no user"),
            std::string::npos);
  unlink(name);
}

// The runtimes of sanitizers read more of /proc.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// A /proc for programs that are started from now on, in which cgroup v1 is alone.
struct OldProc {
  OldProc() {
    there = unshare(CLONE_NEWNS) == 0 &&
            mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
            mount("none", "/proc", "tmpfs", 0, nullptr) == 0;
    if (!there) return;
    std::filesystem::create_directory("/proc/self");
    std::ofstream("/proc/self/cgroup") << "4:memory:/\n1:name=systemd:/\n";
  }
  ~OldProc() {
    if (there) umount("/proc");
  }
  bool there = false;
};

TEST(SchedulerTables, CgroupsThatDoNothingAreTold) {
  const OldProc proc;
  if (!proc.there) GTEST_SKIP() << "the test may not mount";
  char name[] = "/tmp/nvshare-tables-XXXXXX";
  close(mkstemp(name));
  std::ofstream(name) << "[cgroups.\"/system.slice/jupyter.service\"]\ncores = 60\n";
  const std::string told = "the [cgroups] tables do nothing: this machine has cgroup v1 alone";
  SchedulerProcess scheduler({.arguments = {"--config", name}, .environment = {}, .nvml = false});
  EXPECT_NE(scheduler.log().find("event=tables_without_effect reason=\"" + told), std::string::npos)
      << scheduler.log();
  const Ended checked = scheduler.another({"--check-config", "--config", name});
  EXPECT_EQ(checked.status, 0) << "the file is good for other machines";
  EXPECT_NE(checked.err.find("nvshare-scheduler: " + told), std::string::npos) << checked.err;
  unlink(name);
}

#endif

#endif

}  // namespace
}  // namespace nvshare::daemon
