#include "core/config.h"

#include <fmt/format.h>

namespace nvshare::core {

std::string_view name_of(ComputePolicy policy) {
  switch (policy) {
    case ComputePolicy::Wall:
      return "wall";
    case ComputePolicy::Weighted:
      return "weighted";
    case ComputePolicy::Hybrid:
      return "hybrid";
    case ComputePolicy::Coordinated:
      return "coordinated";
    case ComputePolicy::Dynamic:
      return "dynamic";
    case ComputePolicy::Fair:
      return "fair";
    case ComputePolicy::Metered:
      return "metered";
  }
  return "?";
}

std::optional<ComputePolicy> policy_by_name(std::string_view name) {
  for (ComputePolicy policy : kComputePolicies) {
    if (name_of(policy) == name) return policy;
  }
  return std::nullopt;
}

std::vector<std::string> problems(const Config& config) {
  std::vector<std::string> found;
  const auto percent = [&](const char* name, int value, int low, int high) {
    if (value < low || value > high) {
      found.push_back(fmt::format("{}: {} is not from {} to {}", name, value, low, high));
    }
  };
  const auto span = [&](const char* name, Duration value, Duration low, Duration high) {
    if (value < low || value > high) {
      found.push_back(fmt::format("{}: {} is not from {} to {}", name, to_text(value), to_text(low),
                                  to_text(high)));
    }
  };
  span("window", config.window, 10ms, 1h);
  span("turn", config.turn, 100us, 10s);
  span("fair_turn", config.fair_turn, 100us, 10s);
  span("burst_window", config.burst_window, 10ms, 1h);
  span("sample_interval", config.sample_interval, 1ms, 1min);
  span("drop_timeout", config.drop_timeout, 10ms, 1h);
  span("ageing", config.ageing, 1ms, 1h);
  span("idle_out", config.idle_out, 0s, 24h);
  span("quantum_fixed", config.quantum_fixed, 10ms, 24h);
  span("quantum_min", config.quantum_min, 10ms, 24h);
  span("quantum_max", config.quantum_max, config.quantum_min, 24h);
  percent("carryover_percent", config.carryover_percent, 0, 100);
  percent("tail_billing_percent", config.tail_billing_percent, 0, 100);
  percent("best_effort_percent", config.best_effort_percent, 1, 50);
  percent("reserve_percent", config.reserve_percent, 0, 90);
  percent("quantum_multiplier", config.quantum_multiplier, 1, 1000);
  const auto memory = [&](const char* name, Bytes value) {
    if (value.count < 0 || value > kMostMemory) {
      found.push_back(
          fmt::format("{}: {} is not from 0 to {}", name, to_text(value), to_text(kMostMemory)));
    }
  };
  memory("reserve_base", config.reserve_base);
  memory("reserve_per_process", config.reserve_per_process);
  if (config.link_per_second.count <= 0) found.push_back("link_per_second: must be above 0");
  return found;
}

}  // namespace nvshare::core
