#include "interposer/moving/swap/state.h"

// The process ends: what is on the GPU goes, and is not kept.
namespace nvshare::interposer::moving::swap {
namespace {

// The n-th lane's context; null when there is none, or it ends anyway.
CUcontext context_of(Space& space, size_t n) {
  const Lock lock(space.mutex);
  const Lane& lane = space.lanes[n];
  return lane.leaving ? nullptr : lane.context;
}

bool wait_for_gpu(Space& space) {
  for (size_t n = 0; n < kMaxLanes; ++n) {
    const CUcontext context = context_of(space, n);
    if (context == nullptr) continue;
    const catching::Within within(context);
    if (!within || real<FunctionId::cuCtxSynchronize>() != CUDA_SUCCESS) return false;
  }
  return true;
}

// Where it is away nobody asks what it was.
bool drop(Space& space, Chunk& chunk) {
  const bool gone = make_absent(chunk);
  const Lock lock(space.mutex);
  if (gone) {
    set_where(chunk, Where::kAway);
  } else {
    put_back(chunk);
  }
  return gone;
}

Chunk* next_to_drop(Space& space) {
  const Lock lock(space.mutex);
  for (Chunk* chunk = space.here.first(); chunk != nullptr; chunk = chunk->after) {
    if (chunk->held || lane_for(*chunk->region) == nullptr) continue;
    set_where(*chunk, Where::kLeaving);
    return chunk;
  }
  return nullptr;
}

// Answers how much was away already.
uint64_t stop_counting(Space& space) {
  const Lock lock(space.mutex);
  space.left = true;
  return space.absent;
}

}  // namespace

bool swap_is_slow_to_end(gate::Gate& gate) {
  Space* space = space_of(gate);
  return space != nullptr && arena_has_any(space->arena);
}

Freed swap_leave(gate::Gate& gate, bool (*begin)(void* argument), void* argument) {
  Freed freed;
  Space* space = space_of(gate);
  if (space == nullptr) return freed;
  const catching::Relaxed relaxed;
  const Lock moving(space->moves);
  if (!wait_for_gpu(*space) || !begin(argument)) return freed;
  freed.ours = true;
  freed.gate = &gate;
  freed.bytes = stop_counting(*space);
  for (bool goes_on = true; goes_on;) {
    Chunk* chunk = next_to_drop(*space);
    if (chunk == nullptr) break;
    const uint64_t bytes = chunk->asked;
    goes_on = drop(*space, *chunk);
    if (!goes_on) break;
    freed.bytes += bytes;
    freed.resident += bytes;
  }
  return freed;
}

}  // namespace nvshare::interposer::moving::swap
