#include <unistd.h>

#include <cstring>
#include <vector>

#include "softgpu/fixture.h"

// Memory beyond the plain kind: virtual, pools, arrays, graphs.
namespace nvshare::softgpu {
namespace {

constexpr std::size_t kMi = std::size_t{1} << 20;
constexpr std::size_t kChunk = 2 * kMi;

using Memory = Driver;

CUmemAllocationProp on_device() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return prop;
}

TEST_F(Memory, MappedMemoryIsChargedWhileAnythingRefersToIt) {
  const std::size_t before = free_memory();
  const auto prop = on_device();
  CUmemGenericAllocationHandle handle{};
  ASSERT_OK(cuMemCreate(&handle, 4 * kChunk, &prop, 0));
  EXPECT_EQ(free_memory(), before - 4 * kChunk);
  CUdeviceptr address = 0;
  ASSERT_OK(cuMemAddressReserve(&address, 8 * kChunk, 0, 0, 0));
  EXPECT_OK(cuMemMap(address, 4 * kChunk, 0, handle, 0));
  EXPECT_OK(cuMemMap(address + 4 * kChunk, 4 * kChunk, 0, handle, 0));
  EXPECT_OK(cuMemRelease(handle));
  EXPECT_EQ(free_memory(), before - 4 * kChunk);
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_EQ(cuMemsetD32_v2(address, 7, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_OK(cuMemSetAccess(address, 8 * kChunk, &access, 1));
  EXPECT_OK(cuMemsetD32_v2(address, 7, 1));
  EXPECT_EQ(word(address + 4 * kChunk), 7u);  // the same memory at both addresses
  EXPECT_EQ(cuMemUnmap(address, kChunk), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(address, 8 * kChunk), CUDA_ERROR_INVALID_VALUE);
  EXPECT_OK(cuMemUnmap(address, 8 * kChunk));
  EXPECT_EQ(free_memory(), before);
  EXPECT_OK(cuMemAddressFree(address, 8 * kChunk));
}

// Memory that is only mapped here, without a handle, and comes in again by its descriptor.
TEST_F(Memory, ImportedMemoryThatIsHereAlreadyIsChargedOnce) {
  const std::size_t before = free_memory();
  auto prop = on_device();
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle{};
  CUdeviceptr address = 0;
  int descriptor = -1;
  ASSERT_OK(cuMemCreate(&handle, kChunk, &prop, 0));
  ASSERT_OK(cuMemAddressReserve(&address, kChunk, 0, 0, 0));
  ASSERT_OK(cuMemMap(address, kChunk, 0, handle, 0));
  ASSERT_OK(cuMemExportToShareableHandle(&descriptor, handle,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASSERT_OK(cuMemRelease(handle));
  CUmemGenericAllocationHandle imported{};
  void* number = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
  ASSERT_OK(
      cuMemImportFromShareableHandle(&imported, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT_EQ(free_memory(), before - kChunk);
  EXPECT_OK(cuMemRelease(imported));
  EXPECT_EQ(free_memory(), before - kChunk) << "it is still mapped";
  EXPECT_OK(cuMemUnmap(address, kChunk));
  EXPECT_EQ(free_memory(), before);
  EXPECT_OK(cuMemAddressFree(address, kChunk));
  ::close(descriptor);
}

TEST_F(Memory, PoolsKeepWhatTheThresholdAllows) {
  const std::size_t before = free_memory();
  CUmemoryPool pool{};
  ASSERT_OK(cuDeviceGetDefaultMemPool(&pool, 0));
  CUdeviceptr address = 0;
  ASSERT_OK(cuMemAllocAsync(&address, 4 * kChunk, nullptr));
  EXPECT_OK(fill(nullptr, address, 9, 16));
  EXPECT_EQ(word(address), 9u);
  EXPECT_OK(cuMemFreeAsync(address, nullptr));
  EXPECT_OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(free_memory(), before);
  unsigned long threshold = 64 * kMi;
  EXPECT_OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CUdeviceptr again = 0;
  ASSERT_OK(cuMemAllocAsync(&again, 4 * kChunk, nullptr));
  EXPECT_OK(cuMemFreeAsync(again, nullptr));
  EXPECT_OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(free_memory(), before - 4 * kChunk);
  // Plain memory that needs the room gets it.
  const CUdeviceptr all = allocate(before / kChunk * kChunk);
  EXPECT_OK(cuMemFree_v2(all));
  EXPECT_OK(cuMemPoolTrimTo(pool, 0));
  EXPECT_EQ(free_memory(), before);
  threshold = 0;
  EXPECT_OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
}

TEST_F(Memory, ArraysAreCopiedRowByRow) {
  CUDA_ARRAY_DESCRIPTOR shape{16, 4, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  CUarray array{};
  ASSERT_OK(cuArrayCreate_v2(&array, &shape));
  std::vector<unsigned char> in(64);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<unsigned char>(i);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = in.data();
  copy.srcPitch = 16;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = 16;
  copy.Height = 4;
  EXPECT_OK(cuMemcpy2D_v2(&copy));
  unsigned char out[8] = {};
  CUDA_MEMCPY2D back{};
  back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  back.srcArray = array;
  back.srcXInBytes = 3;
  back.srcY = 1;
  back.dstMemoryType = CU_MEMORYTYPE_HOST;
  back.dstHost = out;
  back.dstPitch = 4;
  back.WidthInBytes = 4;
  back.Height = 2;
  EXPECT_OK(cuMemcpy2D_v2(&back));
  EXPECT_EQ(out[0], 19);
  EXPECT_EQ(out[4], 35);
  back.WidthInBytes = 14;
  EXPECT_EQ(cuMemcpy2D_v2(&back), CUDA_ERROR_INVALID_VALUE);
  EXPECT_OK(cuArrayDestroy(array));
}

TEST_F(Memory, ACapturedGraphDoesWhatTheStreamWouldHaveDone) {
  CUstream stream{};
  ASSERT_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUdeviceptr address = allocate(4096);
  EXPECT_OK(cuMemsetD32_v2(address, 0, 1024));
  EXPECT_OK(cuCtxSynchronize());
  ASSERT_OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int i = 0; i < 10; ++i) EXPECT_OK(launch("add32", stream, address, 1u, 1024ul));
  CUgraph graph{};
  ASSERT_OK(cuStreamEndCapture(stream, &graph));
  EXPECT_EQ(word(address), 0u);
  CUgraphExec executable{};
  ASSERT_OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (int i = 0; i < 5; ++i) EXPECT_OK(cuGraphLaunch(executable, stream));
  EXPECT_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(word(address + 4092), 50u);
  EXPECT_OK(cuGraphExecDestroy(executable));
  EXPECT_OK(cuGraphDestroy(graph));
  EXPECT_OK(cuStreamDestroy_v2(stream));
}

TEST_F(Memory, BranchesOfAGraphRunSideBySideAndJoin) {
  CUgraph graph{};
  ASSERT_OK(cuGraphCreate(&graph, 0));
  unsigned long time = 30'000'000;
  void* spin_params[] = {&time};
  CUDA_KERNEL_NODE_PARAMS spin_node{};
  spin_node.func = function("spin");
  spin_node.gridDimX = spin_node.gridDimY = spin_node.gridDimZ = 1;
  spin_node.blockDimX = spin_node.blockDimY = spin_node.blockDimZ = 1;
  spin_node.kernelParams = spin_params;
  CUgraphNode branches[4] = {};
  for (CUgraphNode& node : branches) {
    ASSERT_OK(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &spin_node));
  }
  CUgraphNode join{};
  ASSERT_OK(cuGraphAddEmptyNode(&join, graph, branches, 4));
  CUgraphExec executable{};
  ASSERT_OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  CUevent start{};
  CUevent end{};
  EXPECT_OK(cuEventCreate(&start, 0));
  EXPECT_OK(cuEventCreate(&end, 0));
  EXPECT_OK(spin(nullptr, 20'000'000));
  EXPECT_OK(cuEventRecord(start, nullptr));
  EXPECT_OK(cuGraphLaunch(executable, nullptr));
  EXPECT_OK(cuEventRecord(end, nullptr));
  EXPECT_OK(cuEventSynchronize(end));
  float elapsed = 0;
  EXPECT_OK(cuEventElapsedTime(&elapsed, start, end));
  EXPECT_NEAR(elapsed, 30.0, 0.1);
  EXPECT_OK(cuGraphExecDestroy(executable));
  EXPECT_OK(cuGraphDestroy(graph));
}

}  // namespace
}  // namespace nvshare::softgpu
