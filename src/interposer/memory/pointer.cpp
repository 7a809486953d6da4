#include "interposer/catch/bodies.h"
#include "interposer/memory/count.h"
#include "interposer/memory/imports.h"
#include "interposer/memory/movable.h"
#include "interposer/moving/swap/virtual.h"

// Questions about addresses whose memory we made: answered as the driver answers them for memory of
// cuMemAlloc, also while it is not on the GPU, when the driver knows nothing of it, and when it is
// unified memory, which the program did not ask for.
namespace nvshare::interposer::memory {
namespace {

template <typename Value>
CUresult put(void* data, Value value) {
  __builtin_memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

// Of memory that is plain for the program, its own or another process's, and that is not.
moving::Range disguised_range_of(CUdeviceptr address) {
  const moving::Range range = movable_range_of(address);
  if (!range.ours) return import_range_of(address);
  return range.plain ? range : moving::Range{};
}

CUresult tell(const moving::Range& range, CUpointer_attribute attribute, CUdeviceptr address,
              void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(data, range.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(data, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(data, address);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      if (range.id == 0) return real<FunctionId::cuPointerGetAttribute>(data, attribute, address);
      return put(data, range.id);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(data, static_cast<int>(range.device));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(data, range.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(data, range.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(data, 1u);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put(data, static_cast<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(data, range.shareable ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, uint64_t{0});
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:  // not as long as it can move
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put(data, 0u);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Memory that the program mapped itself is what the driver says; while it is away, it is waited
// for.
template <FunctionId kFunction, typename... Arguments>
CUresult ask_driver(CUdeviceptr address, Arguments... arguments) {
  gate::Gate* gate = nullptr;
  {
    const moving::swap::SwapHold hold(address);
    if (!hold.away()) return real<kFunction>(arguments...);
    gate = hold.gate();
  }
  const gate::Passage passage(*gate);
  if (passage.refused()) return gate::Passage::kRefused;
  return real<kFunction>(arguments...);
}

template <FunctionId kFunction, typename Address, typename Size>
CUresult get_range(Address* base, Size* size, Address address) {
  const moving::Range range = disguised_range_of(address);
  if (!range.ours) return ask_driver<kFunction>(address, base, size, address);
  if (base != nullptr) *base = static_cast<Address>(range.base);
  if (size != nullptr) *size = static_cast<Size>(range.bytes);
  return CUDA_SUCCESS;
}

}  // namespace

}  // namespace nvshare::interposer::memory

namespace nvshare::interposer::own {
using namespace memory;

CUresult cuMemGetAddressRange(CUdeviceptr_v1* base, unsigned* size, CUdeviceptr_v1 address) {
  return get_range<FunctionId::cuMemGetAddressRange>(base, size, address);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  return get_range<FunctionId::cuMemGetAddressRange_v2>(base, size, address);
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  const moving::Range range = data != nullptr ? disguised_range_of(address) : moving::Range{};
  if (!range.ours) {
    return ask_driver<FunctionId::cuPointerGetAttribute>(address, data, attribute, address);
  }
  return tell(range, attribute, address, data);
}

CUresult cuPointerGetAttributes(unsigned num_attributes, CUpointer_attribute* attributes,
                                void** data, CUdeviceptr address) {
  const bool sound = num_attributes != 0 && attributes != nullptr && data != nullptr;
  const moving::Range range = sound ? disguised_range_of(address) : moving::Range{};
  if (!range.ours) {
    return ask_driver<FunctionId::cuPointerGetAttributes>(address, num_attributes, attributes, data,
                                                          address);
  }
  for (unsigned i = 0; i < num_attributes; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (tell(range, attributes[i], address, data[i]) == CUDA_SUCCESS) continue;
    if (attributes[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS) return CUDA_ERROR_INVALID_VALUE;
    put(data[i], uint64_t{0});
  }
  return CUDA_SUCCESS;
}

}  // namespace nvshare::interposer::own
