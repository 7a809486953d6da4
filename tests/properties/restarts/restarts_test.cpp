// What must hold whatever users, runs and programs do, and however often the scheduler is killed
// and started again: on every level limits hold, the tree and what people changed are as before,
// each part with work has its due, and nobody waits for a GPU that is free.

#include "holds.h"
#include "world.h"

namespace nvshare::properties {
namespace {

// A failing input is not made shorter: without its first bytes it is another story.
rc::Gen<std::vector<std::uint8_t>> choices(int most) {
  return rc::gen::noShrink(bytes(most));
}

TEST(Restarts, TheTreeAndItsLimitsHoldOnEveryLevel) {
  holds(300, [] {
    const auto input = *choices(700);
    World world{Dice(input)};
    for (std::size_t i = 0; i < input.size() / 3; ++i) world.step();
  });
}

TEST(Restarts, EachPartWithWorkHasItsDue) {
  holds(150, [] {
    const auto input = *choices(400);
    World world{Dice(input)};
    for (std::size_t i = 0; i < input.size() / 3; ++i) world.step();
    if (input.size() % 2 == 0) world.restart();
    world.quiet();
  });
}

// Allowances and debts do not outlast the scheduler. A life of it gives a tenant what one that
// comes new has (docs/policies.md), whatever was used before.
TEST(Restarts, ALoopOfRestartsLiftsALimitByNoMoreThanAnAllowanceEach) {
  constexpr int kLives = 60;
  constexpr Duration kLife = 500ms;
  for (const int cores : {5, 10, 30}) {
    World world{Dice({})};
    world.limit("user-1000", {cores, {}, {}});
    world.start_program_in("user-1000");
    world.start_program_in("user-1001");
    for (int i = 0; i < kLives; ++i) {
      world.run_for(kLife);
      world.restart();
    }
    const core::Config config;
    const Duration allowance = std::max(config.burst_window * cores / 100, 15 * config.turn);
    const Duration used = world.used_by("user-1000");
    EXPECT_LE(used, kLives * (kLife * cores / 100 + allowance)) << cores;
    EXPECT_GE(used, kLives * kLife * cores / 100) << cores;
  }
}

// Of three runs in one another the middle one has neither a keeper nor a cgroup.
TEST(Restarts, ARunWhoseParentIsGoneStaysInTheRunAroundThat) {
  ProcessTree tree;
  const int outer = tree.fork_keeper(1);
  tree.move(outer, "/outer");
  const int inner = tree.fork_keeper(outer);
  const int program = tree.fork(outer);
  tree.move(program, "/outer/left");
  tree.draw(std::set<std::string>{"/outer", "/outer/left"});
  daemon::State state{.boot = "boot"};
  const auto add = [&](const char* name, daemon::ProcessKey keeper, const char* parent,
                       const char* group) {
    daemon::KeptRun run{name, 1000, keeper.pid, keeper.started};
    run.parent = parent;
    run.cgroup = group;
    state.runs.push_back(run);
  };
  const daemon::ProcessKey gone{tree.fork(1), 1};
  add("outer", tree.key_of(outer), "user-1000", "/outer");
  add("middle", gone, "outer", "");
  add("inner", tree.key_of(inner), "middle", "");
  add("left", gone, "middle", "/outer/left");
  std::string written = daemon::to_text(state);
  Life life(tree, written);
  EXPECT_EQ(life.find("middle"), nullptr);
  ASSERT_NE(life.find("outer"), nullptr);
  for (const char* name : {"inner", "left"}) {
    ASSERT_NE(life.find(name), nullptr) << name;
    EXPECT_EQ(life.find(name)->parent, life.find("outer")->id) << name;
  }
}

}  // namespace
}  // namespace nvshare::properties
