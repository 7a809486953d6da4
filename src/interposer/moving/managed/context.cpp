#include "interposer/moving/managed/state.h"

// Contexts in which there is unified memory, and what of it goes with them.
namespace nvshare::interposer::moving::managed {
namespace {

// Takes those of the lane out of the books, but for what is being freed.
void forget_lane(Space& space, const Lane& lane, Freed& freed) REQUIRES(space.mutex) {
  Allocation* list = nullptr;
  space.allocations.for_each([&](Allocation& one) {
    if (one.lane != &lane) return;
    one.next = list;
    list = &one;
  });
  while (list != nullptr) {
    Allocation* next = list->next;
    freed.bytes += list->bytes;
    freed.resident += resident_bytes(*list);
    space.allocations.remove(list);
    remove(space, *list);
    give_record(space, list);
    list = next;
  }
}

}  // namespace

Lane* lane_of(Space& space, CUcontext context) {
  const Lock lock(space.mutex);
  return take_lane(space.lanes, context);
}

CUstream stream_of(Space& space, Lane& lane) {
  const Lock making(space.making);
  if (lane.stream == nullptr &&
      real<FunctionId::cuStreamCreate>(&lane.stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
    lane.stream = nullptr;
  }
  return lane.stream;
}

void managed_context_leaving(CUcontext context, bool leaving) {
  const KeepErrno keep;
  g_spaces.visit([&](Space& space) {
    Lane* lane = known_lane(space, context);
    if (lane == nullptr) return false;
    const Lock moving(space.moves);
    const Lock lock(space.mutex);
    lane->leaving = leaving;
    return true;
  });
}

Freed managed_context_gone(CUcontext context) {
  const KeepErrno keep;
  Freed freed;
  g_spaces.visit([&](Space& space) {
    Lane* lane = known_lane(space, context);
    if (lane == nullptr) return false;
    freed.ours = true;
    freed.gate = space.gate;
    const Lock moving(space.moves);
    const Lock lock(space.mutex);
    forget_lane(space, *lane, freed);
    *lane = Lane{};
    return true;
  });
  return freed;
}

}  // namespace nvshare::interposer::moving::managed
