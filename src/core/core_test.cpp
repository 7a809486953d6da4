#include "core/core.h"

#include <malloc.h>

#include <deque>

#include "core/testing.h"

namespace nvshare::core {
namespace {

TEST(Core, RefusesWhatMakesNoSense) {
  TestCore t;
  EXPECT_EQ(t.refused(TenantAdded{TenantId{1}, "a", {.core_percent = 0, .memory = {}}}),
            "core limit 0 is not from 1 to 100");
  EXPECT_EQ(t.refused(TenantAdded{TenantId{1}, "a", {.core_percent = 101, .memory = {}}}),
            "core limit 101 is not from 1 to 100");
  EXPECT_EQ(t.refused(TenantAdded{TenantId{1}, "a", {.memory = Bytes{-5}}}),
            "memory limit -5 is not above 0");
  EXPECT_EQ(t.refused(GpuAdded{GpuId{0}, Bytes{0}}), "gpu 0 has no memory");
  EXPECT_EQ(t.refused(ClientAdded{ClientId{1}, TenantId{1}, {}}), "tenant 1 is not known");
  t.gpu(0);
  EXPECT_EQ(t.refused(GpuAdded{GpuId{0}, gib(1)}), "gpu 0 is there already");
  t.client(1);
  EXPECT_EQ(t.refused(ClientAdded{ClientId{1}, TenantId{1}, {}}), "client 1 is there already");
  EXPECT_EQ(t.refused(ClientAdded{ClientId{2}, TenantId{1}, GpuId{7}}), "gpu 7 is not known");
  EXPECT_EQ(t.refused(Released{ClientId{1}, 1ms, false}), "client 1 holds no grant");
  EXPECT_EQ(t.refused(WorkRequested{ClientId{9}}), "client 9 is not known");
  t.want(1);
  EXPECT_EQ(t.refused(WorkRequested{ClientId{1}}), "client 1 has asked already");
  EXPECT_EQ(t.refused(TenantRemoved{TenantId{1}}), "tenant 1 still has 1 clients");
  EXPECT_EQ(t.refused(MemoryMoved{ClientId{1}, gib(1), 1ms}),
            "client 1 moved memory it was not told to move");
  EXPECT_EQ(
      t.refused(MemoryChanged{ClientId{1}, gib(1), Bytes{}, gib(2)}),
      "client 1 reports pinned 0 <= resident 2147483648 <= allocated 1073741824, which is not so");
  t.now += 5ms;
  t.step(Tick{});
  t.now -= 1ms;
  EXPECT_EQ(t.refused(Tick{}), "time goes back by 1.0ms");
}

TEST(Core, PlacesOnAnIdleGpuBeforeQueueing) {
  TestCore t;
  t.gpu(0);
  t.gpu(1);
  t.tenant(1);
  t.tenant(2);
  EXPECT_EQ(only<Place>(t.step(ClientAdded{ClientId{1}, TenantId{1}, {}})).at(0).gpu, GpuId{0});
  t.allocate(1, gib(12));
  t.want(1);
  EXPECT_EQ(only<Place>(t.step(ClientAdded{ClientId{2}, TenantId{2}, {}})).at(0).gpu, GpuId{1});
  EXPECT_EQ(only<Grant>(t.want(2)).size(), 1u);
}

TEST(Core, PlacesWhereMostMemoryIsFreeWhenAllAreAlike) {
  TestCore t;
  t.gpu(0, gib(16));
  t.gpu(1, gib(80));
  t.tenant(1);
  EXPECT_EQ(only<Place>(t.step(ClientAdded{ClientId{1}, TenantId{1}, {}})).at(0).gpu, GpuId{1});
}

TEST(Core, ALoneClientWithoutALimitRunsUntouched) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  const auto grants = only<Grant>(t.want(1));
  ASSERT_EQ(grants.size(), 1u);
  EXPECT_EQ(grants[0].budget, std::nullopt);
  EXPECT_TRUE(t.pass(1h).empty());
  EXPECT_EQ(t.ticks, 0);
  EXPECT_EQ(t.why(1), "runs, and nobody else wants the GPU");
}

TEST(Core, SaysWhyAClientWaits) {
  TestCore t;
  t.gpu(0);
  t.client(1, 25);
  t.client(2);
  EXPECT_EQ(t.why(1), "has no work for the GPU");
  t.want(1);
  t.want(2);
  EXPECT_EQ(t.why(2), "waits for its turn; 1 before it");
  t.step(TenantPaused{TenantId{2}, true});
  EXPECT_EQ(t.why(2), "is paused; resume it to let it run");
  t.now += 15ms;
  t.step(Tick{});
  EXPECT_EQ(t.why(1), "was told to stop and is finishing what it has in flight");
  t.now += 985ms;
  t.release(1, 1s);  // started with one turn of 5 ms, got 250 ms more, used 1 s
  EXPECT_EQ(t.why(1), "has used up its 25 % of GPU time (745.0ms ahead); again in 3.00s");
}

// What it earns while it runs is in its turn: spent behind it that would be turns of a half, a
// quarter, an eighth, each of which begins with an empty queue.
TEST(Core, WhatIsEarnedInATurnIsSpentInIt) {
  for (const int limit : {25, 50, 90}) {
    TestCore t;
    t.pass(1s);  // nobody has gone a moment ago
    t.gpu(0);
    t.client(1, limit);
    Duration used{};
    int turns = 0;
    for (Decisions said = t.want(1); t.now < Time{11s}; said = t.release(1, used)) {
      while (only<Grant>(said).empty()) said = t.pass(100us);
      used = only<Grant>(said)[0].budget.value();
      t.pass(used);
      ++turns;
    }
    // 5 ms are saved up, and last until they are spent, with what is earned meanwhile.
    const double cycle = 5 / (1 - limit / 100.0) + 5 * 100.0 / limit;
    EXPECT_NEAR(turns, 10'000 / cycle, 0.05 * 10'000 / cycle) << limit;
  }
}

// Nor is what a turn leaves, because its work took less than it seemed to, a turn of its own.
TEST(Core, WhatATurnLeavesIsLeftToGrow) {
  TestCore t;
  t.pass(1s);
  t.gpu(0);
  t.client(1, 90);
  Decisions said = t.want(1);
  for (int turns = 0; turns < 20; ++turns) {
    while (only<Grant>(said).empty()) said = t.pass(100us);
    const Duration budget = only<Grant>(said)[0].budget.value();
    EXPECT_GE(budget, 45ms) << turns;
    t.pass(budget);
    said = t.release(1, budget - 500us);
  }
}

// But one that was given its allowance with nobody there is stopped after a turn when somebody
// comes.
TEST(Core, WhoCameLaterWaitsForATurn) {
  TestCore t;
  t.pass(1s);
  t.gpu(0);
  t.client(1, 25);
  t.client(2);
  const auto granted = only<Grant>(t.want(1));
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_GT(granted[0].budget, 5ms);
  const Time begin = t.now;
  t.pass(1ms);
  Decisions said = t.want(2);
  while (only<Drop>(said).empty() && t.now < begin + 20ms) said = t.pass(100us);
  EXPECT_LE(t.now, begin + 5200us);
}

// Nor do its own processes that wait cut it short.
TEST(Core, ATurnIsNotCutShortByProcessesOfTheSameTenant) {
  TestCore t;
  t.pass(1s);
  t.gpu(0);
  t.tenant(1, 50);
  for (const int id : {1, 2}) t.step(ClientAdded{t.cid(id), TenantId{1}, GpuId{0}});
  t.want(1);
  t.want(2);
  t.pass(5ms);
  Decisions said = t.release(1, 5ms);  // it had been granted alone
  for (int turns = 0; turns < 100; ++turns) {
    while (only<Grant>(said).empty()) said = t.pass(100us);
    const Grant grant = only<Grant>(said)[0];
    const Duration used = grant.budget.value();
    ASSERT_TRUE(only<Drop>(t.pass(used)).empty()) << turns;
    said = t.step(Released{grant.client, used, true});
  }
}

TEST(Core, PauseStopsAndResumeStarts) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  t.want(1);
  EXPECT_EQ(only<Drop>(t.step(TenantPaused{TenantId{1}, true})).size(), 1u);
  EXPECT_TRUE(only<Grant>(t.release(1, 0ms)).empty());
  EXPECT_TRUE(only<Grant>(t.pass(10s)).empty());
  EXPECT_EQ(only<Grant>(t.step(TenantPaused{TenantId{1}, false})).size(), 1u);
}

TEST(Core, SchedulingOffLetsEveryoneRunAndOnTakesTurnsAgain) {
  TestCore t;
  t.gpu(0);
  t.client(1, 10);
  t.client(2, 10);
  t.want(1);
  t.want(2);
  EXPECT_EQ(t.state(2), ClientState::Waiting);
  EXPECT_EQ(only<Grant>(t.step(SchedulingSwitched{false})).size(), 1u);
  EXPECT_EQ(t.state(2), ClientState::Running);
  EXPECT_TRUE(only<Drop>(t.pass(10s)).empty());
  EXPECT_EQ(only<Drop>(t.step(SchedulingSwitched{true})).size(), 2u);
  EXPECT_EQ(t.refused(SchedulingSwitched{true}), "scheduling is on already");
}

TEST(Core, ATenantCannotAllocateBeyondItsLimit) {
  TestCore t;
  t.gpu(0);
  t.step(TenantAdded{TenantId{1}, "a", {.memory = gib(4)}});
  t.step(ClientAdded{ClientId{1}, TenantId{1}, GpuId{0}});
  t.step(ClientAdded{ClientId{2}, TenantId{1}, GpuId{0}});
  t.allocate(1, gib(3));
  const auto refused = only<MemoryRefused>(t.allocate(2, gib(2)));
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].allowed, gib(1));
  EXPECT_EQ(t.view(2).allocated, Bytes{});
  EXPECT_EQ(only<MemoryAvailable>(t.allocate(2, gib(1))).size(), 1u);
  EXPECT_EQ(only<MemoryRefused>(t.allocate(2, gib(1) + Bytes{1})).size(), 1u);
}

// What is beyond the GPU is the driver's concern, and counts for the limit all the same.
TEST(Core, ALimitHoldsForWhatIsBeyondTheGpu) {
  TestCore t;
  t.gpu(0);
  t.step(TenantAdded{TenantId{1}, "a", {.memory = gib(20)}});
  t.step(ClientAdded{ClientId{1}, TenantId{1}, GpuId{0}});
  t.step(ClientAdded{ClientId{2}, TenantId{1}, GpuId{0}});
  const auto ask = [&](Bytes allocated, Bytes beyond) {
    return t.step(MemoryChanged{.client = ClientId{1},
                                .allocated = allocated,
                                .resident = t.view(1).resident,
                                .beyond = beyond});
  };
  EXPECT_EQ(only<MemoryAvailable>(ask(gib(12), gib(4))).size(), 1u);
  EXPECT_EQ(t.core.memory_room(ClientId{2})->limit, gib(4));
  EXPECT_EQ(only<MemoryRefused>(ask(gib(12), gib(8) + Bytes{1})).size(), 1u);
  EXPECT_TRUE(only<MemoryRefused>(ask(gib(12), gib(8))).empty());
  const Decisions none_left = t.allocate(2, Bytes{1});
  ASSERT_EQ(only<MemoryRefused>(none_left).size(), 1u);
  EXPECT_EQ(to_text(none_left[0].reason), "1B asked for, and 0B left under the memory limit");
  t.step(ClientGone{ClientId{1}});
  EXPECT_EQ(t.core.memory_room(ClientId{2})->limit, gib(20));
  EXPECT_EQ(
      t.refused(MemoryChanged{.client = ClientId{2}, .allocated = Bytes{1}, .beyond = kMostMemory}),
      "more than any GPU has");
}

TEST(Core, AClientHasNoMoreThanItsOwnLimit) {
  TestCore t;
  t.gpu(0);
  t.step(TenantAdded{TenantId{1}, "a", {.memory = gib(4)}});
  EXPECT_EQ(t.refused(ClientAdded{ClientId{1}, TenantId{1}, GpuId{0}, Bytes{0}}),
            "memory limit 0 is not above 0");
  t.step(ClientAdded{ClientId{1}, TenantId{1}, GpuId{0}, gib(2)});
  t.step(ClientAdded{ClientId{2}, TenantId{1}, GpuId{0}, gib(9)});
  const Decisions own = t.allocate(1, gib(3));
  EXPECT_EQ(only<MemoryRefused>(own).at(0).allowed, gib(2));
  EXPECT_EQ(to_text(own[0].reason), "3GiB asked for, and 2GiB left under NVSHARE_GPU_MEMORY_LIMIT");
  EXPECT_TRUE(only<MemoryRefused>(t.allocate(1, gib(2))).empty());
  EXPECT_FALSE(t.core.memory_room(ClientId{2})->own_limit) << "it cannot raise the tenant's";
  EXPECT_EQ(only<MemoryRefused>(t.allocate(2, gib(3))).at(0).allowed, gib(2));
}

TEST(Core, NothingLargerThanTheGpuIsTaken) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  EXPECT_EQ(only<MemoryRefused>(t.allocate(1, gib(16))).size(), 1u);
  EXPECT_EQ(t.view(1).allocated, Bytes{});
}

// Saturating clients that the hardware runs side by side are not made to take turns, unless one of
// them has a limit.
TEST(Core, WhereWorkOverlapsClientsRunTogether) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  t.client(2);
  const auto both_want = [&] {
    Decisions all = t.want(1);
    for (const Decision& d : t.want(2)) all.push_back(d);
    for (const Decision& d : t.pass(1ms)) all.push_back(d);
    return only<Grant>(all).size();
  };
  const auto both_have_long_bursts = [&] {
    for (int id : {1, 2}) {
      t.want(id);
      t.pass(10ms);
      t.release(id, 10ms, false);
      t.pass(1ms);
    }
  };
  both_have_long_bursts();
  EXPECT_EQ(both_want(), 1u);
  t.release(1, 1ms, false);
  t.release(2, Duration{}, false);
  t.step(OverlapSeen{GpuId{0}, true});
  both_have_long_bursts();
  EXPECT_EQ(both_want(), 2u);
  const Limits half{.core_percent = 50, .memory = {}};
  EXPECT_FALSE(only<Drop>(t.step(LimitsChanged{TenantId{1}, half})).empty());
  EXPECT_EQ(t.refused(OverlapSeen{GpuId{7}, true}), "gpu 7 is not known");
}

// A program that waits for each step of its work asks for more only a moment after its turn was cut
// off. That is no gap between bursts, and what lies between its steps no hand-over: turns stay
// as short as they are where nobody works in bursts.
TEST(Core, WhoIsCutOffIsNotTakenForBursty) {
  TestCore t;
  t.gpu(0);
  std::vector<Grant> grants;
  const auto note = [&](const Decisions& decisions) {
    for (const Grant& grant : only<Grant>(decisions)) grants.push_back(grant);
  };
  // Three: while one does not want it another still waits.
  for (int id : {1, 2, 3}) t.client(id);
  for (int id : {1, 2, 3}) note(t.want(id));
  constexpr Duration kAsksAgain = 50us;  // after it was cut off; the next has been granted by then
  constexpr Duration kReleases = 20us;   // after its work was done
  int turns = 0;
  for (std::size_t i = 0; i < 400; ++i) {
    ASSERT_LT(i, grants.size());
    const int id = static_cast<int>(grants[i].client.value);
    const Duration budget = grants[i].budget.value_or(5ms);
    turns += grants[i].budget ? 1 : 0;
    // There were no bursts for a second: then the GPU's own part counts as well.
    const Duration unseen = t.now < Time{} + 1s ? 0us : 600us;
    EXPECT_LE(budget, 100 * (kAsksAgain + kReleases + unseen)) << i;
    const Duration gaps = budget / 4;
    note(t.pass(budget + gaps + kReleases));
    note(t.step(Released{grants[i].client, budget, false, gaps}));
    note(t.pass(kAsksAgain));
    note(t.want(id));
  }
  EXPECT_GE(turns, 390);
  EXPECT_GE(grants[399].budget, 60ms);
}

// What it keeps does not grow with the time, with turns, or with those who came and went. (Where
// memory cannot be counted, as under ASan, this says nothing.)
TEST(Core, AnHourLeavesNothingBehind) {
  TestCore t;
  t.gpu(0);
  std::deque<Grant> grants;
  const auto note = [&](const Decisions& decisions) {
    for (const Grant& grant : only<Grant>(decisions)) grants.push_back(grant);
  };
  for (int id : {1, 2}) t.client(id, 40);
  for (int id : {1, 2}) note(t.want(id));
  int turns = 0;
  int visitors = 0;
  const auto serve_until = [&](Time end) {
    while (t.now < end) {
      if (grants.empty()) {
        note(t.pass(5ms));
        continue;
      }
      const Grant grant = grants.front();
      grants.pop_front();
      const Duration used = std::min(grant.budget.value_or(10ms), Duration(50ms));
      note(t.pass(used));
      const bool stays = grant.client.value <= 2;
      note(t.step(Released{grant.client, used, stays}));
      if (!stays) {
        note(t.step(ClientGone{grant.client}));
        t.step(TenantRemoved{TenantId{grant.client.value}});
      }
      if (++turns % 10 != 0) continue;
      const int visitor = 3 + visitors++;
      t.client(visitor, visitor % 2 == 0 ? 100 : 10);
      note(t.want(visitor));
      t.step(LimitsChanged{TenantId{1}, {.core_percent = 30 + visitor % 20, .memory = {}}});
    }
  };
  const auto in_use = [] {
    const auto all = mallinfo2();
    return all.uordblks + all.hblkhd;
  };
  serve_until(Time{} + 2min);
  const auto early = in_use();
  serve_until(Time{} + 1h);
  EXPECT_LE(in_use(), early + 4096);
  EXPECT_GT(turns, 50'000);
  EXPECT_GT(visitors, 5'000);
}

TEST(Core, AGpuThatIsRemovedForgetsItsClients) {
  TestCore t;
  t.gpu(0);
  t.client(1);
  t.want(1);
  t.step(GpuRemoved{GpuId{0}});
  EXPECT_EQ(t.refused(Released{ClientId{1}, 1ms, false}), "client 1 is not known");
  EXPECT_EQ(t.core.next_wakeup(), std::nullopt);
  t.step(TenantRemoved{TenantId{1}});
}

TEST(Core, ThePolicyCannotChangeButTheQuantumCan) {
  TestCore t;
  Config config;
  config.policy = ComputePolicy::Wall;
  EXPECT_FALSE(t.refused(ConfigChanged{config}).empty());
  config = {};
  config.quantum_fixed = 5s;
  t.step(ConfigChanged{config});
  EXPECT_EQ(t.core.config().quantum_fixed, 5s);
  config.carryover_percent = 101;
  EXPECT_EQ(t.refused(ConfigChanged{config}), "carryover_percent: 101 is not from 0 to 100");
}

}  // namespace
}  // namespace nvshare::core
