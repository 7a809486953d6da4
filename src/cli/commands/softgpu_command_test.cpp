#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/commands/commands.h"
#include "softgpu/config.h"

namespace nvshare::cli {
namespace {

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

// Only what does not start a program: that has a test of its own, tests/softgpu/command_test.cpp.
Outcome run(std::vector<std::string> words) {
  words.insert(words.begin(), "softgpu");
  std::ostringstream out;
  std::ostringstream err;
  const int code = run_program({softgpu_command()}, words, {out, err});
  return {code, out.str(), err.str()};
}

TEST(SoftgpuCommand, PrintsTheSettingsInForce) {
  const Outcome outcome = run({"--memory", "16Gi", "--set", "slice=1500us", "--print"});
  EXPECT_EQ(outcome.code, kGood);
  EXPECT_NE(outcome.out.find("memory = \"16Gi\"\n"), std::string::npos);
  EXPECT_NE(outcome.out.find("slice = \"1500us\"\n"), std::string::npos);
  EXPECT_NE(outcome.out.find("count = 1\n"), std::string::npos);
}

#ifdef NVSHARE_HAVE_TOML
TEST(SoftgpuCommand, WhatItPrintsIsAFileItTakes) {
  const std::string printed = run({"-m", "3Gi", "-s", "name=a \"b\" \\c", "--print"}).out;
  const std::string path = testing::TempDir() + "softgpu_command_test.toml";
  std::ofstream(path) << printed;
  EXPECT_EQ(run({"--config", path, "--print"}).out, printed);
  EXPECT_NE(run({"--config", path, "-m", "2Gi", "--print"}).out.find("memory = \"2Gi\""),
            std::string::npos)
      << "the command line counts before the file";
  std::ofstream(path) << "memory = 3\nspeeed = 4\n";
  const Outcome wrong = run({"--config", path, "--", "true"});
  EXPECT_EQ(wrong.code, kBadInput);
  EXPECT_NE(wrong.err.find(path + ":1:10: memory: '3' is not from 16Mi to 4096Gi"),
            std::string::npos)
      << wrong.err;
  EXPECT_NE(wrong.err.find(path + ":2:1: speeed: unknown key"), std::string::npos) << wrong.err;
  std::remove(path.c_str());
}
#endif

TEST(SoftgpuCommand, TheCommandLineCountsBeforeTheEnvironment) {
  ::setenv("NVSHARE_SOFTGPU_MEMORY", "5Gi", 1);
  EXPECT_NE(run({"--print"}).out.find("memory = \"5Gi\""), std::string::npos);
  EXPECT_NE(run({"--memory=6Gi", "--print"}).out.find("memory = \"6Gi\""), std::string::npos);
  ::setenv("NVSHARE_SOFTGPU_MEMORY", "lots", 1);
  EXPECT_EQ(
      run({"--print"}).err,
      "nvshare softgpu: NVSHARE_SOFTGPU_MEMORY: 'lots' is not a size (examples: 4Gi, 512Mi, 2G)\n");
  ::unsetenv("NVSHARE_SOFTGPU_MEMORY");
}

TEST(SoftgpuCommand, SaysAllThatIsWrongInOneLineAndStartsNothing) {
  const Outcome outcome =
      run({"--memory", "much", "--count=9", "--set", "sliec=1ms", "--", "/bin/false"});
  EXPECT_EQ(outcome.code, kBadInput);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err,
            "nvshare softgpu: --memory: 'much' is not a size (examples: 4Gi, 512Mi, 2G); "
            "--count: '9' is not a whole number from 1 to 8; "
            "--set sliec: no such setting; did you mean 'slice'?\n");
  EXPECT_EQ(run({"--set", "slice", "--print"}).err,
            "nvshare softgpu: --set: 'slice' is not KEY=VALUE\n");
  EXPECT_EQ(run({"--config", "/nowhere/at/all.toml", "--print"}).err,
            "nvshare softgpu: /nowhere/at/all.toml: cannot be read\n");
  EXPECT_EQ(run({}).code, kBadInput);
  EXPECT_EQ(run({}).err, "nvshare softgpu: CMD is missing (see nvshare softgpu --help)\n");
}

TEST(SoftgpuCommand, AFolderThatSomebodyElseMadeForTheCardIsNotUsed) {
  namespace fs = std::filesystem;
  std::string runtime = testing::TempDir() + "softgpu_command_XXXXXX";
  ASSERT_NE(::mkdtemp(runtime.data()), nullptr);
  ::unsetenv("NVSHARE_RUN_DIR");
  ::setenv("XDG_RUNTIME_DIR", runtime.c_str(), 1);
  const std::string advice = ": remove it, or name another folder in NVSHARE_RUN_DIR\n";
  fs::create_directory(runtime + "/elsewhere");
  // The user's own, and the card's in it.
  for (const std::string& folder : {runtime + "/nvshare", runtime + "/nvshare/softgpu-mine"}) {
    fs::create_directory_symlink(runtime + "/elsewhere", folder);
    const Outcome link = run({"--card", "mine", "--", "/bin/false"});
    EXPECT_EQ(link.code, kFailed);
    EXPECT_EQ(link.err, "nvshare softgpu: " + folder + " is not a folder" + advice);
    fs::remove(folder);
    fs::create_directory(folder);
    fs::permissions(folder, fs::perms::all);
    const Outcome open = run({"--card", "mine", "--", "/bin/false"});
    EXPECT_EQ(open.code, kFailed);
    EXPECT_EQ(open.err, "nvshare softgpu: " + folder + " can be written to by others" + advice);
    fs::permissions(folder, fs::perms::owner_all);
  }
  fs::remove_all(runtime);
  ::unsetenv("XDG_RUNTIME_DIR");
}

TEST(SoftgpuCommand, TheHelpListsEverySetting) {
  const Outcome outcome = run({"--help"});
  EXPECT_EQ(outcome.code, kGood);
  EXPECT_NE(outcome.out.find("[--] [CMD] [ARGS...]"), std::string::npos) << outcome.out;
  for (const softgpu::Setting& one : softgpu::settings()) {
    EXPECT_NE(outcome.out.find("  " + std::string(one.key) + " "), std::string::npos) << one.key;
  }
}

}  // namespace
}  // namespace nvshare::cli
