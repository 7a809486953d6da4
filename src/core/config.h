#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace nvshare::core {

// How GPU time is limited and billed; docs/policies.md tells them apart.
enum class ComputePolicy { Wall, Weighted, Hybrid, Coordinated, Dynamic, Fair, Metered };
inline constexpr std::array kComputePolicies{ComputePolicy::Wall,    ComputePolicy::Weighted,
                                             ComputePolicy::Hybrid,  ComputePolicy::Coordinated,
                                             ComputePolicy::Dynamic, ComputePolicy::Fair,
                                             ComputePolicy::Metered};
std::string_view name_of(ComputePolicy policy);
std::optional<ComputePolicy> policy_by_name(std::string_view name);

// Under `metered`: whether clients that may run do so one at a time or together. Auto decides from
// what is measured.
enum class ShareMode { Auto, Turns, Concurrent };

enum class QuantumMode { Auto, Fixed };

struct Config {
  // Compute.
  ComputePolicy policy = ComputePolicy::Metered;
  ShareMode share_mode = ShareMode::Auto;
  Duration window = 2s;              // of the window policies; a quota is limit x window
  Duration turn = 5ms;               // of `metered` when several saturating clients take turns
  Duration fair_turn = 50ms;         // of `fair`
  Duration burst_window = 500ms;     // `metered`: an idle gap up to this long loses no budget
  int carryover_percent = 100;       // of an overrun that the next window inherits
  int tail_billing_percent = 100;    // of the time between a drop and its release
  int best_effort_percent = 5;       // kept for tenants without a limit when limits fill the GPU
  Duration sample_interval = 100ms;  // how often concurrent clients are metered
  Duration drop_timeout = 2s;        // a client that has not released by then is overdue
  bool end_overdue = false;          // ask the shell to end an overdue client

  // Memory.
  int reserve_percent = 10;
  Bytes reserve_base = mib(500);
  Bytes reserve_per_process = mib(300);
  QuantumMode quantum_mode = QuantumMode::Auto;
  Duration quantum_fixed = 60s;
  int quantum_multiplier = 5;
  Duration quantum_min = 10s;
  Duration quantum_max = 300s;
  Bytes link_per_second = gib(1);  // the seeds' careful guess, until a move has been measured
  Duration ageing = 1s;            // waiting this long is worth one step of priority
  Duration idle_out{};             // a tenant without work for so long falls asleep; 0: never

  friend bool operator==(const Config&, const Config&) = default;
};

// The most that clients can have on a GPU while all fits with some room to spare. From there on
// host memory is made, because making it takes far longer than moving memory into it.
constexpr Bytes fits_easily(Bytes safe) {
  constexpr int kPercent = 90;
  return Bytes{safe.count / 100 * kPercent};
}

// More memory than any GPU has; sums over thousands of clients stay far from overflowing.
inline constexpr Bytes kMostMemory = gib(256 * 1024);

// Every value that is out of its range, one line each; empty when the configuration is usable.
std::vector<std::string> problems(const Config& config);

}  // namespace nvshare::core
