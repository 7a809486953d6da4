#include "interposer/moving/swap/backing.h"

// Memory that the program made, under the addresses that it chose. While it is moved it is copied
// at one of these if all of it can be used there, and otherwise at an address of ours, the window.
namespace nvshare::interposer::moving::swap {
namespace {

constexpr size_t kTogether = 16;

CUresult give_rights(const Place& place) {
  const Right* right = place.rights;
  while (right != nullptr) {
    CUmemAccessDesc rights[kTogether];
    size_t count = 0;
    for (; right != nullptr && count < kTogether; right = right->next) {
      if (right->is.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) rights[count++] = right->is;
    }
    if (count == 0) break;
    const CUresult result =
        real<FunctionId::cuMemSetAccess>(place.address, place.bytes, rights, count);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUmemLocation device_of(const Chunk& chunk) {
  return {CU_MEM_LOCATION_TYPE_DEVICE, chunk.region->space->device};
}

// Whether all of the memory can be used there, by its own device.
bool is_usable(const Place& place, const Chunk& chunk, bool write) {
  if (!place.there || place.offset != 0 || place.bytes != chunk.bytes) return false;
  const CUmemLocation device = device_of(chunk);
  for (const Right* right = place.rights; right != nullptr; right = right->next) {
    if (right->is.location.type != device.type || right->is.location.id != device.id) continue;
    return right->is.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
           (!write && right->is.flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
  }
  return false;
}

// The addresses stay ours until the memory is gone.
bool open_window(Chunk& chunk) {
  Region& region = *chunk.region;
  if (region.address == 0) {
    CUdeviceptr address = 0;
    if (real<FunctionId::cuMemAddressReserve>(&address, chunk.bytes, size_t{0}, CUdeviceptr{0},
                                              0ull) != CUDA_SUCCESS) {
      return false;
    }
    region.address = address;
  }
  chunk.address = region.address;
  if (!chunk.mapped) {
    if (real<FunctionId::cuMemMap>(chunk.address, chunk.bytes, size_t{0}, chunk.handle, 0ull) !=
        CUDA_SUCCESS) {
      return false;
    }
    chunk.mapped = true;
  }
  CUmemAccessDesc access{device_of(chunk), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return real<FunctionId::cuMemSetAccess>(chunk.address, chunk.bytes, &access, size_t{1}) ==
         CUDA_SUCCESS;
}

}  // namespace

CUresult map_places(Backing& backing) {
  for (Place* place = backing.places; place != nullptr; place = place->next) {
    if (!place->there) {
      const CUresult result = real<FunctionId::cuMemMap>(
          place->address, place->bytes, place->offset, chunk_of(backing).handle, 0ull);
      if (result != CUDA_SUCCESS) return result;
      place->there = true;
    }
    const CUresult result = give_rights(*place);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

bool unmap_places(Backing& backing) {
  for (Place* place = backing.places; place != nullptr; place = place->next) {
    if (!place->there) continue;
    if (real<FunctionId::cuMemUnmap>(place->address, place->bytes) != CUDA_SUCCESS) {
      return false;
    }
    place->there = false;
  }
  return true;
}

bool open_chunk(Chunk& chunk, bool write) {
  const Backing* backing = chunk.region->backing;
  if (backing == nullptr) return true;
  for (const Place* place = backing->places; place != nullptr && !chunk.mapped;
       place = place->next) {
    if (!is_usable(*place, chunk, write)) continue;
    chunk.address = place->address;
    return true;
  }
  return open_window(chunk);
}

bool close_chunk(Chunk& chunk) {
  if (chunk.region->backing == nullptr || !chunk.mapped) return true;
  if (real<FunctionId::cuMemUnmap>(chunk.region->address, chunk.bytes) != CUDA_SUCCESS) {
    return false;
  }
  chunk.mapped = false;
  return true;
}

}  // namespace nvshare::interposer::moving::swap
