#include <dlfcn.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "integration/world.h"

// `nvshare run`: the program is what it was without, and shares.
namespace nvshare::integration {
namespace {

class Run : public World {
 protected:
  Outcome finish_run(const std::vector<std::string>& options,
                     const std::vector<std::string>& program) {
    std::vector<std::string> words{"run"};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back("--");
    words.insert(words.end(), program.begin(), program.end());
    return nvshare(words);
  }
};

TEST_F(Run, TheExitCodeIsTheProgramsOwn) {
  const Process scheduler = start_scheduler();
  EXPECT_EQ(finish_run({}, {"sh", "-c", "exit 41"}).ending.code, 41);
  EXPECT_EQ(finish_run({}, {"true"}).ending.code, 0);
}

TEST_F(Run, ASignalThatEndsTheProgramEndsTheCommand) {
  const Process scheduler = start_scheduler();
  EXPECT_EQ(finish_run({}, {"sh", "-c", "kill -KILL $$"}).ending.signal, SIGKILL);
}

TEST_F(Run, SignalsReachTheProgram) {
  const Process scheduler = start_scheduler();
  Job one = job("one", {}, {"--seconds", "60"});
  ASSERT_TRUE(one.process.wait_for("progress", 30s));
  one.process.signal(SIGTERM);
  const auto ending = one.process.wait(30s);
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->code, 0) << "gpu-job ends cleanly on SIGTERM";
  EXPECT_NE(one.result("share"), "") << one.process.output();
}

TEST_F(Run, ArgumentsAndInputReachTheProgram) {
  const Process scheduler = start_scheduler();
  Process program = run({}, {"sh", "-c", "read line; echo \"$line|$1|$2\"", "sh", "a b", "--mem"});
  program.say("hello");
  EXPECT_TRUE(program.wait_for("hello|a b|--mem", 20s)) << program.output();
  EXPECT_EQ(program.wait(20s).value_or(Ending{}).code, 0);
}

TEST_F(Run, WhatCannotBeStartedHasTheShellsExitCodes) {
  const Process scheduler = start_scheduler();
  EXPECT_EQ(finish_run({}, {"no-such-program-anywhere"}).ending.code, 127);
  EXPECT_EQ(finish_run({}, {"/tmp"}).ending.code, 126);
}

TEST_F(Run, WrongValuesAreOneLineAndNothingIsStarted) {
  const Process scheduler = start_scheduler();
  const std::vector<std::vector<std::string>> wrong{
      {"--cores", "0"}, {"--cores", "101"}, {"--cores", "many"}, {"--mem", "-1"},
      {"--mem", "4Q"},  {"--name", ""},     {"--corse", "5"}};
  for (const auto& options : wrong) {
    const Outcome outcome = finish_run(options, {"echo", "started"});
    EXPECT_EQ(outcome.ending.code, 2) << options[0] << " " << options[1] << outcome.output;
    EXPECT_EQ(outcome.output.find("started"), std::string::npos) << outcome.output;
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
  }
}

TEST_F(Run, WithoutADriverTheProgramRunsAnyway) {
  set("LD_LIBRARY_PATH", folder());
  if (::dlopen("libcuda.so.1", RTLD_LAZY) != nullptr) GTEST_SKIP() << "this machine has a driver";
  const Outcome outcome = finish_run({}, {"sh", "-c", "echo ran; exit 3"});
  EXPECT_EQ(outcome.ending.code, 3);
  EXPECT_NE(outcome.output.find("ran\n"), std::string::npos) << outcome.output;
}

TEST_F(Run, ComputesWhatItComputesAlone) {
  const std::vector<std::string> words{gpu_job(), "--launches", "200",  "--kernel",
                                       "100us",   "--memory",   "64Mi", "--check"};
  const Outcome alone = finish(words);
  ASSERT_EQ(alone.ending.code, 0) << alone.output;
  const Process scheduler = start_scheduler();
  const std::string checksum = alone.output.substr(alone.output.find("checksum="));
  for (const char* pattern : {"saturate", "sync", "graph", "copy", "memset"}) {
    std::vector<std::string> shared = words;
    shared.insert(shared.end(), {"--pattern", pattern});
    const Outcome outcome = finish_run({"--cores", "70"}, shared);
    EXPECT_EQ(outcome.ending.code, 0) << pattern << "\n" << outcome.output;
    EXPECT_NE(outcome.output.find(checksum), std::string::npos) << pattern << outcome.output;
  }
}

TEST_F(Run, TheTenantIsThereWhileTheProgramIs) {
  const Process scheduler = start_scheduler();
  allow_priorities();
  Process one = run({"--name", "quiet", "--cores", "30", "--mem", "1Gi", "--priority", "2"},
                    {"sh", "-c", "read line"});
  ASSERT_TRUE(eventually([&] { return has_tenant("quiet"); }, 20s));
  const nlohmann::json found = tenant("quiet");
  EXPECT_EQ(found.value("cores", 0), 30);
  EXPECT_EQ(found.value("memory", 0l), 1l << 30);
  EXPECT_EQ(found.value("priority", 0), 2);
  EXPECT_TRUE(found["processes"].empty()) << "it does not use the GPU";
  one.say("");
  EXPECT_EQ(one.wait(20s).value_or(Ending{}).code, 0);
  EXPECT_TRUE(eventually([&] { return !has_tenant("quiet"); }, 20s));
}

class Private : public World {};

TEST_F(Private, ASchedulerComesWithTheFirstProgramAndGoesWithTheLast) {
  Job first = job("first", {}, {"--seconds", "60"});
  ASSERT_TRUE(first.process.wait_for("progress", 30s)) << first.process.output();
  Job second = job("second", {}, {"--seconds", "60"});
  ASSERT_TRUE(second.process.wait_for("progress", 30s)) << second.process.output();
  const nlohmann::json now = status();
  ASSERT_TRUE(now.contains("scheduler")) << now;
  EXPECT_TRUE(now["scheduler"].value("private", false));
  EXPECT_EQ(runs(), 2u) << "both share one scheduler";
  const pid_t scheduler = now["scheduler"].value("pid", 0);
  ASSERT_GT(scheduler, 0);
  first.process.signal(SIGTERM);
  second.process.signal(SIGTERM);
  EXPECT_EQ(first.process.wait(30s).value_or(Ending{}).code, 0);
  EXPECT_EQ(second.process.wait(30s).value_or(Ending{}).code, 0);
  EXPECT_TRUE(eventually([&] { return !status().contains("scheduler"); }, 60s))
      << "it is still there";
}

TEST_F(Private, ProgramsThatStartTogetherFindTheSameOne) {
  std::vector<Job> jobs;
  for (int i = 0; i < 5; ++i) {
    jobs.push_back(job("job" + std::to_string(i), {}, {"--seconds", "60"}));
  }
  EXPECT_TRUE(eventually([&] { return runs() == 5; }, 30s));
  // One that has not begun with the GPU would end by the signal.
  for (Job& one : jobs) ASSERT_TRUE(one.process.wait_for("progress", 30s)) << one.process.output();
  for (Job& one : jobs) one.process.signal(SIGTERM);
  expect_all_good(jobs, 60s);
}

}  // namespace
}  // namespace nvshare::integration
