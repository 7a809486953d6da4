#include "interposer/moving/swap/state.h"

namespace nvshare::interposer::moving::swap {
namespace {

constexpr uint64_t kAlignment = 512;  // the driver's own
constexpr uint64_t kLeastShared = uint64_t{2} << 20;
constexpr uint64_t kMostShared = uint64_t{32} << 20;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kMost = uint64_t{1} << 48;  // more than any device has

struct Order {
  Space& space;
  Lane& lane;
  uint64_t bytes;
  bool room;
};

Allocation* take_record(Space& space) {
  const Lock lock(space.mutex);
  Allocation* record = space.allocation_pool.take();
  if (record != nullptr) record->id = ++space.last_id;
  return record;
}

void give_record(Space& space, Allocation* allocation) {
  const Lock lock(space.mutex);
  space.allocation_pool.give(allocation);
}

// Physical memory for all of a new region.
CUresult fill(Region& region) {
  for (Chunk* chunk = region.chunks; chunk != nullptr; chunk = chunk->sibling) {
    const CUresult result = make_present(*chunk);
    if (result != CUDA_SUCCESS) return result;
    chunk->where = Where::kHere;
  }
  return CUDA_SUCCESS;
}

Region* make_filled_region(const Order& order, uint64_t bytes, CUresult& result) {
  Region* region = make_region(order.space, order.lane, bytes, result);
  if (region == nullptr || !order.room) return region;
  result = fill(*region);
  if (result == CUDA_SUCCESS) return region;
  release_region(*region);
  return nullptr;
}

CUresult allocate_large(const Order& order, Allocation& allocation) {
  CUresult result = CUDA_SUCCESS;
  Region* region = make_filled_region(order, order.bytes, result);
  if (region == nullptr) return result;
  uint64_t left = order.bytes;
  for (Chunk* chunk = region->chunks; chunk != nullptr; chunk = chunk->sibling) {
    chunk->asked = left < chunk->bytes ? left : chunk->bytes;
    chunk->length = round_up(chunk->asked, kPage);
    left -= chunk->asked;
  }
  allocation.address = region->address;
  allocation.region = region;
  const Lock lock(order.space.mutex);
  add_chunks(*region);
  order.space.rounding += region->bytes - order.bytes;
  order.space.allocations.insert(&allocation);
  return CUDA_SUCCESS;
}

bool take_block_of(Region& region, const Order& order, Allocation& allocation)
    REQUIRES(order.space.mutex) {
  Extent* block = region.blocks.take(order.space.extent_pool, round_up(order.bytes, kAlignment));
  if (block == nullptr) return false;
  region.used += 1;
  count_asked(*region.chunks, order.bytes);
  allocation.address = block->address;
  allocation.region = &region;
  allocation.block = block;
  order.space.allocations.insert(&allocation);
  return true;
}

// In a region that is where the memory is wanted: who was promised room may use it at once, and who
// was not must not be counted as being there.
bool take_block(const Order& order, Allocation& allocation) REQUIRES(order.space.mutex) {
  const Where where = order.room ? Where::kHere : Where::kAway;
  for (Region* region = order.space.shared; region != nullptr; region = region->next) {
    if (region->lane != &order.lane || region->chunks->where != where) continue;
    if (take_block_of(*region, order, allocation)) return true;
  }
  return false;
}

// As much again as the context has in shared regions already, so that those who need little take
// little, and there are few of them all the same.
uint64_t shared_bytes(const Order& order) {
  uint64_t used = 0;
  const Lock lock(order.space.mutex);
  for (Region* region = order.space.shared; region != nullptr; region = region->next) {
    if (region->lane == &order.lane) used += region->chunks->asked;
  }
  uint64_t bytes = kLeastShared;
  while (bytes < used && bytes < kMostShared) bytes *= 2;
  return bytes;
}

Region* make_shared_region(const Order& order, CUresult& result) {
  const uint64_t bytes = shared_bytes(order);
  Region* region = make_filled_region(order, bytes, result);
  // There may still be room for little.
  if (region == nullptr && bytes > kLeastShared) {
    region = make_filled_region(order, kLeastShared, result);
  }
  return region;
}

// Behind the older ones: these are filled first, so that the others become empty. With the space's
// mutex held.
void list_shared(Region& region) {
  Region** place = &region.space->shared;
  while (*place != nullptr) place = &(*place)->next;
  region.next = nullptr;
  *place = &region;
}

CUresult allocate_small(const Order& order, Allocation& allocation) {
  {
    const Lock lock(order.space.mutex);
    if (take_block(order, allocation)) return CUDA_SUCCESS;
  }
  const Lock growing(order.space.growth);
  {
    const Lock lock(order.space.mutex);
    if (take_block(order, allocation)) return CUDA_SUCCESS;
  }
  CUresult result = CUDA_SUCCESS;
  Region* region = make_shared_region(order, result);
  if (region == nullptr) return result;
  {
    const Lock lock(order.space.mutex);
    if (region->blocks.add_range(order.space.extent_pool, region->address, region->bytes)) {
      region->shared = true;
      list_shared(*region);
      add_chunks(*region);
      // In this one, even if an older one has room by now: nobody would ever release an empty one.
      if (take_block_of(*region, order, allocation)) return CUDA_SUCCESS;
      unlist_shared(*region);
      remove_chunks(*region);
    }
  }
  release_region(*region);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

void unlist_shared(Region& region) {
  Region** place = &region.space->shared;
  while (*place != &region) place = &(*place)->next;
  *place = region.next;
}

CUresult swap_allocate(gate::Gate& gate, uint64_t bytes, bool room, CUdeviceptr* address) {
  const KeepErrno keep;
  if (bytes > kMost) return CUDA_ERROR_OUT_OF_MEMORY;
  Space* space = make_space(gate);
  if (space == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  CUcontext context = nullptr;
  CUresult result = real<FunctionId::cuCtxGetCurrent>(&context);
  if (result != CUDA_SUCCESS) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Lane* lane = lane_of(*space, context);
  if (lane == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  result = may_wait(*lane);
  if (result != CUDA_SUCCESS) return result;
  tidy(*space);
  Allocation* allocation = take_record(*space);
  if (allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  allocation->bytes = bytes;
  const Order order{*space, *lane, bytes, room};
  result =
      is_small(bytes) ? allocate_small(order, *allocation) : allocate_large(order, *allocation);
  if (result == CUDA_SUCCESS) {
    *address = allocation->address;
  } else {
    give_record(*space, allocation);
  }
  return result;
}

}  // namespace nvshare::interposer::moving::swap
