#include <cerrno>

#include "machine.h"

// What is asked for, and what is not; capture; reuse of addresses; sizes that cannot be.
namespace nvshare::interposer {
namespace {

class MemoryEdges : public Machine {
 protected:
  static uint64_t requests() { return g_accounts[0].requests + g_accounts[1].requests; }
};

TEST_F(MemoryEdges, WhatTheDriverRefusesAnywayIsNotAskedFor) {
  limit(1);
  CUdeviceptr address = 0;
  CUdeviceptr_v1 old_address = 0;
  size_t pitch = 0;
  unsigned old_pitch = 0;
  CUarray array{};
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp where{};
  EXPECT_EQ(own::cuMemAlloc_v2(nullptr, kMiB), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemAllocManaged(nullptr, kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemAllocManaged(&address, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemAllocPitch_v2(nullptr, &pitch, 64, 64, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemAllocPitch_v2(&address, nullptr, 64, 64, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemAllocPitch_v2(&address, &pitch, 0, 64, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemAllocPitch_v2(&address, &pitch, 64, 0, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemAllocAsync(nullptr, kMiB, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemAllocAsync(&address, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(own::cuArrayCreate_v2(&array, nullptr), CUDA_ERROR_INVALID_VALUE);
  const CUDA_ARRAY_DESCRIPTOR no_width{0, 4, CU_AD_FORMAT_FLOAT, 1};
  EXPECT_EQ(own::cuArrayCreate_v2(&array, &no_width), CUDA_ERROR_INVALID_VALUE);
  const CUDA_ARRAY_DESCRIPTOR no_channels{4, 4, CU_AD_FORMAT_FLOAT, 0};
  EXPECT_EQ(own::cuArrayCreate_v2(&array, &no_channels), CUDA_ERROR_INVALID_VALUE);
  const CUDA_ARRAY_DESCRIPTOR fine{4, 4, CU_AD_FORMAT_FLOAT, 1};
  EXPECT_EQ(own::cuArrayCreate_v2(nullptr, &fine), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMipmappedArrayCreate(nullptr, nullptr, 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemCreate(&handle, 2 * kMiB, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemCreate(&handle, 2 * kMiB, &where, 0), CUDA_ERROR_INVALID_VALUE);
  where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  where.location = {CU_MEM_LOCATION_TYPE_DEVICE, 99};
  EXPECT_EQ(own::cuMemCreate(&handle, 2 * kMiB, &where, 0), CUDA_ERROR_INVALID_DEVICE);
  where.location.id = 0;
  EXPECT_EQ(own::cuMemCreate(&handle, 0, &where, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemCreate(nullptr, 2 * kMiB, &where, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_OK(own::cuMemAlloc(&old_address, 0));
  EXPECT_OK(own::cuMemAllocPitch(&old_address, &old_pitch, 0, 4, 4));
  EXPECT_EQ(requests(), 0u);
}

TEST_F(MemoryEdges, WithoutAContextTheDriverAnswers) {
  CUcontext none{};
  ASSERT_OK(real<FunctionId::cuCtxPopCurrent_v2>(&none));
  CUdeviceptr address = 0;
  limit(1);
  EXPECT_EQ(own::cuMemAlloc_v2(&address, kMiB), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(own::cuMemAllocAsync(&address, kMiB, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(requests(), 0u);
  ASSERT_OK(real<FunctionId::cuCtxPushCurrent_v2>(context));
}

TEST_F(MemoryEdges, HostMemoryIsNotCounted) {
  limit(1);
  CUmemAllocationProp where{};
  where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  where.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_OK(own::cuMemCreate(&handle, 2 * kMiB, &where, 0));
  EXPECT_EQ(requests(), 0u);
  EXPECT_OK(own::cuMemRelease(handle));
}

TEST_F(MemoryEdges, SizesThatCannotBeAreRefused) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp where{};
  where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  where.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const CUdeviceptr kept = allocate(kMiB);
  for (const uint64_t bound : {uint64_t{0}, 64 * kMiB}) {
    limit(bound);
    for (const size_t bytes : {SIZE_MAX, SIZE_MAX - kMiB + 1, SIZE_MAX / 2 + 1}) {
      EXPECT_EQ(own::cuMemAlloc_v2(&address, bytes), CUDA_ERROR_OUT_OF_MEMORY);
      EXPECT_EQ(own::cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL),
                CUDA_ERROR_OUT_OF_MEMORY);
      EXPECT_EQ(own::cuMemAllocAsync(&address, bytes, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
      EXPECT_EQ(own::cuMemCreate(&handle, bytes, &where, 0), CUDA_ERROR_OUT_OF_MEMORY);
      // Rows times height wraps: the driver's own answer.
      EXPECT_EQ(own::cuMemAllocPitch_v2(&address, &pitch, 100, bytes, 4), CUDA_ERROR_INVALID_VALUE);
      EXPECT_EQ(own::cuMemAllocPitch_v2(&address, &pitch, bytes, 100, 4), CUDA_ERROR_INVALID_VALUE);
    }
    CUarray array{};
    const CUDA_ARRAY3D_DESCRIPTOR huge{
        SIZE_MAX / 2, SIZE_MAX / 2, SIZE_MAX / 2, CU_AD_FORMAT_FLOAT, 4, 0};
    EXPECT_EQ(own::cuArray3DCreate_v2(&array, &huge), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(allocated(), kMiB);
  }
  EXPECT_OK(own::cuMemFree_v2(kept));
}

CUresult give_any_pitched(CUdeviceptr* address, size_t* pitch, size_t, size_t, unsigned) {
  *pitch = 512;
  return real<FunctionId::cuMemAlloc_v2>(address, kMiB);
}

TEST_F(MemoryEdges, WhatADriverGivesForAWrappedSizeIsTakenBack) {
  const Instead instead(FunctionId::cuMemAllocPitch_v2, reinterpret_cast<void*>(&give_any_pitched));
  CUdeviceptr address = 1;
  size_t pitch = 0;
  const unsigned long frees = driver_calls(FunctionId::cuMemFree_v2);
  EXPECT_EQ(own::cuMemAllocPitch_v2(&address, &pitch, 512, (SIZE_MAX >> 9) + 2, 4),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(driver_calls(FunctionId::cuMemFree_v2), frees + 1);
  EXPECT_EQ(allocated(), 0u);
}

size_t g_pitch = 0;
CUresult choose_pitch(CUdeviceptr* address, size_t* pitch, size_t, size_t height, unsigned) {
  *pitch = g_pitch;
  return real<FunctionId::cuMemAlloc_v2>(address, g_pitch * height);
}

TEST_F(MemoryEdges, APitchOtherThanExpectedIsCountedAsItIs) {
  const Instead instead(FunctionId::cuMemAllocPitch_v2, reinterpret_cast<void*>(&choose_pitch));
  CUdeviceptr address = 0;
  size_t pitch = 0;
  for (const size_t chosen : {256, 512, 4096}) {
    g_pitch = chosen;
    ASSERT_OK(own::cuMemAllocPitch_v2(&address, &pitch, 100, 10, 4));
    EXPECT_EQ(allocated(), chosen * 10);
    EXPECT_OK(own::cuMemFree_v2(address));
  }
  // More than was asked for, and that is too much.
  limit(4096 * 10 - 1);
  EXPECT_EQ(own::cuMemAllocPitch_v2(&address, &pitch, 100, 10, 4), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(address, 0u);
  EXPECT_EQ(allocated(), 0u);
}

// The driver frees, and before the call is over another thread has the same address.
CUdeviceptr g_reused = 0;
Signature<FunctionId::cuMemFree_v2>* g_real_free = nullptr;
CUresult free_and_reuse(CUdeviceptr address) {
  const CUresult result = g_real_free(address);
  EXPECT_OK(own::cuMemAlloc_v2(&g_reused, 3 * kMiB - 5));
  return result;
}

TEST_F(MemoryEdges, AnAddressThatComesBackAtOnceIsCountedAnew) {
  const CUdeviceptr first = allocate(3 * kMiB);
  g_real_free = reinterpret_cast<Signature<FunctionId::cuMemFree_v2>*>(
      catching::g_driver[static_cast<unsigned>(FunctionId::cuMemFree_v2)]);
  {
    const Instead instead(FunctionId::cuMemFree_v2, reinterpret_cast<void*>(&free_and_reuse));
    ASSERT_OK(own::cuMemFree_v2(first));
  }
  ASSERT_EQ(g_reused, first) << "the test needs a driver that hands out the same address again";
  EXPECT_EQ(allocated(), 3 * kMiB - 5);
  ASSERT_OK(own::cuMemFree_v2(g_reused));
  EXPECT_EQ(allocated(), 0u);
}

TEST_F(MemoryEdges, PoolMemoryMayBeFreedAtOnceAndPlainMemoryInOrder) {
  const CUstream stream = new_stream();
  CUdeviceptr pooled = 0;
  ASSERT_OK(own::cuMemAllocAsync(&pooled, 5 * kMiB, stream));
  const CUdeviceptr plain = allocate(2 * kMiB);
  EXPECT_EQ(allocated(), 7 * kMiB);
  ASSERT_OK(own::cuMemFreeAsync(plain, stream));
  EXPECT_EQ(allocated(), 5 * kMiB);
  ASSERT_OK(own::cuMemFree_v2(pooled));
  EXPECT_EQ(allocated(), 0u);
}

TEST_F(MemoryEdges, ADestroyedPoolsMemoryCountsUntilItIsFreed) {
  const CUstream stream = new_stream();
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool{};
  ASSERT_OK(own::cuMemPoolCreate(&pool, &props));
  CUdeviceptr address = 0;
  ASSERT_OK(own::cuMemAllocFromPoolAsync(&address, kMiB, pool, stream));
  ASSERT_OK(own::cuMemPoolDestroy(pool));
  EXPECT_NE(own::cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(allocated(), kMiB);
  ASSERT_OK(own::cuMemFreeAsync(address, stream));
  EXPECT_EQ(allocated(), 0u);
}

TEST_F(MemoryEdges, APoolCountsOnItsOwnDevice) {
  const CUstream stream = new_stream();
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  CUmemoryPool pool{};
  ASSERT_OK(own::cuMemPoolCreate(&pool, &props));
  limit(kMiB - 1, 1);
  CUdeviceptr address = 0;
  EXPECT_EQ(own::cuMemAllocFromPoolAsync(&address, kMiB, pool, stream), CUDA_ERROR_OUT_OF_MEMORY);
  limit(kMiB, 1);
  limit(1, 0);
  ASSERT_OK(own::cuMemAllocFromPoolAsync(&address, kMiB, pool, stream));
  EXPECT_EQ(allocated(0), 0u);
  EXPECT_EQ(allocated(1), kMiB);
  ASSERT_OK(own::cuMemFreeAsync(address, stream));
  ASSERT_OK(own::cuMemPoolDestroy(pool));
}

TEST_F(MemoryEdges, AStreamOfAnotherDeviceTakesFromItsOwn) {
  const CUcontext other = new_context(1);
  const CUstream stream = new_stream();
  CUcontext popped{};
  ASSERT_OK(real<FunctionId::cuCtxPopCurrent_v2>(&popped));
  CUdeviceptr address = 0;
  limit(1, 1);
  EXPECT_EQ(own::cuMemAllocAsync(&address, kMiB, stream), CUDA_ERROR_OUT_OF_MEMORY);
  CUcontext current{};
  ASSERT_OK(real<FunctionId::cuCtxGetCurrent>(&current));
  EXPECT_EQ(current, context);
  EXPECT_OK(destroy_context(other));
}

TEST_F(MemoryEdges, CapturedAllocationsAndFreesAreNodes) {
  const CUstream stream = new_stream();
  CUdeviceptr plain = allocate(kMiB);
  limit(kMiB);
  CUdeviceptr address = 0;
  CUgraph graph{};
  CUstreamCaptureStatus status{};
  ASSERT_OK(real<FunctionId::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_OK(own::cuMemAllocAsync(&address, 8 * kMiB, stream));
  EXPECT_OK(own::cuMemFreeAsync(address, stream));
  EXPECT_NE(own::cuMemFreeAsync(plain, stream), CUDA_SUCCESS);
  ASSERT_OK(real<FunctionId::cuStreamIsCapturing>(stream, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ASSERT_OK(real<FunctionId::cuStreamEndCapture>(stream, &graph));
  EXPECT_EQ(allocated(), kMiB);
  EXPECT_OK(real<FunctionId::cuGraphDestroy>(graph));
  EXPECT_OK(own::cuMemFree_v2(plain));
}

CUresult record_free(CUdeviceptr, CUstream) {
  return CUDA_SUCCESS;
}

TEST_F(MemoryEdges, ACapturedFreeFreesNothingYet) {
  const CUstream stream = new_stream();
  const CUdeviceptr address = allocate(kMiB);
  CUgraph graph{};
  ASSERT_OK(real<FunctionId::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  {
    const Instead instead(FunctionId::cuMemFreeAsync, reinterpret_cast<void*>(&record_free));
    EXPECT_OK(own::cuMemFreeAsync(address, stream));
  }
  EXPECT_EQ(allocated(), kMiB);
  ASSERT_OK(real<FunctionId::cuStreamEndCapture>(stream, &graph));
  EXPECT_OK(real<FunctionId::cuGraphDestroy>(graph));
  EXPECT_OK(own::cuMemFree_v2(address));
}

TEST_F(MemoryEdges, ARelaxedCaptureSurvivesAllocations) {
  const CUstream stream = new_stream();
  CUgraph graph{};
  ASSERT_OK(real<FunctionId::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  const CUdeviceptr address = allocate(kMiB);
  CUdeviceptr pooled = 0;
  const CUstream other = new_stream();
  EXPECT_OK(own::cuMemAllocAsync(&pooled, kMiB, other));
  size_t free = 0;
  size_t total = 0;
  limit(64 * kMiB);
  EXPECT_OK(own::cuMemGetInfo_v2(&free, &total));
  EXPECT_OK(own::cuMemFreeAsync(pooled, other));
  EXPECT_OK(own::cuMemFree_v2(address));
  EXPECT_OK(real<FunctionId::cuStreamEndCapture>(stream, &graph));
  EXPECT_OK(real<FunctionId::cuGraphDestroy>(graph));
}

TEST_F(MemoryEdges, ErrnoStays) {
  errno = 77;
  const CUdeviceptr address = allocate(kMiB);
  EXPECT_OK(own::cuMemFree_v2(address));
  limit(1);
  CUdeviceptr none = 0;
  EXPECT_EQ(own::cuMemAlloc_v2(&none, kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(errno, 77);
}

TEST_F(MemoryEdges, TheChildOfAForkKnowsNothing) {
  const CUdeviceptr address = allocate(kMiB);
  memory::memory_reset_after_fork();
  EXPECT_EQ(memory::g_books.records.size(), 0u);
  g_accounts[0].allocated = g_accounts[0].pinned = 0;
  EXPECT_OK(own::cuMemFree_v2(address));
  EXPECT_EQ(allocated(), 0u);
  const CUdeviceptr again = allocate(kMiB);
  EXPECT_EQ(allocated(), kMiB);
  EXPECT_OK(own::cuMemFree_v2(again));
}

}  // namespace
}  // namespace nvshare::interposer
