#include "interposer/gate/records.h"
#include "interposer/moving/swap/state.h"

namespace nvshare::interposer::moving::swap {

namespace {

bool can_use(const Lane* lane) {
  return lane != nullptr && lane->context != nullptr && !lane->leaving;
}

}  // namespace

Lane* lane_for(Region& region) {
  const bool homeless = region.lane == nullptr || region.lane->context == nullptr;
  if (region.backing != nullptr && homeless) {
    for (Lane& lane : region.space->lanes) {
      if (can_use(&lane)) region.lane = &lane;
    }
  }
  return can_use(region.lane) ? region.lane : nullptr;
}

void swap_context_made(gate::Gate& gate, CUcontext context) {
  const KeepErrno keep;
  if (Space* space = make_space(gate)) lane_of(*space, context);
}

Lane* lane_of(Space& space, CUcontext context) {
  if (Lane* known = known_lane(space, context)) return known;
  Lane* made = nullptr;
  {
    const Lock lock(space.mutex);
    made = take_lane(space.lanes, context);
  }
  if (made == nullptr) return nullptr;
  // There may be host memory that waits for a context.
  arena_prepare_later(space);
  return made;
}

CUstream copies_of(Lane& lane) {
  if (lane.copies == nullptr &&
      real<FunctionId::cuStreamCreate>(&lane.copies, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
    lane.copies = nullptr;
  }
  return lane.copies;
}

CUevent event_of(Lane& lane, size_t n) {
  CUevent& event = lane.events[n];
  // Who waits for it sleeps: the copies take long.
  if (event == nullptr &&
      real<FunctionId::cuEventCreate>(&event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) !=
          CUDA_SUCCESS) {
    event = nullptr;
  }
  return event;
}

bool make_ready(Lane& lane) {
  // Without the kernel everything is copied, and that is all.
  load_fingerprint(lane.hasher);
  bool all = copies_of(lane) != nullptr;
  for (size_t n = 0; n < 2 * kBatch && all; ++n) all = event_of(lane, n) != nullptr;
  return all;
}

CUresult may_wait(Lane& lane) {
  if (gate::g_captures.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  const catching::Within within(lane.context);
  if (!within) return CUDA_ERROR_INVALID_CONTEXT;
  // Anything that could wait will do: the driver refuses them all alike.
  CUevent event = nullptr;
  CUresult result = real<FunctionId::cuEventCreate>(&event, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) return result;
  result = real<FunctionId::cuEventQuery>(event);
  real<FunctionId::cuEventDestroy_v2>(event);
  return result;
}

}  // namespace nvshare::interposer::moving::swap
