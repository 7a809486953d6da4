#include <algorithm>

#include "softgpu/api/api.h"
#include "softgpu/runtime/memory_ops.h"

// Arrays: memory with a shape, which only copies can reach here.
namespace nvshare::softgpu {
namespace {

// Bytes of one channel; 0 for formats that are not simulated.
std::size_t channel_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

bool good_shape(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  if (channel_bytes(shape.Format) == 0) return false;
  if (shape.NumChannels != 1 && shape.NumChannels != 2 && shape.NumChannels != 4) return false;
  if (shape.Width == 0) return false;
  const bool layered = (shape.Flags & CUDA_ARRAY3D_LAYERED) != 0;
  const bool cube = (shape.Flags & CUDA_ARRAY3D_CUBEMAP) != 0;
  if (shape.Depth > 0 && shape.Height == 0 && !layered) return false;
  if (layered && shape.Depth == 0) return false;
  if (cube && (shape.Width != shape.Height || shape.Depth == 0 || shape.Depth % 6 != 0)) {
    return false;
  }
  const bool volume = shape.Depth > 0 && !layered && !cube;
  if (volume) {
    return shape.Width <= 16384 && shape.Height <= 16384 && shape.Depth <= 16384;
  }
  const std::size_t depth = std::max<std::size_t>(shape.Depth, 1);
  if (layered || cube) {
    return shape.Width <= 32768 && shape.Height <= 32768 && depth <= 2048;
  }
  return shape.Width <= 131072 && shape.Height <= 65536;
}

CUresult make_array(Call& call, const CUDA_ARRAY3D_DESCRIPTOR& shape, std::shared_ptr<Array>& out) {
  if (!good_shape(shape)) return CUDA_ERROR_INVALID_VALUE;
  auto array = std::make_shared<Array>();
  array->descriptor = shape;
  array->element = channel_bytes(shape.Format) * shape.NumChannels;
  array->pitch = shape.Width * array->element;
  array->slice = array->pitch * std::max<std::size_t>(shape.Height, 1);
  const std::size_t bytes = array->slice * std::max<std::size_t>(shape.Depth, 1);
  Allocation allocation;
  SOFTGPU_TRY(allocate_device(call, call.ctx->device, bytes, allocation));
  // Not an address that anyone but copies of arrays may use.
  call.rt.addresses.find(allocation.base)->global = true;
  array->base = allocation.base;
  array->context = call.ctx;
  array->handle = reinterpret_cast<CUarray>(call.rt.new_handle());
  call.rt.arrays.add(reinterpret_cast<std::uint64_t>(array->handle), array);
  out = array;
  return CUDA_SUCCESS;
}

void drop(Call& call, const Array& array) {
  free_allocation(call.rt, array.base);
  call.rt.arrays.remove(array.handle);
}

CUresult create(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.no_unsafe_capture());
  std::shared_ptr<Array> array;
  SOFTGPU_TRY(make_array(call, shape, array));
  *handle = array->handle;
  return CUDA_SUCCESS;
}

}  // namespace

SOFTGPU_API(cuArrayCreate_v2)(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* shape) {
  if (shape == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return create(handle, {shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0});
}

SOFTGPU_API(cuArray3DCreate_v2)(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  if (shape == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return create(handle, *shape);
}

SOFTGPU_API(cuArrayDestroy)(CUarray array) {
  Call call;
  SOFTGPU_TRY(call.context());
  const auto found = call.rt.arrays.find(array);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  // A level goes with its mipmap.
  if (found->of_mipmap) return CUDA_SUCCESS;
  SOFTGPU_TRY(call.no_unsafe_capture());
  call.rt.wait_all(call.lock, nullptr);
  call.rt.wait_for_effects(call.lock);
  drop(call, *found);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuArrayGetDescriptor_v2)(CUDA_ARRAY_DESCRIPTOR* out, CUarray array) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.arrays.find(array);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  const auto& shape = found->descriptor;
  if (shape.Depth != 0) return CUDA_ERROR_INVALID_VALUE;
  *out = {shape.Width, shape.Height, shape.Format, shape.NumChannels};
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuArray3DGetDescriptor_v2)(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray array) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.arrays.find(array);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  *out = found->descriptor;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuArrayGetMemoryRequirements)
(CUDA_ARRAY_MEMORY_REQUIREMENTS*, CUarray array, CUdevice) {
  Call call;
  SOFTGPU_TRY(call.context());
  // Only arrays whose memory is mapped later have any, and those are not simulated.
  return call.rt.arrays.find(array) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

SOFTGPU_API(cuArrayGetSparseProperties)(CUDA_ARRAY_SPARSE_PROPERTIES*, CUarray array) {
  Call call;
  SOFTGPU_TRY(call.context());
  return call.rt.arrays.find(array) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

SOFTGPU_API(cuMipmappedArrayCreate)
(CUmipmappedArray* handle, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned num_mipmap_levels) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (handle == nullptr || shape == nullptr) return CUDA_ERROR_INVALID_VALUE;
  num_mipmap_levels = std::max(num_mipmap_levels, 1u);
  auto mipmap = std::make_shared<Mipmap>();
  CUDA_ARRAY3D_DESCRIPTOR level = *shape;
  const std::size_t largest = std::max({shape->Width, shape->Height, shape->Depth});
  unsigned most = 1;
  while ((largest >> most) > 0) ++most;
  for (unsigned i = 0; i < std::min(num_mipmap_levels, most); ++i) {
    std::shared_ptr<Array> array;
    if (const CUresult result = make_array(call, level, array); result != CUDA_SUCCESS) {
      for (const auto& made : mipmap->levels) drop(call, *made);
      return result;
    }
    array->of_mipmap = true;
    mipmap->levels.push_back(array);
    level.Width = std::max<std::size_t>(level.Width / 2, 1);
    if (level.Height > 0) level.Height = std::max<std::size_t>(level.Height / 2, 1);
    const bool layered = (level.Flags & CUDA_ARRAY3D_LAYERED) != 0;
    if (level.Depth > 0 && !layered) level.Depth = std::max<std::size_t>(level.Depth / 2, 1);
  }
  mipmap->handle = reinterpret_cast<CUmipmappedArray>(call.rt.new_handle());
  call.rt.mipmaps.add(reinterpret_cast<std::uint64_t>(mipmap->handle), mipmap);
  *handle = mipmap->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMipmappedArrayGetLevel)
(CUarray* level_array, CUmipmappedArray mipmapped_array, unsigned level) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (level_array == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.mipmaps.find(mipmapped_array);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (level >= found->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *level_array = found->levels[level]->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuMipmappedArrayDestroy)(CUmipmappedArray mipmapped_array) {
  Call call;
  SOFTGPU_TRY(call.context());
  const auto found = call.rt.mipmaps.find(mipmapped_array);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  call.rt.wait_all(call.lock, nullptr);
  call.rt.wait_for_effects(call.lock);
  for (const auto& level : found->levels) drop(call, *level);
  call.rt.mipmaps.remove(mipmapped_array);
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
