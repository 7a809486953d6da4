#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "config/reader.h"
#include "core/arbiter/arbiter.h"

namespace nvshare::config {

// One field of the arbiter's configuration: the name it has in files, where it is kept, and what it
// does in a line. The only list of them: the scheduler's settings and scenario files are made from
// it. core::problems() knows the ranges.
struct ArbiterKey {
  using Member = std::variant<int core::ArbiterConfig::*, Duration core::UsageRules::*,
                              double core::UsageRules::*, bool core::UsageRules::*>;

  std::string_view name;
  Member member;
  std::string_view help;
};
std::span<const ArbiterKey> arbiter_keys();

// How often the usage of the GPUs is looked at.
inline constexpr std::string_view kUsageInterval = "usage_sample_interval";
inline constexpr Duration kFirstUsageInterval = 800ms;
inline constexpr Duration kLeastUsageInterval = 50ms;
inline constexpr Duration kMostUsageInterval = 2s;

// The message about a cache_ttl that is too short for the interval; nothing when it is not.
std::optional<std::string> ttl_problem(const core::UsageRules& rules, Duration interval);

// Reads the arbiter's settings and the interval from `table`, and [classes] beside it in `root`.
// Values that are out of range are problems.
void read_arbiter(TableReader& root, TableReader* table, Problems& problems,
                  core::ArbiterConfig& config, Duration& interval);

}  // namespace nvshare::config
