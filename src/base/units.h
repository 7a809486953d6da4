#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace nvshare {

using Duration = std::chrono::nanoseconds;
using namespace std::chrono_literals;

// Monotonic time as it is handed in. The clock has no now(): whoever needs the time is given it.
struct MonotonicTime {
  using rep = Duration::rep;
  using period = Duration::period;
  using duration = Duration;
  using time_point = std::chrono::time_point<MonotonicTime, Duration>;
  static constexpr bool is_steady = true;
};
using Time = MonotonicTime::time_point;

// A number of bytes. Signed, so that a difference can be taken and looked at.
struct Bytes {
  std::int64_t count = 0;

  friend constexpr auto operator<=>(const Bytes&, const Bytes&) = default;
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }
  friend constexpr Bytes operator*(Bytes a, std::int64_t n) { return {a.count * n}; }
  constexpr Bytes& operator+=(Bytes b) { return count += b.count, *this; }
  constexpr Bytes& operator-=(Bytes b) { return count -= b.count, *this; }
};

constexpr Bytes kib(std::int64_t n) {
  return {n << 10};
}
constexpr Bytes mib(std::int64_t n) {
  return {n << 20};
}
constexpr Bytes gib(std::int64_t n) {
  return {n << 30};
}

// "4Gi", "512Mi", "64Ki", "1.5Gi", "4G", "300M", "8K", "1048576"; a trailing B is allowed ("4GiB").
// Ki/Mi/Gi/Ti are powers of 1024, K/M/G/T powers of 1000. Negative, empty, or too large for 63
// bits: an error that says which.
Result<Bytes> parse_bytes(std::string_view text);

// "10ms", "2s", "1.5s", "50us", "100ns", "3min", "1h". The unit must be there; never negative.
Result<Duration> parse_duration(std::string_view text);

// A whole number from `low` to `high`, with nothing behind it.
Result<std::int64_t> parse_integer(std::string_view text, std::int64_t low, std::int64_t high);

// A number that is neither infinite nor NaN, with nothing behind it.
Result<double> parse_number(std::string_view text);

// Short forms for people: "1.5GiB", "12MiB", "0B"; "1.20s", "35.0ms", "12us".
std::string to_text(Bytes bytes);
std::string to_text(Duration duration);

}  // namespace nvshare
