#include "interposer/memory/movable.h"

namespace nvshare::interposer::memory {
Home home_of_memory() {
  gate::Gate* gate = link::gate_of_current_device();
  if (gate == nullptr) return {};
  // The scheduler that takes the program chooses the backend.
  link::wait_while_refused(*gate);
  const wire::Backend backend = link::memory_backend(*gate);
  const bool possible =
      backend == wire::Backend::Swap ||
      (backend == wire::Backend::Managed && moving::managed::managed_is_possible(*gate));
  return {gate, possible ? backend : wire::Backend::Native};
}

bool can_be_swappable(gate::Gate& gate, uint64_t bytes) {
  const uint64_t most = link::memory_of_device(gate);
  const uint64_t asked =
      moving::swap::swap_resident(gate) + moving::swap::swap_absent(gate) + bytes;
  // Of what is too much as it is counted the scheduler says so.
  if (asked > most || moving::swap::swap_in_pages(gate, bytes) <= most) return true;
  warn_once(
      "a program would have more than the GPU in whole pages of 2 MiB, which its allocations take: "
      "it is refused more memory");
  return false;
}

CUresult movable_allocate(const Home& home, uint64_t bytes, CUdeviceptr* address) {
  gate::Gate& gate = *home.gate;
  const bool swaps = home.backend == wire::Backend::Swap;
  if (swaps && bytes < kMostBytes && !can_be_swappable(gate, bytes)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (swaps && bytes < kMostBytes)
    link::memory_rounding(gate, moving::swap::swap_rounding(gate, bytes));
  const CUresult result = allocate_movable(gate, bytes, [&](bool room) {
    if (swaps) return moving::swap::swap_allocate(gate, bytes, room, address);
    return moving::managed::managed_allocate(gate, {bytes, room, true, CU_MEM_ATTACH_GLOBAL},
                                             address);
  });
  if (swaps && result != CUDA_SUCCESS)
    link::memory_rounding(gate, moving::swap::swap_rounding(gate, 0));
  return result;
}

CUresult movable_allocate_managed(const Home& home, uint64_t bytes, unsigned flags,
                                  CUdeviceptr* address) {
  return allocate_movable(*home.gate, bytes, [&](bool room) {
    return moving::managed::managed_allocate(*home.gate, {bytes, room, false, flags}, address);
  });
}

}  // namespace nvshare::interposer::memory
