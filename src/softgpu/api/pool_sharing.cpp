#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "softgpu/api/api.h"
#include "softgpu/runtime/memory_ops.h"

// Pools shared between processes. What is handed over is the memory file of the process that has
// the pool; a pointer is a place in it.
namespace nvshare::softgpu {
namespace {

struct PoolPointer {
  std::uint64_t magic;
  std::uint64_t identity;
  std::uint64_t offset;
  std::uint64_t piece;
  std::uint64_t bytes;
  std::int32_t device;  // of the card
};
static_assert(sizeof(PoolPointer) <= sizeof(CUmemPoolPtrExportData));
constexpr std::uint64_t kPoolMagic = 0x4c4f4f5047545300;

std::uint64_t identity_of(int file) {
  struct stat info {};
  return ::fstat(file, &info) == 0 ? info.st_ino : 0;
}

}  // namespace

SOFTGPU_API(cuMemPoolExportToShareableHandle)
(void* handle_out, CUmemoryPool pool, CUmemAllocationHandleType handle_type,
 unsigned long long flags) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.pools.find(pool);
  if (!found || handle_out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (handle_type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      (found->props.handleTypes & handle_type) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int copy = ::fcntl(call.rt.pages.file(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(handle_out, &copy, sizeof copy);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemPoolImportFromShareableHandle)
(CUmemoryPool* pool_out, void* handle, CUmemAllocationHandleType handle_type,
 unsigned long long flags) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (pool_out == nullptr || flags != 0 ||
      handle_type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  UniqueFd file(
      ::fcntl(static_cast<int>(reinterpret_cast<std::intptr_t>(handle)), F_DUPFD_CLOEXEC, 0));
  if (!file) return CUDA_ERROR_INVALID_VALUE;
  auto pool = new_pool(call.rt, 0);
  pool->imported = std::move(file);
  *pool_out = pool->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemPoolExportPointer)(CUmemPoolPtrExportData* share_data_out, CUdeviceptr address) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.addresses.allocations.find(address);
  if (share_data_out == nullptr || found == call.rt.addresses.allocations.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto pool = found->second.pool.lock();
  if (!pool || !pool->exportable) return CUDA_ERROR_INVALID_VALUE;
  const Piece& piece = found->second.piece;
  const int device = call.rt.segment->on_card(found->second.device);
  const PoolPointer data{kPoolMagic,  call.rt.pages.identity(), piece.offset,
                         piece.bytes, found->second.bytes,      device};
  *share_data_out = CUmemPoolPtrExportData{};
  std::memcpy(share_data_out->reserved, &data, sizeof data);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemPoolImportPointer)
(CUdeviceptr* ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData* share_data) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.pools.find(pool);
  if (!found || ptr_out == nullptr || share_data == nullptr || !found->imported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  PoolPointer data{};
  std::memcpy(&data, share_data->reserved, sizeof data);
  if (data.magic != kPoolMagic || data.identity != identity_of(found->imported.get())) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int device = call.rt.segment->seen_as(data.device);
  if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
  void* memory = ::mmap(nullptr, data.piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        found->imported.get(), static_cast<off_t>(data.offset));
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  ::madvise(memory, data.piece, MADV_DONTFORK);
  Allocation allocation;
  allocation.base = reinterpret_cast<std::uint64_t>(memory);
  allocation.bytes = data.bytes;
  allocation.kind = MemoryKind::kPool;
  allocation.pool = found;
  allocation.device = device;
  allocation.id = call.rt.new_id();
  allocation.piece = {allocation.base, data.piece, data.offset};
  call.rt.addresses.allocations[allocation.base] = allocation;
  *ptr_out = allocation.base;
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
