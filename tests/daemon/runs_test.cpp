// Runs and the tree of tenants, with the real scheduler.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "harness.h"
#include "own_cgroup.h"

namespace nvshare::daemon {
namespace {

constexpr std::uint64_t kGi = 1ull << 30;

const std::string kUser = "user-" + std::to_string(geteuid());

TEST(SchedulerRuns, ARunIsATenantForWhatIsBelowIt) {
  SchedulerProcess scheduler;
  TestProgram run(scheduler);
  ASSERT_TRUE(run.run_begin("train", 40, 4 * kGi));
  {
    TestProgram program(scheduler);
    const auto welcome = program.hello();
    ASSERT_TRUE(welcome);
    EXPECT_STREQ(welcome->tenant, "train");
    EXPECT_EQ(program.page()->scheduler.core_limit, 40u);
    Forked below([&] {
      TestProgram child(scheduler);
      const auto child_welcome = child.hello();
      _exit(child_welcome && std::string(child_welcome->tenant) == "train" ? 0 : 1);
    });
    EXPECT_EQ(below.wait(), 0);
    run.close();
    EXPECT_EQ(program.ask_memory(kGi), true) << "outlives its run";
    EXPECT_EQ(scheduler.tenant("train")["parent"], kUser);
    EXPECT_TRUE(scheduler.tenant(kUser)["parent"].is_null());
  }
  EXPECT_TRUE(eventually([&] { return scheduler.tenant("train").is_null(); }));
}

TEST(SchedulerRuns, ARunInARunIsAPartOfIt) {
  SchedulerProcess scheduler;
  TestProgram outer(scheduler);
  ASSERT_TRUE(outer.run_begin("outer", 40, 4 * kGi));
  Forked below([&] {
    TestProgram greedy(scheduler);
    if (greedy.run_begin("greedy", 50)) _exit(1);
    if (greedy.refused() != "cores 50 is above the limit of 'outer', which is 40") _exit(2);
    TestProgram inner(scheduler);
    if (!inner.run_begin("inner", 100, kGi)) _exit(3);
    TestProgram program(scheduler);
    const auto welcome = program.hello();
    if (!welcome || std::string(welcome->tenant) != "inner") _exit(4);
    if (program.page()->scheduler.core_limit != 40) _exit(5);
    if (program.page()->scheduler.memory_limit != kGi) _exit(6);
    const auto view = TestProgram(scheduler).look();
    if (!view || view->memory_limit != kGi) _exit(7);
    if (scheduler.tenant("inner")["parent"] != "outer") _exit(8);
    if (program.ask_memory(kGi / 2) != true) _exit(9);
    if (scheduler.tenant(kUser)["allocated"] != kGi / 2) _exit(10);
    if (!scheduler.tenant(kUser)["processes"].empty()) _exit(11);
    const json why = scheduler.ask({{"op", "why"}, {"name", kUser}})["processes"];
    if (why.size() != 1 || why[0]["tenant"] != "inner") _exit(12);
  });
  EXPECT_EQ(below.wait(), 0);
  EXPECT_TRUE(eventually([&] { return scheduler.tenant("inner").is_null(); }));
  EXPECT_FALSE(scheduler.tenant("outer").is_null());
}

TEST(SchedulerRuns, AUserIsLimitedBeforeItsFirstProcessComes) {
  SchedulerProcess scheduler;
  const json limited = scheduler.ask({{"op", "limit"}, {"name", kUser}, {"cores", 30}});
  ASSERT_EQ(limited["ok"], true) << limited;
  TestProgram run(scheduler);
  ASSERT_TRUE(run.run_begin("train"));
  TestProgram program(scheduler);
  ASSERT_TRUE(program.hello());
  EXPECT_EQ(program.page()->scheduler.core_limit, 30u);
  EXPECT_EQ(scheduler.ask({{"op", "limit"}, {"name", "train"}, {"cores", 31}})["error"],
            "cores 31 is above the limit of '" + kUser + "', which is 30");
  EXPECT_EQ(scheduler.ask({{"op", "limit"}, {"name", "user-x"}, {"cores", 30}})["ok"], false);
  EXPECT_EQ(scheduler.ask({{"op", "limit"}, {"name", "user-007"}, {"cores", 30}})["ok"], false);
}

// Runs cost the scheduler something also where they have no connection.
TEST(SchedulerRuns, AUserHasABoundedNumberOfRuns) {
  SchedulerProcess scheduler({.arguments = {}, .environment = {"NVSHARE_MAX_CLIENTS_PER_USER=3"}});
  std::vector<std::unique_ptr<TestProgram>> runs;
  for (const char* name : {"a", "b", "c"}) {
    runs.push_back(std::make_unique<TestProgram>(scheduler));
    ASSERT_TRUE(runs.back()->run_begin(name)) << runs.back()->refused();
  }
  {
    TestProgram program(scheduler);
    EXPECT_TRUE(program.hello()) << "a run takes no place of a program";
  }
  TestProgram fourth(scheduler);
  EXPECT_FALSE(fourth.run_begin("d"));
  EXPECT_NE(fourth.refused().find("has 3 runs"), std::string::npos) << fourth.refused();
  runs.pop_back();
  ASSERT_TRUE(eventually([&] { return scheduler.tenant("c").is_null(); }));
  TestProgram again(scheduler);
  EXPECT_TRUE(again.run_begin("d")) << again.refused();
}

// Nobody goes before other users by asking for it.
TEST(SchedulerRuns, PrioritiesAreTakenFromNobody) {
  const auto begin = [](const SchedulerProcess& scheduler, const std::string& name, int priority) {
    TestProgram run(scheduler);
    auto message = wire::make<wire::RunBegin>();
    message.magic = wire::kMagic;
    message.major = wire::kMajor;
    message.minor = wire::kMinor;
    message.core_limit = 100;
    message.priority = priority;
    wire::put_text(message.name, sizeof message.name, name.c_str());
    EXPECT_TRUE(run.say(message));
    return run.hear<wire::Welcome>() ? "" : run.refused();
  };
  SchedulerProcess system;
  EXPECT_EQ(begin(system, "first", 5),
            "priority 5 is above the limit of '" + kUser + "', which is 0");
  EXPECT_EQ(begin(system, "low", -5), "");
  ASSERT_EQ(system.ask({{"op", "limit"}, {"name", kUser}, {"priority", -3}})["ok"], true);
  EXPECT_EQ(begin(system, "default", 0), "") << "asks for nothing";
  SchedulerProcess own({.arguments = {"--private"}, .environment = {}});
  EXPECT_EQ(begin(own, "first", 5), "");
}

TEST(SchedulerRuns, ARunIsTakenOverFromAKeeperThatIsGone) {
  SchedulerProcess scheduler;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  char byte = 0;
  Forked keeper([&] {
    TestProgram run(scheduler);
    if (!run.run_begin("train", 40)) _exit(1);
    TestProgram client(scheduler);
    if (!client.hello()) _exit(2);
    run.close();
    if (write(ready[1], &byte, 1) != 1) _exit(3);
    pause();
  });
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const auto again = [&](int cores) {
    return eventually([&] {
      Forked another([&] {  // a keeper that was in the run before would get no more
        TestProgram run(scheduler);
        _exit(run.run_begin("train", cores) ? 0 : 1);
      });
      return another.wait() == 0;
    });
  };
  ASSERT_TRUE(again(40));
  EXPECT_EQ(scheduler.tenant("train")["cores"], 40);
  ASSERT_TRUE(again(25));
  EXPECT_EQ(scheduler.tenant("train")["cores"], 25) << "as it asks now";
  EXPECT_EQ(scheduler.tenant("train")["limits_from"]["cores"], "run");
  EXPECT_EQ(scheduler.tenant("train")["processes"].size(), 1u);
  ASSERT_EQ(scheduler.ask({{"op", "limit"}, {"name", "train"}, {"cores", 10}})["ok"], true);
  ASSERT_TRUE(again(30));
  EXPECT_EQ(scheduler.tenant("train")["cores"], 10) << "nvshare limit goes before";
  EXPECT_EQ(scheduler.ask({{"op", "limit"}, {"name", "train"}, {"reset", true}})["tenant"]["cores"],
            30);
}

// Otherwise a program that ends its keeper would have whatever limits it likes.
TEST(SchedulerRuns, AProcessOfARunGetsNoMoreByBeginningTheRunAgain) {
  SchedulerProcess scheduler;
  Forked program([&] {
    TestProgram run(scheduler);
    if (!run.run_begin("train", 10)) _exit(1);
    TestProgram client(scheduler);
    if (!client.hello()) _exit(2);
    run.close();
    const auto again = [&](int cores) {
      return eventually([&] {
        TestProgram keeper(scheduler);
        return keeper.run_begin("train", cores).has_value();
      });
    };
    if (!again(100) || scheduler.tenant("train")["cores"] != 10) _exit(3);
    if (!again(5) || scheduler.tenant("train")["cores"] != 5) _exit(4);
    _exit(0);
  });
  EXPECT_EQ(program.wait(), 0);
}

TEST(SchedulerRuns, ARunHearsThatItsProgramWasRefusedMemory) {
  SchedulerProcess scheduler;
  int to_other[2];
  int from_other[2];
  ASSERT_EQ(pipe(to_other) + pipe(from_other), 0);
  char byte = 0;
  Forked other([&] {
    TestProgram run(scheduler);
    if (!run.run_begin("other", 100, kGi) || write(from_other[1], &byte, 1) != 1) _exit(1);
    if (read(to_other[0], &byte, 1) != 1) _exit(2);
    _exit(run.hear<wire::Shortage>(std::chrono::milliseconds{0}) ? 3 : 0);
  });
  ASSERT_EQ(read(from_other[0], &byte, 1), 1);
  TestProgram run(scheduler);
  ASSERT_TRUE(run.run_begin("train", 100, kGi));
  TestProgram program(scheduler);
  ASSERT_TRUE(program.hello());
  ASSERT_EQ(program.ask_memory(2 * kGi), false);
  const auto shortage = run.hear<wire::Shortage>();
  ASSERT_TRUE(shortage);
  EXPECT_EQ(shortage->asked, 2 * kGi);
  EXPECT_EQ(shortage->limit, kGi);
  ASSERT_EQ(write(to_other[1], &byte, 1), 1);
  EXPECT_EQ(other.wait(), 0) << "3: it heard of another run's";
}

TEST(SchedulerRuns, ARunHasNoMoreThanItsUser) {
  SchedulerProcess scheduler(
      {.arguments = {}, .environment = {"NVSHARE_DEFAULT_CORES=60", "NVSHARE_DEFAULT_MEMORY=3Gi"}});
  const auto begun = [&](const std::string& name, int cores, std::uint64_t memory) {
    TestProgram run(scheduler);
    if (!run.run_begin(name, cores, memory)) return json(run.refused());
    TestProgram program(scheduler);
    EXPECT_TRUE(program.hello());
    const wire::Page::FromScheduler& page = program.page()->scheduler;
    const json found{page.core_limit.load(), page.memory_limit.load()};
    program.close();
    run.close();
    EXPECT_TRUE(eventually([&] { return scheduler.tenant(name).is_null(); }));
    return found;
  };
  EXPECT_EQ(begun("defaults", 100, 0), json({60, 3 * kGi}));
  EXPECT_EQ(begun("less", 20, kGi), json({20, kGi}));
  TestProgram program(scheduler);
  const auto welcome = program.hello();
  ASSERT_TRUE(welcome);
  ASSERT_EQ(scheduler.ask({{"op", "limit"},
                           {"name", welcome->tenant},
                           {"cores", 30},
                           {"memory", 2 * kGi},
                           {"priority", -3}})["ok"],
            true);
  program.close();
  EXPECT_EQ(begun("operators", 100, 0), json({30, 2 * kGi}));
  EXPECT_EQ(begun("more", 100, 4 * kGi),
            "memory 4GiB is above the limit of '" + kUser + "', which is 2GiB");
}

// As when a private scheduler has given way to this one, whose users have limits.
TEST(SchedulerRuns, ARunThatComesBackIsTakenWhateverItAsksFor) {
  SchedulerProcess scheduler;
  const json limited =
      scheduler.ask({{"op", "limit"}, {"name", kUser}, {"cores", 30}, {"memory", kGi}});
  ASSERT_EQ(limited["ok"], true) << limited;
  EXPECT_FALSE(TestProgram(scheduler).run_begin("train", 50, 2 * kGi));
  TestProgram run(scheduler);
  ASSERT_TRUE(run.run_begin("train", 50, 2 * kGi, wire::kComesBack)) << run.refused();
  TestProgram program(scheduler);
  ASSERT_TRUE(program.hello());
  EXPECT_EQ(scheduler.tenant("train")["parent"], kUser);
  EXPECT_EQ(program.page()->scheduler.core_limit, 30u) << "the limit of the user holds";
  EXPECT_EQ(program.page()->scheduler.memory_limit, kGi);
  ASSERT_EQ(scheduler.ask({{"op", "limit"}, {"name", kUser}, {"cores", 80}})["ok"], true);
  EXPECT_TRUE(eventually([&] { return program.page()->scheduler.core_limit == 50; }));
}

// As after a restart, when programs are back before their run.
TEST(SchedulerRuns, ARunTakesOverTheProgramsBelowIt) {
  SchedulerProcess scheduler;
  TestProgram outside(scheduler);
  ASSERT_TRUE(outside.hello());
  Forked below([&] {
    TestProgram early(scheduler);
    if (!early.hello()) _exit(1);
    TestProgram run(scheduler);
    if (!run.run_begin("train", 40)) _exit(2);
    if (!early.closed()) _exit(3);
    TestProgram again(scheduler);
    const auto welcome = again.hello();
    if (!welcome || std::string(welcome->tenant) != "train") _exit(4);
  });
  EXPECT_EQ(below.wait(), 0);
  EXPECT_EQ(outside.ask_memory(kGi), true) << "is not below it, and stays";
}

TEST(SchedulerRuns, RunsAreChecked) {
  SchedulerProcess scheduler;
  const auto refusal = [&](const std::string& name, int cores) {
    TestProgram run(scheduler);
    EXPECT_FALSE(run.run_begin(name, cores));
    EXPECT_TRUE(run.closed());
    return run.refused();
  };
  EXPECT_NE(refusal("two words", 100).find("a name has 1 to 63"), std::string::npos);
  EXPECT_NE(refusal("user-0", 100).find("the scheduler's own"), std::string::npos);
  EXPECT_EQ(refusal("a", 0), "core limit 0 is not from 1 to 100");
  // The name is taken by a run of somebody else.
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  Forked other([&] {
    TestProgram run(scheduler);
    const char good = run.run_begin("train") ? '1' : '0';
    [[maybe_unused]] const auto written = write(pipe_fds[1], &good, 1);
    pause();
  });
  char good = 0;
  ASSERT_EQ(read(pipe_fds[0], &good, 1), 1);
  EXPECT_EQ(good, '1');
  EXPECT_NE(refusal("train", 100).find("the name 'train' is taken"), std::string::npos);
  other.kill_hard();
  EXPECT_TRUE(eventually([&] { return scheduler.tenant("train").is_null(); }));
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
}

// Inner runs may be back before the outer one, too.
TEST(SchedulerRuns, ARunTakesOverTheRunsBelowIt) {
  SchedulerProcess scheduler;
  Forked outer([&] {
    int ready[2];
    char byte = 0;
    if (pipe(ready) != 0) _exit(1);
    Forked inner([&] {
      TestProgram early(scheduler);
      if (!early.run_begin("inner") || scheduler.tenant("inner")["parent"] != kUser) _exit(1);
      TestProgram client(scheduler);
      if (!client.hello() || write(ready[1], &byte, 1) != 1) _exit(2);
      if (!early.closed() || !client.closed()) _exit(3);
      TestProgram again(scheduler);
      if (!again.run_begin("inner") || scheduler.tenant("inner")["parent"] != "outer") _exit(4);
    });
    if (read(ready[0], &byte, 1) != 1) _exit(2);
    TestProgram run(scheduler);
    if (!run.run_begin("outer")) _exit(3);
    _exit(inner.wait() == 0 ? 0 : 4);
  });
  EXPECT_EQ(outer.wait(), 0);
}

TEST(RunCount, RunsTakeNoPlaceOfPrograms) {
  SchedulerProcess scheduler({.arguments = {}, .environment = {"NVSHARE_MAX_CLIENTS=2"}});
  std::vector<std::unique_ptr<Forked>> keepers;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  for (const char* name : {"a", "b", "c"}) {
    keepers.push_back(std::make_unique<Forked>([&] {
      TestProgram run(scheduler);
      if (!run.run_begin(name) || write(ready[1], "x", 1) != 1) _exit(1);
      pause();
    }));
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
  }
  TestProgram first(scheduler);
  EXPECT_TRUE(first.hello());
  TestProgram second(scheduler);
  EXPECT_TRUE(second.hello());
  TestProgram third(scheduler);
  EXPECT_FALSE(third.hello()) << "programs have max_clients places";
  for (auto& keeper : keepers) {
    keeper->kill_hard();
    keeper->wait();
  }
}

// --- cgroups -----------------------------------------------------------------------------------

struct RunCgroups : testing::Test {
  void SetUp() override {
    if (!cgroups_can_be_made()) GTEST_SKIP() << "no group can be made here (root, cgroup2)";
    ASSERT_NE(scheduler.log().find("event=run_cgroups"), std::string::npos) << scheduler.log();
  }
  static std::string folder_of(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cgroup");
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("0::", 0) == 0) return line.substr(3);
    }
    return "";
  }
  // Where cgroup2 is, from the scheduler's own log.
  std::string mounted_at() const {
    const std::string log = scheduler.log();
    const std::string key = "event=run_cgroups folder=";
    const std::size_t at = log.find(key) + key.size();
    return log.substr(at, log.find_first_of(" \n", at) - at);
  }

  SchedulerProcess scheduler{
      SchedulerProcess::Setup{.arguments = {}, .environment = {}, .cgroups = true}};
};

TEST_F(RunCgroups, AProcessWithoutItsKeeperStaysInItsRun) {
  int say[2];
  int hear[2];
  ASSERT_EQ(pipe(say) + pipe(hear), 0);
  const auto tell = [&](pid_t what) { return write(hear[1], &what, sizeof what) > 0; };
  const auto heard = [&] {
    pid_t what = -1;
    return read(hear[0], &what, sizeof what) > 0 ? what : -1;
  };
  char byte = 0;
  Forked keeper([&] {
    TestProgram run(scheduler);
    if (!run.run_begin("train")) _exit(1);
    const pid_t child = fork();
    if (child != 0) {
      tell(child);
      pause();
    }
    alarm(60);
    setsid();
    if (read(say[0], &byte, 1) != 1) _exit(1);
    TestProgram program(scheduler);
    const auto welcome = program.hello();
    tell(welcome && std::string(welcome->tenant) == "train" ? 1 : 0);
    program.close();
    if (read(say[0], &byte, 1) != 1) _exit(2);
    _exit(0);
  });
  const pid_t child = heard();
  ASSERT_GT(child, 0);
  const std::string group = mounted_at() + folder_of(child);
  EXPECT_EQ(std::filesystem::path(group).filename(), "nvshare-run-train");
  keeper.kill_hard();
  keeper.wait();
  ASSERT_EQ(write(say[1], &byte, 1), 1);
  EXPECT_EQ(heard(), 1) << "it is in another tenant";
  EXPECT_FALSE(scheduler.tenant("train").is_null()) << "a process is left, without a GPU";
  EXPECT_TRUE(std::filesystem::exists(group));
  ASSERT_EQ(write(say[1], &byte, 1), 1);
  EXPECT_TRUE(eventually([&] { return scheduler.tenant("train").is_null(); }));
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(group); })) << group;
}

// A run that does nothing until it is killed.
struct IdleRun {
  explicit IdleRun(const SchedulerProcess& scheduler) {
    EXPECT_EQ(pipe(began), 0);
    keeper.emplace([&] {
      TestProgram run(scheduler);
      if (!run.run_begin("train") || write(began[1], "x", 1) != 1) _exit(1);
      pause();
    });
    char byte = 0;
    EXPECT_EQ(read(began[0], &byte, 1), 1);
  }
  void kill() {
    keeper->kill_hard();
    keeper->wait();
  }
  int began[2];
  std::optional<Forked> keeper;
};

// Both events are there when the scheduler goes on.
TEST_F(RunCgroups, ARunThatEndsWithTheSchedulerLeavesNoGroup) {
  IdleRun run(scheduler);
  const std::string group = mounted_at() + folder_of(run.keeper->pid());
  ASSERT_TRUE(std::filesystem::exists(group)) << group;
  scheduler.signal(SIGSTOP);
  run.kill();
  scheduler.signal(SIGTERM);
  scheduler.signal(SIGCONT);
  scheduler.wait();
  EXPECT_FALSE(std::filesystem::exists(group));
}

TEST_F(RunCgroups, AGroupThatNoStateKnowsGoesWithItsLastProcess) {
  IdleRun run(scheduler);
  const std::string group = mounted_at() + folder_of(run.keeper->pid());
  scheduler.signal(SIGKILL);
  scheduler.wait();
  for (const char* file : {"/state", "/state.old"}) {
    std::filesystem::remove(scheduler.folder() + file);
  }
  ASSERT_TRUE(scheduler.again({.arguments = {}, .environment = {}, .cgroups = true}));
  ASSERT_TRUE(std::filesystem::exists(group)) << "a process is in it";
  run.kill();
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(group); })) << group;
}

TEST_F(RunCgroups, ARunInARunHasItsGroupInside) {
  Forked outer([&] {
    TestProgram run(scheduler);
    if (!run.run_begin("outer")) _exit(1);
    Forked inner([&] {
      TestProgram nested(scheduler);
      if (!nested.run_begin("inner")) _exit(1);
      if (scheduler.tenant("inner")["parent"] != "outer") _exit(2);
      const std::filesystem::path group = folder_of(getpid());
      const bool right = group.filename() == "nvshare-run-inner" &&
                         group.parent_path().filename() == "nvshare-run-outer";
      _exit(right ? 0 : 3);
    });
    _exit(inner.wait() == 0 ? 0 : 2);
  });
  EXPECT_EQ(outer.wait(), 0);
  EXPECT_TRUE(eventually([&] { return scheduler.tenant("outer").is_null(); }));
}

// A pod with two containers, as a kubelet makes their groups.
struct Pods : RunCgroups {
  static constexpr const char* kPod = "0b1d2c3a-1111-2222-3333-444455556666";

  void SetUp() override {
    RunCgroups::SetUp();
    if (IsSkipped()) return;
    around_ = mounted_at() + folder_of(getpid());
    made_ = std::filesystem::path(around_) / ("nvshare-pods-" + std::to_string(getpid()));
    std::error_code error;
    for (const char first : {'a', 'b'}) {
      std::filesystem::create_directories(group_of(first), error);
      if (error) GTEST_SKIP() << "no group can be made here";
    }
  }
  void TearDown() override {
    for (const char first : {'a', 'b'}) {
      EXPECT_TRUE(
          eventually([&] { return ::rmdir(group_of(first).c_str()) == 0 || errno == ENOENT; }));
    }
    (void)::rmdir((made_ / "kubepods" / (std::string("pod") + kPod)).c_str());
    (void)::rmdir((made_ / "kubepods").c_str());
    (void)::rmdir(made_.c_str());
  }
  std::filesystem::path group_of(char first) const {
    return made_ / "kubepods" / (std::string("pod") + kPod) / std::string(64, first);
  }
  // The calling process is in that container from now on.
  bool enter(char first) const {
    return static_cast<bool>(std::ofstream(group_of(first) / "cgroup.procs")
                             << getpid() << std::flush);
  }

 private:
  std::string around_;
  std::filesystem::path made_;
};

TEST_F(Pods, ContainersAreInTheirPodAndHaveItsLimits) {
  const std::string pod = std::string("pod-") + kPod;
  ASSERT_EQ(scheduler.ask({{"op", "limit"}, {"name", pod}, {"cores", 30}, {"memory", kGi}})["ok"],
            true);
  EXPECT_TRUE(scheduler.tenant(pod).is_null()) << "none of its processes has come";
  Forked containers([&] {
    if (!enter('a')) _exit(1);
    TestProgram first(scheduler);
    if (!first.hello()) _exit(2);
    if (first.page()->scheduler.core_limit != 30) _exit(3);
    if (first.ask_memory(kGi / 4 * 3) != true) _exit(4);
    Forked second([&] {
      if (!enter('b')) _exit(1);
      TestProgram other(scheduler);
      if (!other.hello()) _exit(2);
      if (other.ask_memory(kGi / 2) != false) _exit(3);
      if (other.ask_memory(kGi / 8) != true) _exit(4);
      TestProgram run(scheduler);
      if (!run.run_begin("train")) _exit(5);
      if (scheduler.tenant("train")["parent"] != "container-bbbbbbbbbbbb") _exit(6);
      _exit(0);
    });
    if (second.wait() != 0) _exit(5);
    const json status = scheduler.tenant("container-aaaaaaaaaaaa");
    if (status["parent"] != pod || status["kind"] != "container") _exit(6);
    if (scheduler.tenant(pod)["kind"] != "pod") _exit(7);
    if (scheduler.tenant(pod)["limits_from"]["cores"] != "limit") _exit(8);
    // A change holds for all of its containers at once.
    scheduler.ask({{"op", "limit"}, {"name", pod}, {"cores", 80}});
    if (!eventually([&] { return first.page()->scheduler.core_limit == 80; })) _exit(9);
    _exit(0);
  });
  EXPECT_EQ(containers.wait(), 0);
}

TEST_F(Pods, AContainersRunComesBackBelowItsPodAfterARestart) {
  Forked keeper([&] {
    if (!enter('a')) _exit(1);
    TestProgram run(scheduler);
    if (!run.run_begin("train")) _exit(2);
    pause();
  });
  const std::string pod = std::string("pod-") + kPod;
  ASSERT_TRUE(eventually([&] { return !scheduler.tenant("train").is_null(); }));
  ASSERT_EQ(scheduler.ask({{"op", "limit"}, {"name", pod}, {"cores", 30}})["kept"], true);
  scheduler.signal(SIGKILL);
  scheduler.wait();
  ASSERT_TRUE(scheduler.again({.arguments = {}, .environment = {}, .cgroups = true}));
  EXPECT_EQ(scheduler.tenant("train")["parent"], "container-aaaaaaaaaaaa");
  EXPECT_EQ(scheduler.tenant("container-aaaaaaaaaaaa")["parent"], pod);
  EXPECT_EQ(scheduler.tenant(pod)["cores"], 30);
}

}  // namespace
}  // namespace nvshare::daemon
