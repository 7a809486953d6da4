// What a lease does to the memory and the turns of its holder's client.

#include "core/testing.h"

namespace nvshare::core {
namespace {

// Two clients of 12 GiB on a GPU that can safely hold 14.4. The first one runs.
struct LeaseMemoryTest : testing::Test {
  LeaseMemoryTest() { t.two_that_do_not_fit(); }
  void lease(int id, ClientLease lease) { made = t.step(ClientLeased{TestCore::cid(id), lease}); }
  void lend(int id, int priority) {
    t.step(PriorityLent{TenantId{static_cast<std::uint64_t>(id)}, GpuId{0}, priority});
  }
  // Clients stop and move as they are told; how long it took until the client had all its memory.
  Duration until_complete(int id, Duration most) {
    const Time begin = t.now;
    Decisions told = made;
    while (t.now < begin + most) {
      for (int round = 0; round < 8; ++round) told = follow(told);
      if (t.view(id).resident == t.view(id).allocated) return t.now - begin;
      told = t.pass(10ms);
    }
    return most;
  }
  Decisions follow(const Decisions& told) {
    Decisions next;
    const auto add = [&](const Decisions& more) {
      next.insert(next.end(), more.begin(), more.end());
    };
    for (const Decision& d : told) {
      if (const auto* drop = std::get_if<Drop>(&d.action)) {
        add(t.step(Released{drop->client, 1ms, true}));
      } else if (const auto* out = std::get_if<SendOut>(&d.action)) {
        add(t.moved({out->client, t.core.view(out->client)->resident - out->bytes, 100ms}));
      } else if (const auto* in = std::get_if<BringIn>(&d.action)) {
        add(t.moved({in->client, t.core.view(in->client)->resident + in->bytes, 100ms}));
      }
    }
    return next;
  }
  TestCore t;
  Decisions made;
};

TEST_F(LeaseMemoryTest, WithoutALeaseAnIdleClientsMemoryStaysAway) {
  EXPECT_EQ(until_complete(2, 200s), 200s);
  EXPECT_EQ(t.state(2), ClientState::Idle);
}

TEST_F(LeaseMemoryTest, AHoldersMemoryComesBeforeItHasWork) {
  lend(2, 8);
  lease(2, ClientLease::Held);
  EXPECT_EQ(t.state(2), ClientState::Waiting);
  EXPECT_LT(until_complete(2, 200s), 5s);
  EXPECT_EQ(t.state(2), ClientState::Idle) << "its memory is there, and it has no work yet";
}

// Without a lease the second client waits until the quantum of the first one is over: ten seconds.
TEST_F(LeaseMemoryTest, AHolderDoesNotWaitForTheQuantumOfALowerPriority) {
  made = t.want(2);
  EXPECT_GT(until_complete(2, 200s), 9s);
}

TEST_F(LeaseMemoryTest, AHolderOfTheSamePriorityWaitsForTheQuantum) {
  lease(2, ClientLease::Held);
  EXPECT_GT(until_complete(2, 200s), 9s);
}

TEST_F(LeaseMemoryTest, AHolderThatWaitsAlreadyMovesUpInTheQueue) {
  t.client(3);
  t.allocate(3, gib(12));
  t.want(3);
  t.pass(5s);
  t.want(2);
  lend(2, 8);
  lease(2, ClientLease::Held);
  until_complete(2, 30s);
  EXPECT_EQ(t.view(2).resident, gib(12));
  EXPECT_LT(t.view(3).resident, gib(12)) << "it has waited for longer";
}

TEST_F(LeaseMemoryTest, AHoldersMemoryStaysWhileItHasNoWork) {
  lend(2, 8);
  lease(2, ClientLease::Held);
  until_complete(2, 30s);
  // It is idle for longer than a move takes, and the first client waits for the room.
  EXPECT_TRUE(only<SendOut>(t.pass(5s)).empty());
  EXPECT_EQ(t.view(2).resident, gib(12));
  made = t.step(ClientLeased{TestCore::cid(2), ClientLease::None});
  until_complete(1, 60s);
  EXPECT_EQ(t.view(1).resident, gib(12)) << "its lease is given back, and the room is free";
}

TEST_F(LeaseMemoryTest, AClientWhoseLeaseIsOverStopsAtOnce) {
  lease(1, ClientLease::Held);
  EXPECT_EQ(t.state(1), ClientState::Running);
  lease(1, ClientLease::Over);
  ASSERT_EQ(only<Drop>(made).size(), 1u);
  EXPECT_TRUE(only<Grant>(t.release(1, 1ms)).empty());
  EXPECT_TRUE(only<Grant>(t.pass(10s)).empty()) << "although nobody else has work";
  EXPECT_NE(t.why(1).find("its lease is over"), std::string::npos) << t.why(1);
  lease(1, ClientLease::None);
  EXPECT_EQ(only<Grant>(made).size(), 1u);
}

TEST_F(LeaseMemoryTest, AClientWhoseLeaseIsOverMakesRoom) {
  lease(1, ClientLease::Over);
  t.release(1, 1ms);
  made = t.want(2);
  EXPECT_LT(until_complete(2, 200s), 5s) << "long before the quantum of the first is over";
}

TEST_F(LeaseMemoryTest, ALeaseWakesASleeper) {
  t.step(TenantSleeps{TenantId{2}, true, false});
  lend(2, 8);
  lease(2, ClientLease::Held);
  EXPECT_LT(until_complete(2, 200s), 5s);
  t.step(TenantSleeps{TenantId{2}, true, false});
  EXPECT_EQ(t.view(2).resident, gib(12)) << "a holder is not put to sleep";
}

TEST_F(LeaseMemoryTest, AnUnknownClientIsRefused) {
  EXPECT_EQ(t.refused(ClientLeased{TestCore::cid(9), ClientLease::Held}), "client 9 is not known");
}

}  // namespace
}  // namespace nvshare::core
