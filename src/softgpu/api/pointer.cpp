#include <cstring>

#include "softgpu/api/api.h"

// What is known of an address.
namespace nvshare::softgpu {
namespace {

template <typename T>
CUresult put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

// What allocations and mappings have in common, as far as pointers are asked about it.
struct Facts {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  int device = 0;
  bool host = false;
  bool managed = false;
  bool device_memory = false;  // of cuMemAlloc
  std::uint64_t id = 0;
  unsigned handle_types = 0;
  unsigned access = 3;
  unsigned sync_memops = 0;
  CUcontext context{};
  CUmemoryPool pool{};
};

bool facts_of(Runtime& rt, std::uint64_t address, int device, Facts& facts) {
  if (const Allocation* allocation = rt.addresses.find(address)) {
    const auto context = allocation->context.lock();
    const auto pool = allocation->pool.lock();
    facts.base = allocation->base;
    facts.bytes = allocation->bytes;
    facts.device = allocation->device;
    facts.managed = allocation->kind == MemoryKind::kManaged;
    facts.host = allocation->kind == MemoryKind::kHostPinned ||
                 allocation->kind == MemoryKind::kHostRegistered;
    facts.device_memory = allocation->kind == MemoryKind::kDevice;
    facts.id = allocation->id;
    facts.sync_memops = allocation->sync_memops;
    if (context && allocation->kind != MemoryKind::kPool) facts.context = context->handle;
    if (pool) {
      facts.pool = pool->handle;
      facts.handle_types = pool->props.handleTypes;
    }
    return true;
  }
  if (const Mapping* mapping = rt.addresses.find_mapping(address)) {
    const Reservation* reservation = rt.addresses.find_reservation(mapping->base);
    facts.base = reservation->base;
    facts.bytes = reservation->bytes;
    facts.device = mapping->physical->prop.location.id;
    facts.host = !mapping->physical->on_device;
    facts.id = mapping->physical->identity;
    facts.handle_types = mapping->physical->prop.requestedHandleTypes;
    const auto access = mapping->device_access.find(device);
    facts.access = access == mapping->device_access.end() ? 0 : unsigned{access->second};
    return true;
  }
  return false;
}

CUresult tell(const Facts& facts, CUpointer_attribute attribute, std::uint64_t address,
              void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(data, facts.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(data, unsigned{facts.host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE});
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return facts.host || facts.managed ? put(data, address) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put(data, facts.sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put(data, facts.id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(data, unsigned{facts.managed});
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(data, facts.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(data, unsigned{facts.device_memory});
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(data, facts.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(data, facts.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(data, 1u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(data, std::uint64_t{facts.handle_types});
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put(data, unsigned{facts.device_memory});
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put(data, facts.access);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, facts.pool);
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put(data, 0u);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// What cuPointerGetAttributes says of an address that is nothing.
CUresult tell_unknown(CUpointer_attribute attribute, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put(data, 0u);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(data, -2);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return CUDA_ERROR_INVALID_VALUE;
    default:
      return put(data, std::uint64_t{0});
  }
}

}  // namespace

SOFTGPU_API(cuPointerGetAttribute)
(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  Call call;
  SOFTGPU_TRY(call.any_context());
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Facts facts;
  if (!facts_of(call.rt, address, call.ctx->device, facts)) return CUDA_ERROR_INVALID_VALUE;
  return tell(facts, attribute, address, data);
}

SOFTGPU_API(cuPointerGetAttributes)
(unsigned num_attributes, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  Call call;
  SOFTGPU_TRY(call.any_context());
  if (num_attributes == 0 || attributes == nullptr || data == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Facts facts;
  const bool known = facts_of(call.rt, address, call.ctx->device, facts);
  for (unsigned i = 0; i < num_attributes; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result =
        known ? tell(facts, attributes[i], address, data[i]) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) SOFTGPU_TRY(tell_unknown(attributes[i], data[i]));
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuPointerSetAttribute)
(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  Call call;
  SOFTGPU_TRY(call.any_context());
  Allocation* allocation = call.rt.addresses.find(address);
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || allocation == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  allocation->sync_memops = *static_cast<const unsigned*>(value) != 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
