#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

// Programs that come to the driver in every way there is, with the library preloaded: what each of
// them gets is the library's, for every function of the table (roads_main.cpp).
namespace {

struct Outcome {
  std::string output;  // of both streams
  int code = -1;
};

Outcome shell(const std::string& command) {
  Outcome outcome;
  FILE* pipe = ::popen(("exec 2>&1; " + command).c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> part{};
  for (std::size_t got = 0; (got = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    outcome.output.append(part.data(), got);
  }
  const int status = ::pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

// How a program is started: everything that is set for it.
struct Start {
  std::string preload = NVSHARE_LIBRARY;
  std::string libraries = NVSHARE_SOFTGPU_FOLDER;
  std::string limit;
};

Outcome start(const std::string& command, const Start& how = {}) {
  // No scheduler is there, and the card is this test's own.
  std::string line = "exec env NVSHARE_RUN_DIR=" NVSHARE_NOWHERE " NVSHARE_SOFTGPU_CARD=abi-" +
                     std::to_string(getpid());
  line += " LD_LIBRARY_PATH=" + how.libraries + " LD_PRELOAD=\"" + how.preload + "\"";
  if (!how.limit.empty()) line += " NVSHARE_GPU_MEMORY_LIMIT=" + how.limit;
  return shell(line + " timeout 60 " + command);
}

void expect_ok(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find(", 0 wrong\n"), std::string::npos) << outcome.output;
}

TEST(Roads, Linking) {
  expect_ok(start(NVSHARE_ROADS_LINKED " linking"));
}

TEST(Roads, Dlsym) {
  expect_ok(start(NVSHARE_ROADS " handle libcuda.so.1"));
}

TEST(Roads, DlsymInADriverAtAnOddPath) {
  char folder[] = "/tmp/nvshare-abi-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string odd = std::string(folder) + "/odd-driver.so";
  ASSERT_EQ(shell("cp -L " NVSHARE_SOFTGPU_LIBRARY " " + odd).code, 0);
  Start how;
  how.libraries = "/nowhere";
  expect_ok(start(NVSHARE_ROADS " handle " + odd, how));
  ::unlink(odd.c_str());
  ::rmdir(folder);
}

TEST(Roads, DlsymInALinkedProgram) {
  expect_ok(start(NVSHARE_ROADS_LINKED " handle libcuda.so.1"));
}

TEST(Roads, Dlvsym) {
  expect_ok(start(NVSHARE_ROADS " version " NVSHARE_RECORDING_DRIVER));
}

TEST(Roads, ProcAddress) {
  expect_ok(start(NVSHARE_ROADS " proc_address"));
}

TEST(Roads, ProcAddressOfANewerDriver) {
  expect_ok(start(NVSHARE_ROADS " newer_driver " NVSHARE_RECORDING_DRIVER));
}

TEST(Roads, DefaultAndNext) {
  expect_ok(start(NVSHARE_ROADS " scope " NVSHARE_RELAY));
}

TEST(Roads, TheCLibrarysOwn) {
  expect_ok(start(NVSHARE_ROADS " c_library"));
}

TEST(Roads, DeepBinding) {
  expect_ok(start(NVSHARE_ROADS " deep " NVSHARE_RELAY));
  expect_ok(start(NVSHARE_ROADS " deep " NVSHARE_RELAY_NOW));
}

TEST(Roads, BehindAnotherPreloadedLibrary) {
  Start how;
  how.preload = NVSHARE_OTHER " " NVSHARE_LIBRARY;
  expect_ok(start(NVSHARE_ROADS " other", how));
}

TEST(Roads, BeforeAnotherPreloadedLibrary) {
  Start how;
  how.preload = NVSHARE_LIBRARY " " NVSHARE_OTHER;
  expect_ok(start(NVSHARE_ROADS " other", how));
}

TEST(Roads, TwoDrivers) {
  expect_ok(start(NVSHARE_ROADS " two_drivers " NVSHARE_RECORDING_DRIVER));
  expect_ok(start(NVSHARE_ROADS " either_driver " NVSHARE_RECORDING_DRIVER));
}

// A program that asks NVML, with a limit that shows whether it asked us (nvml_roads_main.cpp).
Outcome start_limited(const std::string& command, Start how = {}) {
  how.limit = "1Mi";
  return start(command, how);
}

TEST(NvmlRoads, Linking) {
  expect_ok(start_limited(NVSHARE_NVML_ROADS_LINKED " linking"));
}

TEST(NvmlRoads, Dlsym) {
  expect_ok(start_limited(NVSHARE_NVML_ROADS " handle libnvidia-ml.so.1"));
}

TEST(NvmlRoads, DlsymInALibraryByItsPath) {
  Start how;
  how.libraries = "/nowhere";
  expect_ok(start_limited(NVSHARE_NVML_ROADS " handle " NVSHARE_SOFTGPU_NVML, how));
}

TEST(NvmlRoads, DlsymInALinkedProgram) {
  expect_ok(start_limited(NVSHARE_NVML_ROADS_LINKED " handle libnvidia-ml.so.1"));
}

TEST(NvmlRoads, Dlvsym) {
  expect_ok(start_limited(NVSHARE_NVML_ROADS " version " NVSHARE_RECORDING_NVML));
}

TEST(NvmlRoads, DefaultAndNext) {
  expect_ok(start_limited(NVSHARE_NVML_ROADS " scope " NVSHARE_NVML_RELAY));
}

TEST(NvmlRoads, DeepBinding) {
  expect_ok(start_limited(NVSHARE_NVML_ROADS " deep " NVSHARE_NVML_RELAY));
}

TEST(NvmlRoads, TwoLibraries) {
  expect_ok(start_limited(NVSHARE_NVML_ROADS " two_libraries " NVSHARE_RECORDING_NVML));
}

TEST(NvmlRoads, WithoutNvmlAllIsAsWithoutUs) {
  Start with;
  with.libraries = "/nowhere";
  Start without = with;
  without.preload = "";
  const Outcome expected = start(NVSHARE_NVML_ROADS " what_is_there", without);
  EXPECT_EQ(expected.code, 0) << expected.output;
  EXPECT_EQ(start(NVSHARE_NVML_ROADS " what_is_there", with).output, expected.output);
}

TEST(Calls, ArriveWithTheirArguments) {
  expect_ok(start(NVSHARE_ROADS " arguments " NVSHARE_RECORDING_DRIVER));
}

TEST(Manners, ErrnoAndDlerror) {
  expect_ok(start(NVSHARE_ROADS " manners"));
}

TEST(Manners, WithoutADriverAllIsAsWithoutUs) {
  Start with;
  with.libraries = "/nowhere";
  Start without = with;
  without.preload = "";
  const Outcome expected = start(NVSHARE_ROADS " what_is_there", without);
  EXPECT_EQ(expected.code, 0) << expected.output;
  EXPECT_EQ(start(NVSHARE_ROADS " what_is_there", with).output, expected.output);
}

TEST(Manners, AProgramThatDoesNotUseAGpuIsLeftAlone) {
  Start without;
  without.preload = "";
  const Outcome alone = start(NVSHARE_IDLE, without);
  const Outcome preloaded = start(NVSHARE_IDLE);
  ASSERT_NE(alone.output.find("alone\n"), std::string::npos) << alone.output;
  ASSERT_NE(preloaded.output.find("preloaded\n"), std::string::npos) << preloaded.output;
  const auto said = [](const Outcome& outcome) {
    return outcome.output.substr(outcome.output.find(" threads") - 1, 20);
  };
  EXPECT_EQ(said(preloaded), said(alone));
  EXPECT_EQ(preloaded.output.find("libcuda"), std::string::npos) << preloaded.output;
  EXPECT_EQ(preloaded.output.find("libnvidia-ml"), std::string::npos) << preloaded.output;
}

}  // namespace
