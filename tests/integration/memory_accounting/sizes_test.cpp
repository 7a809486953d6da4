#include <gtest/gtest.h>

#include "interposer/memory/array_size.h"
#include "interposer/memory/count.h"

namespace nvshare::interposer {
namespace {

CUDA_ARRAY3D_DESCRIPTOR shape(size_t width, size_t height, size_t depth, CUarray_format format,
                              unsigned channels, unsigned flags = 0) {
  return {width, height, depth, format, channels, flags};
}

TEST(ArrayBytes, AreElementsTimesTheirSize) {
  EXPECT_EQ(memory::array_bytes(shape(100, 0, 0, CU_AD_FORMAT_FLOAT, 1)), 400u);
  EXPECT_EQ(memory::array_bytes(shape(100, 3, 0, CU_AD_FORMAT_HALF, 4)), 2400u);
  EXPECT_EQ(memory::array_bytes(shape(7, 5, 3, CU_AD_FORMAT_UNSIGNED_INT8, 2)), 210u);
  EXPECT_EQ(memory::array_bytes(shape(10, 0, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED)),
            240u);
}

TEST(ArrayBytes, KnowPackedFormats) {
  EXPECT_EQ(memory::array_bytes(shape(64, 32, 0, CU_AD_FORMAT_NV12, 3)), 64u * 32 * 3 / 2);
  EXPECT_EQ(memory::array_bytes(shape(64, 32, 0, CU_AD_FORMAT_P010, 3)), 64u * 32 * 3);
  EXPECT_EQ(memory::array_bytes(shape(64, 32, 0, CU_AD_FORMAT_UNORM_INT8X4, 4)), 64u * 32 * 4);
  EXPECT_EQ(memory::array_bytes(shape(64, 32, 0, CU_AD_FORMAT_BC1_UNORM, 4)), 16u * 8 * 8);
  EXPECT_EQ(memory::array_bytes(shape(65, 33, 0, CU_AD_FORMAT_BC7_UNORM, 4)), 17u * 9 * 16);
  EXPECT_EQ(memory::array_bytes(shape(64, 32, 0, CU_AD_FORMAT_Y416, 4)), 64u * 32 * 8);
}

TEST(ArrayBytes, OfEveryFormatAreSomething) {
#define NVSHARE_CUDA_ENUM_BEGIN(enumeration, type)
#define NVSHARE_CUDA_VALUE(enumerator, value) \
  if (std::string_view(#enumerator).substr(0, 13) == "CU_AD_FORMAT_") known.push_back(value);
#define NVSHARE_CUDA_ENUM_END(enumeration)
  std::vector<unsigned> known;
#include "cuda/enums/memory.def"
#undef NVSHARE_CUDA_ENUM_BEGIN
#undef NVSHARE_CUDA_VALUE
#undef NVSHARE_CUDA_ENUM_END
  ASSERT_GT(known.size(), 50u);
  for (const unsigned format : known) {
    const uint64_t bytes =
        memory::array_bytes(shape(64, 64, 0, static_cast<CUarray_format>(format), 1));
    EXPECT_GE(bytes, 64u * 64 / 2) << format;
    EXPECT_LE(bytes, 64u * 64 * 16) << format;
    const bool only_bound = format == CU_AD_FORMAT_MAX;
    EXPECT_EQ(bytes == 64u * 64 * 16, only_bound) << format << " has no size of its own";
  }
}

TEST(ArrayBytes, AreNoneWhereMemoryIsMappedLater) {
  EXPECT_EQ(memory::array_bytes(shape(64, 64, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE)), 0u);
  EXPECT_EQ(
      memory::array_bytes(shape(64, 64, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING)),
      0u);
}

TEST(ArrayBytes, DoNotWrap) {
  for (const size_t extent : {SIZE_MAX, SIZE_MAX / 2 + 1, size_t{1} << 32}) {
    EXPECT_EQ(memory::array_bytes(shape(extent, extent, extent, CU_AD_FORMAT_FLOAT, 4)),
              memory::kMostBytes);
    EXPECT_EQ(memory::array_bytes(shape(extent, extent, 0, CU_AD_FORMAT_BC1_UNORM, 4)),
              memory::kMostBytes);
  }
  EXPECT_EQ(memory::array_bytes(shape(4, 4, 4, CU_AD_FORMAT_FLOAT, 0x80000000u)),
            uint64_t{64} * 4 * 0x80000000u);
}

TEST(MipmapBytes, AreTheSumOfTheLevels) {
  const auto flat = shape(16, 4, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1);
  EXPECT_EQ(memory::mipmap_bytes(flat, 0), 64u);
  EXPECT_EQ(memory::mipmap_bytes(flat, 1), 64u);
  EXPECT_EQ(memory::mipmap_bytes(flat, 3), 64u + 16 + 4);
  EXPECT_EQ(memory::mipmap_bytes(flat, 5), 64u + 16 + 4 + 2 + 1);
  EXPECT_EQ(memory::mipmap_bytes(flat, 4000000000u), 64u + 16 + 4 + 2 + 1);
  const auto volume = shape(4, 4, 4, CU_AD_FORMAT_UNSIGNED_INT8, 1);
  EXPECT_EQ(memory::mipmap_bytes(volume, 3), 64u + 8 + 1);
  const auto line = shape(8, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1);
  EXPECT_EQ(memory::mipmap_bytes(line, 9), 8u + 4 + 2 + 1);
}

TEST(MipmapBytes, DoNotHalveLayers) {
  const auto layered = shape(4, 4, 6, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED);
  EXPECT_EQ(memory::mipmap_bytes(layered, 9), (16u + 4 + 1) * 6);
  const auto cube = shape(4, 4, 6, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_CUBEMAP);
  EXPECT_EQ(memory::mipmap_bytes(cube, 2), (16u + 4) * 6);
}

}  // namespace
}  // namespace nvshare::interposer
