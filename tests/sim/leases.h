#pragma once

// Short ways to say which services a test has.

#include <string>
#include <vector>

#include "scenarios.h"

namespace nvshare::sim {

// A service that has work of `burst` every so often, and asks for a lease each time.
inline ClientSpec service(const char* name, const char* task_class, Duration burst,
                          Duration every) {
  ClientSpec spec = bursty(name, core::kNoCoreLimit, burst, Duration{});
  spec.work.every = every;
  spec.work.kernel = 1ms;
  spec.lease.emplace();
  spec.lease->asks.task_class = task_class;
  spec.lease->asks.max_wait = 10s;
  return spec;
}

// Work that gives way to no class, and keeps the GPU busy for that part of the time.
inline ClientSpec load(const char* name, int percent, Duration arrives, Duration leaves) {
  ClientSpec spec = bursty(name, core::kNoCoreLimit, percent * 1ms, Duration{});
  spec.work.every = 100ms;
  spec.limits.priority = 9;
  spec.arrives = arrives;
  spec.leaves = leaves;
  return spec;
}

inline Report play_with_spans(const Scenario& scenario, Observer* observer = nullptr) {
  auto report = run(scenario, true, observer);
  EXPECT_TRUE(report) << report.error().message;
  return report ? *report : Report{};
}

inline const ServiceReport& service_of(const Report& report, const std::string& name) {
  for (const ServiceReport& one : report.services) {
    if (one.name == name) return one;
  }
  ADD_FAILURE() << "there is no service " << name;
  static const ServiceReport none;
  return none;
}

// When the pressure was high.
inline std::vector<Span> high(const Report& report) {
  std::vector<Span> spans;
  for (const PressureSpan& span : report.gpus.at(0).pressure.spans) {
    if (span.state != core::Admission::High) continue;
    // A span ends where a hint comes or goes, too.
    if (!spans.empty() && spans.back().to == span.time.from) {
      spans.back().to = span.time.to;
    } else {
      spans.push_back(span.time);
    }
  }
  return spans;
}

}  // namespace nvshare::sim
