#include "daemon/settings_tables.h"

#include <gtest/gtest.h>

#include "daemon/settings.h"

namespace nvshare::daemon {
namespace {

#if NVSHARE_HAVE_TOML

Loaded load(std::string_view file) {
  NameLookup lookup;
  lookup.user = [](const std::string& name) {
    return name == "alice" ? std::optional<std::uint32_t>(1000) : std::nullopt;
  };
  lookup.group = [](const std::string& name) {
    return name == "students" ? std::optional<std::uint32_t>(70) : std::nullopt;
  };
  return load_settings(
      file, "scheduler.toml", [](const char*) -> const char* { return nullptr; }, lookup);
}

constexpr std::string_view kAll = R"(
turn = "7ms"
[users.alice]
cores = 40
memory = "8Gi"
priority = 2
[users.0]
cores = 100
[groups.students]
cores = 20
[containers."3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a"]
memory = "4Gi"
[containers."my box"]
memory = "0"
[pods."0b1d2c3a-1111-2222-3333-444455556666"]
cores = 30
[cgroups."/system.slice/jupyter.service"]
cores = 60
)";

TEST(LimitTables, AreReadByNameAndByNumber) {
  const Loaded loaded = load(kAll);
  ASSERT_TRUE(loaded.problems.empty()) << loaded.problems.front();
  const LimitTables& tables = loaded.settings.tables;
  EXPECT_EQ(loaded.settings.core.turn, 7ms);
  EXPECT_EQ(tables.users.at(1000).limits, (Declaration{40, gib(8), 2}));
  EXPECT_EQ(tables.users.at(0).limits, (Declaration{100, {}, {}}));
  EXPECT_EQ(tables.groups.at(70).limits, (Declaration{20, {}, {}}));
  EXPECT_EQ(tables.named.at("container-3f2a3f2a3f2a").limits, (Declaration{{}, gib(4), {}}));
  EXPECT_EQ(tables.named.at("container-my_box").limits, (Declaration{{}, Bytes{0}, {}}));
  EXPECT_EQ(tables.named.at("pod-0b1d2c3a-1111-2222-3333-444455556666").limits,
            (Declaration{30, {}, {}}));
  EXPECT_EQ(tables.cgroups(), std::vector<std::string>{"/system.slice/jupyter.service"});
}

TEST(LimitTables, CgroupsDoNothingWithoutCgroup2) {
  const LimitTables tables = load(kAll).settings.tables;
  EXPECT_EQ(
      without_effect(tables, "4:memory:/system.slice\n1:name=systemd:/system.slice\n"),
      "the [cgroups] tables do nothing: this machine has cgroup v1 alone, and they need cgroup2");
  EXPECT_EQ(without_effect(tables, "0::/system.slice\n"), "");
  EXPECT_EQ(without_effect(tables, "1:name=systemd:/system.slice\n0::/system.slice\n"), "");
  EXPECT_EQ(without_effect(load("[users.alice]\ncores = 40\n").settings.tables, "1:cpu:/\n"), "");
}

TEST(LimitTables, WhatIsPrintedIsRead) {
  Settings settings = load(kAll).settings;
  settings.tables.named["container-a_b___"] = {"a\"b\\\n\x7f", {1, {}, {}}};
  const Loaded again = load(to_file(settings));
  ASSERT_TRUE(again.problems.empty()) << again.problems.front();
  EXPECT_EQ(again.settings.tables, settings.tables);
}

TEST(LimitTables, EveryProblemHasItsPlace) {
  const Loaded loaded = load(
      "[users.bob]\ncores = 40\n"
      "[users.alice]\ncores = 0\nmemory = \"1XB\"\npriority = 11\ncors = 5\n"
      "[users.1000]\ncores = 3\n"
      "[groups.staff]\n"
      "[groups.4294967295]\n"
      "[containers]\nx = 5\n\"\" = {}\n");
  std::string all;
  for (const std::string& one : loaded.problems) all += one + "\n";
  EXPECT_EQ(loaded.problems.size(), 10u) << all;
  for (const char* expected : {
           "scheduler.toml:1:8: users.bob: this machine has no user 'bob'\n",
           "scheduler.toml:4:9: users.alice.cores: 0 is not from 1 to 100\n",
           "scheduler.toml:5:10: users.alice.memory: ",
           "scheduler.toml:6:12: users.alice.priority: 11 is not from -10 to 10\n",
           "scheduler.toml:7:1: users.alice.cors: unknown key; did you mean 'cores'?\n",
           "users.alice: is the same as users.1000\n",
           "groups.staff: this machine has no group 'staff'\n",
           "groups.4294967295: ",
           "scheduler.toml:13:5: containers.x: is a whole number, not a table\n",
           "containers.: the container's id is missing\n",
       }) {
    EXPECT_NE(all.find(expected), std::string::npos) << expected << "not in\n" << all;
  }
}

TEST(LimitTables, TheIdOfAContainerIsChecked) {
  const std::string id(64, 'a');
  const auto problem = [](const std::string& keys) {
    const Loaded loaded = load("[containers]\n" + keys);
    EXPECT_LE(loaded.problems.size(), 1u);
    return loaded.problems.empty() ? "" : loaded.problems[0];
  };
  const auto table = [](const std::string& key) { return "\"" + key + "\" = { cores = 5 }\n"; };
  for (const std::string& good : {id, id.substr(0, 12), "container-" + id.substr(0, 12),
                                  std::string("cafe"), std::string("web-server-number-one")}) {
    EXPECT_EQ(problem(table(good)), "");
  }
  for (const std::string& bad : {id.substr(1), id.substr(0, 13), id + "a", "G" + id.substr(1),
                                 "A" + id.substr(1), std::string("3F2A9C01D4E7")}) {
    EXPECT_EQ(
        problem(table(bad)),
        "scheduler.toml:2:1: containers." + bad +
            ": is no container's id: that has 64 letters of 0-9 and a-f; its first 12 will do");
  }
  EXPECT_EQ(problem(table(id) + table(id.substr(0, 63) + "b")),
            "scheduler.toml:3:1: containers." + id.substr(0, 63) + "b: is the same as containers." +
                id + ": of an id only the first 12 letters count");
}

TEST(LimitTables, ASizeThatLacksItsUnitIsAProblem) {
  const Loaded loaded = load("default_memory = \"500\"\n[users.alice]\nmemory = \"500\"\n");
  ASSERT_EQ(loaded.problems.size(), 2u);
  for (const std::string& one : loaded.problems) {
    EXPECT_NE(one.find("'500' is a number of bytes: write 500Mi or 500Gi"), one.npos) << one;
  }
}

TEST(LimitTables, AKindThatIsNoTableIsAProblem) {
  const Loaded loaded = load("users = 5\n");
  ASSERT_EQ(loaded.problems.size(), 1u);
  EXPECT_EQ(loaded.problems[0], "scheduler.toml:1:9: users: is a whole number, not a table");
  EXPECT_EQ(load("user = 5\n").problems.size(), 1u);
}

#endif

TEST(LimitTables, TheStateFileLiesInTheRunDirectoryOrWhereItIsPut) {
  Settings settings;
  settings.run_directory = "/run/here";
  EXPECT_EQ(settings.state_path(), "/run/here/state");
  settings.state_file = "/var/lib/nvshare/state";
  EXPECT_EQ(settings.state_path(), "/var/lib/nvshare/state");
}

}  // namespace
}  // namespace nvshare::daemon
