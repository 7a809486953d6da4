#include "daemon/serve/run_groups.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "daemon/serve/identity.h"

namespace nvshare::daemon {
namespace {

TEST(RunGroups, AreFoundInBothLayouts) {
  const auto hybrid = RunGroups::find(
      "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
      "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
  ASSERT_TRUE(hybrid);
  EXPECT_EQ(hybrid->folder(), "/sys/fs/cgroup/unified");
  const auto unified =
      RunGroups::find("30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  ASSERT_TRUE(unified);
  EXPECT_EQ(unified->folder(), "/sys/fs/cgroup");
  EXPECT_FALSE(RunGroups::find("35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw\n"));
  EXPECT_FALSE(RunGroups::find(""));
}

TEST(RunGroups, InsideIsByWholeNames) {
  EXPECT_TRUE(is_inside("/a/b", "/a"));
  EXPECT_TRUE(is_inside("/a", "/a"));
  EXPECT_TRUE(is_inside("/a", "/"));
  EXPECT_FALSE(is_inside("/ab", "/a"));
  EXPECT_FALSE(is_inside("/", "/a"));
  EXPECT_FALSE(is_inside("/a", ""));
}

// With all groups below it, whoever has made them.
void remove_groups(const std::string& folder) {
  for (const auto& one : std::filesystem::directory_iterator(folder)) {
    if (one.is_directory()) remove_groups(one.path());
  }
  EXPECT_EQ(rmdir(folder.c_str()), 0) << folder;
}

// The real ones, below a group of the test's own.
struct RealGroups : testing::Test {
  void SetUp() override {
    std::ifstream file("/proc/self/mountinfo");
    std::ostringstream text;
    text << file.rdbuf();
    groups = RunGroups::find(text.str());
    if (!groups) GTEST_SKIP() << "cgroup2 is not mounted";
    if (geteuid() != 0) GTEST_SKIP() << "only root makes groups";
    child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    own = *processes.group_of(getpid());
    own = (own == "/" ? "" : own) + "/nvshare-test-" + std::to_string(getpid());
    if (!std::filesystem::create_directory(groups->folder() + own)) {
      GTEST_SKIP() << "no group can be made here";
    }
    std::ofstream(groups->folder() + own + "/cgroup.procs") << child;
    ASSERT_EQ(processes.group_of(child), own);
  }
  void TearDown() override {
    end_child();
    if (groups && std::filesystem::exists(folder_of(own))) remove_groups(folder_of(own));
  }
  std::string folder_of(const std::string& group) const { return groups->folder() + group; }
  void end_child() {
    if (child <= 0) return;
    kill(child, SIGKILL);
    waitpid(std::exchange(child, -1), nullptr, 0);
  }

  Processes processes;
  std::optional<RunGroups> groups;
  std::string own;
  pid_t child = -1;
};

TEST_F(RealGroups, AProcessIsMovedBelowWhereItIs) {
  const auto group = groups->make(own, "train", child);
  ASSERT_TRUE(group) << group.error().message;
  EXPECT_EQ(*group, own + "/nvshare-run-train");
  EXPECT_EQ(processes.group_of(child), *group);
  EXPECT_TRUE(groups->is_populated(*group));
  EXPECT_EQ(*groups->make(*group, "train", child), *group) << "it is there already";
  const auto inner = groups->make(*group, "train-2", child);
  ASSERT_TRUE(inner) << inner.error().message;
  EXPECT_EQ(*inner, *group + "/nvshare-run-train-2");
  EXPECT_TRUE(groups->is_populated(*group)) << "by what is below it";
  EXPECT_FALSE(groups->remove(*group)) << "a process is in it";
  end_child();
  EXPECT_FALSE(groups->is_populated(*group));
  EXPECT_TRUE(groups->remove(*group));
  EXPECT_FALSE(std::filesystem::exists(groups->folder() + *group));
  EXPECT_TRUE(groups->remove(*group)) << "gone already";
}

TEST_F(RealGroups, AGroupOfAnotherSchedulerIsLeftAlone) {
  ASSERT_TRUE(std::filesystem::create_directory(groups->folder() + own + "/nvshare-run-train"));
  const auto group = groups->make(own, "train", child);
  ASSERT_TRUE(group) << group.error().message;
  EXPECT_EQ(*group, own + "/nvshare-run-train+2");
  EXPECT_EQ(*groups->make(*group, "train", child), *group) << "its own, after a restart";
}

TEST_F(RealGroups, NoProcessIsMovedOutOfALimit) {
  const std::string elsewhere = own + "/elsewhere";
  ASSERT_TRUE(std::filesystem::create_directory(groups->folder() + elsewhere));
  EXPECT_FALSE(groups->move(own, elsewhere + "/nvshare-run-x", child));
  EXPECT_FALSE(groups->make("/../outside", "x", child)) << "cannot be seen from here";
  EXPECT_EQ(processes.group_of(child), own);
}

TEST_F(RealGroups, LeftoversGoOnceTheyAreEmpty) {
  const auto used = groups->make(own, "used", child);
  ASSERT_TRUE(used);
  const std::string empty = folder_of(*used) + "/nvshare-run-empty";
  ASSERT_TRUE(std::filesystem::create_directories(empty + "/nvshare-run-inner+2"));
  const auto left = groups->remove_leftovers();
  EXPECT_NE(std::find(left.begin(), left.end(), *used), left.end()) << "to be removed later";
  EXPECT_FALSE(std::filesystem::exists(empty));
  EXPECT_TRUE(groups->is_populated(*used));
}

TEST_F(RealGroups, LeftoversThatNoSchedulerMadeStay) {
  for (const char* name : {"/other", "/nvshare-run-", "/nvshare-run-a b", "/nvshare-run-a+99"}) {
    ASSERT_TRUE(std::filesystem::create_directory(folder_of(own + name)));
  }
  const std::string by_a_user = folder_of(own + "/nvshare-run-train");
  ASSERT_TRUE(std::filesystem::create_directories(by_a_user + "/below"));
  ASSERT_EQ(chown(by_a_user.c_str(), 1000, 1000), 0);
  for (const std::string& one : groups->remove_leftovers()) {
    EXPECT_FALSE(is_inside(one, own)) << one << " is to be removed later";
  }
  EXPECT_TRUE(groups->remove(own + "/nvshare-run-train")) << "there is nothing to do";
  EXPECT_TRUE(groups->remove(own + "/other"));
  for (const char* name : {"/other", "/nvshare-run-", "/nvshare-run-a b", "/nvshare-run-a+99",
                           "/nvshare-run-train/below"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_of(own + name))) << name;
  }
}

TEST_F(RealGroups, AGroupOfAUserIsNotTakenForTheRuns) {
  const std::string by_a_user = own + "/nvshare-run-train";
  ASSERT_TRUE(std::filesystem::create_directory(folder_of(by_a_user)));
  ASSERT_EQ(chown(folder_of(by_a_user).c_str(), 1000, 1000), 0);
  std::ofstream(folder_of(by_a_user) + "/cgroup.procs") << child;
  ASSERT_EQ(processes.group_of(child), by_a_user);
  const auto group = groups->make(by_a_user, "train", child);
  ASSERT_TRUE(group) << group.error().message;
  EXPECT_EQ(*group, by_a_user + "/nvshare-run-train");
}

TEST_F(RealGroups, AGroupThatARunHasMadeStaysUntilItsMakerRemovesIt) {
  const auto group = groups->make(own, "train", child);
  ASSERT_TRUE(group) << group.error().message;
  const std::string made = folder_of(*group) + "/made/by/it";
  ASSERT_TRUE(std::filesystem::create_directories(made));
  end_child();
  EXPECT_FALSE(groups->remove(*group));
  const auto left = groups->remove_leftovers();
  EXPECT_NE(std::find(left.begin(), left.end(), *group), left.end()) << "to be removed later";
  EXPECT_TRUE(std::filesystem::exists(made));
  remove_groups(folder_of(*group) + "/made");
  EXPECT_TRUE(groups->remove(*group));
  EXPECT_FALSE(std::filesystem::exists(folder_of(*group)));
}

}  // namespace
}  // namespace nvshare::daemon
