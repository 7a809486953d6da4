// Who joins others on a GPU starts level with them, whatever they did before it came.

#include <set>

#include "core/testing.h"

namespace nvshare::core {
namespace {

// Programs that keep the GPU until their budget is used or they are told to stop, and occupy it for
// a part of that time only; and a scheduler that reads all meters once a second, as the daemon
// does.
class Joining : public ::testing::Test {
 protected:
  Joining() { core_.gpu(0); }

  void add(int id, int tenant, int busy_percent = 100) {
    core_.step(
        ClientAdded{TestCore::cid(id), TenantId{static_cast<std::uint64_t>(tenant)}, GpuId{0}});
    busy_[id] = busy_percent;
  }
  // A tenant with one program, both called `id`.
  void add_alone(int id, int cores = 100, int busy_percent = 100) {
    core_.tenant(id, cores);
    add(id, id, busy_percent);
  }
  void want(int id) {
    wants_.insert(id);
    waits_since_[id] = core_.now;
    follow(core_.want(id));
  }
  // Has nothing to do any more, and gives back what it holds.
  void rest(int id) {
    wants_.erase(id);
    if (holds_.contains(id)) give_back(id);
  }
  void kill(int id) {
    wants_.erase(id);
    holds_.erase(id);
    tell(ClientGone{TestCore::cid(id)});
  }
  void tell(const Event& event) { follow(core_.step(event)); }

  void play(Duration length) {
    const Time until = core_.now + length;
    for (;;) {
      const Time next = std::max(core_.now, next_moment(until));
      for (const auto& [id, hold] : holds_) had_[id] += next - core_.now;
      core_.now = next;
      if (!play_one() && core_.now >= until) return;
    }
  }
  void count_from_now() {
    had_.clear();
    longest_wait.clear();
    for (auto& [id, since] : waits_since_) since = core_.now;
    counted_since_ = core_.now;
  }
  // Of the time since then, in which it held the GPU.
  double percent(int id) {
    return 100.0 * static_cast<double>(had_[id].count()) /
           static_cast<double>((core_.now - counted_since_).count());
  }
  Duration billed(int tenant) const {
    for (const ShareView& share : core_.core.snapshot().shares) {
      if (share.tenant == TenantId{static_cast<std::uint64_t>(tenant)}) return share.billed;
    }
    return {};
  }

  TestCore core_;
  std::map<int, Duration> longest_wait;

 private:
  struct Hold {
    Time since{};
    std::optional<Time> ends;
  };

  Time next_moment(Time until) const {
    Time next = std::min(until, read_at_);
    if (const auto tick = core_.core.next_wakeup()) next = std::min(next, *tick);
    for (const auto& [id, hold] : holds_) next = std::min(next, hold.ends.value_or(next));
    return next;
  }
  bool play_one() {
    for (const auto& [id, hold] : holds_) {
      if (!hold.ends || *hold.ends > core_.now) continue;
      give_back(id);
      return true;
    }
    if (read_at_ <= core_.now) {
      read_at_ += 1s;
      const auto all = holds_;
      for (const auto& [id, hold] : all) {
        if (holds_.contains(id)) tell(Usage{TestCore::cid(id), used(id)});
      }
      return true;
    }
    const auto tick = core_.core.next_wakeup();
    if (!tick || *tick > core_.now) return false;
    tell(Tick{});
    return true;
  }
  Duration used(int id) { return (core_.now - holds_[id].since) * busy_[id] / 100; }
  void give_back(int id) {
    const Duration busy = used(id);
    const Duration gaps = core_.now - holds_[id].since - busy;
    holds_.erase(id);
    waits_since_[id] = core_.now;
    tell(Released{TestCore::cid(id), busy, wants_.contains(id), gaps});
  }
  void follow(const Decisions& decisions) {
    for (const Grant& grant : only<Grant>(decisions)) {
      const int id = static_cast<int>(grant.client.value);
      longest_wait[id] = std::max(longest_wait[id], core_.now - waits_since_[id]);
      holds_[id] = {core_.now, {}};
      if (grant.budget) holds_[id].ends = core_.now + *grant.budget * 100 / busy_[id];
    }
    for (const Drop& drop : only<Drop>(decisions)) {
      const auto it = holds_.find(static_cast<int>(drop.client.value));
      if (it != holds_.end()) it->second.ends = core_.now + 100us;
    }
  }

  std::map<int, int> busy_;
  std::map<int, Hold> holds_;
  std::map<int, Duration> had_;
  std::set<int> wants_;
  std::map<int, Time> waits_since_;
  Time counted_since_{};
  Time read_at_{1s};
};

TEST_F(Joining, BesideAProgramThatRanAloneWithGaps) {
  int id = 0;
  for (const int busy : {100, 90, 50}) {
    SCOPED_TRACE(busy);
    const int first = ++id;
    const int second = ++id;
    add_alone(first, 100, busy);
    add_alone(second);
    want(first);
    play(120s + 500ms);
    want(second);
    count_from_now();
    play(5s);
    EXPECT_NEAR(percent(second), 50, 1);
    EXPECT_LE(longest_wait[second], 100ms);
    kill(first);
    kill(second);
  }
}

TEST_F(Joining, InThePauseOfAProgramThatRanAlone) {
  add_alone(1);
  add_alone(2);
  want(1);
  play(120s + 500ms);
  rest(1);
  play(1s);
  want(2);
  play(1s);
  want(1);
  count_from_now();
  play(5s);
  EXPECT_NEAR(percent(1), 50, 1);
}

// As before, but the pause begins when somebody with a limit comes, which has waited off a debt.
TEST_F(Joining, InThePauseOfAProgramThatMadeWay) {
  add_alone(1);
  add_alone(2, 10);
  add_alone(3);
  want(2);
  core_.now += 3s;  // one kernel
  rest(2);
  want(2);
  want(1);
  play(20s);
  ASSERT_EQ(core_.state(1), ClientState::Running);
  while (core_.state(1) != ClientState::Stopping) play(50us);
  rest(1);
  play(1s);
  rest(2);
  want(3);
  play(1s);
  want(1);
  count_from_now();
  play(5s);
  EXPECT_NEAR(percent(1), 50, 1);
}

// What a low priority did not get while a higher one ran it has not saved up against its equals.
TEST_F(Joining, BesideOneThatAHigherPriorityKeptWaiting) {
  core_.step(TenantAdded{TenantId{1}, "high", {.memory = {}, .priority = 5}});
  add(1, 1);
  add_alone(2);
  add_alone(3);
  want(1);
  want(2);
  play(60s);
  want(3);
  play(1s);
  rest(1);
  count_from_now();
  play(5s);
  EXPECT_NEAR(percent(3), 50, 1);
}

TEST_F(Joining, AgainAfterSchedulingWasOff) {
  core_.tenant(1);
  for (const int id : {1, 2}) add(id, 1);
  for (const int id : {3, 4}) add_alone(id);
  for (const int id : {1, 3}) want(id);
  play(2s);
  tell(SchedulingSwitched{false});
  play(30s + 900ms);
  for (const int id : {2, 4}) want(id);
  tell(TenantPaused{TenantId{3}, true});
  play(100ms);
  tell(TenantPaused{TenantId{3}, false});
  play(30s);
  tell(SchedulingSwitched{true});
  count_from_now();
  play(6s);
  for (const int id : {1, 2}) EXPECT_NEAR(percent(id), 100 / 6.0, 1) << id;
  for (const int id : {3, 4}) EXPECT_NEAR(percent(id), 100 / 3.0, 1) << id;
}

// Nobody went without while all ran at once: who used little then is owed nothing.
TEST_F(Joining, TurnsAfterRunningTogether) {
  tell(OverlapSeen{GpuId{0}, true});
  add_alone(1, 100, 70);
  add_alone(2, 100, 20);
  add_alone(3, 10);
  want(1);
  want(2);
  play(60s + 500ms);
  ASSERT_EQ(core_.state(1), ClientState::Running);
  ASSERT_EQ(core_.state(2), ClientState::Running);
  for (int i = 0; i < 20; ++i) {
    tell(TenantPaused{TenantId{1}, true});
    play(1ms);
    tell(TenantPaused{TenantId{1}, false});
    play(90ms);
  }
  want(3);
  play(100ms);
  count_from_now();
  play(5s);
  EXPECT_NEAR(percent(1), 45, 1);
  EXPECT_NEAR(percent(2), 45, 1);
}

// A reading that is there is believed: there is room beside a program that leaves some.
TEST_F(Joining, BesideAProgramWithGapsTheyRunTogether) {
  add_alone(1, 100, 30);
  add_alone(2, 100, 10);
  want(1);
  play(60s + 100ms);
  want(2);
  EXPECT_EQ(core_.state(1), ClientState::Running);
  EXPECT_EQ(core_.state(2), ClientState::Running);
}

TEST_F(Joining, WhoIsKilledPaysNoMoreThanSinceItsLastReading) {
  tell(OverlapSeen{GpuId{0}, true});
  add_alone(1, 100, 50);
  add_alone(2, 100, 50);
  want(1);
  want(2);
  play(60s + 50ms);
  EXPECT_LE(billed(1), 31s);
  kill(1);
  EXPECT_GE(billed(1), 30s);
  EXPECT_LE(billed(1), 31s);
}

TEST_F(Joining, UnderMpsProcessesOfOneTenantRunTogether) {
  tell(OverlapSeen{GpuId{0}, true});
  core_.tenant(1);
  for (const int id : {1, 2}) add(id, 1);
  for (const int id : {1, 2}) want(id);
  play(2s);
  EXPECT_EQ(core_.state(1), ClientState::Running);
  EXPECT_EQ(core_.state(2), ClientState::Running);
}

// Nor is that lost to a limit that stops nobody. One that does, or that its tenant could not have
// beside the others, is kept in turns, until a second after that.
TEST_F(Joining, UnderMpsALimitCostsNothingUntilItBinds) {
  const auto in_bursts = [this](int rounds) {
    int together = 0;
    for (int i = 0; i < rounds; ++i) {
      want(1);
      play(10ms);
      const bool both =
          core_.state(1) == ClientState::Running && core_.state(2) == ClientState::Running;
      together += both ? 1 : 0;
      rest(1);
      play(90ms);
    }
    return together;
  };
  tell(OverlapSeen{GpuId{0}, true});
  add_alone(1, 60);
  add_alone(2);
  want(2);
  in_bursts(15);  // who is new has saved nothing up, and is stopped at first
  EXPECT_EQ(in_bursts(50), 50);
  want(1);
  play(3s);
  count_from_now();
  play(10s);
  EXPECT_NEAR(percent(1), 60, 1);
  EXPECT_NEAR(percent(2), 40, 1);
  rest(1);
  play(1s);
  in_bursts(30);
  EXPECT_EQ(in_bursts(50), 50);
}

TEST_F(Joining, UnderMpsTwoThatHaveNoMoreThanTheirLimitsRunTogether) {
  tell(OverlapSeen{GpuId{0}, true});
  for (const int id : {1, 2}) add_alone(id, 50, 40);
  for (int i = 0; i < 30; ++i) {
    for (const int id : {1, 2}) want(id);
    play(20ms);
    for (const int id : {1, 2}) EXPECT_EQ(core_.state(id), ClientState::Running) << i;
    for (const int id : {1, 2}) rest(id);
    play(80ms);
  }
}

// It always has work, and beside the other one less of the GPU than it was promised.
TEST_F(Joining, UnderMpsWhoHasLessThanItsLimitBesideOthersHasTurns) {
  tell(OverlapSeen{GpuId{0}, true});
  add_alone(1, 60, 45);
  add_alone(2, 100, 55);
  want(1);
  want(2);
  play(5s);
  EXPECT_NE(core_.state(1) == ClientState::Running, core_.state(2) == ClientState::Running);
}

// It holds the GPU for nothing most of the time, too shortly each time to give it back.
TEST_F(Joining, PausesInItsTurnsDoNotKeepWhoHasNoLimitAway) {
  add_alone(1, 50, 15);
  add_alone(2);
  want(1);
  want(2);
  play(2s);
  count_from_now();
  play(10s);
  EXPECT_NEAR(percent(1), 50, 5);
  EXPECT_NEAR(percent(2), 50, 5);
}

// Every program has some, and loses nothing by them.
TEST_F(Joining, PausesThatEveryProgramHasAreFree) {
  add_alone(1, 50, 90);
  add_alone(2);
  want(1);
  want(2);
  play(2s);
  const Duration before = billed(1);
  play(10s);
  EXPECT_NEAR(static_cast<double>((billed(1) - before).count()) / 1e9, 5, 0.1);
}

// Nor does it wait afresh each time.
TEST_F(Joining, WhoseLimitsChangeOftenHasItsTurnsAllTheSame) {
  add_alone(1);
  add_alone(2);
  want(1);
  want(2);
  count_from_now();
  for (int i = 0; i < 40; ++i) {
    tell(LimitsChanged{TenantId{2},
                       {.core_percent = i % 2 == 0 ? 40 : 50, .memory = {}, .priority = -1}});
    play(200ms);
  }
  EXPECT_LE(longest_wait[2], 1500ms);
  EXPECT_GT(percent(2), 0.1);
}

// As long as its memory was on its way it has not fallen behind.
TEST_F(Joining, WhenItsMemoryIsThereAtLast) {
  add_alone(1);
  add_alone(2);
  core_.allocate(1, gib(12));
  want(1);
  core_.allocate(2, gib(12));
  want(2);
  play(1s + 900ms);
  core_.step(MemoryChanged{TestCore::cid(1), gib(1), Bytes{}, gib(1)});
  count_from_now();
  tell(MemoryMoved{TestCore::cid(2), gib(12), 1ms});
  play(2s);
  EXPECT_NEAR(percent(1), 50, 2);
}

// What who waits for its memory earns meanwhile is kept, whatever others leave unused. So is what
// the tenant around it earns.
class JoiningLate : public ::testing::TestWithParam<bool> {};

TEST_P(JoiningLate, WhoWaitedForItsMemoryHasSavedItsLimit) {
  TestCore t(fixed_quantum());
  t.gpu(0);
  t.client(1);
  if (GetParam()) {
    t.tenant(3, 50);
    t.step(TenantAdded{TenantId{2}, "2", {}, TenantId{3}});
    t.step(ClientAdded{TestCore::cid(2), TenantId{2}, GpuId{0}});
  } else {
    t.client(2, 50);
  }
  t.allocate(1, gib(12));
  t.want(1);
  t.allocate(2, gib(12));
  t.want(2);
  for (int i = 1; i <= 10; ++i) {
    t.pass(1s);
    t.step(Usage{TestCore::cid(1), i * 500ms});
  }
  t.release(1, 5s, false);
  t.step(MemoryChanged{TestCore::cid(1), gib(1), Bytes{}, gib(1)});
  const auto grants = only<Grant>(t.move_to(2, gib(12)));
  ASSERT_EQ(grants.size(), 1u);
  EXPECT_GE(grants[0].budget.value_or(0s), 5s);
}

INSTANTIATE_TEST_SUITE_P(InATenantOrARun, JoiningLate, ::testing::Bool());

}  // namespace
}  // namespace nvshare::core
