#include "base/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace nvshare {
namespace {

struct Unit {
  std::string_view name;
  double scale;
};

// Splits "12.5Gi" into a finite number that is not negative and what follows it.
Result<std::pair<double, std::string_view>> split_number(std::string_view text, const char* what,
                                                         const char* examples) {
  if (text.empty()) return Error{fmt::format("empty {} (examples: {})", what, examples)};
  if (text.front() == '-') return Error{fmt::format("'{}' is negative", text)};
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (status != std::errc{} || !std::isfinite(value)) {
    return Error{fmt::format("'{}' is not a {} (examples: {})", text, what, examples)};
  }
  std::string_view unit(stop, static_cast<std::size_t>(end - stop));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  return std::pair{value, unit};
}

template <std::size_t N>
Result<std::int64_t> scale(std::string_view text, const std::array<Unit, N>& units,
                           const char* what, const char* examples) {
  auto split = split_number(text, what, examples);
  if (!split) return split.error();
  for (const Unit& unit : units) {
    if (unit.name != split->second) continue;
    const double scaled = split->first * unit.scale;
    if (scaled >= 9.2e18) return Error{fmt::format("'{}' is too large", text)};
    return static_cast<std::int64_t>(std::llround(scaled));
  }
  return Error{fmt::format("'{}' has no known unit (examples: {})", text, examples)};
}

constexpr double kKi = 1024.0;
constexpr double kSecond = 1e9;

}  // namespace

Result<Bytes> parse_bytes(std::string_view text) {
  static constexpr std::array<Unit, 9> kUnits{{{"", 1},
                                               {"Ki", kKi},
                                               {"Mi", kKi * kKi},
                                               {"Gi", kKi * kKi * kKi},
                                               {"Ti", kKi * kKi * kKi * kKi},
                                               {"K", 1e3},
                                               {"M", 1e6},
                                               {"G", 1e9},
                                               {"T", 1e12}}};
  std::string_view bare = text;
  if (bare.size() > 1 && bare.back() == 'B') bare.remove_suffix(1);
  auto count = scale(bare, kUnits, "size", "4Gi, 512Mi, 2G");
  if (!count) return count.error();
  return Bytes{*count};
}

Result<Duration> parse_duration(std::string_view text) {
  static constexpr std::array<Unit, 6> kUnits{{{"ns", 1},
                                               {"us", 1e3},
                                               {"ms", 1e6},
                                               {"s", kSecond},
                                               {"min", 60 * kSecond},
                                               {"h", 3600 * kSecond}}};
  auto count = scale(text, kUnits, "duration", "10ms, 2s, 1h");
  if (!count) return count.error();
  return Duration{*count};
}

Result<std::int64_t> parse_integer(std::string_view text, std::int64_t low, std::int64_t high) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value);
  if (status != std::errc{} || stop != end || value < low || value > high) {
    return Error{fmt::format("'{}' is not a whole number from {} to {}", text, low, high)};
  }
  return value;
}

Result<double> parse_number(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || at != end || !std::isfinite(value)) {
    return Error{fmt::format("'{}' is not a number", text)};
  }
  return value;
}

std::string to_text(Bytes bytes) {
  static constexpr std::array<const char*, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes.count);
  std::size_t unit = 0;
  while (std::abs(value) >= kKi && unit + 1 < kNames.size()) {
    value /= kKi;
    ++unit;
  }
  const bool whole = std::abs(value - std::round(value)) < 0.05;
  return fmt::format("{:.{}f}{}", value, whole ? 0 : 1, kNames[unit]);
}

std::string to_text(Duration duration) {
  const double ns = static_cast<double>(duration.count());
  const double size = std::abs(ns);
  if (size >= kSecond) return fmt::format("{:.2f}s", ns / kSecond);
  if (size >= 1e6) return fmt::format("{:.1f}ms", ns / 1e6);
  if (size >= 1e3) return fmt::format("{:.0f}us", ns / 1e3);
  return fmt::format("{:.0f}ns", ns);
}

}  // namespace nvshare
