#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/types.h"

// Arguments that show, at the other end of a call, whether they arrived: each place and each
// function has its own.
namespace nvshare::abi {

// What pointers that may be followed on the way point to.
inline cuda::CUlaunchConfig some_config{};
inline cuda::CUDA_LAUNCH_PARAMS some_launch{};

template <typename Argument>
Argument pattern(unsigned row, unsigned place) {
  if constexpr (std::is_same_v<Argument, const cuda::CUlaunchConfig*>) {
    return &some_config;
  } else if constexpr (std::is_same_v<Argument, cuda::CUDA_LAUNCH_PARAMS*>) {
    return &some_launch;
  } else {
    unsigned char bytes[sizeof(Argument)];
    for (std::size_t i = 0; i < sizeof bytes; ++i) {
      bytes[i] = static_cast<unsigned char>(1 + row * 7 + place * 31 + i);
    }
    Argument value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
}

template <typename... Arguments>
unsigned digest(unsigned row, const Arguments&... arguments) {
  unsigned hash = 2166136261U + row;
  [[maybe_unused]] const auto add = [&hash](const void* data, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
      hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 16777619U;
    }
  };
  (add(&arguments, sizeof arguments), ...);
  return hash;
}

}  // namespace nvshare::abi
