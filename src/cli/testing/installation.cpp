#include "cli/testing/installation.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <sstream>

#include "cli/testing/process.h"

namespace nvshare::cli::testing {
namespace {

namespace fs = std::filesystem;

// A link where that is possible, for the program is large. Not a symbolic one: that would show the
// program where it really is.
void put(const fs::path& file, const fs::path& where) {
  std::error_code failed;
  fs::create_hard_link(file, where, failed);
  if (failed) fs::copy_file(file, where);
}

}  // namespace

Installation::Installation() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  tree_ = fs::path(NVSHARE_TEST_TREE) / test->test_suite_name() / test->name();
  fs::remove_all(tree_);
  for (const char* folder : {"bin", "lib", "driver"}) fs::create_directories(tree_ / folder);
  put(NVSHARE_PROGRAM, tree_ / "bin/nvshare");
  put(NVSHARE_FAKE_SCHEDULER, tree_ / "bin/nvshare-scheduler");
  put(NVSHARE_FAKE_LIBRARY, tree_ / "lib/libnvshare.so");
  put(NVSHARE_FAKE_LIBRARY, tree_ / "driver/libcuda.so.1");
  char name[] = "/tmp/nvshare-run-XXXXXX";
  outer_ = ::mkdtemp(name);
  run_directory_ = outer_ + "/run";
}

Installation::~Installation() {
  for (const pid_t pid : schedulers()) ::kill(pid, SIGKILL);
  fs::remove_all(outer_);
  fs::remove_all(tree_);
}

std::vector<std::string> Installation::variables() const {
  return {"NVSHARE_RUN_DIR=" + run_directory_, "LD_LIBRARY_PATH=" + path("driver")};
}

std::vector<pid_t> Installation::schedulers() const {
  std::vector<pid_t> all;
  std::istringstream lines(contents(run_directory_ + "/starts"));
  for (pid_t pid; lines >> pid;) all.push_back(pid);
  return all;
}

std::string Installation::runs() const {
  return contents(run_directory_ + "/runs");
}

}  // namespace nvshare::cli::testing
