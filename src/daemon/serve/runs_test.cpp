#include "daemon/serve/runs.h"

#include <gtest/gtest.h>

#include <fstream>

#include "daemon/serve/testing.h"

namespace nvshare::daemon {
namespace {

constexpr TenantId kUser{1};
constexpr TenantId kOuter{2};
constexpr TenantId kInner{3};

// A user with a run, and a run inside that.
struct RunsTest : testing::Test, Picture {
  RunsTest() {
    tenants[kUser].id = kUser;
    tenants[kOuter].id = kOuter;
    tenants[kOuter].parent = kUser;
    tenants[kInner].id = kInner;
    tenants[kInner].parent = kOuter;
    process(1, 0, "/");
  }
  std::optional<TenantId> run_of(int pid, Runs::Asked asked = {}) {
    const auto run = runs.run_of(pid, tenants, asked);
    EXPECT_TRUE(run) << run.error().message;
    return run ? *run : std::nullopt;
  }

  TenantMap tenants;
  const Processes table = processes();
  Runs runs{table};
};

TEST_F(RunsTest, AKeeperIsKnownByItsStartToo) {
  runs.begin(kOuter, process(10, 1, "/"), "");
  process(20, 10, "/");
  EXPECT_EQ(run_of(10), kOuter);
  EXPECT_EQ(run_of(20), kOuter);
  EXPECT_EQ(run_of(1), std::nullopt);
  process(10, 1, "/", 8);  // the number was given again
  EXPECT_EQ(run_of(10), std::nullopt);
  EXPECT_EQ(run_of(20), std::nullopt);
}

TEST_F(RunsTest, AProcessInTheGroupOfARunIsInTheRun) {
  runs.begin(kOuter, process(10, 1, "/a/nvshare-run-x"), "/a/nvshare-run-x");
  process(20, 1, "/a/nvshare-run-x");
  process(21, 1, "/a/nvshare-run-x/made/by/it");
  process(22, 1, "/a/nvshare-run-xy");
  process(23, 1, "/a");
  EXPECT_EQ(run_of(20), kOuter) << "its keeper is gone, and it has another parent";
  EXPECT_EQ(run_of(21), kOuter);
  EXPECT_EQ(run_of(22), std::nullopt) << "a group of another name";
  EXPECT_EQ(run_of(23), std::nullopt);
  process(24, 10, "/a");
  EXPECT_EQ(run_of(24), kOuter) << "has left the group, but not its keeper";
}

TEST_F(RunsTest, TheInnermostRunCountsWhateverTellsOfIt) {
  runs.begin(kOuter, process(10, 1, "/o"), "/o");
  runs.begin(kInner, process(20, 10, "/o/i"), "/o/i");
  process(30, 20, "/o/i");
  process(31, 10, "/o/i");
  process(32, 20, "/o");
  EXPECT_EQ(run_of(30), kInner);
  EXPECT_EQ(run_of(31), kInner);
  EXPECT_EQ(run_of(32), kOuter) << "all runs have groups, and these are believed first";
  runs.forget(kInner);
  EXPECT_EQ(run_of(30), kOuter);
  runs.begin(kInner, process(20, 10, "/o"), "");
  EXPECT_EQ(run_of(32), kInner) << "the inner one has no group";
  EXPECT_EQ(run_of(10), kOuter);
  EXPECT_EQ(run_of(20, {.except = kInner}), kOuter);
}

TEST_F(RunsTest, AGroupLiesInTheInnermostRunAroundIt) {
  runs.begin(kOuter, process(10, 1, "/o"), "/o");
  runs.begin(kInner, process(20, 10, "/o/i"), "/o/i");
  EXPECT_EQ(runs.run_of_group("/o/i/x"), kInner);
  EXPECT_EQ(runs.run_of_group("/o/i/x", kInner), kOuter);
  EXPECT_EQ(runs.run_of_group("/o/x"), kOuter);
  EXPECT_EQ(runs.run_of_group("/x"), std::nullopt);
  EXPECT_EQ(runs.run_of_group(""), std::nullopt);
}

TEST_F(RunsTest, ChildrenOfAClientStayInItsRunWithoutTheKeeper) {
  runs.begin(kOuter, process(10, 1, "/"), "");
  const ProcessKey client = process(20, 10, "/");
  process(30, 20, "/");
  runs.joined(kOuter, client);
  runs.joined(kOuter, client);  // on a second GPU
  gone(10);
  process(20, 1, "/");
  EXPECT_EQ(run_of(20), kOuter);
  EXPECT_EQ(run_of(30), kOuter);
  EXPECT_EQ(run_of(30, {.clients = false}), std::nullopt);
  runs.left(client);
  EXPECT_EQ(run_of(30), kOuter) << "still on a GPU";
  runs.left(client);
  EXPECT_EQ(run_of(30), std::nullopt);
}

TEST_F(RunsTest, OfTheRunsOfOneKeeperTheLastIsTheInnermost) {
  const ProcessKey keeper = process(10, 1, "/");
  runs.begin(kOuter, keeper, "");
  runs.begin(kInner, keeper, "");
  EXPECT_EQ(run_of(10), kInner);
  EXPECT_EQ(run_of(10, {.except = kInner}), kOuter);
  runs.forget(kInner);
  EXPECT_EQ(run_of(10), kOuter);
}

TEST_F(RunsTest, WhatCannotBeReadIsNotKnown) {
  process(20, 1, "/");
  EXPECT_EQ(run_of(20), std::nullopt) << "there are no runs";
  runs.begin(kOuter, process(10, 1, "/"), "");
  std::ofstream(folder_of(20) + "/stat") << "nonsense";
  EXPECT_FALSE(runs.run_of(20, tenants));
}

}  // namespace
}  // namespace nvshare::daemon
