#include "interposer/records.h"
#include "interposer/swap_state.h"

// Pinned memory is copied to five times as fast. It is pinned in a context, which may go; copies
// from and to memory that is not pinned are only slower.
namespace nvshare::interposer {
namespace {

CUcontext any_context(Space& space) {
  const Lock lock(space.mutex);
  for (const Lane& lane : space.lanes) {
    if (lane.context != nullptr && !lane.leaving) return lane.context;
  }
  return nullptr;
}

Slab* first_unpinned(Arena& arena, const Slab* after) {
  const Lock lock(arena.mutex);
  for (Slab* slab = after == nullptr ? arena.slabs : after->next; slab != nullptr;
       slab = slab->next) {
    if (slab->pinned_in == nullptr) return slab;
  }
  return nullptr;
}

void* pin_all(void* argument) {
  Space& space = *static_cast<Space*>(argument);
  for (Slab* slab = nullptr; (slab = first_unpinned(space.arena, slab)) != nullptr;) {
    const Lock still(space.moves);
    arena_pin(space, *slab);
  }
  return nullptr;
}

}  // namespace

void arena_pin(Space& space, Slab& slab) {
  const Lock pinning(space.arena.pinning);
  const CUcontext context = any_context(space);
  {
    const Lock lock(space.arena.mutex);
    if (slab.pinned_in != nullptr || context == nullptr || stopped_looking()) return;
  }
  const Relaxed relaxed;
  const Within within(context);
  if (!within) return;
  if (real<FunctionId::cuMemHostRegister_v2>(static_cast<void*>(slab.memory), slab.bytes,
                                             CU_MEMHOSTREGISTER_PORTABLE) != CUDA_SUCCESS) {
    log("swap: host memory is not pinned");
    return;
  }
  const Lock lock(space.arena.mutex);
  slab.pinned_in = context;
}

void arena_pin_later(Space& space) {
  if (first_unpinned(space.arena, nullptr) == nullptr || any_context(space) == nullptr) return;
  start_thread(pin_all, &space, "nvshare-arena");
}

void arena_unpin(Arena& arena, CUcontext context, bool gone) {
  const Lock pinning(arena.pinning);
  const Relaxed relaxed;
  const Lock lock(arena.mutex);
  for (Slab* slab = arena.slabs; slab != nullptr; slab = slab->next) {
    if (slab->pinned_in != context) continue;
    slab->pinned_in = nullptr;
    if (gone) continue;
    const Within within(context);
    if (within) real<FunctionId::cuMemHostUnregister>(static_cast<void*>(slab->memory));
  }
}

}  // namespace nvshare::interposer
