// The keeper of `nvshare run`, with a scheduler that is not the real one. Processes stay in their
// run after the program has ended, and after the program has killed its parent.

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cli/testing/installation.h"
#include "cli/testing/process.h"

namespace nvshare::cli {
namespace {

namespace fs = std::filesystem;
using testing::contents;
using testing::Outcome;
using testing::Process;

// The parent of a process; 0 when the process is gone.
pid_t parent_of(pid_t pid) {
  const std::string status = contents("/proc/" + std::to_string(pid) + "/status");
  const std::size_t at = status.find("PPid:");
  return at == status.npos ? 0 : std::atoi(status.c_str() + at + 5);
}

class Keeping : public ::testing::Test {
 protected:
  Process start(std::vector<std::string> words) {
    words.insert(words.begin(), {installed_.path("bin/nvshare"), "run"});
    return Process(words, installed_.variables());
  }
  // Runs a script that leaves a process behind, and ends. Returns the pid that the script printed.
  pid_t leave(const std::string& script) {
    const Outcome outcome = start({"--name", "left", "--", "sh", "-c", script}).wait(20s);
    EXPECT_EQ(outcome.code(), 0) << outcome.output;
    return std::atoi(outcome.output.c_str());
  }
  // A process that has ended may not be collected yet, but has no words any more.
  static bool is_gone(pid_t pid) {
    const std::string words = "/proc/" + std::to_string(pid) + "/cmdline";
    return testing::eventually([&] { return contents(words).empty(); }, 10s);
  }

  testing::Installation installed_;
  const std::string directory_ = installed_.run_directory();
  const std::string outer_ = installed_.folder();
};

TEST_F(Keeping, AKeeperStaysAboveWhatTheProgramLeftAndEndsWithIt) {
  for (const char* how :
       {"setsid sleep 60 >/dev/null 2>&1 & echo $!", "nohup sleep 60 >/dev/null 2>&1 & echo $!",
        "(sleep 60 >/dev/null 2>&1 & echo $!)"}) {
    const pid_t left = leave(how);
    ASSERT_GT(left, 1);
    const pid_t keeper = parent_of(left);
    ASSERT_GT(keeper, 1) << how;
    EXPECT_EQ(contents("/proc/" + std::to_string(keeper) + "/comm"), "nvshare-keeper\n");
    EXPECT_EQ(start({"--name", "left", "--", "true"}).wait().code(), 2) << "a run has the name";
    ::kill(left, SIGKILL);
    EXPECT_TRUE(is_gone(keeper)) << how;
  }
}

TEST_F(Keeping, AKeeperHoldsNothingOfTheCaller) {
  const std::string lock = outer_ + "/lock";
  std::ofstream(lock) << "";
  const std::string script = "cd " + outer_ + "; exec 9<" + lock + "; flock 9; exec " +
                             installed_.path("bin/nvshare") +
                             " run -- sh -c 'setsid sleep 60 >/dev/null 2>&1 9>&- & echo $!'";
  const Outcome outcome = Process({"bash", "-c", script}, installed_.variables()).wait(20s);
  const pid_t left = std::atoi(outcome.output.c_str());
  ASSERT_GT(left, 1) << outcome.output;
  const pid_t keeper = parent_of(left);
  const std::string of_keeper = "/proc/" + std::to_string(keeper);
  EXPECT_EQ(fs::read_symlink(of_keeper + "/cwd"), "/");
  for (int fd = 0; fd < 3; ++fd) {
    EXPECT_EQ(fs::read_symlink(of_keeper + "/fd/" + std::to_string(fd)), "/dev/null");
  }
  EXPECT_EQ(Process({"flock", "-n", lock, "true"}, {}).wait().code(), 0) << "the lock is free";
  EXPECT_EQ(::getsid(keeper), keeper);
  ::kill(left, SIGKILL);
  EXPECT_TRUE(is_gone(keeper));
}

TEST_F(Keeping, ACallerMayHaveClosedItsStandardDescriptors) {
  const std::string pid = outer_ + "/pid";
  const std::string script = installed_.path("bin/nvshare") +
                             " run --name left -- sh -c 'setsid sleep 60 & echo $! >" + pid +
                             "; ls /proc/self/fd >>" + pid + "' <&- >&- 2>&-";
  EXPECT_EQ(Process({"bash", "-c", script}, installed_.variables()).wait(20s).code(), 0);
  const pid_t left = std::atoi(contents(pid).c_str());
  ASSERT_GT(left, 1) << contents(pid);
  EXPECT_EQ(start({"--name", "left", "--", "true"}).wait().code(), 2) << "a run has the name";
  const pid_t keeper = parent_of(left);
  ::kill(left, SIGKILL);
  EXPECT_TRUE(is_gone(keeper));
}

TEST_F(Keeping, ASubstitutionOfItsOutputEndsWithTheProgram) {
  const std::string script = "out=$(" + installed_.path("bin/nvshare") +
                             " run -- sh -c 'setsid sleep 60 >/dev/null 2>&1 & echo $!'); "
                             "echo $out; kill -9 $out";
  Process process({"bash", "-c", script}, installed_.variables());
  EXPECT_EQ(process.wait(20s).code(), 0) << "the shell waited for what was left behind";
}

TEST_F(Keeping, TheKeeperTakesPartAgainWhenTheSchedulerIsBack) {
  const pid_t left = leave("setsid sleep 60 >/dev/null 2>&1 & echo $!");
  ::kill(installed_.schedulers().at(0), SIGKILL);
  Process scheduler({installed_.path("bin/nvshare-scheduler"), "--run-dir", directory_}, {});
  EXPECT_TRUE(testing::eventually(
      [&] { return installed_.runs() == "left 0 100 0\nleft 0 100 0\n"; }, 10s));
  ::kill(left, SIGKILL);
}

// A run inside starts the scheduler again, which then is a child of the outer run's keeper.
TEST_F(Keeping, AKeeperDoesNotWaitForItsOwnScheduler) {
  const std::string inner = installed_.path("bin/nvshare") + " run --name inner -- true";
  Process process =
      start({"--name", "outer", "--", "sh", "-c",
             "kill -9 $(cat " + directory_ + "/starts); " + inner + "; echo keeper=$PPID"});
  const Outcome outcome = process.wait(20s);
  EXPECT_EQ(outcome.code(), 0) << outcome.output;
  ASSERT_EQ(installed_.schedulers().size(), 2u);
  EXPECT_EQ(::kill(installed_.schedulers()[1], 0), 0) << "the second one is there";
  const std::size_t at = outcome.output.find("keeper=");
  ASSERT_NE(at, outcome.output.npos) << outcome.output;
  EXPECT_TRUE(is_gone(std::atoi(outcome.output.c_str() + at + 7)));
}

TEST_F(Keeping, SignalsForTheKeeperAreNoEndOfTheRun) {
  const pid_t left = leave("setsid sleep 60 >/dev/null 2>&1 & echo $!");
  const pid_t keeper = parent_of(left);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::kill(keeper, signal);
  ::poll(nullptr, 0, 200);
  EXPECT_EQ(parent_of(left), keeper);
  ::kill(left, SIGKILL);
}

TEST_F(Keeping, AProgramThatKillsItsKeeperStaysInItsRun) {
  Process process = start({"--name", "one", "--", "sh", "-c",
                           "kill -9 $PPID; trap 'exit 6' TERM; sleep 0.5; echo $PPID;"
                           "grep PPid /proc/$$/status; while :; do sleep 0.05; done"});
  const pid_t pid = process.pid();
  EXPECT_TRUE(process.wait_for_output("PPid:\t" + std::to_string(pid) + "\n", 20s))
      << process.output();
  EXPECT_TRUE(
      testing::eventually([&] { return installed_.runs() == "one 0 100 0\none 0 100 0\n"; }, 10s))
      << installed_.runs();
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().code(), 6);
}

TEST_F(Keeping, WithoutItsKeeperItWaitsForTheLastProcess) {
  Process process = start({"sh", "-c",
                           "kill -9 $PPID; setsid sleep 60 >/dev/null 2>&1 & echo $!;"
                           "echo started; exit 5"});
  ASSERT_TRUE(process.wait_for_output("started")) << process.output();
  const pid_t left = std::atoi(process.output().c_str());
  EXPECT_TRUE(testing::eventually([&] { return parent_of(left) == process.pid(); }, 10s));
  ::poll(nullptr, 0, 300);
  EXPECT_EQ(::kill(process.pid(), 0), 0);
  ::kill(left, SIGKILL);
  EXPECT_EQ(process.wait().code(), 5);
}

TEST_F(Keeping, AProgramThatKillsItsGroupDoesNotReachTheKeeper) {
  Process process({"setsid", "-w", installed_.path("bin/nvshare"), "run", "--", "sh", "-c",
                   "setsid sleep 60 >/dev/null 2>&1 & echo $!; echo $PPID; sleep 0.2; kill -9 0"},
                  installed_.variables());
  (void)process.wait(20s);
  int left = 0;
  int keeper = 0;
  ASSERT_EQ(std::sscanf(process.output().c_str(), "%d %d", &left, &keeper), 2) << process.output();
  ::poll(nullptr, 0, 200);
  EXPECT_EQ(parent_of(left), keeper);
  ::kill(left, SIGKILL);
}

}  // namespace
}  // namespace nvshare::cli
