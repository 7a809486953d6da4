#include "interposer/memory_movable.h"

#include "interposer/memory_count.h"

namespace nvshare::interposer {
namespace {

// `make(room)` makes what has been asked for.
template <typename Make>
CUresult allocate(const Home& home, uint64_t bytes, Make make) {
  if (bytes >= kMostBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const Given given = memory_request(*home.gate, bytes, true);
  if (given == Given::Refused) return CUDA_ERROR_OUT_OF_MEMORY;
  bool room = given == Given::Room;
  CUresult result = make(room);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && room && memory_found_no_room(*home.gate, bytes)) {
    room = false;
    result = make(room);
  }
  if (result != CUDA_SUCCESS) memory_freed(*home.gate, {bytes, room ? bytes : 0, 0});
  return result;
}

}  // namespace

Home home_of_memory() {
  Gate* gate = gate_of_current_device();
  if (gate == nullptr) return {};
  const wire::Backend backend = memory_backend(*gate);
  const bool possible = backend == wire::Backend::Swap ||
                        (backend == wire::Backend::Managed && managed_is_possible(*gate));
  return {gate, possible ? backend : wire::Backend::Native};
}

CUresult movable_allocate(const Home& home, uint64_t bytes, CUdeviceptr* address) {
  return allocate(home, bytes, [&](bool room) {
    if (home.backend == wire::Backend::Swap) return swap_allocate(*home.gate, bytes, room, address);
    return managed_allocate(*home.gate, {bytes, room, true, CU_MEM_ATTACH_GLOBAL}, address);
  });
}

CUresult movable_allocate_managed(const Home& home, uint64_t bytes, unsigned flags,
                                  CUdeviceptr* address) {
  return allocate(home, bytes, [&](bool room) {
    return managed_allocate(*home.gate, {bytes, room, false, flags}, address);
  });
}

}  // namespace nvshare::interposer
