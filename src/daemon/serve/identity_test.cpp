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

std::string names_of(const Result<std::vector<TenantName>>& levels) {
  if (!levels) return levels.error().message;
  std::string all;
  for (const TenantName& level : *levels) all += (all.empty() ? "" : " > ") + level.name;
  return all;
}

TEST_F(Table, ATenantIsAContainerOrAUser) {
  EXPECT_EQ(names_of(table.tenants_of(30, 1000)), "container-0123456789ab");
  EXPECT_EQ(names_of(table.tenants_of(20, 1000)), "user-1000");
  EXPECT_EQ(names_of(table.tenants_of(77, 1000)), "user-1000") << "gone already";
  EXPECT_EQ(names_of(table.tenants_of(0, 1000)), "user-1000") << "not to be seen";
  std::filesystem::remove(folder_of(20) + "/cgroup");
  std::filesystem::create_directory(folder_of(20) + "/cgroup");
  EXPECT_FALSE(table.tenants_of(20, 1000)) << "is there, and cannot be read";
}

TEST_F(Table, TenantsAroundAProcessNest) {
  const std::string pod = "0b1d2c3a-1111-2222-3333-444455556666";
  process(50, 1, "/kubepods/pod" + pod + "/" + kId);
  process(51, 1, "/system.slice/jupyter.service/nvshare-run-a");
  process(52, 1, "/system.slice/jupyter.service/docker/" + kId);
  process(53, 1, "/system.slice/jupyter.service2");
  const Processes all = processes({.is_of_a_user = {},
                                   .user_of = [](std::uint32_t uid) -> Result<std::uint32_t> {
                                     if (uid == 8) return Error{"the directory is away"};
                                     return uid == 7 ? 1000 : uid;
                                   },
                                   .cgroups = {"/system.slice", "/system.slice/jupyter.service"}});
  EXPECT_EQ(names_of(all.tenants_of(50, 0)), "pod-" + pod + " > container-0123456789ab");
  EXPECT_EQ(names_of(all.tenants_of(51, 5)), "cgroup-system.slice-jupyter.service");
  EXPECT_EQ(names_of(all.tenants_of(52, 5)),
            "cgroup-system.slice-jupyter.service > container-0123456789ab");
  EXPECT_EQ(names_of(all.tenants_of(53, 5)), "cgroup-system.slice");
  EXPECT_EQ(names_of(all.tenants_of(20, 7)), "user-1000") << "a number that was given to that user";
  EXPECT_EQ(names_of(all.tenants_of(20, 8)), "the directory is away") << "no user of its own";
  EXPECT_EQ(names_of(all.tenants_of(51, 8)), "cgroup-system.slice-jupyter.service");
  EXPECT_EQ(all.home_of(20, 8), "");
  EXPECT_EQ(names_of(all.tenants_around(20, "", 7, "user-1")), "user-1000");
  EXPECT_EQ(names_of(all.tenants_around(0, "/docker/" + kId, 8, "user-1")),
            "container-0123456789ab");
  EXPECT_EQ(names_of(all.tenants_around(20, "", 8, "user-1000")), "user-1000") << "as it was";
  EXPECT_EQ(names_of(all.tenants_around(20, "", 8, "train")), "the directory is away");
}

TEST_F(Table, PodsAndContainersAreThereWithAnyProcess) {
  const std::string pod = "0b1d2c3a-1111-2222-3333-444455556666";
  process(50, 1, "/kubepods/pod" + pod + "/" + std::string(64, 'a'));
  std::filesystem::create_directory(folder_of(51));  // ends at this moment
  const std::set<std::string> all{"container-0123456789ab", "container-aaaaaaaaaaaa", "pod-" + pod};
  EXPECT_EQ(table.boxes(), all);
  EXPECT_FALSE(Processes("/nowhere").boxes());
}

TEST_F(Table, ProcessesHaveNames) {
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
