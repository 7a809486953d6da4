#include "process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/unique_fd.h"

namespace nvshare::conformance {
namespace {

Outcome shell(const std::string& script, int seconds = 20) {
  return run_process({"/bin/sh", "-c", script}, seconds);
}

TEST(RunProcess, GivesOutputAndExitCode) {
  const Outcome outcome = shell("echo one; echo two; exit 7");
  EXPECT_EQ(outcome.output, "one\ntwo\n");
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_FALSE(outcome.timed_out);
}

TEST(RunProcess, KeepsWhatWasPrintedBeforeASignal) {
  const Outcome outcome = shell("echo one; kill -SEGV $$");
  EXPECT_EQ(outcome.output, "one\n");
  EXPECT_EQ(outcome.signal, SIGSEGV);
}

TEST(RunProcess, AProgramThatIsNotThere) {
  EXPECT_EQ(run_process({"/nonexistent/program"}, 20).exit_code, 127);
}

TEST(RunProcess, KillsWhatDoesNotEnd) {
  const Outcome outcome = shell("echo one; exec sleep 60", 1);
  EXPECT_EQ(outcome.output, "one\n");
  EXPECT_TRUE(outcome.timed_out);
  EXPECT_EQ(outcome.signal, SIGKILL);
}

TEST(Progress, IsNoneBeforeTheFirstCall) {
  const UniqueFd file(::memfd_create("progress", 0));
  EXPECT_EQ(progress_in(file.get()), 0u);
  const unsigned call = 12;
  ASSERT_EQ(::pwrite(file.get(), &call, sizeof call, 0), static_cast<ssize_t>(sizeof call));
  EXPECT_EQ(progress_in(file.get()), 12u);
}

// The whole program, with a driver that ends the process in every cuDeviceGetName.
TEST(Conformance, GoesOnBehindACallThatEndsTheProcess) {
  const Outcome outcome = shell("LD_LIBRARY_PATH=" NVSHARE_DYING_DRIVER " exec " NVSHARE_CONFORMANCE
                                " --section devices");
  EXPECT_EQ(outcome.exit_code, 0);
  const std::string& text = outcome.output;
  EXPECT_NE(text.find("devices  cuDeviceGetName(name, 0, 0) -> signal\n"), std::string::npos);
  const std::string last =
      "devices  cuDeviceGetExecAffinitySupport(nullptr, "
      "CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0) -> CUDA_ERROR_NOT_SUPPORTED\n";
  ASSERT_GE(text.size(), last.size());
  EXPECT_EQ(text.substr(text.size() - last.size()), last);
  EXPECT_EQ(text.find("the section died"), std::string::npos);
}

TEST(Conformance, SaysThatThereIsNoDriver) {
  const Outcome outcome =
      shell("LD_LIBRARY_PATH= exec " NVSHARE_CONFORMANCE " --section devices 2>/dev/null");
  if (outcome.exit_code == 0) GTEST_SKIP() << "there is a driver on this machine";
  EXPECT_EQ(outcome.output, "devices  the section ended with 3\n");
  EXPECT_EQ(outcome.exit_code, 1);
}

}  // namespace
}  // namespace nvshare::conformance
