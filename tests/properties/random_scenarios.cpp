#include "random_scenarios.h"

#include <fmt/format.h>

#include <algorithm>

#include "player.h"

namespace nvshare::properties {

using namespace sim;

namespace {

Duration some_kernel(Dice& dice, Duration longest) {
  return std::min(longest, dice.pick<Duration>({2ms, 0ms, 10us, 7ms, 50ms, 200ms}));
}

Workload some_work(Dice& dice, Duration longest_kernel, bool bursts) {
  Workload work;
  work.kernel = some_kernel(dice, longest_kernel);
  const std::uint32_t kind = bursts ? dice.below(4) : 0;
  if (kind == 1 || kind == 2) {
    work.kind = WorkloadKind::Bursty;
    work.burst = dice.pick<Duration>({3ms, 20ms, 60ms, 300ms});
    work.gap = dice.pick<Duration>({2ms, 40ms, 200ms, 1s});
  } else if (kind == 3) {
    work.kind = WorkloadKind::Phases;
    work.phases = {{WorkloadKind::Saturating, dice.pick<Duration>({100ms, 700ms})},
                   {WorkloadKind::Idle, dice.pick<Duration>({50ms, 600ms})}};
  }
  return work;
}

int some_percent(Dice& dice) {
  return dice.pick({100, 50, 30, 10, 100, 80, 99, 5, 1, 25});
}

}  // namespace

Scenario random_mix(Dice& dice, core::ComputePolicy policy, Duration lasts, const Mix& mix) {
  Scenario s;
  s.lasts = lasts;
  s.config.policy = policy;
  s.gpus = {GpuSpec{}};
  const int tenants = dice.between(1, 5);
  for (int t = 0; t < tenants; ++t) {
    ClientSpec c;
    c.name = fmt::format("t{}", t);
    if (mix.limited) c.limits.core_percent = some_percent(dice);
    c.processes = dice.between(1, mix.most_processes);
    c.work = some_work(dice, mix.longest_kernel, mix.bursts);
    if (mix.come_and_go && dice.one_in(3)) c.arrives = lasts * dice.between(0, 9) / 10;
    if (mix.come_and_go && dice.one_in(4)) c.leaves = c.arrives + (lasts - c.arrives) / 2;
    if (mix.limit_changes) {
      Duration at = c.arrives;
      for (int i = dice.between(0, 2); i > 0; --i) {
        at += (lasts - at) * dice.between(1, 6) / 10;
        c.changes.push_back({at, {some_percent(dice), {}, 0}});
      }
    }
    s.clients.push_back(std::move(c));
  }
  return s;
}

Scenario random_crowd(Dice& dice, Duration lasts) {
  Scenario s;
  s.lasts = lasts;
  s.gpus = {GpuSpec{}};
  s.link_per_second = dice.pick<Bytes>({gib(50), gib(10)});
  s.config.reserve_percent = 0;
  s.config.reserve_base = gib(1);
  s.config.reserve_per_process = Bytes{};
  s.config.quantum_min = dice.pick<Duration>({100ms, 300ms});
  s.config.quantum_max = s.config.quantum_min * dice.between(1, 4);
  s.config.quantum_multiplier = dice.pick({5, 1});
  s.config.idle_out = dice.pick<Duration>({0s, 0s, 300ms});
  const int tenants = dice.between(2, 6);
  for (int t = 0; t < tenants; ++t) {
    ClientSpec c;
    c.name = fmt::format("t{}", t);
    c.work = some_work(dice, 20ms, true);
    c.memory = {{Duration{}, gib(1) * dice.between(1, 15)}};
    s.clients.push_back(std::move(c));
  }
  return s;
}

Scenario random_anything(Dice& dice, Duration lasts) {
  Scenario s;
  s.lasts = lasts;
  s.config = random_config(dice);
  s.config.reserve_per_process = mib(100);
  s.gpus = {GpuSpec{.memory = gib(16), .count = dice.between(1, 2)}};
  const int tenants = dice.between(1, 5);
  for (int t = 0; t < tenants; ++t) {
    ClientSpec c;
    c.name = fmt::format("t{}", t);
    c.limits = {some_percent(dice), {}, dice.between(-2, 2)};
    c.processes = dice.between(1, 3);
    c.work = some_work(dice, 200ms, true);
    if (dice.one_in(8)) c.work.kind = WorkloadKind::Silent;
    if (dice.one_in(3)) c.arrives = lasts * dice.between(0, 9) / 10;
    if (dice.one_in(3)) c.leaves = c.arrives + (lasts - c.arrives) / 2;
    for (int i = dice.between(0, 3); i > 0; --i) {
      c.memory.push_back({lasts * dice.between(0, 9) / 10, mib(256) * dice.between(0, 24)});
    }
    std::sort(c.memory.begin(), c.memory.end(),
              [](const MemoryStep& a, const MemoryStep& b) { return a.at < b.at; });
    if (dice.one_in(2)) {
      c.changes.push_back({lasts / 2, {some_percent(dice), {}, dice.between(-2, 2)}});
    }
    s.clients.push_back(std::move(c));
  }
  return s;
}

std::string to_lines(const Scenario& s) {
  std::string text =
      fmt::format("{} for {}, mode {}, turn {}\n", core::name_of(s.config.policy), to_text(s.lasts),
                  static_cast<int>(s.config.share_mode), to_text(s.config.turn));
  for (const ClientSpec& c : s.clients) {
    text += fmt::format("  {}: {} % x{} prio {} kind {} kernel {} burst {} gap {} from {}", c.name,
                        c.limits.core_percent, c.processes, c.limits.priority,
                        static_cast<int>(c.work.kind), to_text(c.work.kernel),
                        to_text(c.work.burst), to_text(c.work.gap), to_text(c.arrives));
    if (c.leaves) text += " to " + to_text(*c.leaves);
    for (const MemoryStep& m : c.memory) {
      text += fmt::format(", {} at {}", to_text(m.allocated), to_text(m.at));
    }
    for (const LimitStep& l : c.changes) {
      text += fmt::format(", {} % at {}", l.limits.core_percent, to_text(l.at));
    }
    text += "\n";
  }
  return text;
}

}  // namespace nvshare::properties
