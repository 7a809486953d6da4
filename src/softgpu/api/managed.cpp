#include <algorithm>
#include <cstring>

#include "softgpu/api/api.h"

// Managed memory: where it should be, and what was said about it.
namespace nvshare::softgpu {
namespace {

constexpr int kCpu = -1;
constexpr int kNowhere = -2;

// The managed allocation that holds the whole range.
CUresult find(Call& call, CUdeviceptr address, std::size_t bytes, Allocation*& out) {
  out = call.rt.addresses.find(address);
  if (out == nullptr || out->kind != MemoryKind::kManaged || bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return bytes > out->base + out->bytes - address ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult check_location(const Call& call, const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return call.device(location.id);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUmemLocation location_of(CUdevice device) {
  if (device == kCpu) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

int number_of(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  return location.type == CU_MEM_LOCATION_TYPE_INVALID ? kNowhere : kCpu;
}

CUresult prefetch(Call& call, CUdeviceptr address, std::size_t bytes, CUmemLocation location,
                  const std::shared_ptr<Stream>& stream) {
  SOFTGPU_TRY(check_location(call, location));
  Allocation* allocation = nullptr;
  SOFTGPU_TRY(find(call, address, bytes, allocation));
  allocation->prefetched = location;
  if (stream->capture) return enqueue(call, stream, EmptyTask{});
  return enqueue(call, stream, PrefetchTask{address, bytes, number_of(location)});
}

}  // namespace

SOFTGPU_API(cuMemPrefetchAsync_v2)
(CUdeviceptr dev_ptr, size_t count, CUmemLocation location, unsigned flags, CUstream stream) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  return prefetch(call, dev_ptr, count, location, target);
}

SOFTGPU_API(cuMemPrefetchAsync)
(CUdeviceptr dev_ptr, size_t count, CUdevice dst, CUstream stream) {
  return impl_cuMemPrefetchAsync_v2(dev_ptr, count, location_of(dst), 0, stream);
}

SOFTGPU_API(cuMemPrefetchBatchAsync)
(CUdeviceptr* dptrs, size_t* sizes, size_t count, CUmemLocation* prefetch_locs,
 size_t* prefetch_loc_idxs, size_t num_prefetch_locs, unsigned long long flags, CUstream stream) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (dptrs == nullptr || sizes == nullptr || count == 0 || prefetch_locs == nullptr ||
      prefetch_loc_idxs == nullptr || num_prefetch_locs == 0 || num_prefetch_locs > count ||
      prefetch_loc_idxs[0] != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  size_t location = 0;
  for (size_t i = 0; i < count; ++i) {
    while (location + 1 < num_prefetch_locs && prefetch_loc_idxs[location + 1] <= i) ++location;
    SOFTGPU_TRY(prefetch(call, dptrs[i], sizes[i], prefetch_locs[location], target));
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMemAdvise_v2)
(CUdeviceptr dev_ptr, size_t count, CUmem_advise advice, CUmemLocation location) {
  Call call;
  SOFTGPU_TRY(call.context());
  Allocation* allocation = nullptr;
  SOFTGPU_TRY(find(call, dev_ptr, count, allocation));
  const bool needs_location = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                              advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                              advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (needs_location) SOFTGPU_TRY(check_location(call, location));
  auto& users = allocation->accessed_by;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      allocation->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      allocation->preferred = location;
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      allocation->preferred = {CU_MEM_LOCATION_TYPE_INVALID, 0};
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      if (std::find(users.begin(), users.end(), number_of(location)) == users.end()) {
        users.push_back(number_of(location));
      }
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      std::erase(users, number_of(location));
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

SOFTGPU_API(cuMemAdvise)
(CUdeviceptr dev_ptr, size_t count, CUmem_advise advice, CUdevice device) {
  return impl_cuMemAdvise_v2(dev_ptr, count, advice, location_of(device));
}

SOFTGPU_API(cuMemRangeGetAttribute)
(void* data, size_t data_size, CUmem_range_attribute attribute, CUdeviceptr dev_ptr, size_t count) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Allocation* allocation = nullptr;
  SOFTGPU_TRY(find(call, dev_ptr, count, allocation));
  if (data_size == 0 || data_size % 4 != 0) return CUDA_ERROR_INVALID_VALUE;
  auto* numbers = static_cast<int*>(data);
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    for (size_t i = 0; i < data_size / 4; ++i) {
      numbers[i] = i < allocation->accessed_by.size() ? allocation->accessed_by[i] : kNowhere;
    }
    return CUDA_SUCCESS;
  }
  if (data_size != 4) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      *numbers = allocation->read_mostly ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      *numbers = number_of(allocation->preferred);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      *numbers = number_of(allocation->prefetched);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      *numbers = static_cast<int>(allocation->preferred.type);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      *numbers = allocation->preferred.id;
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      *numbers = static_cast<int>(allocation->prefetched.type);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      *numbers = allocation->prefetched.id;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

SOFTGPU_API(cuMemRangeGetAttributes)
(void** data, size_t* data_sizes, CUmem_range_attribute* attributes, size_t num_attributes,
 CUdeviceptr dev_ptr, size_t count) {
  if (data == nullptr || data_sizes == nullptr || attributes == nullptr || num_attributes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < num_attributes; ++i) {
    SOFTGPU_TRY(impl_cuMemRangeGetAttribute(data[i], data_sizes[i], attributes[i], dev_ptr, count));
  }
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
