#include <string.h>

#include "interposer/catch/bodies.h"
#include "interposer/memory/movable.h"
#include "interposer/memory/pinning.h"

// Physical memory that others get hold of: another device, another process, another API, a
// multicast object, an array. It cannot leave any more without them, so it stays.
namespace nvshare::interposer::memory {
namespace {

// The driver's handle in the place of one of ours.
CUresult pin_handle(CUmemGenericAllocationHandle& handle) {
  if (!moving::swap::swap_is_handle(handle)) return CUDA_SUCCESS;
  const moving::swap::SwapPinned pinned =
      pin_when_there([handle] { return moving::swap::swap_pin(handle); });
  if (pinned.what == moving::swap::SwapPinned::kNotOurs) return CUDA_ERROR_INVALID_VALUE;
  if (pinned.what == moving::swap::SwapPinned::kAway) return CUDA_ERROR_OUT_OF_MEMORY;
  handle = pinned.handle;
  return CUDA_SUCCESS;
}

// All that is mapped in the range.
CUresult pin_range(CUdeviceptr address, uint64_t bytes) {
  if (movable_range_of(address).ours) {
    warn_once(
        "this program hands its GPU memory to other devices, which memory that can be swapped out "
        "does not do: start it with `nvshare run --backend native`");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  for (;;) {
    const moving::swap::SwapPinned pinned =
        pin_when_there([address, bytes] { return moving::swap::swap_pin_at(address, bytes); });
    if (pinned.what == moving::swap::SwapPinned::kNotOurs) return CUDA_SUCCESS;
    if (pinned.what == moving::swap::SwapPinned::kAway) return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

bool names_ours(const CUarrayMapInfo& info) {
  return info.memOperationType == CU_MEM_OPERATION_TYPE_MAP &&
         info.memHandleType == CU_MEM_HANDLE_TYPE_GENERIC &&
         moving::swap::swap_is_handle(info.memHandle.memHandle);
}

template <FunctionId kFunction>
CUresult map_arrays(CUarrayMapInfo* list, unsigned count, CUstream stream) {
  bool any = false;
  for (unsigned i = 0; list != nullptr && i < count; ++i) any = any || names_ours(list[i]);
  if (!any) return real<kFunction>(list, count, stream);
  const size_t bytes = count * sizeof(CUarrayMapInfo);
  auto* copy = static_cast<CUarrayMapInfo*>(map_memory(bytes));
  if (copy == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  memcpy(copy, list, bytes);
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; ++i) {
    if (names_ours(copy[i])) result = pin_handle(copy[i].memHandle.memHandle);
  }
  if (result == CUDA_SUCCESS) result = real<kFunction>(copy, count, stream);
  unmap_memory(copy, bytes);
  return result;
}

}  // namespace

}  // namespace nvshare::interposer::memory

namespace nvshare::interposer::own {
using namespace memory;

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* desc,
                        size_t count) {
  if (moving::swap::swap_lets_others_in(address, size, desc, count)) {
    const CUresult result = pin_range(address, size);
    if (result != CUDA_SUCCESS) return result;
  }
  return moving::swap::swap_set_access(address, size, desc, count);
}

CUresult cuMemExportToShareableHandle(void* shareable_handle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handle_type,
                                      unsigned long long flags) {
  // What cannot be exported need not be pinned.
  CUmemAllocationProp kind{};
  if (moving::swap::swap_is_handle(handle) &&
      (moving::swap::swap_properties(&kind, handle) != CUDA_SUCCESS ||
       (kind.requestedHandleTypes & handle_type) == 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = pin_handle(handle);
  if (result != CUDA_SUCCESS) return result;
  return real<FunctionId::cuMemExportToShareableHandle>(shareable_handle, handle, handle_type,
                                                        flags);
}

CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t size,
                                       CUmemRangeHandleType handle_type, unsigned long long flags) {
  const CUresult result = pin_range(address, size);
  if (result != CUDA_SUCCESS) return result;
  return real<FunctionId::cuMemGetHandleForAddressRange>(handle, address, size, handle_type, flags);
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mc_handle, size_t mc_offset,
                            CUmemGenericAllocationHandle mem_handle, size_t mem_offset, size_t size,
                            unsigned long long flags) {
  const CUresult result = pin_handle(mem_handle);
  if (result != CUDA_SUCCESS) return result;
  return real<FunctionId::cuMulticastBindMem>(mc_handle, mc_offset, mem_handle, mem_offset, size,
                                              flags);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mc_handle, size_t mc_offset,
                             CUdeviceptr memptr, size_t size, unsigned long long flags) {
  const CUresult result = pin_range(memptr, size);
  if (result != CUDA_SUCCESS) return result;
  return real<FunctionId::cuMulticastBindAddr>(mc_handle, mc_offset, memptr, size, flags);
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo* map_info_list, unsigned count, CUstream stream) {
  return map_arrays<FunctionId::cuMemMapArrayAsync>(map_info_list, count, stream);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* map_info_list, unsigned count, CUstream stream) {
  return map_arrays<FunctionId::cuMemMapArrayAsync_ptsz>(map_info_list, count, stream);
}

}  // namespace nvshare::interposer::own
