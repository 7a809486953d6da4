#include "interposer/moving/swap/share.h"

#include "interposer/moving/swap/state.h"

// Plain memory for other processes: pinned once, and exported chunk by chunk.
namespace nvshare::interposer::moving::swap {
namespace {

// --- with the space's mutex held

bool all_there(const Region& region) {
  for (const Chunk* chunk = region.chunks; chunk != nullptr; chunk = chunk->sibling) {
    if (!is_resident(*chunk)) return false;
  }
  return true;
}

bool all_exportable(const Region& region) {
  for (const Chunk* chunk = region.chunks; chunk != nullptr; chunk = chunk->sibling) {
    if (!chunk->exportable) return false;
  }
  return true;
}

// Answers how many bytes were not pinned before.
uint64_t pin_chunks(Region& region) {
  uint64_t bytes = 0;
  for (Chunk* chunk = region.chunks; chunk != nullptr; chunk = chunk->sibling) {
    if (chunk->where == Where::kPinned) continue;
    set_where(*chunk, Where::kPinned);
    arena_give(region.space->arena, chunk->copy);
    bytes += chunk->asked;
  }
  return bytes;
}

SwapPinned share_in(Space& space, CUdeviceptr address, uint64_t secret, SwapShare& share)
    REQUIRES(space.mutex) {
  Allocation* found = find_allocation(space, address);
  // Looked for again each time, because another thread may free it meanwhile.
  while (found != nullptr && !found->freeing && found->region->moving != 0) {
    wait_for_change(space);
    found = find_allocation(space, address);
  }
  if (found == nullptr || found->freeing) return {};
  Region& region = *found->region;
  if (!all_there(region)) return {SwapPinned::kAway, 0, space.gate, 0};
  if (!all_exportable(region)) return {SwapPinned::kNever, 0, space.gate, 0};
  if (found->secret == 0) found->secret = secret;
  share = {found->address, found->bytes, found->secret};
  return {SwapPinned::kPinned, 0, space.gate, pin_chunks(region)};
}

// What is to be exported; its region stays until end_export().
Chunk* begin_export(Space& space, CUdeviceptr base, uint64_t secret, uint32_t index,
                    SwapPiece& piece) REQUIRES(space.mutex) {
  const Allocation* found = find_allocation(space, base);
  if (found == nullptr || found->freeing || secret == 0 || found->secret != secret) return nullptr;
  Region& region = *found->region;
  Chunk* wanted = nullptr;
  uint32_t count = 0;
  for (Chunk* chunk = region.chunks; chunk != nullptr; chunk = chunk->sibling, ++count) {
    if (count == index) wanted = chunk;
  }
  if (wanted == nullptr) return nullptr;
  piece = {-1, wanted->bytes, count, base - region.address, found->bytes, space.device};
  region.moving += 1;
  return wanted;
}

// --- without

void end_export(Space& space, Region& region) {
  const Lock lock(space.mutex);
  region.moving -= 1;
  wake_waiters(space);
}

// The mapping keeps the memory, so its handle has to be asked for.
int export_chunk(const Chunk& chunk) {
  CUmemGenericAllocationHandle handle = 0;
  if (real<FunctionId::cuMemRetainAllocationHandle>(
          &handle, reinterpret_cast<void*>(chunk.address)) != CUDA_SUCCESS) {
    return -1;
  }
  int descriptor = -1;
  const CUresult result = real<FunctionId::cuMemExportToShareableHandle>(
      static_cast<void*>(&descriptor), handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0ull);
  real<FunctionId::cuMemRelease>(handle);
  return result == CUDA_SUCCESS ? descriptor : -1;
}

}  // namespace

SwapPinned swap_share(CUdeviceptr address, uint64_t secret, SwapShare* share) {
  const KeepErrno keep;
  SwapPinned pinned;
  visit_spaces([&](Space& space) {
    const Lock lock(space.mutex);
    pinned = share_in(space, address, secret, *share);
    return pinned.what != SwapPinned::kNotOurs;
  });
  return pinned;
}

SwapPiece swap_export(CUdeviceptr base, uint64_t secret, uint32_t index) {
  const KeepErrno keep;
  SwapPiece piece;
  Chunk* chunk = nullptr;
  visit_spaces([&](Space& space) {
    const Lock lock(space.mutex);
    chunk = begin_export(space, base, secret, index, piece);
    return chunk != nullptr;
  });
  if (chunk == nullptr) return piece;
  Region& region = *chunk->region;
  piece.descriptor = export_chunk(*chunk);
  end_export(*region.space, region);
  return piece;
}

}  // namespace nvshare::interposer::moving::swap
