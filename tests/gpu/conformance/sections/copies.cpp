// Copies of one, two and three dimensions, in every direction; batches.

#include <cstring>
#include <numeric>
#include <vector>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

constexpr size_t kWords = 1024;
constexpr size_t kBytes = kWords * 4;

// 0, 1, 2, ...
std::vector<uint32_t> counting() {
  std::vector<uint32_t> words(kWords);
  std::iota(words.begin(), words.end(), 0u);
  return words;
}

void one_dimension(Run& run, const Card& card) {
  const std::vector<uint32_t> source = counting();
  std::vector<uint32_t> target(kWords);
  const void* src = source.data();
  void* dst = target.data();
  const CUdeviceptr a = device_memory(run, kMiB);
  const CUdeviceptr b = device_memory(run, kMiB);
  const CUstream stream = new_stream(run);
  const CUdeviceptr src_as_device = reinterpret_cast<CUdeviceptr>(src);
  const CUdeviceptr dst_as_device = reinterpret_cast<CUdeviceptr>(dst);
  const auto arrived = [&] {
    const bool same = target == source;
    std::memset(dst, 0, kBytes);
    return same;
  };
  CALL(cuMemcpyHtoD_v2, a, src, kBytes);
  CALL(cuMemcpyDtoD_v2, b, a, kBytes);
  CALL(cuMemcpyDtoH_v2, dst, b, kBytes);
  run.value("arrived", arrived());
  fill(run, a, 0, kWords);
  CALL(cuMemcpy, a, src_as_device, kBytes);
  CALL(cuMemcpy, dst_as_device, a, kBytes);
  run.value("arrived", arrived());
  CALL(cuMemcpy, dst_as_device, src_as_device, kBytes);
  run.value("arrived", arrived());
  fill(run, b, 0, kWords);
  CALL(cuMemcpyPeer, b, card.context, a, card.context, kBytes);
  CALL(cuMemcpyDtoH_v2_ptds, dst, b, kBytes);
  run.value("arrived", arrived());
  CALL(cuMemcpyHtoDAsync_v2, a, src, kBytes, stream);
  CALL(cuMemcpyDtoDAsync_v2, b, a, kBytes, stream);
  CALL(cuMemcpyDtoHAsync_v2, dst, b, kBytes, stream);
  CALL(cuStreamSynchronize, stream);
  run.value("arrived", arrived());
  CALL(cuMemcpyAsync, a, src_as_device, kBytes, stream);
  CALL(cuMemcpyPeerAsync, b, card.context, a, card.context, kBytes, stream);
  CALL(cuMemcpyAsync, dst_as_device, b, kBytes, stream);
  CALL(cuStreamSynchronize, stream);
  run.value("arrived", arrived());
  CALL(cuMemcpyHtoDAsync_v2_ptsz, a, src, kBytes, nullptr);
  CALL(cuMemcpyDtoHAsync_v2_ptsz, dst, a, kBytes, nullptr);
  CALL(cuStreamSynchronize_ptsz, nullptr);
  run.value("arrived", arrived());
}

void wrong(Run& run) {
  std::vector<uint32_t> words = counting();
  void* host = words.data();
  const CUdeviceptr a = device_memory(run, kMiB);
  const CUdeviceptr freed = device_memory(run, 4 * kMiB);
  SETUP(cuMemFree_v2, freed);
  CALL(cuMemcpyHtoD_v2, a, host, 0);
  CALL(cuMemcpyHtoD_v2, 0, host, 0);
  CALL(cuMemcpyHtoD_v2, 0, nullptr, 0);
  CALL(cuMemcpyHtoD_v2, 0, host, 16);
  CALL(cuMemcpyHtoD_v2, a, nullptr, 16);
  CALL(cuMemcpyDtoH_v2, nullptr, a, 16);
  CALL(cuMemcpyDtoH_v2, host, 0, 16);
  CALL(cuMemcpyDtoH_v2, host, freed, 16);
  CALL(cuMemcpyHtoD_v2, freed, host, 16);
  CALL(cuMemcpyDtoD_v2, a, freed, 16);
  CALL(cuMemcpyDtoD_v2, a, 0, 16);
  CALL(cuMemcpyDtoH_v2, host, a + kMiB - 8, 16);
  CALL(cuMemcpyHtoD_v2, reinterpret_cast<CUdeviceptr>(host), host, 16);
  CALL(cuMemcpyDtoH_v2, host, reinterpret_cast<CUdeviceptr>(host), 16);
  CALL(cuMemcpy, 0, a, 16);
  CALL(cuMemcpy, a, 0, 16);
  CALL(cuMemcpyDtoD_v2, a, a, kBytes);
  CALL(cuMemcpyDtoD_v2, a + 4, a, kBytes);
  CALL(cuMemcpyPeer, a, nullptr, a + kBytes, nullptr, 16);
  CALL(cuMemcpyHtoDAsync_v2, 0, host, 16, nullptr);
  CALL(cuMemcpyDtoHAsync_v2, host, freed, 16, nullptr);
  CALL(cuMemcpyAsync, a, 0, 16, nullptr);
  CALL(cuCtxSynchronize);
  // Last: should this be tried after all, the context may be lost.
  CALL(cuMemcpyHtoD_v2, a + 256 * kMiB, host, 16);
  CALL(cuCtxSynchronize);
}

// 8 rows of 16 bytes out of rows of 64, into rows of 32.
CUDA_MEMCPY2D rectangle(const void* host, CUdeviceptr device) {
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host;
  copy.srcPitch = 64;
  copy.srcXInBytes = 8;
  copy.srcY = 2;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = device;
  copy.dstPitch = 32;
  copy.WidthInBytes = 16;
  copy.Height = 8;
  return copy;
}

void two_dimensions(Run& run) {
  const std::vector<uint32_t> source = counting();
  const CUdeviceptr a = device_memory(run, kMiB);
  const CUstream stream = new_stream(run);
  fill(run, a, 0, kWords);
  CUDA_MEMCPY2D copy = rectangle(source.data(), a);
  CALL(cuMemcpy2D_v2, &copy);
  std::vector<uint32_t> words = words_at(run, a, 64);
  run.value("first word of the first row", words[0]);
  run.value("last word of the first row", words[3]);
  run.value("beside the first row", words[4]);
  run.value("first word of the last row", words[56]);
  fill(run, a, 0, kWords);
  CALL(cuMemcpy2DAsync_v2, &copy, stream);
  SETUP(cuStreamSynchronize, stream);
  run.value("first word of the last row", words_at(run, a, 64)[56]);
  CALL(cuMemcpy2DUnaligned_v2, &copy);
  copy.srcPitch = 8;
  CALL_WHERE("srcPitch = 8", cuMemcpy2D_v2, &copy);
  copy = rectangle(source.data(), a);
  copy.dstPitch = 8;
  CALL_WHERE("dstPitch = 8", cuMemcpy2D_v2, &copy);
  copy = rectangle(source.data(), a);
  copy.dstPitch = 0;
  CALL_WHERE("dstPitch = 0", cuMemcpy2D_v2, &copy);
  copy = rectangle(source.data(), a);
  copy.WidthInBytes = 0;
  CALL_WHERE("WidthInBytes = 0", cuMemcpy2D_v2, &copy);
  copy = rectangle(source.data(), a);
  copy.Height = 0;
  CALL_WHERE("Height = 0", cuMemcpy2D_v2, &copy);
  copy = rectangle(nullptr, a);
  CALL_WHERE("srcHost = nullptr", cuMemcpy2D_v2, &copy);
  copy = rectangle(source.data(), 0);
  CALL_WHERE("dstDevice = 0", cuMemcpy2D_v2, &copy);
  copy = rectangle(source.data(), a);
  copy.srcMemoryType = static_cast<CUmemorytype>(9);
  CALL_WHERE("srcMemoryType = 9", cuMemcpy2D_v2, &copy);
  copy = rectangle(source.data(), a);
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  CALL_WHERE("dstMemoryType = CU_MEMORYTYPE_ARRAY", cuMemcpy2D_v2, &copy);
  copy = rectangle(source.data(), a);
  copy.dstPitch = size_t{1} << 40;
  CALL_WHERE("dstPitch = size_t{1} << 40", cuMemcpy2D_v2, &copy);
  CALL(cuMemcpy2D_v2, nullptr);
}

void three_dimensions(Run& run, const Card& card) {
  const std::vector<uint32_t> source = counting();
  const CUdeviceptr a = device_memory(run, kMiB);
  const CUstream stream = new_stream(run);
  fill(run, a, 0, kWords);
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = source.data();
  copy.srcPitch = 32;
  copy.srcHeight = 8;
  copy.srcXInBytes = 4;
  copy.srcY = 1;
  copy.srcZ = 1;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = a;
  copy.dstPitch = 16;
  copy.dstHeight = 4;
  copy.WidthInBytes = 8;
  copy.Height = 3;
  copy.Depth = 2;
  CALL(cuMemcpy3D_v2, &copy);
  run.value("first word", words_at(run, a, 1)[0]);
  run.value("first word of the second row", words_at(run, a + 16, 1)[0]);
  run.value("first word of the second layer", words_at(run, a + 64, 1)[0]);
  fill(run, a, 0, kWords);
  CALL(cuMemcpy3DAsync_v2, &copy, stream);
  SETUP(cuStreamSynchronize, stream);
  run.value("first word of the second layer", words_at(run, a + 64, 1)[0]);
  CUDA_MEMCPY3D_PEER peer = {};
  peer.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  peer.srcDevice = a;
  peer.srcContext = card.context;
  peer.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  peer.dstDevice = a + 4096;
  peer.dstContext = card.context;
  peer.WidthInBytes = 8;
  peer.Height = 1;
  peer.Depth = 1;
  CALL(cuMemcpy3DPeer, &peer);
  run.value("first word", words_at(run, a + 4096, 1)[0]);
  CALL(cuMemcpy3DPeerAsync, &peer, stream);
  copy.srcHeight = 1;
  CALL_WHERE("srcHeight = 1", cuMemcpy3D_v2, &copy);
  copy.srcHeight = 8;
  copy.Depth = 0;
  CALL_WHERE("Depth = 0", cuMemcpy3D_v2, &copy);
  CALL(cuMemcpy3D_v2, nullptr);
  CALL(cuStreamSynchronize, stream);
}

void batches(Run& run) {
  std::vector<uint32_t> source = counting();
  const CUstream stream = new_stream(run);
  const CUdeviceptr a = device_memory(run, kMiB);
  const CUdeviceptr b = device_memory(run, kMiB);
  fill(run, a, 0, kWords);
  fill(run, b, 0, kWords);
  CUdeviceptr dsts[2] = {a, b};
  CUdeviceptr srcs[2] = {reinterpret_cast<CUdeviceptr>(source.data()),
                         reinterpret_cast<CUdeviceptr>(source.data() + 100)};
  size_t sizes[2] = {64, 32};
  CUmemcpyAttributes attributes[1] = {};
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t attribute_indexes[1] = {0};
  size_t failed = 99;
  CALL(cuMemcpyBatchAsync_v2, dsts, srcs, sizes, 2, attributes, attribute_indexes, 1, stream);
  CALL(cuStreamSynchronize, stream);
  run.value("last word of the first", words_at(run, a, 16)[15]);
  run.value("first word of the second", words_at(run, b, 1)[0]);
  CALL(cuMemcpyBatchAsync, dsts, srcs, sizes, 2, attributes, attribute_indexes, 1, &failed, stream);
  CALL(cuMemcpyBatchAsync_v2, dsts, srcs, sizes, 0, attributes, attribute_indexes, 1, stream);
  CALL(cuMemcpyBatchAsync_v2, dsts, srcs, sizes, 2, nullptr, nullptr, 0, stream);
  CALL(cuMemcpyBatchAsync_v2, dsts, srcs, sizes, 2, attributes, attribute_indexes, 1, nullptr);
  CALL(cuMemcpyBatchAsync_v2, nullptr, srcs, sizes, 2, attributes, attribute_indexes, 1, stream);
  CUDA_MEMCPY3D_BATCH_OP operation = {};
  operation.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  operation.src.op.ptr.ptr = a;
  operation.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  operation.dst.op.ptr.ptr = b;
  operation.extent = {64, 1, 1};
  operation.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  CALL(cuMemcpy3DBatchAsync_v2, 1, &operation, 0, stream);
  CALL(cuStreamSynchronize, stream);
  run.value("last word", words_at(run, b, 16)[15]);
  CALL(cuMemcpy3DBatchAsync_v2, 0, &operation, 0, stream);
  CALL(cuMemcpy3DBatchAsync_v2, 1, &operation, 1, stream);
  CALL(cuStreamSynchronize, stream);
}

}  // namespace

void copies(Run& run) {
  const Card card = use_card(run);
  one_dimension(run, card);
  run.heading("two dimensions");
  two_dimensions(run);
  run.heading("three dimensions");
  three_dimensions(run, card);
  run.heading("batches");
  batches(run);
  run.heading("wrong");
  wrong(run);
}

}  // namespace nvshare::conformance
