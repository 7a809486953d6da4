// The keeper of `nvshare run`, with a scheduler that is not the real one. Processes stay in their
// run after the program has ended, and after the program has killed its parent.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/testing/installation.h"
#include "cli/testing/process.h"
#include "wire/channel.h"

namespace nvshare::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
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
  // How many runs of this name schedulers have welcomed.
  std::ptrdiff_t times_begun(const std::string& name) const {
    std::istringstream lines(installed_.runs());
    std::ptrdiff_t times = 0;
    for (std::string line; std::getline(lines, line);) times += line.starts_with(name + " ");
    return times;
  }
  std::string socket() const { return directory_ + "/" + wire::kProgramSocket; }
  // Kills the scheduler. A socket of the test that nobody serves takes the scheduler's place.
  UniqueFd replace_scheduler() const {
    ::kill(installed_.schedulers().back(), SIGKILL);
    int listening = -1;
    EXPECT_TRUE(testing::eventually(
        [&] { return (listening = wire::listen_at(socket().c_str(), 0600)) >= 0; }));
    return UniqueFd(listening);
  }
  // Neither a zombie nor stopped.
  static bool sleeps(pid_t pid) {
    return testing::eventually([&] { return testing::state_of(pid) == 'S'; }, 5s);
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
      [&] { return installed_.runs() == "left 0 100 0\nleft 0 100 0 comes back\n"; }, 10s));
  ::kill(left, SIGKILL);
}

// A run inside starts the scheduler again, which then is a child of the outer run's keeper.
TEST_F(Keeping, AKeeperDoesNotWaitForItsOwnScheduler) {
  const std::string inner = installed_.path("bin/nvshare") + " run --name inner -- true";
  Process process =
      start({"--name", "outer", "--", "sh", "-c",
             "kill -9 $(cat " + directory_ + "/starts); " + inner + "; until [ $(grep -c outer " +
                 directory_ + "/runs) = 2 ]; do sleep 0.05; done; echo keeper=$PPID"});
  ASSERT_TRUE(process.wait_for_output("keeper=", 20s)) << process.output();
  const auto ends = Clock::now();
  const Outcome outcome = process.wait(20s);
  EXPECT_LT(Clock::now() - ends, 4s);
  EXPECT_EQ(outcome.code(), 0) << outcome.output;
  EXPECT_EQ(times_begun("outer"), 2) << "the run was begun after its end: " << installed_.runs();
  ASSERT_EQ(installed_.schedulers().size(), 2u);
  EXPECT_EQ(::kill(installed_.schedulers()[1], 0), 0) << "the second one is there";
  const std::size_t at = outcome.output.find("keeper=");
  ASSERT_NE(at, outcome.output.npos) << outcome.output;
  EXPECT_TRUE(is_gone(std::atoi(outcome.output.c_str() + at + 7)));
}

// With room in the queue the keeper gets a connection and no answer, without room no connection.
TEST_F(Keeping, ARunEndsWithItsProgramWhileTheSchedulerIsSilent) {
  for (const int room : {100, 0}) {
    Process process = start({"--name", "long", "--", "sh", "-c",
                             "trap 'exit 3' TERM; echo started; while :; do sleep 0.05; done"});
    ASSERT_TRUE(process.wait_for_output("started")) << process.output();
    const UniqueFd listening = replace_scheduler();
    ASSERT_EQ(::listen(listening.get(), room), 0);
    const UniqueFd only(room == 0 ? wire::connect_to(socket().c_str(), 1) : -1);
    ASSERT_TRUE(process.wait_for_output("the scheduler is gone")) << process.output();
    ::poll(nullptr, 0, 600);
    const auto ends = Clock::now();
    ::kill(process.pid(), SIGTERM);
    EXPECT_EQ(process.wait(20s).code(), 3);
    EXPECT_LT(Clock::now() - ends, 15s) << "with room for " << room;
  }
}

TEST_F(Keeping, AnAnswerThatComesLateIsHeard) {
  Process process = start({"--name", "long", "--", "sh", "-c", "echo started; exec sleep 60"});
  ASSERT_TRUE(process.wait_for_output("started")) << process.output();
  const UniqueFd listening = replace_scheduler();
  pollfd waiting{listening.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&waiting, 1, 10'000), 1);
  const UniqueFd connection(::accept(listening.get(), nullptr, nullptr));
  alignas(8) char packet[wire::kMaxMessage];
  const int length = wire::receive(connection.get(), packet, true);
  ASSERT_GT(length, 0);
  const auto* header = wire::look_at(packet, static_cast<std::size_t>(length));
  ASSERT_NE(wire::as<wire::RunBegin>(header), nullptr);
  ::poll(nullptr, 0, 600);
  const auto welcome = wire::make<wire::Welcome>();
  ASSERT_EQ(wire::send(connection.get(), &welcome.header, true), 0);
  EXPECT_TRUE(process.wait_for_output("the scheduler is back", 5s)) << process.output();
  EXPECT_EQ(::poll(&waiting, 1, 0), 0) << "the keeper asked twice";
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().signal(), SIGTERM);
}

TEST_F(Keeping, SignalsForTheKeeperAreNoEndOfTheRun) {
  const pid_t left = leave("setsid sleep 60 >/dev/null 2>&1 & echo $!");
  const pid_t keeper = parent_of(left);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP}) {
    ::kill(keeper, signal);
  }
  ::poll(nullptr, 0, 200);
  EXPECT_EQ(parent_of(left), keeper);
  EXPECT_TRUE(sleeps(keeper)) << testing::state_of(keeper);
  ::kill(left, SIGKILL);
}

TEST_F(Keeping, AProgramThatKillsItsKeeperStaysInItsRun) {
  Process process = start({"--name", "one", "--", "sh", "-c",
                           "kill -9 $PPID; trap 'exit 6' TERM; sleep 0.5; echo $PPID;"
                           "grep PPid /proc/$$/status; while :; do sleep 0.05; done"});
  const pid_t pid = process.pid();
  EXPECT_TRUE(process.wait_for_output("PPid:\t" + std::to_string(pid) + "\n", 20s))
      << process.output();
  EXPECT_TRUE(testing::eventually(
      [&] { return installed_.runs() == "one 0 100 0\none 0 100 0 comes back\n"; }, 10s))
      << installed_.runs();
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().code(), 6);
}

// The keeper alone heard where the scheduler had placed the run.
TEST_F(Keeping, ARunThatLostItsKeeperStaysOnItsGpu) {
  Process process =
      start({"--name", "placed", "--", "sh", "-c", "kill -9 $PPID; echo started; exec sleep 60"});
  ASSERT_TRUE(process.wait_for_output("started", 20s)) << process.output();
  EXPECT_TRUE(testing::eventually([&] { return times_begun("placed") == 2; }, 10s));
  EXPECT_EQ(installed_.runs(), "placed 0 100 0\nplaced 0 100 0 keeps 1 from 7 comes back\n");
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().signal(), SIGTERM);
}

// Another run takes the name while the keeper stands. The keeper takes a new name after 5 s.
TEST_F(Keeping, ARunThatLostItsKeeperKeepsANewName) {
  Process process =
      start({"--name", "train", "--", "sh", "-c", "echo keeper=$PPID=; exec sleep 60"});
  ASSERT_TRUE(process.wait_for_output("=\n", 20s)) << process.output();
  const pid_t keeper = std::atoi(process.output().c_str() + std::strlen("keeper="));
  ASSERT_GT(keeper, 1);
  ::kill(keeper, SIGSTOP);
  ::kill(installed_.schedulers().at(0), SIGKILL);
  Process other = start({"--name", "train", "--", "sh", "-c", "echo started; exec sleep 60"});
  ASSERT_TRUE(other.wait_for_output("started", 20s)) << other.output();
  ::kill(keeper, SIGCONT);
  const std::string name = "train-" + std::to_string(keeper);
  ASSERT_TRUE(testing::eventually([&] { return times_begun(name) == 1; }, 20s))
      << installed_.runs();
  ::kill(keeper, SIGKILL);
  EXPECT_TRUE(testing::eventually([&] { return times_begun(name) == 2; }, 3s)) << installed_.runs();
  for (Process* one : {&process, &other}) {
    ::kill(one->pid(), SIGTERM);
    EXPECT_EQ(one->wait().signal(), SIGTERM);
  }
}

TEST_F(Keeping, WhatHoldsWithoutTheSchedulerIsToldAsItIs) {
  for (const auto& [name, told] :
       {std::pair("runs-when-lost",
                  "gone: limits do not hold until another `nvshare run` starts one\n"),
        std::pair("waits-when-lost",
                  "gone: GPU work waits until another `nvshare run` starts one\n")}) {
    Process process = start({"--name", name, "--", "sh", "-c", "echo started; exec sleep 60"});
    ASSERT_TRUE(process.wait_for_output("started", 20s)) << process.output();
    ::kill(installed_.schedulers().back(), SIGKILL);
    EXPECT_TRUE(process.wait_for_output(std::string("nvshare run: the scheduler is ") + told, 5s))
        << process.output();
    ::kill(process.pid(), SIGTERM);
    EXPECT_EQ(process.wait().signal(), SIGTERM);
  }
}

// Only a taken name is a reason for another name, and the user hears of each reason once.
TEST_F(Keeping, ARunThatIsRefusedLaterSaysWhyAndKeepsItsName) {
  Process process =
      start({"--name", "refused-later", "--", "sh", "-c", "echo started; exec sleep 60"});
  ASSERT_TRUE(process.wait_for_output("started", 20s)) << process.output();
  ::kill(installed_.schedulers().at(0), SIGKILL);
  Process scheduler({installed_.path("bin/nvshare-scheduler"), "--run-dir", directory_}, {});
  const std::string line =
      "nvshare run: the scheduler refuses the run: there is no place; asking again\n";
  ASSERT_TRUE(process.wait_for_output(line, 10s)) << process.output();
  ::poll(nullptr, 0, 6'000);  // for longer than a taken name is kept
  EXPECT_EQ(installed_.runs(), "refused-later 0 100 0\n");
  ::kill(process.pid(), SIGTERM);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.signal(), SIGTERM);
  EXPECT_EQ(outcome.output.find(line), outcome.output.rfind(line)) << outcome.output;
}

TEST_F(Keeping, WithoutItsKeeperItWaitsForTheLastProcess) {
  Process process = start({"sh", "-c",
                           "kill -9 $PPID; setsid sleep 60 >/dev/null 2>&1 & echo $!;"
                           "echo started; exit 5"});
  ASSERT_TRUE(process.wait_for_output("started")) << process.output();
  const pid_t left = std::atoi(process.output().c_str());
  EXPECT_TRUE(testing::eventually([&] { return parent_of(left) == process.pid(); }, 10s));
  ::poll(nullptr, 0, 300);
  EXPECT_TRUE(sleeps(process.pid())) << "it has ended";
  ::kill(left, SIGKILL);
  EXPECT_EQ(process.wait().code(), 5);
}

// As the script of a container's entry point does.
TEST_F(Keeping, ChildrenOfTheShellThatBecameTheRunAreCollected) {
  const std::string script = "sleep 0.1 & early=$!; sleep 60 & echo $early $!; exec " +
                             installed_.path("bin/nvshare") +
                             " run -- sh -c 'echo started; exec sleep 60'";
  Process process({"bash", "-c", script}, installed_.variables());
  ASSERT_TRUE(process.wait_for_output("started", 20s)) << process.output();
  int early = 0;
  int late = 0;
  ASSERT_EQ(std::sscanf(process.output().c_str(), "%d %d", &early, &late), 2) << process.output();
  EXPECT_EQ(parent_of(late), process.pid());
  ::kill(late, SIGKILL);
  for (const pid_t pid : {early, late}) {
    EXPECT_TRUE(testing::eventually([&] { return testing::state_of(pid) == '?'; }, 5s))
        << (pid == early ? "early " : "late ") << testing::state_of(pid);
  }
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().signal(), SIGTERM);
}

TEST_F(Keeping, WithoutItsKeeperASignalEndsItsWaiting) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Process process = start({"sh", "-c",
                             "kill -9 $PPID; setsid sleep 60 >/dev/null 2>&1 & echo $!;"
                             "(setsid sleep 60 >/dev/null 2>&1 & echo $!); exit 5"});
    ASSERT_TRUE(process.wait_for_output("nvshare run: the program has ended, and 2 processes", 20s))
        << process.output();
    int left[2] = {};
    ASSERT_EQ(std::sscanf(process.output().c_str(), "%d %d", &left[0], &left[1]), 2);
    ::kill(process.pid(), signal);
    EXPECT_EQ(process.wait(5s).signal(), signal);
    for (const int pid : left) {
      EXPECT_TRUE(sleeps(pid)) << "it has ended";
      ::kill(pid, SIGKILL);
    }
  }
}

// While no scheduler is there, a run that lost its keeper sleeps for most of the time.
TEST_F(Keeping, WithoutItsKeeperItDoesNotLookForTheSchedulerAllTheTime) {
  Process process = start({"sh", "-c",
                           "kill -9 $(cat " + directory_ +
                               "/starts) $PPID; echo started;"
                               "exec sleep 60"});
  ASSERT_TRUE(process.wait_for_output("started", 20s)) << process.output();
  const std::string status = "/proc/" + std::to_string(process.pid()) + "/status";
  const auto times_slept = [&] {
    const std::string text = contents(status);
    const std::size_t at = text.find("\nvoluntary_ctxt_switches:");
    return at == text.npos ? -1 : std::atoi(text.c_str() + at + 25);
  };
  ::poll(nullptr, 0, 2'000);
  const int before = times_slept();
  ::poll(nullptr, 0, 2'000);
  EXPECT_GT(times_slept(), before);
  EXPECT_LT(times_slept() - before, 30);
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().signal(), SIGTERM);
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
