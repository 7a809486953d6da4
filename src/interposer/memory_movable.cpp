#include "interposer/memory_movable.h"

namespace nvshare::interposer {
Home home_of_memory() {
  Gate* gate = gate_of_current_device();
  if (gate == nullptr) return {};
  const wire::Backend backend = memory_backend(*gate);
  const bool possible = backend == wire::Backend::Swap ||
                        (backend == wire::Backend::Managed && managed_is_possible(*gate));
  return {gate, possible ? backend : wire::Backend::Native};
}

CUresult movable_allocate(const Home& home, uint64_t bytes, CUdeviceptr* address) {
  Gate& gate = *home.gate;
  if (home.backend == wire::Backend::Swap) {
    return allocate_movable(
        gate, bytes, [&](bool room) { return swap_allocate(gate, bytes, room, address); },
        swap_rounding(gate, bytes));
  }
  return allocate_movable(gate, bytes, [&](bool room) {
    return managed_allocate(gate, {bytes, room, true, CU_MEM_ATTACH_GLOBAL}, address);
  });
}

CUresult movable_allocate_managed(const Home& home, uint64_t bytes, unsigned flags,
                                  CUdeviceptr* address) {
  return allocate_movable(*home.gate, bytes, [&](bool room) {
    return managed_allocate(*home.gate, {bytes, room, false, flags}, address);
  });
}

}  // namespace nvshare::interposer
