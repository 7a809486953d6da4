#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "base/units.h"

namespace nvshare::properties {

// Choices, read from bytes: the property tests draw them at random, the fuzzer by coverage, and a
// failing sequence is shortened by shortening its bytes. Once they are used up every choice is the
// first.
class Dice {
 public:
  explicit Dice(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool over() const { return bytes_.empty(); }

  std::uint32_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint32_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  // 0 .. n-1, n up to 256.
  std::uint32_t below(std::uint32_t n) { return byte() % n; }
  int between(int low, int high) {
    return low + static_cast<int>(below(static_cast<std::uint32_t>(high - low + 1)));
  }
  bool one_in(std::uint32_t n) { return below(n) == n - 1; }
  template <typename T>
  T pick(std::initializer_list<T> from) {
    return from.begin()[below(static_cast<std::uint32_t>(from.size()))];
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace nvshare::properties
