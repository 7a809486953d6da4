// `nvshare softgpu -- CMD`, as a person runs it.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <string>

namespace {

struct Outcome {
  std::string output;  // of both streams
  int status = -1;     // as waitpid gives it
  int code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }
};

Outcome shell(const std::string& command) {
  Outcome outcome;
  FILE* pipe = ::popen(("exec 2>&1; " + command).c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> part{};
  for (std::size_t got = 0; (got = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    outcome.output.append(part.data(), got);
  }
  outcome.status = ::pclose(pipe);
  return outcome;
}

// The shell is replaced by the command, so that what ends it is seen as it was.
Outcome softgpu(const std::string& arguments) {
  return shell("exec " NVSHARE_PROGRAM " softgpu " + arguments);
}

TEST(SoftgpuCommand, GivesAProgramACard) {
  const Outcome outcome = softgpu("--card command-a -- " NVSHARE_CONFORMANCE " --section init");
  EXPECT_EQ(outcome.code(), 0) << outcome.output;
  EXPECT_NE(outcome.output.find("cuInit(0) -> CUDA_SUCCESS"), std::string::npos) << outcome.output;
}

TEST(SoftgpuCommand, WithTheMemoryAskedFor) {
  const Outcome outcome = softgpu("--card command-b --memory 3Gi --count 2 " NVSHARE_SMI
                                  " --query-gpu=memory.total --format=csv,noheader,nounits");
  EXPECT_EQ(outcome.output, "3072\n3072\n");
}

TEST(SoftgpuCommand, ExitCodesAndSignalsPassThrough) {
  EXPECT_EQ(softgpu("-- sh -c 'exit 41'").code(), 41);
  EXPECT_EQ(softgpu("-- sh -c 'echo $# \"$1\"' sh 'a b' --memory").output, "2 a b\n");
  const Outcome killed = softgpu("-- sh -c 'kill -TERM $$'");
  EXPECT_TRUE(WIFSIGNALED(killed.status) && WTERMSIG(killed.status) == SIGTERM) << killed.status;
}

TEST(SoftgpuCommand, PutsItsFolderBeforeOthers) {
  const Outcome outcome = shell("export LD_LIBRARY_PATH=/elsewhere; exec " NVSHARE_PROGRAM
                                " softgpu -- sh -c 'echo $LD_LIBRARY_PATH'");
  EXPECT_EQ(outcome.output, NVSHARE_SOFTGPU_FOLDER ":/elsewhere\n");
}

TEST(SoftgpuCommand, ACardHasASchedulerOfItsOwn) {
  const std::string print = " -- sh -c 'echo $NVSHARE_RUN_DIR'";
  const Outcome one =
      shell("unset NVSHARE_RUN_DIR; exec " NVSHARE_PROGRAM " softgpu --card one" + print);
  EXPECT_NE(one.output.find("/softgpu-one\n"), std::string::npos) << one.output;
  EXPECT_EQ(one.output.find('/'), 0u) << one.output;
  const Outcome chosen = shell(
      "export NVSHARE_RUN_DIR=/somewhere; exec " NVSHARE_PROGRAM " softgpu --card one" + print);
  EXPECT_EQ(chosen.output, "/somewhere\n");
}

TEST(SoftgpuCommand, ACardThatHadNoSchedulerLeavesNoFolder) {
  const Outcome outcome = shell(
      "cd $(mktemp -d) && unset NVSHARE_RUN_DIR && export XDG_RUNTIME_DIR=$PWD && " NVSHARE_PROGRAM
      " softgpu --card alone -- true && find . -mindepth 1 -printf '%p %m\\n' && rm -r \"$PWD\"");
  EXPECT_EQ(outcome.output, "./nvshare 700\n");
}

TEST(SoftgpuCommand, WhatCannotBeStartedHasOneLineAndTheShellsExitCode) {
  const Outcome missing = softgpu("-- no-such-program-anywhere");
  EXPECT_EQ(missing.code(), 127);
  EXPECT_EQ(
      missing.output,
      "nvshare softgpu: no-such-program-anywhere: there is no such program in PATH: check its "
      "name, or give its path\n");
  const Outcome folder = softgpu("-- /tmp");
  EXPECT_EQ(folder.code(), 126);
  EXPECT_EQ(folder.output, "nvshare softgpu: /tmp: is a folder: name a program in it\n");
}

TEST(SoftgpuCommand, WithAWrongSettingNothingIsStarted) {
  const Outcome outcome = softgpu("--memory 1 -- echo started");
  EXPECT_EQ(outcome.code(), 2);
  EXPECT_EQ(outcome.output, "nvshare softgpu: --memory: '1' is not from 16Mi to 4096Gi\n");
}

}  // namespace
