// `nvshare run` as a person runs it, with a scheduler that is not the real one.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "cli/testing/installation.h"
#include "cli/testing/process.h"
#include "wire/messages.h"

namespace nvshare::cli {
namespace {

namespace fs = std::filesystem;
using testing::contents;
using testing::Outcome;
using testing::Process;

class Run : public ::testing::Test {
 protected:
  Process start(std::vector<std::string> words, const std::vector<std::string>& more = {}) {
    words.insert(words.begin(), {installed_.path("bin/nvshare"), "run"});
    auto variables = installed_.variables();
    variables.insert(variables.end(), more.begin(), more.end());
    return Process(words, variables);
  }
  Outcome run(std::vector<std::string> words, const std::vector<std::string>& more = {}) {
    return start(std::move(words), more).wait();
  }

  testing::Installation installed_;
  const std::string directory_ = installed_.run_directory();
  const std::string outer_ = installed_.folder();
};

TEST_F(Run, StartsAPrivateSchedulerAndEndsAsTheProgramDid) {
  const Outcome outcome = run({"--name", "one", "--mem", "4Gi", "--cores", "40", "--priority=-3",
                               "--", "sh", "-c", "echo out; echo err >&2; exit 41"});
  EXPECT_EQ(outcome.code(), 41);
  EXPECT_EQ(outcome.output, "out\nerr\n");
  EXPECT_EQ(installed_.runs(), "one 4294967296 40 -3\n");
  ASSERT_EQ(installed_.schedulers().size(), 1u);
  EXPECT_EQ(::kill(installed_.schedulers()[0], 0), 0) << "the scheduler outlives the program";
  EXPECT_EQ(::getsid(installed_.schedulers()[0]), installed_.schedulers()[0]);
  EXPECT_EQ(run({"true"}).code(), 0);
  EXPECT_EQ(installed_.schedulers().size(), 1u)
      << "the second program uses the first one's scheduler";
}

TEST_F(Run, TheMemoryBackendReachesTheScheduler) {
  EXPECT_EQ(run({"--name", "one", "--backend", "native", "--", "true"}).code(), 0);
  EXPECT_EQ(installed_.runs(), "one 0 100 0 backend 1\n");
  EXPECT_NE(run({"--backend", "disk", "--", "true"})
                .output.find("--backend: 'disk' is not one of native, swap, managed"),
            std::string::npos);
}

TEST_F(Run, AProgramLargerThanTheGpuIsAskedForInSoManyWords) {
  EXPECT_EQ(run({"--name", "one", "--oversubscribe-self", "--", "true"}).code(), 0);
  EXPECT_EQ(run({"--name", "two", "--oversubscribe-self", "--backend", "managed", "true"}).code(),
            0);
  EXPECT_EQ(installed_.runs(), "one 0 100 0 backend 3 flags 1\ntwo 0 100 0 backend 3 flags 1\n");
  for (const char* backend : {"swap", "native"}) {
    const auto refused = run({"--oversubscribe-self", "--backend", backend, "--", "true"});
    EXPECT_EQ(refused.code(), 2);
    EXPECT_EQ(refused.output,
              std::string("nvshare run: --oversubscribe-self: only memory of the backend managed "
                          "can be larger than the GPU, not ") +
                  backend + "\n");
  }
}

TEST_F(Run, ASchedulerThatDoesNotKnowOfThatIsNoReasonNotToRun) {
  const auto outcome =
      run({"--name", "of-an-older-scheduler", "--oversubscribe-self", "--", "true"});
  EXPECT_EQ(outcome.code(), 0);
  EXPECT_EQ(outcome.output,
            "nvshare run: the scheduler is older than nvshare and does not know "
            "--oversubscribe-self: the program can have no more than the GPU\n");
}

TEST_F(Run, WithoutWishesATenantIsNamedAfterTheProgramAndHasNoLimits) {
  Process process = start({"sh", "-c", "exit 0"});
  const pid_t pid = process.pid();
  EXPECT_EQ(process.wait().code(), 0);
  EXPECT_EQ(installed_.runs(), "sh-" + std::to_string(pid) + " 0 100 0\n");
}

TEST_F(Run, TheFolderOfAPrivateSchedulerIsTheUsersAlone) {
  EXPECT_EQ(run({"true"}).code(), 0);
  struct stat found {};
  ASSERT_EQ(::stat(directory_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  ASSERT_EQ(::stat((directory_ + "/scheduler.log").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(Run, ProgramsStartedAtOnceShareOneScheduler) {
  std::vector<Process> all;
  for (int i = 0; i < 6; ++i) all.push_back(start({"sh", "-c", "exit 7"}));
  for (Process& one : all) {
    const Outcome outcome = one.wait();
    EXPECT_EQ(outcome.code(), 7) << outcome.output;
  }
  EXPECT_EQ(installed_.schedulers().size(), 1u);
  const std::string lines = installed_.runs();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 6);
}

TEST_F(Run, TheProgramIsGivenTheLibraryAndTheRunDirectory) {
  const std::string library = installed_.path("lib/libnvshare.so");
  EXPECT_EQ(run({"sh", "-c", "echo $LD_PRELOAD $NVSHARE_RUN_DIR"}).output,
            library + " " + directory_ + "\n");
  EXPECT_EQ(run({"sh", "-c", "ls /proc/self/fd | wc -l"}).output,
            Process({"sh", "-c", "ls /proc/self/fd | wc -l"}, {}).wait().output)
      << "and nothing else that is open";
}

// A sanitizer wants to be loaded before everything, so nothing can be preloaded then.
#ifndef NVSHARE_UNDER_SANITIZER
TEST_F(Run, WhatIsPreloadedAlreadyComesAfterTheLibrary) {
  const std::string other = installed_.path("driver/libcuda.so.1");
  EXPECT_EQ(run({"sh", "-c", "echo $LD_PRELOAD"}, {"LD_PRELOAD=" + other}).output,
            installed_.path("lib/libnvshare.so") + ":" + other + "\n");
}

TEST_F(Run, TheLibraryIsNotForTheScheduler) {
  const std::string other = installed_.path("driver/libcuda.so.1");
  EXPECT_EQ(run({"true"}, {"LD_PRELOAD=" + other}).code(), 0);
  EXPECT_EQ(contents(directory_ + "/scheduler.log"), "fake scheduler, preloaded: nothing\n");
}
#endif

TEST_F(Run, AFolderForLibrariesOfItsOwnIsFoundToo) {
  fs::create_directories(installed_.path("lib/nvshare"));
  fs::rename(installed_.path("lib/libnvshare.so"), installed_.path("lib/nvshare/libnvshare.so"));
  EXPECT_EQ(run({"sh", "-c", "echo $LD_PRELOAD"}).output,
            installed_.path("lib/nvshare/libnvshare.so") + "\n");
}

TEST_F(Run, WrongValuesStartNothing) {
  const Outcome outcome = run({"--name", "a b", "--cores", "101", "--mem", "0", "--priority", "x",
                               "--", "touch", outer_ + "/touched"});
  EXPECT_EQ(outcome.code(), 2);
  EXPECT_EQ(
      outcome.output,
      "nvshare run: --mem: '0' is not more than nothing (none: no limit); "
      "--cores: '101' is not a whole number from 1 to 100 (100: no limit); "
      "--priority: 'x' is not a whole number from -10 to 10; "
      "'a b': a name has 1 to 63 letters, digits, '.', '_' or '-': give another with --name\n");
  EXPECT_FALSE(fs::exists(outer_ + "/touched"));
  EXPECT_FALSE(fs::exists(directory_));
  EXPECT_EQ(run({}).output, "nvshare run: CMD is missing (see nvshare run --help)\n");
}

TEST_F(Run, ALimitOfTheEnvironmentThatIsNotUnderstoodStartsNothing) {
  for (const char* wrong : {"32 megabytes", "4gi", "101%", "none"}) {
    const Outcome outcome =
        run({"echo", "started"}, {std::string("NVSHARE_GPU_MEMORY_LIMIT=") + wrong});
    EXPECT_EQ(outcome.code(), 2);
    EXPECT_EQ(outcome.output, std::string("nvshare run: NVSHARE_GPU_MEMORY_LIMIT: '") + wrong +
                                  "' is not understood (examples: 4Gi, 512Mi, 2G, 25%; 0: none)\n");
  }
  EXPECT_FALSE(fs::exists(directory_));
  for (const char* good : {"", "0", "25%", "1.5Gi", "300M", "1048576"}) {
    EXPECT_EQ(run({"sh", "-c", "echo \"got $NVSHARE_GPU_MEMORY_LIMIT\""},
                  {std::string("NVSHARE_GPU_MEMORY_LIMIT=") + good})
                  .output,
              std::string("got ") + good + "\n");
  }
}

TEST_F(Run, TheMemoryLimitOfTheEnvironmentIsTheRuns) {
  const std::string gib = "1073741824 100 0";
  const std::string of_variable = " flags " + std::to_string(wire::kMemoryOfVariable);
  const std::vector<std::tuple<std::string, std::string, std::string>> cases{
      {"", "1Gi", gib + of_variable},
      {"2Gi", "1Gi", gib + of_variable},
      {"none", "1Gi", gib + of_variable},
      {"512Mi", "1Gi", "536870912 100 0"},
      {"1Gi", "1Gi", gib},
      {"1Gi", "25%", gib},
      {"", "25%", "0 100 0"},
      {"", "0", "0 100 0"},
      {"", "", "0 100 0"},
      {"", "300000Gi", "0 100 0"},
  };
  std::string expected;
  for (const auto& [option, variable, sent] : cases) {
    std::vector<std::string> words{"--name", "one"};
    if (!option.empty()) words.insert(words.end(), {"--mem", option});
    words.insert(words.end(), {"--", "true"});
    const Outcome outcome = run(words, {"NVSHARE_GPU_MEMORY_LIMIT=" + variable});
    EXPECT_EQ(outcome.code(), 0) << outcome.output;
    EXPECT_EQ(outcome.output, "");
    expected += "one " + sent + "\n";
    EXPECT_EQ(installed_.runs(), expected) << "--mem " << option << ", variable " << variable;
  }
}

// A scheduler of before this flag answers without it, which is no lack of --oversubscribe-self.
TEST_F(Run, ARunComesBackWithTheMemoryLimitOfTheEnvironment) {
  Process process = start({"--name", "of-an-older-scheduler", "--", "sh", "-c",
                           "kill -9 $PPID; trap 'exit 3' TERM; while :; do sleep 0.05; done"},
                          {"NVSHARE_GPU_MEMORY_LIMIT=1Gi"});
  const std::string line = "of-an-older-scheduler 1073741824 100 0 flags 2";
  const std::string both = line + "\n" + line + " comes back\n";
  EXPECT_TRUE(testing::eventually([&] { return installed_.runs() == both; }, 10s))
      << installed_.runs();
  ::kill(process.pid(), SIGTERM);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.code(), 3);
  EXPECT_EQ(outcome.output, "");
}

TEST_F(Run, WhatTheSchedulerWouldRefuseStartsNothing) {
  const Outcome outcome =
      run({"--name", "user-1000", "--mem", "300000Gi", "--", "echo", "started"});
  EXPECT_EQ(outcome.code(), 2);
  EXPECT_EQ(outcome.output,
            "nvshare run: --mem: '300000Gi' is more than any GPU has (256TiB at most); "
            "'user-1000': names that begin with 'user-' are the scheduler's own: "
            "give another with --name\n");
  EXPECT_FALSE(fs::exists(directory_));
}

TEST_F(Run, AProgramThatIsCalledLikeTheSchedulersOwnTenantsGetsAnotherName) {
  const std::string script = outer_ + "/user-tool";
  std::ofstream(script) << "#!/bin/sh\nexit 0\n";
  ::chmod(script.c_str(), 0755);
  Process process = start({script});
  const pid_t pid = process.pid();
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.code(), 0) << outcome.output;
  EXPECT_EQ(installed_.runs(), "run-user-tool-" + std::to_string(pid) + " 0 100 0\n");
}

TEST_F(Run, WhatCannotBeStartedIsKnownBefore) {
  const Outcome missing = run({"no-such-program-anywhere"});
  EXPECT_EQ(missing.code(), 127);
  EXPECT_EQ(missing.output,
            "nvshare run: no-such-program-anywhere: there is no such program in "
            "PATH: check its name, or give its path\n");
  const Outcome nowhere = run({"/no/such/program"});
  EXPECT_EQ(nowhere.code(), 127);
  EXPECT_EQ(nowhere.output,
            "nvshare run: /no/such/program: there is no such file: check its path\n");
  const Outcome folder = run({"/tmp"});
  EXPECT_EQ(folder.code(), 126);
  EXPECT_EQ(folder.output, "nvshare run: /tmp: is a folder: name a program in it\n");
  const std::string script = outer_ + "/train.py";
  std::ofstream(script) << "";
  const Outcome unready = run({script});
  EXPECT_EQ(unready.code(), 126);
  EXPECT_EQ(unready.output, "nvshare run: " + script +
                                ": may not be run: chmod +x it, or give its interpreter, as in "
                                "python " +
                                script + "\n");
  EXPECT_FALSE(fs::exists(directory_)) << "no scheduler was started";
}

TEST_F(Run, AProgramOfThePresentFolderIsNotInPath) {
  std::ofstream(outer_ + "/train.py") << "";
  const std::string nvshare = installed_.path("bin/nvshare");
  const Outcome outcome =
      Process({"sh", "-c", "cd " + outer_ + " && exec " + nvshare + " run -- train.py"},
              installed_.variables())
          .wait();
  EXPECT_EQ(outcome.code(), 127);
  EXPECT_EQ(outcome.output,
            "nvshare run: train.py: there is no such program in PATH: did you mean "
            "'./train.py'?\n");
}

TEST_F(Run, WhatOnlyExecCanTellIsToldToo) {
  const std::string script = outer_ + "/script";
  std::ofstream(script) << "#!/no/such/interpreter\n";
  ::chmod(script.c_str(), 0755);
  const Outcome outcome = run({script});
  EXPECT_EQ(outcome.code(), 127);
  EXPECT_EQ(outcome.output, "nvshare run: " + script +
                                ": what is to run it is missing: see the first line of a script, "
                                "ldd of others\n");
}

TEST_F(Run, WaitsForASchedulerThatIsAboutToEnd) {
  // It does not answer any more, but still holds the folder.
  std::filesystem::create_directory(directory_);
  std::filesystem::permissions(directory_, std::filesystem::perms::owner_all);
  Process old({"flock", directory_ + "/scheduler.lock", "sh", "-c",
               "echo holds; until [ -e " + outer_ + "/go ]; do sleep 0.05; done"},
              {});
  ASSERT_TRUE(old.wait_for_output("holds")) << old.output();
  Process next = start({"true"});
  ::poll(nullptr, 0, 500);
  EXPECT_TRUE(installed_.schedulers().empty());
  std::ofstream(outer_ + "/go") << "";
  EXPECT_EQ(next.wait().code(), 0);
  EXPECT_EQ(installed_.schedulers().size(), 1u);
}

TEST_F(Run, TriesAgainWhenTheSchedulerGoesWithoutAWord) {
  const Outcome outcome = run({"--name", "closed-on-once", "--", "echo", "started"});
  EXPECT_EQ(outcome.output, "started\n");
  EXPECT_EQ(installed_.runs(), "closed-on-once 0 100 0\n");
}

// The scheduler says so as soon as there is a tenant: before the program has begun, and before it
// could have ended.
TEST_F(Run, MemoryThatWasRefusedIsToldInOneLineHoweverSoonTheProgramEnds) {
  for (int i = 0; i < 5; ++i) {
    const Outcome outcome = run({"--name", "too-large", "--", "sh", "-c", "exit 7"});
    EXPECT_EQ(outcome.code(), 7);
    EXPECT_EQ(outcome.output,
              "nvshare run: too-large asked for 1.5GiB more GPU memory: with the 3GiB it has that "
              "is 512MiB over its limit of 4GiB. Raise it: nvshare limit too-large --mem 5Gi, or "
              "start it with that --mem\n");
  }
}

TEST_F(Run, ANameIsGivenOnce) {
  Process first = start({"--name", "train", "--", "sh", "-c", "echo started; exec sleep 60"});
  ASSERT_TRUE(first.wait_for_output("started")) << first.output();
  const Outcome second = run({"--name", "train", "--", "echo", "too"});
  EXPECT_EQ(second.code(), 2);
  EXPECT_EQ(second.output, "nvshare run: the name 'train' is in use\n");
  ::kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.wait().signal(), SIGTERM);
  EXPECT_EQ(run({"--name", "train", "--", "echo", "now"}).output, "now\n");
}

TEST_F(Run, ARefusalIsHeardAlsoWhenTheSchedulerClosedAtOnce) {
  const Outcome outcome = run({"--name", "refused-unread", "--", "echo", "started"});
  EXPECT_EQ(outcome.code(), 2);
  EXPECT_EQ(outcome.output, "nvshare run: refused unread\n");
}

TEST_F(Run, AnotherVersionIsNotTheUsersMistake) {
  const Outcome outcome = run({"--name", "of-another-version", "--", "echo", "started"});
  EXPECT_EQ(outcome.code(), 1);
  EXPECT_EQ(outcome.output, "nvshare run: speaks another version\n");
}

TEST_F(Run, WithoutALibraryNothingIsStarted) {
  fs::remove(installed_.path("lib/libnvshare.so"));
  const Outcome outcome = run({"echo", "started"});
  EXPECT_EQ(outcome.code(), 1);
  EXPECT_EQ(outcome.output, "nvshare run: " + installed_.path("lib/libnvshare.so") +
                                " is missing: install nvshare again\n");
}

TEST_F(Run, WithoutASchedulerNothingIsStarted) {
  fs::remove(installed_.path("bin/nvshare-scheduler"));
  const Outcome missing = run({"echo", "started"});
  EXPECT_EQ(missing.code(), 1);
  EXPECT_EQ(missing.output, "nvshare run: " + installed_.path("bin/nvshare-scheduler") +
                                " is missing: install nvshare again\n");
  std::ofstream(installed_.path("bin/nvshare-scheduler"))
      << "#!/bin/sh\necho it hurts >&2\nexit 3\n";
  fs::permissions(installed_.path("bin/nvshare-scheduler"), fs::perms::owner_all);
  const Outcome broken = run({"echo", "started"});
  EXPECT_EQ(broken.code(), 1);
  EXPECT_EQ(broken.output, "nvshare run: the private scheduler did not start; the end of " +
                               directory_ + "/scheduler.log:\n  it hurts\n");
}

TEST_F(Run, AFolderThatOthersCanWriteToIsNotUsed) {
  fs::create_directory(directory_);
  fs::permissions(directory_, fs::perms::all);
  const Outcome outcome = run({"echo", "started"});
  EXPECT_EQ(outcome.code(), 1);
  EXPECT_NE(outcome.output.find("can be written to by others"), std::string::npos)
      << outcome.output;
}

TEST_F(Run, WithoutADriverTheProgramRunsUnshared) {
  fs::remove(installed_.path("driver/libcuda.so.1"));
  const Outcome outcome = run({"sh", "-c", "echo $LD_PRELOAD; exit 6"});
  if (outcome.output.find("no CUDA driver") == std::string::npos) {
    GTEST_SKIP() << "this machine has a driver";
  }
  EXPECT_EQ(outcome.code(), 6);
  EXPECT_EQ(outcome.output,
            "nvshare run: no CUDA driver (libcuda.so.1) was found: the program runs unshared\n\n");
  EXPECT_FALSE(fs::exists(directory_));
}

TEST_F(Run, EndsByTheSignalThatEndedTheProgram) {
  for (const int signal : {SIGTERM, SIGKILL, SIGSEGV, SIGPIPE}) {
    const Outcome outcome = run({"sh", "-c", "kill -" + std::to_string(signal) + " $$"});
    EXPECT_EQ(outcome.signal(), signal) << outcome.output;
  }
}

TEST_F(Run, PassesSignalsOn) {
  Process process = start({"sh", "-c",
                           "trap 'echo usr1' USR1; trap 'echo hup' HUP; trap 'exit 9' TERM;"
                           "echo started; while :; do sleep 0.05; done"});
  ASSERT_TRUE(process.wait_for_output("started")) << process.output();
  ::kill(process.pid(), SIGUSR1);
  EXPECT_TRUE(process.wait_for_output("usr1"));
  ::kill(process.pid(), SIGHUP);
  EXPECT_TRUE(process.wait_for_output("hup"));
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().code(), 9);
}

TEST_F(Run, AProgramThatIsStoppedAloneIsWaitedFor) {
  Process process = start({"sh", "-c",
                           "trap 'exit 4' TERM; echo $$; echo started;"
                           "while :; do sleep 0.05; done"});
  ASSERT_TRUE(process.wait_for_output("started")) << process.output();
  const pid_t program = std::atoi(process.output().c_str());
  ::kill(program, SIGSTOP);
  ASSERT_TRUE(testing::eventually([&] { return testing::state_of(program) == 'T'; }));
  ::poll(nullptr, 0, 300);
  EXPECT_EQ(testing::state_of(process.pid()), 'S') << "nobody would continue it";
  ::kill(program, SIGCONT);
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().code(), 4);
}

// As `nvshare run ... 2>&1 | head` does.
TEST_F(Run, RunsOnWhenNobodyReadsWhatItTells) {
  const std::string script = installed_.path("bin/nvshare") + " run -- sh -c 'until [ -e " +
                             outer_ + "/go ]; do sleep 0.05; done; exit 3'; echo $? >" + outer_ +
                             "/code";
  Process process({"bash", "-c", "{ " + script + "; } 2>&1 | true; wait"}, installed_.variables());
  ASSERT_TRUE(testing::eventually([&] { return !installed_.runs().empty(); }));
  ::kill(installed_.schedulers().at(0), SIGKILL);
  Process scheduler({installed_.path("bin/nvshare-scheduler"), "--run-dir", directory_}, {});
  // The second time, after it has told that the scheduler was gone.
  EXPECT_TRUE(testing::eventually([&] {
    const std::string lines = installed_.runs();
    return std::count(lines.begin(), lines.end(), '\n') == 2;
  }));
  std::ofstream(outer_ + "/go") << "";
  EXPECT_TRUE(testing::eventually([&] { return contents(outer_ + "/code") == "3\n"; }))
      << contents(outer_ + "/code");
}

TEST_F(Run, SignalsThatAreIgnoredStayIgnored) {
  const std::string nvshare = installed_.path("bin/nvshare");
  const Outcome outcome =
      Process(
          {"sh", "-c", "trap '' HUP; exec " + nvshare + " run -- sh -c 'kill -HUP $$; echo alive'"},
          installed_.variables())
          .wait();
  EXPECT_EQ(outcome.output, "alive\n");
}

TEST_F(Run, DoesNotWaitForProcessesThatTheProgramLeft) {
  Process process = start({"sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!; echo started; exit 5"});
  ASSERT_TRUE(process.wait_for_output("started")) << process.output();
  const Outcome outcome = process.wait(20s);
  EXPECT_EQ(outcome.code(), 5);
  ::kill(std::atoi(outcome.output.c_str()), SIGKILL);
}

TEST_F(Run, ProcessesThatLoseTheirParentStayBelow) {
  const Outcome outcome = run({"sh", "-c",
                               "left=$(sh -c 'sleep 60 >/dev/null 2>&1 & echo $!');"
                               "grep -c \"PPid:.$PPID$\" /proc/$left/status; kill -9 $left"});
  EXPECT_EQ(outcome.output, "1\n") << "its parent is the program's parent";
}

TEST_F(Run, TakesPartAgainWhenTheSchedulerIsBack) {
  Process process = start({"--name", "long", "--cores", "30", "--", "sh", "-c",
                           "trap 'exit 3' TERM; echo started; while :; do sleep 0.05; done"});
  ASSERT_TRUE(process.wait_for_output("started")) << process.output();
  ::kill(installed_.schedulers().at(0), SIGKILL);
  EXPECT_TRUE(process.wait_for_output("the scheduler is gone"));
  Process scheduler({installed_.path("bin/nvshare-scheduler"), "--run-dir", directory_}, {});
  EXPECT_TRUE(process.wait_for_output("the scheduler is back")) << process.output();
  EXPECT_EQ(installed_.runs(), "long 0 30 0\nlong 0 30 0 comes back\n");
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait().code(), 3);
}

}  // namespace
}  // namespace nvshare::cli
