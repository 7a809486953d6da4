#include "interposer/memory/array_size.h"

#include "interposer/memory/count.h"

namespace nvshare::interposer::memory {
namespace {

// How elements are laid out: `bits` for each element (of one channel or of all), or for each block
// of 4 x 4.
struct Layout {
  unsigned bits;
  bool per_channel;
  bool blocks;
};

constexpr Layout channels(unsigned bits) {
  return {bits, true, false};
}
constexpr Layout whole(unsigned bits) {
  return {bits, false, false};
}
constexpr Layout blocks(unsigned bits) {
  return {bits, false, true};
}

Layout layout_of_video(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_NV12:
      return whole(12);
    case CU_AD_FORMAT_NV16:
    case CU_AD_FORMAT_YUY2:
      return whole(16);
    case CU_AD_FORMAT_P010:
    case CU_AD_FORMAT_P016:
    case CU_AD_FORMAT_Y444_PLANAR8:
    case CU_AD_FORMAT_YUV444_8bit_SemiPlanar:
      return whole(24);
    case CU_AD_FORMAT_P210:
    case CU_AD_FORMAT_P216:
    case CU_AD_FORMAT_Y210:
    case CU_AD_FORMAT_Y216:
    case CU_AD_FORMAT_AYUV:
    case CU_AD_FORMAT_Y410:
    case CU_AD_FORMAT_UNORM_INT_101010_2:
      return whole(32);
    case CU_AD_FORMAT_Y444_PLANAR10:
    case CU_AD_FORMAT_YUV444_16bit_SemiPlanar:
      return whole(48);
    case CU_AD_FORMAT_Y416:
      return whole(64);
    default:
      // What is not known here is taken for the largest there is.
      return whole(128);
  }
}

Layout layout_of(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return channels(8);
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return channels(16);
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return channels(32);
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1:
      return whole(8);
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1:
      return whole(16);
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X4:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X2:
      return whole(32);
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4:
      return whole(64);
    case CU_AD_FORMAT_BC1_UNORM:
    case CU_AD_FORMAT_BC1_UNORM_SRGB:
    case CU_AD_FORMAT_BC4_UNORM:
    case CU_AD_FORMAT_BC4_SNORM:
      return blocks(64);
    case CU_AD_FORMAT_BC2_UNORM:
    case CU_AD_FORMAT_BC2_UNORM_SRGB:
    case CU_AD_FORMAT_BC3_UNORM:
    case CU_AD_FORMAT_BC3_UNORM_SRGB:
    case CU_AD_FORMAT_BC5_UNORM:
    case CU_AD_FORMAT_BC5_SNORM:
    case CU_AD_FORMAT_BC6H_UF16:
    case CU_AD_FORMAT_BC6H_SF16:
    case CU_AD_FORMAT_BC7_UNORM:
    case CU_AD_FORMAT_BC7_UNORM_SRGB:
      return blocks(128);
    default:
      return layout_of_video(format);
  }
}

constexpr unsigned kMappedLater = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
// Their depth counts layers, which are not halved from level to level.
constexpr unsigned kLayers = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP;

// Far beyond what any device takes.
constexpr size_t kMostExtent = size_t{1} << 24;

size_t larger(size_t a, size_t b) {
  return a > b ? a : b;
}

size_t halved(size_t extent) {
  return extent <= 1 ? extent : extent / 2;
}

}  // namespace

uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  if ((shape.Flags & kMappedLater) != 0 || shape.Width == 0) return 0;
  if (larger(shape.Width, larger(shape.Height, shape.Depth)) > kMostExtent) return kMostBytes;
  const Layout layout = layout_of(shape.Format);
  uint64_t width = shape.Width;
  uint64_t height = larger(shape.Height, 1);
  if (layout.blocks) {
    width = sum(width, 3) / 4;
    height = sum(height, 3) / 4;
  }
  uint64_t bits = product(product(width, height), larger(shape.Depth, 1));
  bits = product(bits, layout.bits);
  if (layout.per_channel) bits = product(bits, shape.NumChannels);
  return bits >= kMostBytes ? kMostBytes : (bits + 7) / 8;
}

uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels) {
  CUDA_ARRAY3D_DESCRIPTOR level = shape;
  const bool layers = (shape.Flags & kLayers) != 0;
  size_t largest = larger(shape.Width, shape.Height);
  if (!layers) largest = larger(largest, shape.Depth);
  uint64_t bytes = array_bytes(level);
  for (unsigned i = 1; i < levels && largest > 1; ++i) {
    level.Width = halved(level.Width);
    level.Height = halved(level.Height);
    if (!layers) level.Depth = halved(level.Depth);
    bytes = sum(bytes, array_bytes(level));
    largest /= 2;
  }
  return bytes;
}

}  // namespace nvshare::interposer::memory
