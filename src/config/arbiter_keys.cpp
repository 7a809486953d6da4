#include "config/arbiter_keys.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <type_traits>

#include "config/class_tables.h"

namespace nvshare::config {
namespace {

using core::ArbiterConfig;
using core::UsageRules;

template <typename T>
T& field(ArbiterConfig& config, T ArbiterConfig::*member) {
  return config.*member;
}
template <typename T>
T& field(ArbiterConfig& config, T UsageRules::*member) {
  return config.usage.*member;
}

// The ranges are core::problems()'s business; here only what the type can hold.
template <typename T>
void read(TableReader& table, std::string_view key, T& value) {
  std::optional<T> read;
  if constexpr (std::is_same_v<T, Duration>) {
    read = table.duration(key, Duration{0}, Duration::max());
  } else if constexpr (std::is_same_v<T, int>) {
    const auto number =
        table.integer(key, std::numeric_limits<int>::min(), std::numeric_limits<int>::max());
    if (number) read = static_cast<int>(*number);
  } else if constexpr (std::is_same_v<T, bool>) {
    read = table.boolean(key);
  } else {
    read = table.number(key);
  }
  if (read) value = *read;
}

}  // namespace

std::span<const ArbiterKey> arbiter_keys() {
  static constexpr std::array kKeys{
      ArbiterKey{"usage_cache_ttl", &UsageRules::cache_ttl,
                 "an older reading of the usage is not believed"},
      ArbiterKey{"usage_high_water", &UsageRules::high_water,
                 "percent of usage from which on a GPU is under high pressure"},
      ArbiterKey{"usage_low_water", &UsageRules::low_water,
                 "percent of usage at which the pressure is over"},
      ArbiterKey{"usage_boosts", &UsageRules::boosts,
                 "requests with long audio raise both marks for a while"},
      ArbiterKey{"usage_long_audio", &UsageRules::long_audio,
                 "the length of audio from which on the marks rise"},
      ArbiterKey{"usage_high_boost", &UsageRules::high_boost,
                 "percent by which the high mark rises"},
      ArbiterKey{"usage_low_boost", &UsageRules::low_boost, "percent by which the low mark rises"},
      ArbiterKey{"usage_boost_lasts", &UsageRules::boost_lasts, "how long the marks stay raised"},
      ArbiterKey{"lease_slots", &ArbiterConfig::slots, "leases on one GPU at a time"},
      ArbiterKey{"lease_queue", &ArbiterConfig::queue, "requests that may wait for one GPU"},
  };
  return kKeys;
}

// With less the usage would be unknown before each reading.
std::optional<std::string> ttl_problem(const UsageRules& rules, Duration interval) {
  if (2 * rules.cache_ttl >= 3 * interval) return std::nullopt;
  return fmt::format("usage_cache_ttl: {} is less than 1.5 times {}, {}", to_text(rules.cache_ttl),
                     kUsageInterval, to_text(interval));
}

void read_arbiter(TableReader& root, TableReader* table, Problems& problems, ArbiterConfig& config,
                  Duration& interval) {
  if (table != nullptr) {
    for (const ArbiterKey& key : arbiter_keys()) {
      std::visit([&](auto member) { read(*table, key.name, field(config, member)); }, key.member);
    }
    interval =
        table->duration(kUsageInterval, kLeastUsageInterval, kMostUsageInterval).value_or(interval);
  }
  config.classes = read_classes(root, problems);
  std::vector<std::string> found = core::problems(config);
  const auto stale = ttl_problem(config.usage, interval);
  // A wrong time has been reported, and says nothing about the other one.
  if (found.empty() && stale) found.push_back(*stale);
  for (const std::string& problem : found) {
    const std::size_t colon = problem.find(": ");
    const std::string key = problem.substr(0, colon);
    const bool of_class = table == nullptr || key.starts_with("classes");
    (of_class ? root : *table).problem(key, problem.substr(colon + 2));
  }
}

}  // namespace nvshare::config
