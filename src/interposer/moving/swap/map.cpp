#include "interposer/moving/swap/backing.h"

// Where the program maps the memory that it made. What is there the driver maps and unmaps; of what
// is away only the records change, so the checks that the driver would make are made here.
namespace nvshare::interposer::moving::swap {
namespace {

Reserved* reserved_around(CUdeviceptr address) REQUIRES(g_maps.mutex) {
  Reserved wanted;
  wanted.address = address;
  Reserved* found = g_maps.reserved.at_or_before(wanted);
  return found != nullptr && address - found->address < found->bytes ? found : nullptr;
}

bool driver_has_something(CUdeviceptr address, uint64_t bytes, const Space& space) {
  const CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, space.device};
  for (uint64_t at = 0; at < bytes; at += space.granularity) {
    unsigned long long flags = 0;
    if (real<FunctionId::cuMemGetAccess>(&flags, &device, address + at) == CUDA_SUCCESS) {
      return true;
    }
  }
  return false;
}

// What of the driver's checks would find something wrong.
CUresult check_map(const Place& wanted, const Space& space, unsigned long long flags)
    REQUIRES(g_maps.mutex) {
  const uint64_t all = wanted.backing->region->bytes;
  if (wanted.address == 0 || wanted.address % space.granularity != 0 || wanted.bytes == 0 ||
      flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Reserved* reserved = reserved_around(wanted.address);
  if (reserved == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (wanted.offset != 0 || wanted.bytes != all) return CUDA_ERROR_NOT_SUPPORTED;
  const uint64_t behind = reserved->address + reserved->bytes - wanted.address;
  if (wanted.bytes > behind || first_place(wanted.address, wanted.bytes) != nullptr ||
      driver_has_something(wanted.address, wanted.bytes, space)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// The driver knows of everything but what is away.
CUresult map_now(Place& place, unsigned long long flags) REQUIRES(g_maps.mutex) {
  const bool odd = place.offset != 0 || place.bytes != place.backing->region->bytes;
  if (first_place(place.address, place.bytes) != nullptr) {
    return odd ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = real<FunctionId::cuMemMap>(place.address, place.bytes, place.offset,
                                                     chunk_of(*place.backing).handle, flags);
  place.there = result == CUDA_SUCCESS;
  return result;
}

// Only whole places are unmapped.
bool cuts_through(const Place& place, CUdeviceptr address, CUdeviceptr end) {
  return place.address < address || place.address + place.bytes > end;
}

}  // namespace

bool swap_is_mapped(CUdeviceptr address, uint64_t bytes) {
  if (g_place_count.load() == 0) return false;
  const KeepErrno keep;
  const Lock maps(g_maps.mutex);
  return first_place(address, bytes) != nullptr;
}

CUresult swap_map(CUdeviceptr address, uint64_t bytes, uint64_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const KeepErrno keep;
  const Lock maps(g_maps.mutex);
  Backing* backing = find_backing(handle);
  if (backing == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Place* place = g_maps.place_pool.take();
  if (place == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  place->backing = backing;
  place->address = address;
  place->bytes = bytes;
  place->offset = offset;
  Holds holds;
  holds.add(*backing);
  const CUresult result = is_here(*backing) ? map_now(*place, flags)
                                            : check_map(*place, *backing->region->space, flags);
  if (result != CUDA_SUCCESS) {
    g_maps.place_pool.give(place);
    return result;
  }
  place->next = backing->places;
  backing->places = place;
  g_maps.places.insert(place);
  g_place_count.fetch_add(1);
  return CUDA_SUCCESS;
}

CUresult swap_unmap(CUdeviceptr address, uint64_t bytes, SwapTellFreed tell) {
  // Others' memory is unmapped without our lock.
  if (!swap_is_mapped(address, bytes)) return real<FunctionId::cuMemUnmap>(address, bytes);
  const KeepErrno keep;
  Backing* gone = nullptr;
  {
    const Lock maps(g_maps.mutex);
    const CUdeviceptr end = address + bytes;
    Holds holds;
    for (Place* place = first_place(address, bytes); place != nullptr;
         place = place_after(*place, end)) {
      if (cuts_through(*place, address, end)) return CUDA_ERROR_INVALID_VALUE;
      holds.add(*place->backing);
    }
    // Where something is away the driver has nothing, which it does not mind.
    const CUresult result = real<FunctionId::cuMemUnmap>(address, bytes);
    if (result != CUDA_SUCCESS) return result;
    while (Place* place = first_place(address, bytes)) drop_place(*place);
    holds.end(gone);
  }
  release_gone(gone, tell);
  return CUDA_SUCCESS;
}

CUresult swap_reserve(CUdeviceptr* address, uint64_t bytes, uint64_t alignment, CUdeviceptr wanted,
                      unsigned long long flags) {
  const KeepErrno keep;
  const Lock maps(g_maps.mutex);
  Reserved* record = g_maps.reserved_pool.take();
  if (record == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result =
      real<FunctionId::cuMemAddressReserve>(address, bytes, alignment, wanted, flags);
  if (result != CUDA_SUCCESS) {
    g_maps.reserved_pool.give(record);
    return result;
  }
  record->address = *address;
  record->bytes = bytes;
  g_maps.reserved.insert(record);
  return CUDA_SUCCESS;
}

CUresult swap_unreserve(CUdeviceptr address, uint64_t bytes) {
  const KeepErrno keep;
  const Lock maps(g_maps.mutex);
  if (first_place(address, bytes) != nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = real<FunctionId::cuMemAddressFree>(address, bytes);
  Reserved* record = result == CUDA_SUCCESS ? reserved_around(address) : nullptr;
  if (record != nullptr) {
    g_maps.reserved.remove(record);
    g_maps.reserved_pool.give(record);
  }
  return result;
}

SwapHold::SwapHold(CUdeviceptr address) {
  if (!swap_is_mapped(address, 1)) return;
  const KeepErrno keep;
  g_maps.mutex.lock();
  const Place* place = first_place(address, 1);
  if (place == nullptr) {
    g_maps.mutex.unlock();
    return;
  }
  chunk_ = &chunk_of(*place->backing);
  hold(*chunk_);
  gate_ = place->backing->region->space->gate;
  away_ = !is_here(*place->backing);
}

SwapHold::~SwapHold() {
  if (chunk_ == nullptr) return;
  const KeepErrno keep;
  let_go(*chunk_);
  g_maps.mutex.unlock();
}

}  // namespace nvshare::interposer::moving::swap
