#include "daemon/serve/identity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "daemon/serve/testing.h"

namespace nvshare::daemon {
namespace {

const std::string kId = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

TEST(Stat, TheParentIsFoundWhateverTheNameIs) {
  EXPECT_EQ(parent_in_stat("12 (bash) S 7 12 12 0"), 7);
  EXPECT_EQ(parent_in_stat("12 (a) b) S 99 (x) R 7 1 2"), 7) << "the last parenthesis counts";
  EXPECT_EQ(parent_in_stat("12 () R 0 0"), 0);
  for (const char* bad :
       {"", "12", "12 (bash)", "12 (bash) S", "12 (bash) S x", "12 (bash) S -4"}) {
    EXPECT_FALSE(parent_in_stat(bad)) << bad;
  }
}

TEST(Stat, TheStartIsTheTwentySecondField) {
  const std::string text =
      "12 (a) b) S 7 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 55443 1 2 18446744073709551615";
  EXPECT_EQ(start_in_stat(text), 55443u);
  for (const char* bad : {"", "12 (bash) S 7", "12 (x) 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"}) {
    EXPECT_FALSE(start_in_stat(bad)) << bad;
  }
}

TEST(Cgroup, TheGroupIsThatOfTheSecondHierarchy) {
  EXPECT_EQ(group_in_cgroup("9:name=systemd:/x\n4:memory:/y\n0::/a/b\n"), "/a/b");
  EXPECT_EQ(group_in_cgroup("0::/\n"), "/");
  EXPECT_FALSE(group_in_cgroup("4:memory:/y\n"));
  EXPECT_FALSE(group_in_cgroup(""));
}

TEST(Cgroup, ContainersAreFoundWhoeverMadeThem) {
  const std::vector<std::string> paths{
      "/docker/" + kId,
      "/system.slice/docker-" + kId + ".scope",
      "/machine.slice/libpod-" + kId + ".scope/container",
      "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1234_5678.slice/"
      "cri-containerd-" +
          kId + ".scope",
      "/kubepods.slice/kubepods-pod12.slice/crio-" + kId + ".scope",
      "/kubepods/burstable/pod0b1d2c3a-1111-2222-3333-444455556666/" + kId,
      "/../../system.slice/containerd.service/kubepods-pod12.slice:cri-containerd:" + kId,
  };
  for (std::size_t i = 0; i + 1 < paths.size(); ++i) {
    EXPECT_EQ(container_in_cgroup("0::" + paths[i] + "\n"), kId) << paths[i];
  }
  EXPECT_EQ(container_in_cgroup("12:memory:/docker/" + kId + "\n11:cpu:/\n"), kId);
  EXPECT_EQ(container_in_cgroup("0::/lxc.payload.web1/init.scope\n"), "web1");
  EXPECT_EQ(container_in_cgroup("3:devices:/lxc/web1\n"), "web1");
}

TEST(Cgroup, OfNestedOnesTheOuterCounts) {
  const std::string other(64, 'f');
  EXPECT_EQ(container_in_cgroup("0::/docker/" + kId + "/docker/" + other + "\n"), kId);
}

// systemd-run --user --scope --unit=docker-ID is everybody's to do.
TEST(Cgroup, WhatAUserHasMadeIsNoContainer) {
  const std::string scope = "docker-" + kId + ".scope";
  const std::string slice = "0::/user.slice/user-1000.slice/";
  EXPECT_FALSE(container_in_cgroup(slice + "user@1000.service/app.slice/" + scope + "\n"));
  EXPECT_FALSE(container_in_cgroup(slice + scope + "\n"));
  EXPECT_FALSE(container_in_cgroup("0::/user@1000.service/" + scope + "\n"));
  EXPECT_FALSE(container_in_cgroup(slice + "lxc.payload.web1\n"));
  EXPECT_EQ(container_in_cgroup("0::/user-made.slice/" + scope + "\n"), kId) << "nobody's number";
  EXPECT_EQ(container_in_cgroup("0::/docker/" + kId + "/user.slice/user-1000.slice\n"), kId)
      << "a user inside a container";
}

TEST(Cgroup, WhatIsNoContainerIsNone) {
  for (const char* text :
       {"", "0::/\n", "0::/user.slice/user-1000.slice/session-1.scope\n", "nonsense\n", "::\n",
        "0::/system.slice/docker-tooshort.scope\n", "0::/lxc\n", "0::/lxc.payload.\n"}) {
    EXPECT_FALSE(container_in_cgroup(text)) << text;
  }
}

// 30 below 20 below 10 below 1.
struct Table : testing::Test, Picture {
  Table() {
    process(1, 0, "/");
    process(10, 1, "/user.slice");
    process(20, 10, "/user.slice");
    process(30, 20, "/docker/" + kId);
    process(40, 40, "/");  // its own parent: cannot be, must not hang
  }
  // Runs by their keepers, as they were started.
  static Processes::RunAt known(std::map<int, TenantId> runs) {
    return [runs = std::move(runs)](const ProcessKey& process) -> std::optional<TenantId> {
      const auto run = runs.find(process.pid);
      if (run == runs.end() || process.started != kStarted) return std::nullopt;
      return run->second;
    };
  }
  const Processes table = processes();
};

TEST_F(Table, ARunIsFoundAboveItsProcesses) {
  const auto runs = known({{10, TenantId{5}}});
  EXPECT_EQ(*table.run_above(30, runs), TenantId{5});
  EXPECT_EQ(*table.run_above(10, runs), TenantId{5});
  EXPECT_FALSE(*table.run_above(1, runs));
  EXPECT_FALSE(*table.run_above(77, runs)) << "gone";
  EXPECT_FALSE(*table.run_above(0, runs));
  const auto nested = known({{10, TenantId{5}}, {20, TenantId{6}}});
  EXPECT_EQ(*table.run_above(30, nested), TenantId{6});
}

// Nobody leaves a run by starting more processes below one another than are looked at.
TEST_F(Table, WhatIsTooDeepIsNotKnown) {
  for (int pid = 1000; pid < 1200; ++pid) process(pid, pid == 1000 ? 10 : pid - 1, "/");
  const auto runs = known({{10, TenantId{5}}});
  EXPECT_EQ(*table.run_above(1100, runs), TenantId{5});
  EXPECT_FALSE(table.run_above(1199, runs));
  EXPECT_FALSE(table.run_above(40, runs));
}

TEST_F(Table, WhoCannotBeReadIsNotKnown) {
  const auto runs = known({{10, TenantId{5}}});
  std::ofstream(folder_of(20) + "/stat") << "nonsense";
  EXPECT_FALSE(table.run_above(30, runs));
  std::filesystem::remove(folder_of(20) + "/stat");
  std::filesystem::create_directory(folder_of(20) + "/stat");
  EXPECT_FALSE(table.run_above(30, runs)) << "is there, and cannot be read";
  gone(20);
  const auto invisible = table.run_above(30, runs);
  ASSERT_TRUE(invisible);
  EXPECT_FALSE(*invisible);
}

TEST_F(Table, ATenantIsAContainerOrAUser) {
  const TenantName container = table.tenant_of(30, 1000);
  EXPECT_EQ(container.kind, TenantKind::Container);
  EXPECT_EQ(container.name, "container-0123456789ab");
  const TenantName user = table.tenant_of(20, 1000);
  EXPECT_EQ(user.kind, TenantKind::User);
  EXPECT_EQ(user.name, "user-1000");
  EXPECT_EQ(table.tenant_of(77, 1000).name, "user-1000") << "gone already";
  EXPECT_EQ(table.name_of(20), "pro?gram");
  EXPECT_EQ(table.name_of(77), "?");
}

// A process that cannot be looked at shares host memory with no other process.
TEST_F(Table, AHomeIsEmptyWhereTheKernelDoesNotSay) {
  EXPECT_EQ(table.home_of(20, 1000), "") << "no namespaces";
  EXPECT_EQ(table.home_of(77, 1000), "") << "gone already";
  EXPECT_EQ(table.home_of(0, 1000), "");
}

TEST(Processes, ProgramsOfAUserHaveOneHome) {
  const Processes processes;
  const std::string home = processes.home_of(getpid(), 1000);
  EXPECT_NE(home, "");
  EXPECT_EQ(processes.home_of(getppid(), 1000), home);
  EXPECT_NE(processes.home_of(getpid(), 1001), home);
}

TEST(Processes, TheRealOnesAreRead) {
  const Processes processes;
  const auto parent = processes.key_of(getppid());
  ASSERT_TRUE(parent);
  const auto is_parent = [&](const ProcessKey& one) {
    return one == *parent ? std::optional(TenantId{1}) : std::nullopt;
  };
  EXPECT_EQ(*processes.run_above(getpid(), is_parent), TenantId{1});
  // Both may start in one tick of the clock.
  EXPECT_LE(parent->started, processes.key_of(getpid())->started);
  EXPECT_NE(processes.name_of(getpid()), "?");
}

}  // namespace
}  // namespace nvshare::daemon
