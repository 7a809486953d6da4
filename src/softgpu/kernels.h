#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "softgpu/module_text.h"

// The built-in kernels. Each really does to memory what it says; none of them runs per thread, so
// the grid only counts for how much of the device the launch fills.
namespace nvshare::softgpu {

// How a kernel sees memory. Both return false where an address is not mapped for it.
struct KernelMemory {
  std::function<bool(std::uint64_t address, void* to, std::size_t bytes)> read;
  std::function<bool(std::uint64_t address, const void* from, std::size_t bytes)> write;
};

enum class KernelOutcome { kDone, kIllegalAddress };

struct Builtin {
  std::string_view name;
  std::string_view signature;  // accepted parameter lists, for people
  bool (*accepts)(std::span<const ParamType> params);
  // What the kernel moves (bytes of device bandwidth) and how long it says that it takes (ns).
  double (*bytes)(std::span<const ParamType> params, std::span<const std::uint64_t> values);
  double (*duration)(std::span<const std::uint64_t> values);
  KernelOutcome (*run)(const KernelMemory& memory, std::span<const ParamType> params,
                       std::span<const std::uint64_t> values);
};

std::span<const Builtin> builtins();
const Builtin* find_builtin(std::string_view name);

}  // namespace nvshare::softgpu
