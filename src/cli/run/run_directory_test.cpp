#include "cli/run/run_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/unique_fd.h"
#include "cli/run/limits.h"
#include "wire/channel.h"

namespace nvshare::cli {
namespace {

namespace fs = std::filesystem;

class RunDirectories : public ::testing::Test {
 protected:
  RunDirectories() {
    char name[] = "/tmp/nvshare-dirs-XXXXXX";
    folder_ = ::mkdtemp(name);
    for (const char* one : {"/system", "/runtime", "/tmp"}) fs::create_directory(folder_ + one);
    around_.user_runtime = folder_ + "/runtime";
    around_.system = folder_ + "/system";
    around_.temporary = folder_ + "/tmp";
    around_.user = ::geteuid();
  }
  ~RunDirectories() override { fs::remove_all(folder_); }

  std::string in_tmp() const { return folder_ + "/tmp/nvshare-" + std::to_string(around_.user); }

  std::string folder_;
  Surroundings around_;
};

TEST_F(RunDirectories, WhatIsChosenCountsFirstAndBecomesAbsolute) {
  around_.chosen = "some/where";
  const auto found = find_run_directory(around_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->path, fs::absolute("some/where").string());
  EXPECT_EQ(found->kind, DirectoryKind::Chosen);
}

TEST_F(RunDirectories, TheSystemsIsUsedOnlyWhenItAnswers) {
  const std::string path = around_.system + "/scheduler.sock";
  EXPECT_EQ(find_run_directory(around_)->path, folder_ + "/runtime/nvshare");
  EXPECT_EQ(find_run_directory(around_)->silent, "");
  {
    const UniqueFd listening(wire::listen_at(path.c_str(), 0666));
    ASSERT_TRUE(listening);
    EXPECT_EQ(find_run_directory(around_)->path, around_.system);
    EXPECT_EQ(find_run_directory(around_)->kind, DirectoryKind::System);
  }
  // It has ended, and its socket is still there.
  EXPECT_EQ(find_run_directory(around_)->kind, DirectoryKind::Private);
  EXPECT_EQ(find_run_directory(around_)->silent, around_.system);
}

TEST_F(RunDirectories, AChosenOneIsSilentWhenItsSchedulerServedAllUsers) {
  around_.chosen = folder_ + "/system";
  const std::string path = *around_.chosen + "/scheduler.sock";
  EXPECT_EQ(find_run_directory(around_)->silent, "") << "there was none";
  for (const unsigned mode : {0666u, 0600u}) {
    {
      const UniqueFd listening(wire::listen_at(path.c_str(), mode));
      ASSERT_TRUE(listening);
      EXPECT_EQ(find_run_directory(around_)->silent, "");
    }
    const std::string silent = mode == 0666 ? *around_.chosen : "";
    EXPECT_EQ(find_run_directory(around_)->silent, silent) << "a private one is not waited for";
    EXPECT_EQ(find_run_directory(around_)->path, *around_.chosen);
  }
}

TEST_F(RunDirectories, TheUsersRuntimeFolderMustBeHis) {
  around_.user_runtime = folder_ + "/nowhere";
  EXPECT_EQ(private_directory(around_), in_tmp());
  around_.user_runtime = std::nullopt;
  EXPECT_EQ(private_directory(around_), in_tmp());
  around_.user_runtime = "runtime";
  EXPECT_EQ(private_directory(around_), in_tmp());
  fs::create_directory_symlink(folder_ + "/runtime", folder_ + "/link");
  around_.user_runtime = folder_ + "/link";
  EXPECT_EQ(private_directory(around_), in_tmp());
  around_.user_runtime = folder_ + "/runtime";
  around_.user += 1;
  EXPECT_EQ(private_directory(around_), in_tmp());
}

TEST_F(RunDirectories, AFolderThatSomebodyElsePreparedIsRefused) {
  around_.user_runtime = std::nullopt;
  EXPECT_TRUE(find_run_directory(around_)) << "it need not be there";
  fs::create_directory_symlink(folder_ + "/runtime", in_tmp());
  ASSERT_FALSE(find_run_directory(around_));
  EXPECT_NE(find_run_directory(around_).error().message.find("is not a folder"), std::string::npos);
  fs::remove(in_tmp());
  fs::create_directory(in_tmp());
  ::chmod(in_tmp().c_str(), 0770);
  EXPECT_NE(find_run_directory(around_).error().message.find("can be written to by others"),
            std::string::npos);
  ::chmod(in_tmp().c_str(), 0755);
  EXPECT_TRUE(find_run_directory(around_));
  EXPECT_FALSE(check_private(in_tmp(), around_.user + 1));
}

TEST_F(RunDirectories, AFolderIsMadeForTheUserAlone) {
  ASSERT_TRUE(make_private(in_tmp(), around_.user));
  struct stat found {};
  ASSERT_EQ(::stat(in_tmp().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  EXPECT_TRUE(make_private(in_tmp(), around_.user)) << "and used again";
  EXPECT_FALSE(make_private(folder_ + "/nowhere/deeper", around_.user));
}

TEST(Limits, DefaultNamesAreNames) {
  EXPECT_EQ(default_name("/usr/bin/python3", 42), "python3-42");
  EXPECT_EQ(default_name("my program", 42), "my_program-42");
  EXPECT_EQ(default_name("/", 42), "program-42");
  EXPECT_EQ(default_name("./-x", 42), "run--x-42");
  EXPECT_EQ(default_name("user-tool", 42), "run-user-tool-42");
  EXPECT_EQ(default_name("user", 42), "run-user-42") << "for user-42 is a user";
  EXPECT_EQ(default_name(std::string(200, 'x'), 4194304), std::string(55, 'x') + "-4194304");
}

}  // namespace
}  // namespace nvshare::cli
