#include "interposer/moving/swap/state.h"

namespace nvshare::interposer::moving::swap {
namespace {

// Equal chunks, in whole granules, but for the last.
uint64_t chunk_bytes(const Space& space, uint64_t bytes) {
  const uint64_t count = (bytes + space.chunk_limit - 1) / space.chunk_limit;
  return round_up((bytes + count - 1) / count, space.granularity);
}

// With the mutex of the region's space held.
bool add_chunks_to(Region& region) {
  region.space->mutex.is_held();
  const uint64_t each = chunk_bytes(*region.space, region.bytes);
  Chunk** place = &region.chunks;
  for (uint64_t at = 0; at < region.bytes; at += each) {
    Chunk* chunk = region.space->chunk_pool.take();
    if (chunk == nullptr) return false;
    chunk->region = &region;
    chunk->address = region.address + at;
    chunk->bytes = region.bytes - at < each ? region.bytes - at : each;
    *place = chunk;
    place = &chunk->sibling;
  }
  return true;
}

bool all_absent(Region& region) {
  bool all = true;
  for (Chunk* chunk = region.chunks; chunk != nullptr; chunk = chunk->sibling) {
    if (!make_absent(*chunk)) all = false;
  }
  return all;
}

// Everything but the records.
bool give_back(Region& region) {
  if (!all_absent(region)) return false;
  for (Chunk* chunk = region.chunks; chunk != nullptr; chunk = chunk->sibling) {
    arena_give(region.space->arena, chunk->copy);
  }
  if (region.address == 0) return true;
  return real<FunctionId::cuMemAddressFree>(region.address, region.bytes) == CUDA_SUCCESS;
}

bool can_export(CUdevice device) {
  int can = 0;
  return real<FunctionId::cuDeviceGetAttribute>(
             &can, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device) ==
             CUDA_SUCCESS &&
         can != 0;
}

// With the mutex of the region's space held.
void drop_records(Region& region) {
  Space& space = *region.space;
  space.mutex.is_held();
  for (Chunk* chunk = region.chunks; chunk != nullptr;) {
    Chunk* next = chunk->sibling;
    space.chunk_pool.give(chunk);
    chunk = next;
  }
  if (region.shared) region.blocks.remove_range(space.extent_pool);
  space.region_pool.give(&region);
}

}  // namespace

CUresult find_granularity(Space& space, CUdevice device) {
  {
    const Lock lock(space.mutex);
    if (space.granularity != 0) return CUDA_SUCCESS;
  }
  const bool exportable = can_export(device);
  const CUmemAllocationProp kind = plain_kind(device, exportable);
  size_t granularity = 0;
  const CUresult result = real<FunctionId::cuMemGetAllocationGranularity>(
      &granularity, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return result;
  size_t total = 0;
  const bool known = real<FunctionId::cuDeviceTotalMem_v2>(&total, device) == CUDA_SUCCESS;
  const Lock lock(space.mutex);
  if (space.granularity != 0) return CUDA_SUCCESS;
  space.device = device;
  space.chunk_limit = largest_chunk(known ? total : ~uint64_t{0});
  space.exportable = exportable;
  space.granularity = granularity;
  return CUDA_SUCCESS;
}

Region* make_region(Space& space, Lane& lane, uint64_t bytes, CUresult& result) {
  CUdevice device = -1;
  result = real<FunctionId::cuCtxGetDevice>(&device);
  if (result == CUDA_SUCCESS) result = find_granularity(space, device);
  if (result != CUDA_SUCCESS) return nullptr;
  result = CUDA_ERROR_OUT_OF_MEMORY;
  Region* region = nullptr;
  {
    const Lock lock(space.mutex);
    region = space.region_pool.take();
  }
  if (region == nullptr) return nullptr;
  region->space = &space;
  region->lane = &lane;
  region->bytes = round_up(bytes, space.granularity);
  CUdeviceptr address = 0;
  result = real<FunctionId::cuMemAddressReserve>(&address, region->bytes, size_t{0}, CUdeviceptr{0},
                                                 0ull);
  bool good = result == CUDA_SUCCESS;
  if (good) {
    const Lock lock(space.mutex);
    region->address = address;
    good = add_chunks_to(*region);
    if (!good) result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (good) return region;
  release_region(*region);
  return nullptr;
}

void release_region(Region& region) {
  Space& space = *region.space;
  const bool all = give_back(region);
  const Lock lock(space.mutex);
  if (all) {
    drop_records(region);
  } else {
    region.next = space.leftovers;
    space.leftovers = &region;
  }
}

void release_leftovers(Space& space) {
  Region* leftovers = nullptr;
  {
    const Lock lock(space.mutex);
    leftovers = space.leftovers;
    space.leftovers = nullptr;
  }
  while (leftovers != nullptr) {
    Region* next = leftovers->next;
    release_region(*leftovers);
    leftovers = next;
  }
}

}  // namespace nvshare::interposer::moving::swap
