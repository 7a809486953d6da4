#pragma once

#include "interposer/link/link.h"
#include "interposer/memory/count.h"
#include "interposer/moving/managed/managed.h"

// Memory that can leave the GPU, whichever way: by our own hand (swap.h) or by the driver's
// (managed.h). A process has both when the scheduler chose anew between two connections.
namespace nvshare::interposer::memory {

// What becomes of memory that the program asks for.
struct Home {
  gate::Gate* gate = nullptr;
  wire::Backend backend = wire::Backend::Native;

  bool moves() const { return backend != wire::Backend::Native; }
};
// In the current context.
Home home_of_memory();

// Asks for the bytes; `make(room)` makes them.
template <typename Make>
CUresult allocate_movable(gate::Gate& gate, uint64_t bytes, const Make& make) {
  if (bytes >= kMostBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  return link::allocate_with_scheduler(&gate, [&](link::Again& again) {
    const link::Given given = link::memory_request(gate, bytes, true);
    if (given == link::Given::Refused) return again.refused();
    bool room = given == link::Given::Room;
    CUresult result = make(room);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && room && link::memory_found_no_room(gate, bytes)) {
      room = false;
      result = make(room);
    }
    if (result != CUDA_SUCCESS) link::memory_freed(gate, {bytes, room ? bytes : 0, 0});
    return result;
  });
}

// Whether the program could ever have so much more on the device, as far as that depends on itself.
// What is counted is what was asked for, and may fit where whole pages do not: it would be
// promised, and never come.
bool can_be_swappable(gate::Gate& gate, uint64_t bytes);

// Asks for the bytes and allocates them, in a home that moves. Plain memory, as the program sees
// it.
CUresult movable_allocate(const Home& home, uint64_t bytes, CUdeviceptr* address);
// The same for unified memory that the program asked for itself, in a home that is `Managed`.
CUresult movable_allocate_managed(const Home& home, uint64_t bytes, unsigned flags,
                                  CUdeviceptr* address);

inline moving::Freed movable_free(CUdeviceptr address) {
  const moving::Freed freed = moving::swap::swap_free(address);
  return freed.ours ? freed : moving::managed::managed_free(address);
}

inline moving::Range movable_range_of(CUdeviceptr address) {
  const moving::Range range = moving::swap::swap_range_of(address);
  return range.ours ? range : moving::managed::managed_range_of(address);
}

inline moving::Freed movable_context_gone(CUcontext context) {
  const moving::Freed freed = moving::swap::swap_context_gone(context);
  return freed.ours ? freed : moving::managed::managed_context_gone(context);
}

}  // namespace nvshare::interposer::memory
