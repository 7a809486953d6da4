// Arrays: creating, describing, copying.

#include <numeric>
#include <vector>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

void one_and_two_dimensions(Run& run) {
  CUarray array = nullptr;
  CUarray flat = nullptr;
  CUDA_ARRAY_DESCRIPTOR description = {16, 8, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  CUDA_ARRAY_DESCRIPTOR got = {};
  std::vector<uint32_t> words(128);
  std::iota(words.begin(), words.end(), 0u);
  std::vector<uint32_t> back(128);
  void* src = words.data();
  void* dst = back.data();
  CALL(cuArrayCreate_v2, &array, &description);
  CALL(cuArrayGetDescriptor_v2, &got, array);
  run.value("width", got.Width);
  run.value("height", got.Height);
  run.value("format", static_cast<int>(got.Format));
  run.value("channels", got.NumChannels);
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = src;
  copy.srcPitch = 64;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = 64;
  copy.Height = 8;
  CALL(cuMemcpy2D_v2, &copy);
  CUDA_MEMCPY2D out = {};
  out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  out.srcArray = array;
  out.dstMemoryType = CU_MEMORYTYPE_HOST;
  out.dstHost = dst;
  out.dstPitch = 64;
  out.WidthInBytes = 64;
  out.Height = 8;
  CALL(cuMemcpy2D_v2, &out);
  run.value("came back", back == words);
  out.Height = 9;
  CALL_WHERE("Height = 9", cuMemcpy2D_v2, &out);
  out.Height = 8;
  out.WidthInBytes = 65;
  CALL_WHERE("WidthInBytes = 65", cuMemcpy2D_v2, &out);
  CALL(cuArrayDestroy, array);
  description = {128, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  CALL_WHERE("one dimension", cuArrayCreate_v2, &flat, &description);
  const CUdeviceptr device = device_memory(run, kMiB);
  back.assign(128, 0);
  CALL(cuMemcpyHtoA_v2, flat, 0, src, 512);
  CALL(cuMemcpyAtoD_v2, device, flat, 0, 512);
  CALL(cuMemcpyDtoA_v2, flat, 0, device, 512);
  CALL(cuMemcpyAtoH_v2, dst, flat, 0, 512);
  run.value("came back", back == words);
  CALL(cuMemcpyAtoA_v2, flat, 256, flat, 0, 256);
  CALL(cuMemcpyAtoH_v2, dst, flat, 256, 256);
  run.value("first word", back[0]);
  CALL(cuMemcpyAtoH_v2, dst, flat, 256, 512);
  CALL(cuMemcpyHtoA_v2, flat, 0, nullptr, 512);
  CALL(cuMemcpyHtoAAsync_v2, flat, 0, src, 512, nullptr);
  CALL(cuMemcpyAtoHAsync_v2, dst, flat, 0, 512, nullptr);
  CALL(cuCtxSynchronize);
  run.value("came back", back == words);
  CALL(cuArrayDestroy, flat);
}

void three_dimensions(Run& run) {
  CUarray array = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR description = {};
  CUDA_ARRAY3D_DESCRIPTOR got = {};
  CUDA_ARRAY_MEMORY_REQUIREMENTS requirements = {};
  CUDA_ARRAY_SPARSE_PROPERTIES sparse = {};
  description.Width = 8;
  description.Height = 8;
  description.Depth = 4;
  description.Format = CU_AD_FORMAT_FLOAT;
  description.NumChannels = 4;
  CALL(cuArray3DCreate_v2, &array, &description);
  CALL(cuArray3DGetDescriptor_v2, &got, array);
  run.value("depth", got.Depth);
  run.value("channels", got.NumChannels);
  run.value("flags", got.Flags);
  CALL(cuArrayGetMemoryRequirements, &requirements, array, 0);
  CALL(cuArrayGetSparseProperties, &sparse, array);
  CALL(cuArrayDestroy, array);
  description.Flags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST;
  CALL_WHERE("Flags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST", cuArray3DCreate_v2, &array,
             &description);
  CALL(cuArrayDestroy, array);
  CUmipmappedArray mipmapped = nullptr;
  CUarray level = nullptr;
  description.Flags = 0;
  CALL(cuMipmappedArrayCreate, &mipmapped, &description, 3);
  CALL(cuMipmappedArrayGetLevel, &level, mipmapped, 1);
  CALL(cuArray3DGetDescriptor_v2, &got, level);
  run.value("width of the second level", got.Width);
  CALL(cuMipmappedArrayGetLevel, &level, mipmapped, 3);
  CALL(cuArrayDestroy, level);
  CALL(cuMipmappedArrayDestroy, mipmapped);
  CALL(cuMipmappedArrayCreate, &mipmapped, &description, 0);
}

void wrong(Run& run) {
  CUarray array = nullptr;
  CUDA_ARRAY_DESCRIPTOR description = {16, 8, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  CALL(cuArrayCreate_v2, nullptr, &description);
  CALL(cuArrayCreate_v2, &array, nullptr);
  description.Width = 0;
  CALL_WHERE("Width = 0", cuArrayCreate_v2, &array, &description);
  description = {16, 8, CU_AD_FORMAT_UNSIGNED_INT32, 3};
  CALL_WHERE("NumChannels = 3", cuArrayCreate_v2, &array, &description);
  description = {16, 8, CU_AD_FORMAT_UNSIGNED_INT32, 0};
  CALL_WHERE("NumChannels = 0", cuArrayCreate_v2, &array, &description);
  description = {16, 8, static_cast<CUarray_format>(0xffff), 1};
  CALL_WHERE("Format = 0xffff", cuArrayCreate_v2, &array, &description);
  description = {size_t{1} << 40, 8, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  CALL_WHERE("Width = 1 << 40", cuArrayCreate_v2, &array, &description);
  CALL(cuArrayDestroy, nullptr);
  CALL(cuArrayGetDescriptor_v2, &description, nullptr);
}

}  // namespace

void arrays(Run& run) {
  use_card(run);
  one_and_two_dimensions(run);
  run.heading("three dimensions");
  three_dimensions(run);
  run.heading("wrong");
  wrong(run);
}

}  // namespace nvshare::conformance
