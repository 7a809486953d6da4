#include "interposer/catch/bodies.h"
#include "interposer/memory/array_size.h"
#include "interposer/memory/count.h"

// Arrays and mipmaps, by the bytes of their elements.
namespace nvshare::interposer::memory {
namespace {

template <typename Shape>
CUDA_ARRAY3D_DESCRIPTOR flat(const Shape& shape) {
  return {shape.Width, shape.Height, 0, shape.Format, shape.NumChannels, 0};
}

template <typename Shape>
CUDA_ARRAY3D_DESCRIPTOR deep(const Shape& shape) {
  return {shape.Width, shape.Height, shape.Depth, shape.Format, shape.NumChannels, shape.Flags};
}

// Shapes that cannot be are for the driver to refuse; should it not, they are taken back from it.
template <FunctionId kFunction, FunctionId kDestroy, typename Object, typename Shape,
          typename... More>
CUresult create(KeyKind kind, uint64_t bytes, Object* handle, const Shape* shape, More... more) {
  const bool absurd = bytes >= kMostBytes;
  const bool counted = handle != nullptr && bytes != 0 && !absurd;
  gate::Gate* gate = counted ? link::gate_of_current_device() : nullptr;
  return link::allocate_with_scheduler(gate, [&](link::Again& again) {
    Charge charge(gate, bytes);
    if (charge.refused()) return again.refused();
    const CUresult result = real<kFunction>(handle, shape, more...);
    if (result != CUDA_SUCCESS) return result;
    if (absurd) {
      real<kDestroy>(*handle);
      return again.refused();
    }
    charge.keep({kind, reinterpret_cast<uint64_t>(*handle)}, Lifetime::kContext);
    return CUDA_SUCCESS;
  });
}

template <FunctionId kFunction, typename Object>
CUresult destroy(KeyKind kind, Object handle) {
  const Serial before = mark();
  const CUresult result = real<kFunction>(handle);
  if (result == CUDA_SUCCESS) uncount({kind, reinterpret_cast<uint64_t>(handle)}, before);
  return result;
}

}  // namespace

}  // namespace nvshare::interposer::memory

namespace nvshare::interposer::own {
using namespace memory;

CUresult cuArrayCreate(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR_v1* allocate_array) {
  const uint64_t bytes = allocate_array == nullptr ? 0 : array_bytes(flat(*allocate_array));
  return create<FunctionId::cuArrayCreate, FunctionId::cuArrayDestroy>(KeyKind::kArray, bytes,
                                                                       handle, allocate_array);
}

CUresult cuArrayCreate_v2(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* allocate_array) {
  const uint64_t bytes = allocate_array == nullptr ? 0 : array_bytes(flat(*allocate_array));
  return create<FunctionId::cuArrayCreate_v2, FunctionId::cuArrayDestroy>(KeyKind::kArray, bytes,
                                                                          handle, allocate_array);
}

CUresult cuArray3DCreate(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR_v1* allocate_array) {
  const uint64_t bytes = allocate_array == nullptr ? 0 : array_bytes(deep(*allocate_array));
  return create<FunctionId::cuArray3DCreate, FunctionId::cuArrayDestroy>(KeyKind::kArray, bytes,
                                                                         handle, allocate_array);
}

CUresult cuArray3DCreate_v2(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* allocate_array) {
  const uint64_t bytes = allocate_array == nullptr ? 0 : array_bytes(deep(*allocate_array));
  return create<FunctionId::cuArray3DCreate_v2, FunctionId::cuArrayDestroy>(KeyKind::kArray, bytes,
                                                                            handle, allocate_array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* handle,
                                const CUDA_ARRAY3D_DESCRIPTOR* mipmapped_array_desc,
                                unsigned num_mipmap_levels) {
  const uint64_t bytes =
      mipmapped_array_desc == nullptr ? 0 : mipmap_bytes(*mipmapped_array_desc, num_mipmap_levels);
  return create<FunctionId::cuMipmappedArrayCreate, FunctionId::cuMipmappedArrayDestroy>(
      KeyKind::kMipmap, bytes, handle, mipmapped_array_desc, num_mipmap_levels);
}

CUresult cuArrayDestroy(CUarray array) {
  return destroy<FunctionId::cuArrayDestroy>(KeyKind::kArray, array);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmapped_array) {
  return destroy<FunctionId::cuMipmappedArrayDestroy>(KeyKind::kMipmap, mipmapped_array);
}

}  // namespace nvshare::interposer::own
