#include "interposer/gate/records.h"
#include "interposer/moving/swap/state.h"

namespace nvshare::interposer::moving::swap {
namespace {

// --- with the space's mutex held

bool any_resident(const Region& region) {
  for (const Chunk* chunk = region.chunks; chunk != nullptr; chunk = chunk->sibling) {
    if (is_resident(*chunk)) return true;
  }
  return false;
}

bool all_resident(const Region& region) {
  for (const Chunk* chunk = region.chunks; chunk != nullptr; chunk = chunk->sibling) {
    if (!is_resident(*chunk)) return false;
  }
  return true;
}

// It is no allocation any more, and does not count.
void forget(Space& space, Allocation& allocation, Freed& freed) REQUIRES(space.mutex) {
  space.allocations.remove(&allocation);
  if (!space.left) freed.bytes += allocation.bytes;
  Region& region = *allocation.region;
  if (allocation.block == nullptr) space.rounding -= region.bytes - allocation.bytes;
  for (Chunk* chunk = region.chunks; chunk != nullptr; chunk = chunk->sibling) {
    const uint64_t bytes = allocation.block != nullptr ? allocation.bytes : chunk->asked;
    if (is_resident(*chunk) && !space.left) freed.resident += bytes;
    if (chunk->where == Where::kPinned && !space.left) freed.pinned += bytes;
    uncount_asked(*chunk, bytes);
  }
}

// --- without

// What is behind an allocation that is forgotten, when the GPU is done with it.
void release(Space& space, Allocation* allocation) {
  Region& region = *allocation->region;
  {
    const Lock lock(space.mutex);
    bool empty = true;
    if (allocation->block != nullptr) {
      region.blocks.give(space.extent_pool, allocation->block);
      region.used -= 1;
      empty = region.used == 0;
      if (empty) unlist_shared(region);
    }
    space.allocation_pool.give(allocation);
    if (!empty) return;
    wait_until_still(region);
    remove_chunks(region);
  }
  release_region(region);
}

void release_all(Space& space, Allocation* list) {
  while (list != nullptr) {
    Allocation* next = list->next;
    release(space, list);
    list = next;
  }
}

bool captures_going_on() {
  return gate::g_captures.load(std::memory_order_relaxed) != 0;
}

CUresult wait_for_gpu(CUcontext context) {
  const catching::Within within(context);
  if (!within) return CUDA_ERROR_INVALID_CONTEXT;
  return real<FunctionId::cuCtxSynchronize>();
}

void release_deferred(Space& space, Allocation* list) {
  while (list != nullptr) {
    Allocation* next = list->next;
    if (wait_for_gpu(list->region->lane->context) == CUDA_SUCCESS) {
      release(space, list);
    } else {
      const Lock lock(space.mutex);
      list->next = space.deferred;
      space.deferred = list;
    }
    list = next;
  }
}

// Takes from the list those of the lane.
Allocation* take_of_lane(Allocation*& list, const Lane& lane) {
  Allocation* taken = nullptr;
  for (Allocation** place = &list; *place != nullptr;) {
    Allocation* one = *place;
    if (one->region->lane != &lane) {
      place = &one->next;
      continue;
    }
    *place = one->next;
    one->next = taken;
    taken = one;
  }
  return taken;
}

Allocation* forget_lane(Space& space, Lane& lane, Freed& freed) REQUIRES(space.mutex) {
  Allocation* list = nullptr;
  space.allocations.for_each([&](Allocation& one) {
    if (one.region->lane != &lane || one.freeing) return;
    one.next = list;
    list = &one;
  });
  for (Allocation* one = list; one != nullptr; one = one->next) forget(space, *one, freed);
  return list;
}

// What an allocation is that somebody wants to free.
struct Claim {
  Space* space = nullptr;
  Allocation* allocation = nullptr;
  Lane* lane = nullptr;
  CUcontext context = nullptr;
  bool resident = false;
};

// Nobody else can free it then.
Claim claim(CUdeviceptr address) {
  Claim claimed;
  visit_spaces([&](Space& space) {
    const Lock lock(space.mutex);
    Allocation* found = find_allocation(space, address);
    if (found == nullptr) return false;
    if (found->address != address || found->freeing) return true;
    found->freeing = true;
    Lane* lane = found->region->lane;
    claimed = {&space, found, lane, lane->context, any_resident(*found->region)};
    return true;
  });
  return claimed;
}

}  // namespace

void tidy(Space& space) {
  Allocation* deferred = nullptr;
  {
    const Lock lock(space.mutex);
    if (space.leftovers == nullptr && space.deferred == nullptr) return;
    if (!captures_going_on()) {
      deferred = space.deferred;
      space.deferred = nullptr;
    }
  }
  release_deferred(space, deferred);
  release_leftovers(space);
}

Freed swap_free(CUdeviceptr address) {
  const KeepErrno keep;
  const Claim claimed = claim(address);
  if (claimed.allocation == nullptr) return {};
  Space& space = *claimed.space;
  tidy(space);
  Freed freed;
  freed.ours = true;
  freed.gate = space.gate;
  freed.result = may_wait(*claimed.lane);
  // Who waits for the GPU would spoil a capture, which the driver does not do when it frees: the
  // memory goes later then.
  const bool defer = claimed.resident && captures_going_on();
  if (freed.result == CUDA_SUCCESS && claimed.resident && !defer) {
    freed.result = wait_for_gpu(claimed.context);
  }
  {
    const Lock lock(space.mutex);
    if (freed.result != CUDA_SUCCESS && claimed.lane->context == claimed.context) {
      claimed.allocation->freeing = false;
      return freed;
    }
    freed.result = CUDA_SUCCESS;
    forget(space, *claimed.allocation, freed);
    if (defer) {
      claimed.allocation->next = space.deferred;
      space.deferred = claimed.allocation;
      return freed;
    }
  }
  release(space, claimed.allocation);
  return freed;
}

Range swap_range_of(CUdeviceptr address) {
  Range range;
  visit_spaces([&](Space& space) {
    const Lock lock(space.mutex);
    const Allocation* found = find_allocation(space, address);
    if (found == nullptr || found->freeing) return false;
    range = {true,         found->address,
             found->bytes, found->region->lane->context,
             space.gate,   all_resident(*found->region),
             space.device, found->id};
    range.shareable = space.exportable.load();
    return true;
  });
  return range;
}

void swap_context_leaving(CUcontext context, bool leaving) {
  const KeepErrno keep;
  visit_spaces([&](Space& space) {
    Lane* lane = known_lane(space, context);
    if (lane == nullptr) return false;
    {
      const Lock moving(space.moves);
      {
        const Lock lock(space.mutex);
        lane->leaving = leaving;
      }
      if (leaving) arena_unpin(space.arena, context, false);
    }
    if (!leaving) arena_prepare_later(space);
    return true;
  });
}

Freed swap_context_gone(CUcontext context) {
  const KeepErrno keep;
  Freed freed;
  visit_spaces([&](Space& space) {
    Lane* lane = known_lane(space, context);
    if (lane == nullptr) return false;
    freed.ours = true;
    freed.gate = space.gate;
    Allocation* list = nullptr;
    Allocation* deferred = nullptr;
    {
      const Lock moving(space.moves);
      {
        const Lock lock(space.mutex);
        list = forget_lane(space, *lane, freed);
        deferred = take_of_lane(space.deferred, *lane);
        *lane = Lane{};
      }
      release_all(space, list);
      release_all(space, deferred);
      arena_unpin(space.arena, context, true);
    }
    arena_prepare_later(space);
    return true;
  });
  return freed;
}

}  // namespace nvshare::interposer::moving::swap
