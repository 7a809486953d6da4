#include "interposer/moving/swap/backing.h"

// Physical memory comes and goes in steps, each of which the driver may refuse. A chunk says how
// far it is, so every step can be tried again, and nothing that the driver has given is forgotten.
namespace nvshare::interposer::moving::swap {
namespace {

CUmemLocation location_of(CUdevice device) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

CUresult create_as(Chunk& chunk, const CUmemAllocationProp& kind) {
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = real<FunctionId::cuMemCreate>(&handle, chunk.bytes, &kind, 0);
  if (result != CUDA_SUCCESS) return result;
  chunk.handle = handle;
  chunk.exportable = (kind.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  return result;
}

bool is_about_kind(CUresult result) {
  return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED ||
         result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_INVALID_DEVICE;
}

CUresult create(Chunk& chunk) {
  if (const Backing* backing = chunk.region->backing) return create_as(chunk, backing->kind);
  Space& space = *chunk.region->space;
  const bool exportable = space.exportable.load();
  CUresult result = create_as(chunk, plain_kind(space.device, exportable));
  if (!exportable || !is_about_kind(result)) return result;
  // The driver says that the device can export memory, and refuses to make such memory. The program
  // gets memory all the same, because without other processes it loses nothing.
  result = create_as(chunk, plain_kind(space.device, false));
  if (result == CUDA_SUCCESS) space.exportable = false;
  return result;
}

// The handle of memory of ours is only needed until it is mapped, which then keeps it: so unmapping
// it is all that it takes to be rid of it, and cannot be half done. What the program made can be
// mapped anew at any time, so its handle stays as long as it does.
bool release_handle(Chunk& chunk) {
  if (chunk.handle == 0) return true;
  if (real<FunctionId::cuMemRelease>(chunk.handle) != CUDA_SUCCESS) return false;
  chunk.handle = 0;
  return true;
}

CUresult map(Chunk& chunk) {
  if (!chunk.mapped) {
    const CUresult result =
        real<FunctionId::cuMemMap>(chunk.address, chunk.bytes, size_t{0}, chunk.handle, 0ull);
    if (result != CUDA_SUCCESS) return result;
    chunk.mapped = true;
  }
  if (!release_handle(chunk)) return CUDA_ERROR_UNKNOWN;
  CUmemAccessDesc access{};
  access.location = location_of(chunk.region->space->device);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return real<FunctionId::cuMemSetAccess>(chunk.address, chunk.bytes, &access, size_t{1});
}

}  // namespace

CUmemAllocationProp plain_kind(CUdevice device, bool exportable) {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = location_of(device);
  if (exportable) kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return kind;
}

CUresult make_present(Chunk& chunk) {
  CUresult result = CUDA_SUCCESS;
  if (!chunk.mapped && chunk.handle == 0) result = create(chunk);
  Backing* backing = chunk.region->backing;
  if (result == CUDA_SUCCESS) result = backing != nullptr ? map_places(*backing) : map(chunk);
  if (result != CUDA_SUCCESS) make_absent(chunk);
  return result;
}

bool make_absent(Chunk& chunk) {
  if (Backing* backing = chunk.region->backing) {
    return close_chunk(chunk) && unmap_places(*backing) && release_handle(chunk);
  }
  if (!release_handle(chunk)) return false;
  if (!chunk.mapped) return true;
  if (real<FunctionId::cuMemUnmap>(chunk.address, chunk.bytes) != CUDA_SUCCESS) return false;
  chunk.mapped = false;
  return true;
}

}  // namespace nvshare::interposer::moving::swap
