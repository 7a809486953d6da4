// A service that holds a lease goes before others, and its tenant's limits hold.

#include "core/testing.h"

namespace nvshare::core {
namespace {

TenantId tid(int id) {
  return TenantId{static_cast<std::uint64_t>(id)};
}

class LentPriorityTest : public ::testing::Test {
 protected:
  LentPriorityTest() : core_(turns()) { core_.gpu(0); }
  static Config turns() {
    Config config;
    config.share_mode = ShareMode::Turns;
    return config;
  }
  void tenant(int id, Limits limits, std::optional<int> parent = std::nullopt) {
    core_.step(TenantAdded{tid(id), "t" + std::to_string(id), limits,
                           parent ? std::optional(tid(*parent)) : std::nullopt});
  }
  void client(int id, int of) {
    core_.step(ClientAdded{TestCore::cid(id), tid(of), GpuId{0}});
    clients_.push_back(id);
  }
  void lend(int of, std::optional<int> priority) {
    std::map<int, Duration> had;  // no time passes
    follow(core_.step(PriorityLent{tid(of), GpuId{0}, priority}), had);
  }
  // All clients always have work, and do as they are told. What each of them had, in percent.
  std::map<int, int> shares(Duration duration) {
    std::map<int, Duration> had;
    const Time begin = core_.now;
    for (const int id : clients_) {
      if (core_.state(id) == ClientState::Idle) follow(core_.want(id), had);
    }
    while (core_.now < begin + duration) follow(core_.pass(100us), had);
    for (const auto& [id, since] : running_) had[id] += core_.now - std::max(since, begin);
    std::map<int, int> percent;
    for (const int id : clients_) {
      percent[id] = static_cast<int>((100 * had[id] + duration / 2) / duration);
    }
    begin_ = core_.now;
    return percent;
  }
  int priority(int id) {
    for (const ShareView& share : core_.core.snapshot().shares) {
      if (share.tenant == tid(id)) return share.priority;
    }
    return -100;
  }

  TestCore core_;
  std::vector<int> clients_;

 private:
  void follow(const Decisions& decisions, std::map<int, Duration>& had) {
    for (const Decision& d : decisions) {
      if (const auto* grant = std::get_if<Grant>(&d.action)) {
        running_[static_cast<int>(grant->client.value)] = core_.now;
      } else if (const auto* meter = std::get_if<ReadMeter>(&d.action)) {
        const int id = static_cast<int>(meter->client.value);
        core_.step(Usage{meter->client, core_.now - running_[id]});
      } else if (const auto* drop = std::get_if<Drop>(&d.action)) {
        const int id = static_cast<int>(drop->client.value);
        const Time since = running_[id];
        running_.erase(id);
        had[id] += core_.now - std::max(since, begin_);
        follow(core_.release(id, core_.now - since), had);
      }
    }
  }

  std::map<int, Time> running_;  // since its grant
  Time begin_{};                 // of the present measurement
};

TEST_F(LentPriorityTest, AHolderGoesBeforeTenantsOfItsOwnPriority) {
  tenant(1, {});
  tenant(2, {});
  client(1, 1);
  client(2, 2);
  auto had = shares(2s);
  EXPECT_NEAR(had[1], 50, 5);
  lend(2, 8);
  had = shares(2s);
  EXPECT_GE(had[2], 95);
  lend(2, std::nullopt);
  had = shares(2s);
  EXPECT_NEAR(had[1], 50, 5) << "what the lease gave is neither owed nor saved";
}

TEST_F(LentPriorityTest, ALowerOneThanItsOwnChangesNothing) {
  tenant(1, {.memory = {}, .priority = 3});
  client(1, 1);
  lend(1, -6);
  EXPECT_EQ(priority(1), 3);
  lend(1, 8);
  EXPECT_EQ(priority(1), 8);
  core_.step(LimitsChanged{tid(1), {.memory = {}, .priority = 5}});
  EXPECT_EQ(priority(1), 8) << "until it is taken back";
  lend(1, std::nullopt);
  EXPECT_EQ(priority(1), 5);
}

TEST_F(LentPriorityTest, TheHoldersLimitHolds) {
  tenant(1, {.core_percent = 30, .memory = {}});
  tenant(2, {});
  client(1, 1);
  client(2, 2);
  lend(1, 8);
  const auto had = shares(5s);
  EXPECT_NEAR(had.at(1), 30, 3);
  EXPECT_NEAR(had.at(2), 70, 4);
}

// Of a user without a limit.
TEST_F(LentPriorityTest, APartGoesBeforeOtherUsersAndItsSiblingsDoNot) {
  tenant(1, {});
  tenant(2, {}, 1);
  tenant(3, {}, 1);
  tenant(4, {});
  client(2, 2);
  client(3, 3);
  client(4, 4);
  auto had = shares(2s);
  EXPECT_NEAR(had[4], 50, 5);
  lend(2, 8);
  EXPECT_EQ(priority(3), 0);
  EXPECT_EQ(priority(4), 0);
  had = shares(2s);
  EXPECT_GE(had[2], 95);
}

TEST_F(LentPriorityTest, APartOfATenantWithALimitGoesBeforeOthersWithinThatLimit) {
  tenant(1, {.core_percent = 40, .memory = {}});
  tenant(2, {}, 1);
  tenant(3, {.memory = {}, .priority = 5}, 1);
  tenant(4, {});
  client(2, 2);
  client(3, 3);
  client(4, 4);
  lend(2, 8);
  EXPECT_EQ(priority(1), 8) << "the limit's owner competes for its part";
  EXPECT_EQ(priority(3), 0) << "no higher than its parent's own";
  const auto had = shares(5s);
  EXPECT_NEAR(had.at(2), 40, 4);
  EXPECT_LE(had.at(3), 2);
  EXPECT_NEAR(had.at(4), 60, 4);
  lend(2, std::nullopt);
  EXPECT_EQ(priority(1), 0);
}

TEST_F(LentPriorityTest, ClientsBesidePartsHaveWhatIsLentToTheirTenantAlone) {
  tenant(1, {});
  client(1, 1);
  lend(1, 8);
  tenant(2, {}, 1);
  client(2, 2);
  auto had = shares(2s);
  EXPECT_GE(had[1], 95) << "the tenant became a parent while it held a lease";
  lend(1, std::nullopt);
  lend(2, 8);
  had = shares(2s);
  EXPECT_GE(had[2], 95);
}

TEST_F(LentPriorityTest, WhatMakesNoSenseIsRefused) {
  tenant(1, {});
  EXPECT_EQ(core_.refused(PriorityLent{tid(9), GpuId{0}, 8}), "tenant 9 is not known");
  EXPECT_EQ(core_.refused(PriorityLent{tid(1), GpuId{9}, 8}), "gpu 9 is not known");
  EXPECT_EQ(core_.refused(PriorityLent{tid(1), GpuId{0}, 8}),
            "this tenant has never had a client on this GPU");
  client(1, 1);
  EXPECT_EQ(core_.refused(PriorityLent{tid(1), GpuId{0}, 11}), "priority 11 is not from -10 to 10");
}

TEST_F(LentPriorityTest, ATenantThatEndsTakesItAlong) {
  tenant(1, {.core_percent = 40, .memory = {}});
  tenant(2, {}, 1);
  tenant(3, {}, 1);
  client(2, 2);
  client(3, 3);
  lend(2, 8);
  core_.step(ClientGone{TestCore::cid(2)});
  core_.step(TenantRemoved{tid(2)});
  EXPECT_EQ(priority(1), 0);
}

}  // namespace
}  // namespace nvshare::core
