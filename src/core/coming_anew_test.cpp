// Runs that begin and end, or that work one after the other: what they have used stays with the
// tenant around them.

#include "core/testing.h"

namespace nvshare::core {
namespace {

TenantId tid(int id) {
  return TenantId{static_cast<std::uint64_t>(id)};
}

struct Program {
  Duration kernel = 1ms;
  Duration left = Duration::max();  // of its work
  bool deaf = false;                // does not stop when it is told to
  bool works = true;
  bool held = false;
  bool dropped = false;
  std::optional<Duration> budget{};
  Duration lasted{};  // of this grant
  Duration used{};
};

// Programs that keep the GPU busy, one kernel after the other, as the core lets them.
class ComingAnew : public ::testing::Test {
 protected:
  explicit ComingAnew(const Config& config = turns()) : core_(config) { core_.gpu(0, gib(64)); }
  static Config turns() {
    Config config;
    config.share_mode = ShareMode::Turns;
    return config;
  }

  void tenant(int id, int cores, std::optional<int> parent = {}, int priority = 0) {
    core_.step(TenantAdded{tid(id),
                           "t" + std::to_string(id),
                           {.core_percent = cores, .memory = {}, .priority = priority},
                           parent ? std::optional(tid(*parent)) : std::nullopt});
  }
  void remove(int id) { core_.step(TenantRemoved{tid(id)}); }
  void follow(const Decisions& decisions) {
    for (const Decision& d : decisions) {
      if (const auto* grant = std::get_if<Grant>(&d.action)) {
        Program& program = programs_.at(grant->client);
        program.held = true;
        program.dropped = false;
        program.budget = grant->budget;
        program.lasted = {};
      }
      if (const auto* drop = std::get_if<Drop>(&d.action))
        programs_.at(drop->client).dropped = true;
    }
  }
  Program& client(int id, int of, Program program = {}) {
    programs_[TestCore::cid(id)] = program;
    follow(core_.step(ClientAdded{TestCore::cid(id), tid(of), GpuId{0}}));
    if (program.works) follow(core_.want(id));
    return programs_.at(TestCore::cid(id));
  }
  void gone(int id) {
    follow(core_.step(ClientGone{TestCore::cid(id)}));
    programs_.erase(TestCore::cid(id));
  }
  void work(int id, Duration left) {
    programs_.at(TestCore::cid(id)).left = left;
    programs_.at(TestCore::cid(id)).works = true;
    follow(core_.want(id));
  }

  // When the program is done with its grant, from now.
  static std::optional<Duration> ends_in(const Program& program) {
    if (program.deaf) return std::nullopt;
    const auto whole = [&](Duration time) {
      const auto rest = time % program.kernel;
      return rest == Duration::zero() ? time : time + program.kernel - rest;
    };
    std::optional<Duration> end;
    const auto at = [&](Duration time) { end = std::min(end.value_or(time), time); };
    if (program.budget) at(whole(std::max(*program.budget, Duration{1})));
    if (program.dropped) at(whole(program.lasted));
    if (program.left != Duration::max()) at(program.lasted + program.left);
    if (!end) return std::nullopt;
    return std::max(Duration::zero(), *end - program.lasted);
  }
  void run(Duration length) {
    const Time until = core_.now + length;
    while (core_.now < until) {
      Time next = until;
      if (const auto due = core_.core.next_wakeup())
        next = std::min(next, std::max(core_.now, *due));
      for (const auto& [id, program] : programs_) {
        if (!program.held) continue;
        if (const auto end = ends_in(program)) next = std::min(next, core_.now + *end);
      }
      const Duration passed = next - core_.now;
      core_.now = next;
      std::vector<ClientId> done;
      for (auto& [id, program] : programs_) {
        if (!program.held) continue;
        program.lasted += passed;
        program.used += passed;
        if (program.left != Duration::max()) program.left -= passed;
        if (ends_in(program) == Duration::zero()) done.push_back(id);
      }
      for (const ClientId id : done) {
        Program& program = programs_.at(id);
        program.held = false;
        if (program.left <= Duration::zero()) program.works = false;
        follow(core_.step(Released{id, program.lasted, program.works}));
      }
      const auto due = core_.core.next_wakeup();
      if (due && *due <= core_.now) follow(core_.step(Tick{}));
    }
  }
  Duration used(int id) const { return programs_.at(TestCore::cid(id)).used; }
  double percent(Duration used, Time begin) const {
    return 100.0 * static_cast<double>(used.count()) /
           static_cast<double>((core_.now - begin).count());
  }
  // One run after the other below `parent`, each with one kernel. Percent of the GPU for all.
  double loop_of_runs(int parent, int cores, Duration kernel, bool with_outer = false) {
    const Time begin = core_.now;
    Duration sum{};
    for (int id = 1000; core_.now - begin < 60s; id += 2) {
      if (with_outer) tenant(id, 100, parent);
      tenant(id + 1, cores, with_outer ? id : parent);
      client(id + 1, id + 1, {.kernel = kernel, .left = kernel});
      while (programs_.at(TestCore::cid(id + 1)).works) run(1ms);
      sum += used(id + 1);
      gone(id + 1);
      remove(id + 1);
      if (with_outer) remove(id);
    }
    return percent(sum, begin);
  }

  TestCore core_;
  std::map<ClientId, Program> programs_;
};

TEST_F(ComingAnew, ALoopOfRunsWithoutALimitHasNoMoreThanAnotherUser) {
  for (const Duration kernel : {20ms, 400ms}) {
    const int first = kernel == 20ms ? 1 : 11;
    tenant(first, 100);
    tenant(first + 1, 100);
    tenant(first + 2, 100, first + 1);
    client(first + 2, first + 2);
    EXPECT_NEAR(loop_of_runs(first, 100, kernel), 50, 1) << to_text(kernel);
    gone(first + 2);
  }
}

TEST_F(ComingAnew, ALoopOfRunsHasNoMoreThanItsSibling) {
  tenant(1, 40);
  tenant(2, 100, 1);
  client(2, 2);
  tenant(3, 60);
  client(3, 3);
  EXPECT_NEAR(loop_of_runs(1, 100, 400ms), 20, 1.5);
}

// The row of the requirement: 10 beside a neighbour that is promised 50, also where the run around
// the loop's ends each time.
TEST_F(ComingAnew, DebtsStayWithTheAccountAbove) {
  for (const bool with_outer : {false, true}) {
    const int first = with_outer ? 11 : 1;
    tenant(first, 100);
    tenant(first + 1, 50);
    client(first + 1, first + 1);
    const Time begin = core_.now;
    EXPECT_NEAR(loop_of_runs(first, 10, 400ms, with_outer), 10, 1) << with_outer;
    EXPECT_NEAR(percent(used(first + 1), begin), 50, 1) << with_outer;
    gone(first + 1);
  }
}

// A pipeline: its runs hand the work on, so that one of them has work at a time.
TEST_F(ComingAnew, RunsThatWorkInTurnHaveWhatOneRunHas) {
  tenant(1, 100);
  tenant(2, 100);
  tenant(3, 100, 2);
  client(3, 3);
  constexpr int kRuns = 8;
  for (int id = 100; id < 100 + kRuns; ++id) {
    tenant(id, 100, 1);
    client(id, id, {.works = false});
  }
  const Time begin = core_.now;
  for (int i = 0; core_.now - begin < 60s; ++i) {
    const int id = 100 + i % kRuns;
    work(id, 20ms);
    while (programs_.at(TestCore::cid(id)).works) run(1ms);
  }
  EXPECT_NEAR(percent(used(3), begin), 50, 1);
}

// Parts that wait for memory want the GPU, and take nothing from the part that could use it.
TEST_F(ComingAnew, PartsThatWaitForMemoryLeaveTheirTenantsDueToTheOthers) {
  tenant(1, 100);
  tenant(9, 100);
  tenant(10, 100, 9);
  client(10, 10);
  for (int id = 2; id < 5; ++id) {
    tenant(id, 100, 1);
    client(id, id, {.works = false});
    core_.allocate(id, gib(40));
    follow(core_.want(id));
    programs_.at(TestCore::cid(id)).works = true;
  }
  const Time begin = core_.now;
  run(20s);
  EXPECT_NEAR(percent(used(10), begin), 50, 1);
}

TEST_F(ComingAnew, AProcessBesidePartsKeepsItsTenantsPriority) {
  tenant(1, 100, {}, 5);
  tenant(2, 100, {}, 2);
  client(1, 1);
  client(2, 2);
  tenant(3, 100, 1);
  client(3, 3);
  run(1s);
  gone(3);
  remove(3);
  const Time begin = core_.now;
  const Duration before = used(1);
  run(20s);
  EXPECT_GT(percent(used(1) - before, begin), 95);
}

// What processes have had of each other's time goes with them when their tenant gets its first
// part.
TEST_F(ComingAnew, AProcessThatComesBehindTheFirstPartDoesNotKeepTheOthersOut) {
  tenant(1, 10);
  client(1, 1);
  client(2, 1);
  client(3, 1, {.works = false});
  run(600s);
  tenant(2, 100, 1);
  client(20, 2, {.works = false});
  work(3, Duration::max());
  const Time begin = core_.now;
  const Duration before = used(1);
  run(30s);
  EXPECT_NEAR(percent(used(1) - before, begin), 10.0 / 3, 0.5);
}

TEST_F(ComingAnew, AProcessThatDoesNotStopCostsItsTenantAndNotTheOthers) {
  tenant(1, 30);
  for (const int id : {2, 3}) tenant(id, 100, 1);
  tenant(9, 100);
  client(2, 2, {.deaf = true});
  client(3, 3);
  client(9, 9);
  run(30s);
  ASSERT_TRUE(programs_.at(TestCore::cid(2)).held) << "it has the GPU, and keeps it";
  const Duration before = used(3);
  run(30s);
  EXPECT_EQ(used(3), before);
  EXPECT_NE(core_.why(3).find("does not stop"), std::string::npos) << core_.why(3);
  programs_.at(TestCore::cid(2)).deaf = false;
  run(300s);
  EXPECT_GT(used(3), before) << "it has stopped, and the debt is paid off";
}

TEST_F(ComingAnew, ATenantThatIsHeldAsleepHoldsRunsThatComeLater) {
  tenant(1, 100);
  core_.step(TenantSleeps{tid(1), true, true});
  tenant(2, 100, 1);
  client(2, 2);
  run(1s);
  EXPECT_EQ(used(2), Duration::zero());
  follow(core_.step(TenantSleeps{tid(2), false, false}));
  run(1s);
  EXPECT_GT(used(2), 900ms);
}

// A clock that stood still would never let anybody on again.
TEST_F(ComingAnew, TenThousandPartsOfOnePercentHaveSomeOfIt) {
  tenant(1, 1);
  for (int id = 2; id < 10'700; ++id) {
    tenant(id, 99, 1);
    client(id, id, {.kernel = 10us});
  }
  run(20s);
  Duration all{};
  for (const auto& [id, program] : programs_) all += program.used;
  EXPECT_NEAR(percent(all, Time{}), 1, 0.5);
}

// --- the requirement's policies ----------------------------------------------------------------

Config with(ComputePolicy policy) {
  Config config;
  config.policy = policy;
  return config;
}

class ComingAnewInWindows : public ComingAnew, public ::testing::WithParamInterface<ComputePolicy> {
 protected:
  ComingAnewInWindows() : ComingAnew(with(GetParam())) {}
};

TEST_P(ComingAnewInWindows, ALoopOfRunsHasNoMoreThanOneRun) {
  for (const bool with_outer : {false, true}) {
    const int first = with_outer ? 11 : 1;
    tenant(first, 100);
    EXPECT_LE(loop_of_runs(first, 10, 400ms, with_outer), 11) << with_outer;
  }
}

// Each of them leaves what it has used. That is no more than one run may use in a window.
TEST_P(ComingAnewInWindows, ALoopOfRunsGainsNothingByRunsThatWereThereTogether) {
  tenant(1, 100);
  for (int id = 10; id < 20; ++id) {
    tenant(id, 10, 1);
    client(id, id, {.kernel = 10ms});
  }
  run(19s);  // to the middle of a window
  for (int id = 10; id < 20; ++id) {
    gone(id);
    remove(id);
  }
  EXPECT_LE(loop_of_runs(1, 10, 200ms), 12);
}

INSTANTIATE_TEST_SUITE_P(Policies, ComingAnewInWindows,
                         ::testing::Values(ComputePolicy::Wall, ComputePolicy::Weighted,
                                           ComputePolicy::Hybrid, ComputePolicy::Coordinated,
                                           ComputePolicy::Dynamic, ComputePolicy::Fair),
                         [](const auto& one) { return std::string(name_of(one.param)); });

}  // namespace
}  // namespace nvshare::core
