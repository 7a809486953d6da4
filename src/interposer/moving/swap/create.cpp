#include "interposer/moving/swap/backing.h"

// Handles of memory that the program makes itself.
namespace nvshare::interposer::moving::swap {
namespace {

// The driver's handles are addresses in the process or small numbers: they never look like this.
constexpr uint64_t kOurs = uint64_t{0x6e76} << 48;
constexpr uint64_t kOursMask = uint64_t{0xffff} << 48;

bool is_plain(const CUmemAllocationProp& kind) {
  constexpr auto kShareable =
      unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC};
  return kind.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         kind.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         (unsigned{kind.requestedHandleTypes} & ~kShareable) == 0 &&
         kind.win32HandleMetaData == nullptr &&
         kind.allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_NONE &&
         kind.allocFlags.usage == 0;
}

// A region of one chunk, which is away; null when there is no memory for its record.
Region* take_region(Space& space, uint64_t bytes) {
  const Lock lock(space.mutex);
  Region* region = space.region_pool.take();
  if (region == nullptr) return nullptr;
  region->chunks = space.chunk_pool.take();
  if (region->chunks == nullptr) {
    space.region_pool.give(region);
    return nullptr;
  }
  region->space = &space;
  region->bytes = bytes;
  region->chunks->region = region;
  region->chunks->bytes = region->chunks->asked = region->chunks->length = bytes;
  return region;
}

Backing* take_backing(Space& space, uint64_t bytes, const CUmemAllocationProp& kind) {
  Region* region = take_region(space, bytes);
  if (region == nullptr) return nullptr;
  Backing* backing = nullptr;
  {
    const Lock lock(g_maps.mutex);
    backing = g_maps.backing_pool.take();
  }
  if (backing == nullptr) {
    release_region(*region);
    return nullptr;
  }
  backing->region = region;
  backing->kind = kind;
  backing->references = 1;
  region->backing = backing;
  return backing;
}

void give_up(Backing& backing) {
  Region& region = *backing.region;
  region.backing = nullptr;
  {
    const Lock lock(g_maps.mutex);
    g_maps.backing_pool.give(&backing);
  }
  release_region(region);
}

}  // namespace

bool swap_is_handle(CUmemGenericAllocationHandle handle) {
  return (handle & kOursMask) == kOurs;
}

bool swap_can_follow(gate::Gate& gate, uint64_t bytes, const CUmemAllocationProp& kind,
                     unsigned long long flags) {
  const KeepErrno keep;
  // It moves as a whole or not at all.
  if (bytes == 0 || bytes > kLargestHandle || flags != 0 || !is_plain(kind)) return false;
  Space* space = make_space(gate);
  return space != nullptr && find_granularity(*space, kind.location.id) == CUDA_SUCCESS &&
         bytes % space->granularity == 0;
}

CUresult swap_create(gate::Gate& gate, uint64_t bytes, const CUmemAllocationProp& kind, bool room,
                     CUmemGenericAllocationHandle* handle) {
  const KeepErrno keep;
  Space* space = make_space(gate);
  if (space == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult found = find_granularity(*space, kind.location.id);
  if (found != CUDA_SUCCESS) return found;
  release_leftovers(*space);
  Backing* backing = take_backing(*space, bytes, kind);
  if (backing == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  Chunk& chunk = chunk_of(*backing);
  if (room) {
    const CUresult result = make_present(chunk);
    if (result != CUDA_SUCCESS) {
      give_up(*backing);
      return result;
    }
    chunk.where = Where::kHere;
  }
  const Lock maps(g_maps.mutex);
  backing->number = kOurs | ++g_maps.last_number;
  *handle = backing->number;
  g_maps.backings.insert(backing);
  const Lock lock(space->mutex);
  add_chunks(*backing->region);
  return CUDA_SUCCESS;
}

CUresult swap_release(CUmemGenericAllocationHandle handle, SwapTellFreed tell) {
  const KeepErrno keep;
  Backing* gone = nullptr;
  {
    const Lock maps(g_maps.mutex);
    Backing* backing = find_backing(handle);
    if (backing == nullptr) return CUDA_ERROR_INVALID_VALUE;
    backing->references -= 1;
    collect_if_unused(*backing, gone);
  }
  release_gone(gone, tell);
  return CUDA_SUCCESS;
}

CUresult swap_retain(CUdeviceptr address, CUmemGenericAllocationHandle* handle) {
  const KeepErrno keep;
  const Lock maps(g_maps.mutex);
  const Place* place = first_place(address, 1);
  if (handle == nullptr || place == nullptr) return CUDA_ERROR_INVALID_VALUE;
  place->backing->references += 1;
  *handle = place->backing->number;
  return CUDA_SUCCESS;
}

CUresult swap_properties(CUmemAllocationProp* kind, CUmemGenericAllocationHandle handle) {
  const KeepErrno keep;
  const Lock maps(g_maps.mutex);
  Backing* backing = find_backing(handle);
  if (kind == nullptr || backing == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Holds holds;
  holds.add(*backing);
  if (is_here(*backing)) {
    return real<FunctionId::cuMemGetAllocationPropertiesFromHandle>(kind,
                                                                    chunk_of(*backing).handle);
  }
  *kind = backing->kind;
  return CUDA_SUCCESS;
}

namespace {

SwapPinned pin(Backing& backing) {
  Holds holds;
  holds.add(backing);
  Chunk& chunk = chunk_of(backing);
  Space& space = *backing.region->space;
  if (!is_here(backing)) return {SwapPinned::kAway, 0, space.gate, 0};
  const Lock lock(space.mutex);
  const bool already = chunk.where == Where::kPinned;
  if (!already) {
    set_where(chunk, Where::kPinned);
    arena_give(space.arena, chunk.copy);
  }
  return {SwapPinned::kPinned, chunk.handle, space.gate, already ? 0 : chunk.asked};
}

}  // namespace

SwapPinned swap_pin(CUmemGenericAllocationHandle handle) {
  const KeepErrno keep;
  const Lock maps(g_maps.mutex);
  Backing* backing = find_backing(handle);
  return backing == nullptr ? SwapPinned{} : pin(*backing);
}

SwapPinned swap_pin_at(CUdeviceptr address, uint64_t bytes) {
  const KeepErrno keep;
  const Lock maps(g_maps.mutex);
  for (Place* place = first_place(address, bytes); place != nullptr;
       place = place_after(*place, address + bytes)) {
    const SwapPinned pinned = pin(*place->backing);
    if (pinned.what == SwapPinned::kAway || pinned.bytes != 0) return pinned;
  }
  return {};
}

}  // namespace nvshare::interposer::moving::swap
