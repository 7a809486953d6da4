#include "interposer/moving/swap/backing.h"

// Who may use what is mapped. The driver is told of what is there, and of the rest when it comes.
namespace nvshare::interposer::moving::swap {
namespace {

Right* find_right(const Place& place, const CUmemLocation& location) {
  for (Right* right = place.rights; right != nullptr; right = right->next) {
    const CUmemLocation& is = right->is.location;
    if (is.type == location.type && is.id == location.id) return right;
  }
  return nullptr;
}

// Whether there is a record for each of the rights, so that they can be noted later.
bool make_rights(Place& place, const CUmemAccessDesc* access, size_t count) REQUIRES(g_maps.mutex) {
  for (size_t i = 0; i < count; ++i) {
    if (find_right(place, access[i].location) != nullptr) continue;
    Right* right = g_maps.right_pool.take();
    if (right == nullptr) return false;
    right->is = {access[i].location, CU_MEM_ACCESS_FLAGS_PROT_NONE};
    right->next = place.rights;
    place.rights = right;
  }
  return true;
}

void note_rights(Place& place, const CUmemAccessDesc* access, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    find_right(place, access[i].location)->is.flags = access[i].flags;
  }
}

// As the driver would, of memory that it does not have.
CUresult check_right(const CUmemAccessDesc& access, CUdevice device) {
  int count = 0;
  real<FunctionId::cuDeviceGetCount>(&count);
  const bool sound = access.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                     access.location.id >= 0 && access.location.id < count &&
                     (access.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                      access.flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                      access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (!sound) return CUDA_ERROR_INVALID_VALUE;
  int can = 1;
  if (access.location.id != device) {
    real<FunctionId::cuDeviceCanAccessPeer>(&can, access.location.id, device);
  }
  return can != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult check_away(const Place& place, const CUmemAccessDesc* access, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = check_right(access[i], place.backing->region->space->device);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// Holds all that is mapped in the range, and looks whether the rights can be given.
CUresult prepare(Holds& holds, CUdeviceptr address, CUdeviceptr end, const CUmemAccessDesc* access,
                 size_t count) REQUIRES(g_maps.mutex) {
  for (Place* place = first_place(address, end - address); place != nullptr;
       place = place_after(*place, end)) {
    if (place->address < address || place->address + place->bytes > end) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    holds.add(*place->backing);
    const CUresult result =
        is_here(*place->backing) ? CUDA_SUCCESS : check_away(*place, access, count);
    if (result != CUDA_SUCCESS) return result;
    if (!make_rights(*place, access, count)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult tell_driver(CUdeviceptr from, CUdeviceptr to, const CUmemAccessDesc* access,
                     size_t count) {
  if (from == to) return CUDA_SUCCESS;
  return real<FunctionId::cuMemSetAccess>(from, to - from, access, count);
}

// All but what is away, in as few pieces as that leaves.
CUresult tell_driver_of_rest(CUdeviceptr address, CUdeviceptr end, const CUmemAccessDesc* access,
                             size_t count) REQUIRES(g_maps.mutex) {
  CUdeviceptr from = address;
  for (Place* place = first_place(address, end - address); place != nullptr;
       place = place_after(*place, end)) {
    if (is_here(*place->backing)) continue;
    const CUresult result = tell_driver(from, place->address, access, count);
    if (result != CUDA_SUCCESS) return result;
    from = place->address + place->bytes;
  }
  return tell_driver(from, end, access, count);
}

bool is_for_others(const CUmemAccessDesc& access, CUdevice device) {
  const bool its_own =
      access.location.type == CU_MEM_LOCATION_TYPE_DEVICE && access.location.id == device;
  return access.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && !its_own;
}

}  // namespace

bool swap_lets_others_in(CUdeviceptr address, uint64_t bytes, const CUmemAccessDesc* access,
                         size_t count) {
  if (access == nullptr || !swap_is_mapped(address, bytes)) return false;
  const KeepErrno keep;
  const Lock maps(g_maps.mutex);
  for (Place* place = first_place(address, bytes); place != nullptr;
       place = place_after(*place, address + bytes)) {
    const CUdevice device = place->backing->region->space->device;
    for (size_t i = 0; i < count; ++i) {
      if (is_for_others(access[i], device)) return true;
    }
  }
  return false;
}

CUresult swap_set_access(CUdeviceptr address, uint64_t bytes, const CUmemAccessDesc* access,
                         size_t count) {
  if (access == nullptr || count == 0 || !swap_is_mapped(address, bytes)) {
    return real<FunctionId::cuMemSetAccess>(address, bytes, access, count);
  }
  const KeepErrno keep;
  const Lock maps(g_maps.mutex);
  const CUdeviceptr end = address + bytes;
  Holds holds;
  CUresult result = prepare(holds, address, end, access, count);
  if (result == CUDA_SUCCESS) result = tell_driver_of_rest(address, end, access, count);
  if (result != CUDA_SUCCESS) return result;
  for (Place* place = first_place(address, bytes); place != nullptr;
       place = place_after(*place, end)) {
    note_rights(*place, access, count);
  }
  return CUDA_SUCCESS;
}

CUresult swap_get_access(unsigned long long* flags, const CUmemLocation* location,
                         CUdeviceptr address) {
  const SwapHold hold(address);
  if (!hold.away()) return real<FunctionId::cuMemGetAccess>(flags, location, address);
  g_maps.mutex.is_held();
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Right* right = find_right(*first_place(address, 1), *location);
  *flags = right != nullptr ? right->is.flags : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

}  // namespace nvshare::interposer::moving::swap
