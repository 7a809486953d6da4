#include "interposer/gate/records.h"
#include "interposer/moving/swap/state.h"

// Pinned memory is copied to five times as fast. It is pinned in a context, which may go; copies
// from and to memory that is not pinned are only slower.
namespace nvshare::interposer::moving::swap {
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
    if (slab->memory != nullptr && slab->pinned_in == nullptr) return slab;
  }
  return nullptr;
}

// The n-th lane's context, when not all that we need is there yet.
CUcontext unprepared(Space& space, size_t n) {
  const Lock lock(space.mutex);
  const Lane& lane = space.lanes[n];
  return lane.leaving || lane.prepared ? nullptr : lane.context;
}

// Nobody moves anything, and no context is ended, while the space's moves are held.
// So a lane stays what it is without the mutex.
void prepare_lanes(Space& space) NO_THREAD_SAFETY_ANALYSIS {
  for (size_t n = 0; n < kMaxLanes; ++n) {
    const Lock still(space.moves);
    const CUcontext context = gate::stopped_looking() ? nullptr : unprepared(space, n);
    if (context == nullptr) continue;
    const catching::Within within(context);
    if (!within) continue;
    Lane& lane = space.lanes[n];
    // What the driver has no memory for now is tried again with the next host memory.
    lane.prepared = make_ready(lane);
  }
}

void pin_all(Space& space) {
  for (Slab* slab = nullptr; (slab = first_unpinned(space.arena, slab)) != nullptr;) {
    const Lock still(space.moves);
    arena_pin(space, *slab);
  }
}

// The kernel pins nothing that is hidden.
bool pin_pages(Arena& arena, const Slab& slab) {
  {
    const Lock lock(arena.mutex);
    if (!is_owned(slab)) hide_slab(slab, false);
  }
  return real<FunctionId::cuMemHostRegister_v2>(static_cast<void*>(slab.memory), slab.bytes,
                                                CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
}

void* prepare(void* argument) {
  Space& space = *static_cast<Space*>(argument);
  {
    const catching::Relaxed relaxed;
    prepare_lanes(space);
    pin_all(space);
  }
  space.arena.preparing.fetch_sub(1);
  return nullptr;
}

}  // namespace

void arena_pin(Space& space, Slab& slab) {
  const Lock pinning(space.arena.pinning);
  const CUcontext context = any_context(space);
  {
    const Lock lock(space.arena.mutex);
    const bool done = slab.pinned_in != nullptr || slab.memory == nullptr;
    if (done || context == nullptr || gate::stopped_looking()) return;
  }
  const catching::Relaxed relaxed;
  const catching::Within within(context);
  if (!within) return;
  const bool pinned = pin_pages(space.arena, slab);
  {
    const Lock lock(space.arena.mutex);
    if (pinned) slab.pinned_in = context;
    if (!is_owned(slab)) hide_slab(slab, true);
  }
  if (pinned) return;
  warn_once(
      "host memory could not be pinned: this program is swapped out and in at a fifth of the "
      "speed (is memory that it may lock limited? see ulimit -l)");
}

void arena_prepare_later(Space& space) {
  if (!arena_has_any(space.arena) || any_context(space) == nullptr) return;
  space.arena.preparing.fetch_add(1);
  if (!start_thread(prepare, &space, "nvshare-arena")) space.arena.preparing.fetch_sub(1);
}

void arena_unpin(Arena& arena, CUcontext context, bool gone) {
  const Lock pinning(arena.pinning);
  const catching::Relaxed relaxed;
  const Lock lock(arena.mutex);
  for (Slab* slab = arena.slabs; slab != nullptr; slab = slab->next) {
    if (slab->pinned_in != context) continue;
    slab->pinned_in = nullptr;
    if (gone) continue;
    const catching::Within within(context);
    if (within) real<FunctionId::cuMemHostUnregister>(static_cast<void*>(slab->memory));
  }
}

}  // namespace nvshare::interposer::moving::swap
