#include "config/config_keys.h"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "base/suggest.h"
#include "config/exact_text.h"

namespace nvshare::config {
namespace {

using core::Config;

template <typename T>
Choices<T> choices_of();

template <>
Choices<core::ComputePolicy> choices_of() {
  Choices<core::ComputePolicy> choices;
  for (core::ComputePolicy policy : core::kComputePolicies) {
    choices.emplace_back(core::name_of(policy), policy);
  }
  return choices;
}

template <>
Choices<core::ShareMode> choices_of() {
  return {{"auto", core::ShareMode::Auto},
          {"turns", core::ShareMode::Turns},
          {"concurrent", core::ShareMode::Concurrent}};
}

template <>
Choices<core::QuantumMode> choices_of() {
  return {{"auto", core::QuantumMode::Auto}, {"fixed", core::QuantumMode::Fixed}};
}

template <>
Choices<bool> choices_of() {
  return {{"true", true}, {"false", false}};
}

std::string exact_text(int value) {
  return fmt::format("{}", value);
}

template <typename T>
std::string exact_text(T value) {
  for (const auto& [word, meaning] : choices_of<T>()) {
    if (meaning == value) return std::string(word);
  }
  return "?";
}

template <typename T>
Result<T> from_text(std::string_view text) {
  if constexpr (std::is_same_v<T, Duration>) {
    return parse_duration(text);
  } else if constexpr (std::is_same_v<T, Bytes>) {
    return parse_bytes(text);
  } else if constexpr (std::is_same_v<T, int>) {
    const auto value =
        parse_integer(text, std::numeric_limits<int>::min(), std::numeric_limits<int>::max());
    if (!value) return value.error();
    return static_cast<int>(*value);
  } else {
    std::vector<std::string_view> words;
    for (const auto& [word, meaning] : choices_of<T>()) {
      if (word == text) return meaning;
      words.push_back(word);
    }
    return Error{fmt::format("'{}' is not one of {}", text, join(words))};
  }
}

// The ranges are core::problems()'s business; here only what the type can hold.
template <typename T>
std::optional<T> from_table(TableReader& table, std::string_view key) {
  if constexpr (std::is_same_v<T, Duration>) {
    return table.duration(key, Duration{0}, Duration::max());
  } else if constexpr (std::is_same_v<T, Bytes>) {
    return table.bytes(key, Bytes{0}, Bytes{std::numeric_limits<std::int64_t>::max()});
  } else if constexpr (std::is_same_v<T, int>) {
    const auto value =
        table.integer(key, std::numeric_limits<int>::min(), std::numeric_limits<int>::max());
    return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
  } else if constexpr (std::is_same_v<T, bool>) {
    return table.boolean(key);
  } else {
    return table.choice(key, choices_of<T>());
  }
}

template <typename T>
T type_of_member(T Config::*);

}  // namespace

std::span<const ConfigKey> config_keys() {
  static constexpr std::array kKeys{
      ConfigKey{"policy", &Config::policy, "how GPU time is limited and billed"},
      ConfigKey{"share_mode", &Config::share_mode,
                "metered: clients run one at a time, together, or as measured"},
      ConfigKey{"window", &Config::window, "window policies: a quota is limit x window"},
      ConfigKey{"turn", &Config::turn, "metered: length of a turn"},
      ConfigKey{"fair_turn", &Config::fair_turn, "fair: length of a turn"},
      ConfigKey{"burst_window", &Config::burst_window,
                "metered: an idle gap up to this long loses no budget"},
      ConfigKey{"carryover_percent", &Config::carryover_percent,
                "part of an overrun that the next window inherits"},
      ConfigKey{"tail_billing_percent", &Config::tail_billing_percent,
                "part of the time between a drop and its release that is billed"},
      ConfigKey{"best_effort_percent", &Config::best_effort_percent,
                "kept for tenants without a limit when limits fill the GPU"},
      ConfigKey{"sample_interval", &Config::sample_interval,
                "how often concurrent clients are metered"},
      ConfigKey{"drop_timeout", &Config::drop_timeout,
                "a client that has not released by then is overdue"},
      ConfigKey{"end_overdue", &Config::end_overdue, "end a client that is overdue"},
      ConfigKey{"reserve_percent", &Config::reserve_percent, "GPU memory kept free, at least"},
      ConfigKey{"reserve_base", &Config::reserve_base, "GPU memory kept free for the system"},
      ConfigKey{"reserve_per_process", &Config::reserve_per_process,
                "GPU memory kept free for each process"},
      ConfigKey{"quantum_mode", &Config::quantum_mode,
                "how long memory stays: from what a move costs, or fixed"},
      ConfigKey{"quantum_fixed", &Config::quantum_fixed, "the fixed time"},
      ConfigKey{"quantum_multiplier", &Config::quantum_multiplier,
                "auto: memory stays this many times what a move costs"},
      ConfigKey{"quantum_min", &Config::quantum_min, "auto: not less"},
      ConfigKey{"quantum_max", &Config::quantum_max, "auto: not more"},
      ConfigKey{"link_per_second", &Config::link_per_second,
                "what moving memory is taken to cost until a move has been measured"},
      ConfigKey{"ageing", &Config::ageing, "waiting this long is worth one step of priority"},
      ConfigKey{"idle_out", &Config::idle_out,
                "a tenant without work for so long gives its GPU memory back; 0: never"},
  };
  return kKeys;
}

const ConfigKey* find_config_key(std::string_view name) {
  for (const ConfigKey& key : config_keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

// The ranges are known to core::problems() alone, so it is asked about a value outside of any.
std::string range_of(const ConfigKey& key) {
  return std::visit(
      [&](auto member) -> std::string {
        using T = decltype(type_of_member(member));
        if constexpr (std::is_same_v<T, Duration> || std::is_same_v<T, Bytes> ||
                      std::is_same_v<T, int>) {
          Config outside;
          outside.*member = T{-1};
          for (const std::string& problem : core::problems(outside)) {
            constexpr std::string_view kFrom = " is not from ";
            if (problem.rfind(std::string(key.name) + ": ", 0) != 0) continue;
            const std::size_t from = problem.find(kFrom);
            if (from != problem.npos) return problem.substr(from + kFrom.size());
          }
          return "above 0";
        } else {
          std::vector<std::string_view> words;
          const auto choices = choices_of<T>();
          for (const auto& [word, meaning] : choices) words.push_back(word);
          return join(words);
        }
      },
      key.member);
}

void read_config(TableReader& table, Config& config) {
  for (const ConfigKey& key : config_keys()) {
    std::visit(
        [&](auto member) {
          using T = decltype(type_of_member(member));
          if (const auto value = from_table<T>(table, key.name)) config.*member = *value;
        },
        key.member);
  }
  // Each begins with the name of its key.
  for (const std::string& problem : core::problems(config)) {
    const std::size_t colon = problem.find(": ");
    table.problem(problem.substr(0, colon), problem.substr(colon + 2));
  }
}

Result<void> set_from_text(Config& config, const ConfigKey& key, std::string_view text) {
  return std::visit(
      [&](auto member) -> Result<void> {
        using T = decltype(type_of_member(member));
        const auto value = from_text<T>(text);
        if (!value && std::is_same_v<T, int>) {  // in words of this key, not of all numbers
          return Error{
              fmt::format("{}: '{}' is not a whole number from {}", key.name, text, range_of(key))};
        }
        if (!value) return value.error().with_context(std::string(key.name));
        config.*member = *value;
        return {};
      },
      key.member);
}

std::string text_of(const Config& config, const ConfigKey& key) {
  return std::visit([&](auto member) { return exact_text(config.*member); }, key.member);
}

}  // namespace nvshare::config
