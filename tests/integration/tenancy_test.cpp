#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/unique_fd.h"
#include "integration/either_way.h"
#include "integration/world.h"
#include "wire/channel.h"

// Processes stay in their run, however they were started and whatever becomes of their parents.
namespace nvshare::integration {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A job of this length in the background: its last line has its share of the GPU's time.
std::string job_into(const std::string& file, int seconds) {
  return fmt::format("{} --kernel 1ms --seconds {} >{} 2>&1", gpu_job(), seconds, file);
}

class Tenancy : public World {
 protected:
  // The share that a job has told in a file, once it has ended.
  double told_share(const std::string& file) {
    std::string text;
    EXPECT_TRUE(eventually(
        [&] {
          std::ifstream in(file);
          text.assign(std::istreambuf_iterator<char>(in), {});
          return text.find("share=") != text.npos && text.back() == '\n';
        },
        40s))
        << text;
    const std::size_t at = text.find("share=");
    return at == text.npos ? -1 : std::atof(text.c_str() + at + 6);
  }
  // Runs a script in a run of 20 %. The script leaves a job behind that writes to `file`, and ends.
  void expect_left_behind_is_limited(const std::string& script, const std::string& file) {
    const Process scheduler = start_scheduler();
    Process left = run({"--name", "left", "--cores", "20"}, {"sh", "-c", script});
    EXPECT_EQ(left.wait(20s).value_or(Ending{}).code, 0) << left.output();
    EXPECT_TRUE(eventually([&] { return processes("left").size() == 1; }, 20s)) << status();
    EXPECT_EQ(wrong_share(told_share(file), 20, "what was left behind"), "");
    EXPECT_TRUE(eventually([&] { return !has_tenant("left"); }, 20s)) << "the run ends with it";
  }
  std::string file() const { return folder() + "/job.txt"; }
};

using TenancyEitherWay = EitherWay<Tenancy>;
INSTANTIATE_TEST_SUITE_P(Runs, TenancyEitherWay, testing::Bool(), name_of_way);

TEST_P(TenancyEitherWay, AChildInASessionOfItsOwnKeepsTheLimit) {
  expect_left_behind_is_limited("setsid " + job_into(file(), 5) + " &", file());
}

TEST_P(TenancyEitherWay, AChildThatIgnoresHangUpsKeepsTheLimit) {
  expect_left_behind_is_limited("nohup " + job_into(file(), 5) + " &", file());
}

TEST_P(TenancyEitherWay, AChildOfATerminalMultiplexerKeepsTheLimit) {
  if (finish({"tmux", "-V"}).ending.code != 0) GTEST_SKIP() << "tmux is not installed";
  expect_left_behind_is_limited(fmt::format("tmux -S {}/tmux -f /dev/null new-session -d '{}'",
                                            folder(), job_into(file(), 5)),
                                file());
}

TEST_P(TenancyEitherWay, AProgramThatKillsItsParentKeepsTheLimit) {
  const Process scheduler = start_scheduler();
  const std::string script =
      "kill -9 $PPID; exec " + gpu_job() + " --progress 50ms --kernel 1ms --seconds 30";
  Job one{run({"--name", "one", "--cores", "10"}, {"sh", "-c", script}), "one", 1ms};
  ASSERT_TRUE(one.process.wait_for("progress", 20s)) << one.process.output();
  ASSERT_TRUE(eventually([&] { return processes("one").size() == 1; }, 20s)) << status();
  sleep(1s);
  EXPECT_EQ(wrong_share(share_for(one, 4s), 10, "one"), "");
  one.process.signal(SIGTERM);
  EXPECT_EQ(one.process.wait(20s).value_or(Ending{}).code, 0) << "signals are still passed on";
}

// While a process of it is on the GPU, the scheduler has not forgotten the run.
TEST_P(TenancyEitherWay, AfterItsParentWasKilledNewProcessesAreInTheRunToo) {
  const Process scheduler = start_scheduler();
  const std::string job = gpu_job() + " --progress 50ms --kernel 1ms --seconds 40";
  Process one = run({"--name", "one", "--cores", "10"},
                    {"sh", "-c", job + " & read line; kill -9 $PPID; read line; exec " + job});
  ASSERT_TRUE(eventually([&] { return processes("one").size() == 1; }, 20s)) << status();
  one.say("kill");
  sleep(1s);
  one.say("second");
  const auto is_whole = [](const Json& tenant) {
    return tenant.value("cores", 0) == 10 && tenant["processes"].size() == 2;
  };
  EXPECT_TRUE(eventually(
      [&] {
        const Json all = status();
        return all.contains("tenants") &&
               std::any_of(all["tenants"].begin(), all["tenants"].end(), is_whole);
      },
      20s))
      << status();
}

TEST_F(Tenancy, ASubstitutionOfTheOutputEndsWithTheProgram) {
  const Process scheduler = start_scheduler();
  const std::string script = fmt::format(
      "out=$({} run -- sh -c 'setsid sleep 30 >/dev/null 2>&1 & echo done'); echo \"[$out]\"",
      nvshare_program());
  const Duration begin = now();
  const Outcome outcome = finish({"bash", "-c", script});
  EXPECT_EQ(outcome.output, "[done]\n");
  EXPECT_LT(now() - begin, 10s);
}

TEST_F(Tenancy, APrivateSchedulerEndsAfterTheLastProcess) {
  Process left = run({"--name", "left"}, {"sh", "-c", "setsid " + job_into(file(), 5) + " &"});
  EXPECT_EQ(left.wait(20s).value_or(Ending{}).code, 0) << left.output();
  EXPECT_TRUE(eventually([&] { return processes("left").size() == 1; }, 20s)) << status();
  EXPECT_GT(told_share(file()), 0);
  EXPECT_TRUE(eventually([&] { return !status().contains("scheduler"); }, 20s));
}

// With a folder that stands for /run/nvshare.
class TwoSchedulers : public Tenancy {
 protected:
  void SetUp() override {
    World::SetUp();
    set("NVSHARE_RUN_DIR", "");
    set("NVSHARE_SYSTEM_DIR", system_directory());
  }
  std::string system_directory() const { return folder() + "/system"; }
  std::string private_directory() const { return folder() + "/nvshare"; }
  Process start_system() {
    Process process = start({scheduler_program(), "--run-dir", system_directory()});
    EXPECT_TRUE(scheduler_answers(system_directory())) << process.output();
    return process;
  }
  static bool scheduler_answers(const std::string& directory) {
    const std::string path = directory + "/" + wire::kProgramSocket;
    return eventually([&] { return UniqueFd(wire::connect_to(path.c_str())).get() >= 0; }, 20s);
  }
  bool is_private() { return status()["scheduler"].value("private", false); }
  // Whether the tenant is at the system's scheduler (or the private one), with its process.
  bool is_at(const std::string& name, bool at_private) {
    const Json all = status();
    if (!all.contains("scheduler")) return false;
    return all["scheduler"].value("private", false) == at_private && processes(name).size() == 1;
  }
};

TEST_F(TwoSchedulers, AJobReturnsToTheSystemsScheduler) {
  Job train = job("train", {"--cores", "30"}, {"--seconds", "60"});
  ASSERT_TRUE(train.process.wait_for("progress", 20s)) << train.process.output();
  const pid_t alone = status()["scheduler"].value("pid", 0);
  ASSERT_GT(alone, 0);
  ASSERT_TRUE(is_private());
  const Process system = start_system();
  EXPECT_TRUE(eventually([&] { return is_at("train", false); }, 20s)) << status();
  EXPECT_TRUE(eventually([&] { return !fs::exists(fmt::format("/proc/{}/exe", alone)); }, 20s))
      << "the private scheduler is still there";
  for (const char* name : {wire::kProgramSocket, wire::kControlSocket}) {
    const fs::path link = private_directory() + "/" + name;
    ASSERT_TRUE(fs::is_symlink(link)) << link;
    EXPECT_EQ(fs::read_symlink(link), system_directory() + "/" + name);
  }
  EXPECT_EQ(tenant("train").value("cores", 0), 30);
  sleep(1s);
  EXPECT_EQ(wrong_share(share_for(train, 4s), 30, "train"), "");
  EXPECT_TRUE(train.process.running());
  const auto none_is_foreign = [&] {
    const Json all = status();
    return all.contains("foreign") && all["foreign"].empty();
  };
  EXPECT_TRUE(eventually(none_is_foreign, 5s)) << status();
}

TEST_F(TwoSchedulers, APrivateOneReplacesTheLinksOfTheLast) {
  Job first = job("first", {}, {"--seconds", "60"});
  ASSERT_TRUE(first.process.wait_for("progress", 20s)) << first.process.output();
  for (const int end : {SIGTERM, SIGKILL}) {  // with links to nowhere, and to a socket nobody has
    Process system = start_system();
    ASSERT_TRUE(eventually([&] { return is_at("first", false); }, 20s)) << status();
    system.signal(end);
    ASSERT_TRUE(system.wait(20s));
    Job second = job("second", {}, {"--seconds", "60"});
    ASSERT_TRUE(second.process.wait_for("progress", 20s)) << second.process.output();
    EXPECT_TRUE(eventually([&] { return is_at("first", true) && is_at("second", true); }, 20s))
        << status();
    second.process.signal(SIGTERM);
    EXPECT_EQ(second.process.wait(20s).value_or(Ending{}).code, 0);
  }
}

TEST_F(TwoSchedulers, ARunWhoseNameIsTakenAtTheSystemsTakesAnother) {
  Job mine = job("train", {"--cores", "30"}, {"--seconds", "60"});
  ASSERT_TRUE(mine.process.wait_for("progress", 20s)) << mine.process.output();
  // The other run is there before the private scheduler sees the system's.
  set("NVSHARE_RUN_DIR", folder() + "/elsewhere");
  const Process scheduler = start({scheduler_program()});
  ASSERT_TRUE(scheduler_answers(folder() + "/elsewhere"));
  Process other = run({"--name", "train"}, {"sh", "-c", "echo started; exec sleep 60"});
  ASSERT_TRUE(other.wait_for("started", 20s)) << other.output();
  fs::create_directory_symlink(folder() + "/elsewhere", system_directory());
  EXPECT_TRUE(mine.process.wait_for("the scheduler is back, and this run is 'train-", 30s))
      << mine.process.output();
}

// A user may have less there than under its own scheduler.
TEST_F(TwoSchedulers, ARunKeepsItsPlaceWhereItsUserHasLess) {
  Job train = job("train", {"--cores", "60", "--priority", "5"}, {"--seconds", "60"});
  ASSERT_TRUE(train.process.wait_for("progress", 20s)) << train.process.output();
  set("NVSHARE_DEFAULT_CORES", "20");
  const Process system = start_system();
  ASSERT_TRUE(eventually([&] { return is_at("train", false); }, 20s)) << status();
  sleep(1s);
  EXPECT_EQ(wrong_share(share_for(train, 4s), 20, "train"), "");
  EXPECT_EQ(tenant("train").value("cores", 0), 60);
}

TEST_F(TwoSchedulers, ARunWaitsForTheSystemsScheduler) {
  {
    Process killed = start_system();
    killed.signal(SIGKILL);
    ASSERT_TRUE(killed.wait(20s));
  }
  Job train = job("train", {}, {"--seconds", "60"});
  ASSERT_TRUE(train.process.wait_for("waiting for it for 3 s", 20s)) << train.process.output();
  const Process system = start_system();
  ASSERT_TRUE(train.process.wait_for("progress", 20s)) << train.process.output();
  EXPECT_EQ(train.process.output().find("using a private one"), std::string::npos);
  EXPECT_TRUE(is_at("train", false)) << status();
}

TEST_F(TwoSchedulers, ARunDoesNotWaitForEver) {
  {
    Process killed = start_system();
    killed.signal(SIGKILL);
    ASSERT_TRUE(killed.wait(20s));
  }
  const Outcome outcome = nvshare({"run", "--", "echo", "started"});
  EXPECT_EQ(outcome.output,
            "nvshare run: the system's scheduler does not answer: waiting for it for 3 s\n"
            "nvshare run: the system's scheduler does not answer: using a private one\n"
            "started\n");
}

// NVSHARE_RUN_DIR names the folder of a scheduler for all users, as for a run inside a run.
TEST_F(TwoSchedulers, ARunWaitsForTheSchedulerOfAChosenFolder) {
  const std::string chosen = folder() + "/chosen";
  set("NVSHARE_RUN_DIR", chosen);
  const auto kill_one = [&] {
    Process killed = start({scheduler_program()});
    EXPECT_TRUE(scheduler_answers(chosen));
    killed.signal(SIGKILL);
    EXPECT_TRUE(killed.wait(20s));
  };
  kill_one();
  EXPECT_EQ(nvshare({"limit", "train", "--cores", "5"}).output,
            "nvshare limit: the scheduler in " + chosen + " does not answer: start it again\n");
  Job train = job("train", {}, {"--seconds", "60"});
  ASSERT_TRUE(train.process.wait_for("waiting for it for 3 s", 20s)) << train.process.output();
  {
    Process back = start({scheduler_program()});
    ASSERT_TRUE(train.process.wait_for("progress", 20s)) << train.process.output();
    EXPECT_TRUE(is_at("train", false)) << status();
    train.process.signal(SIGTERM);
    ASSERT_TRUE(train.process.wait(20s));
    back.signal(SIGTERM);
    ASSERT_TRUE(back.wait(20s));
  }
  kill_one();
  const std::string silent = "nvshare run: the scheduler in " + chosen + " does not answer: ";
  EXPECT_EQ(nvshare({"run", "--", "echo", "started"}).output,
            silent + "waiting for it for 3 s\n" + silent + "using a private one\nstarted\n");
}

}  // namespace
}  // namespace nvshare::integration
