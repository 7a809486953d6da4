#pragma once

// Short ways to say what a test plays.

#include <gtest/gtest.h>

#include <cmath>

#include "sim/simulator.h"

namespace nvshare::sim {

inline Scenario one_gpu(core::ComputePolicy policy, Duration lasts, Bytes memory = gib(16)) {
  Scenario scenario;
  scenario.lasts = lasts;
  scenario.config.policy = policy;
  scenario.gpus = {GpuSpec{.memory = memory}};
  return scenario;
}

inline ClientSpec saturating(const char* name, int cores, Duration kernel = {}) {
  ClientSpec spec;
  spec.name = name;
  spec.limits.core_percent = cores;
  spec.work.kernel = kernel;
  return spec;
}

inline ClientSpec bursty(const char* name, int cores, Duration burst, Duration gap) {
  ClientSpec spec = saturating(name, cores);
  spec.work.kind = WorkloadKind::Bursty;
  spec.work.burst = burst;
  spec.work.gap = gap;
  return spec;
}

inline ClientSpec with_memory(ClientSpec spec, Bytes bytes) {
  spec.memory = {MemoryStep{Duration{}, bytes}};
  return spec;
}

inline Report play(const Scenario& scenario, Observer* observer = nullptr) {
  auto report = run(scenario, false, observer);
  EXPECT_TRUE(report) << report.error().message;
  return report ? *report : Report{};
}

// Of all processes of the tenant at `place` in the scenario, together, of the whole time.
inline double share_of(const Report& report, int place) {
  Duration used{};
  for (const ClientReport& client : report.clients) {
    if (client.tenant == place) used += client.gpu_time;
  }
  return 100.0 * static_cast<double>(used.count()) / static_cast<double>(report.lasted.count());
}

inline long ms(Duration d) {
  return std::lround(static_cast<double>(d.count()) / 1e6);
}

}  // namespace nvshare::sim
