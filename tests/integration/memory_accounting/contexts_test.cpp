#include "machine.h"

// What was allocated in a context goes with it.
namespace nvshare::interposer {
namespace {

class Contexts : public Machine {};

TEST_F(Contexts, TakeTheirMemoryWithThem) {
  const CUdeviceptr kept = allocate(kMiB);
  const CUcontext other = new_context(0);
  allocate(4 * kMiB);
  CUdeviceptr managed = 0;
  ASSERT_OK(own::cuMemAllocManaged(&managed, 2 * kMiB, CU_MEM_ATTACH_GLOBAL));
  CUarray array{};
  const CUDA_ARRAY_DESCRIPTOR shape{64, 64, CU_AD_FORMAT_FLOAT, 1};
  ASSERT_OK(own::cuArrayCreate_v2(&array, &shape));
  EXPECT_EQ(allocated(), 7 * kMiB + 64 * 64 * 4);
  ASSERT_OK(destroy_context(other));
  EXPECT_EQ(allocated(), kMiB);
  EXPECT_OK(own::cuMemFree_v2(kept));
}

TEST_F(Contexts, LeaveWhatIsTheDevices) {
  const CUcontext other = new_context(0);
  CUdeviceptr pooled = 0;
  ASSERT_OK(own::cuMemAllocAsync(&pooled, kMiB, nullptr));
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp where{};
  where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  where.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  ASSERT_OK(own::cuMemCreate(&handle, 2 * kMiB, &where, 0));
  ASSERT_OK(destroy_context(other));
  EXPECT_EQ(allocated(), 3 * kMiB);
  EXPECT_OK(own::cuMemFree_v2(pooled));
  EXPECT_OK(own::cuMemRelease(handle));
}

TEST_F(Contexts, TakePoolMemoryThatTheDriverDoesNotKnowAnyMore) {
  const CUcontext other = new_context(0);
  CUdeviceptr addresses[100];
  for (CUdeviceptr& address : addresses) {
    ASSERT_OK(own::cuMemAllocAsync(&address, kMiB, nullptr));
  }
  // Behind our back, as a driver that empties its pools with the context would.
  for (int i = 0; i < 100; i += 3) ASSERT_OK(real<FunctionId::cuMemFree_v2>(addresses[i]));
  EXPECT_EQ(allocated(), 100 * kMiB);
  ASSERT_OK(destroy_context(other));
  EXPECT_EQ(allocated(), 66 * kMiB);
  for (int i = 0; i < 100; ++i) {
    if (i % 3 != 0) {
      EXPECT_OK(own::cuMemFree_v2(addresses[i]));
    }
  }
}

TEST_F(Contexts, ThatAreNotDestroyedTakeNothing) {
  allocate(kMiB);
  EXPECT_NE(destroy_context(reinterpret_cast<CUcontext>(uint64_t{0x1230})), CUDA_SUCCESS);
  EXPECT_EQ(allocated(), kMiB);
}

// Primary contexts have one handle for all their lives.
TEST_F(Contexts, WithTheSameHandleAreToldApartByTheMark) {
  CUcontext primary{};
  ASSERT_OK(real<FunctionId::cuDevicePrimaryCtxRetain>(&primary, 0));
  ASSERT_OK(real<FunctionId::cuCtxPushCurrent_v2>(primary));
  allocate(5 * kMiB);
  const uint64_t before = memory::memory_mark();
  ASSERT_OK(real<FunctionId::cuDevicePrimaryCtxRelease_v2>(0));
  CUcontext again{};
  ASSERT_OK(real<FunctionId::cuDevicePrimaryCtxRetain>(&again, 0));
  ASSERT_EQ(again, primary);
  const CUdeviceptr address = allocate(3 * kMiB);
  memory::memory_context_gone(primary, before);
  EXPECT_EQ(allocated(), 3 * kMiB);
  EXPECT_OK(own::cuMemFree_v2(address));
  CUcontext popped{};
  ASSERT_OK(real<FunctionId::cuCtxPopCurrent_v2>(&popped));
  ASSERT_OK(real<FunctionId::cuDevicePrimaryCtxRelease_v2>(0));
}

TEST_F(Contexts, EndWithTheLastAttachment) {
  CUcontext same{};
  ASSERT_OK(own::cuCtxAttach(&same, 0));
  ASSERT_OK(own::cuCtxAttach(&same, 0));
  EXPECT_FALSE(memory::memory_last_attachment(context));
  EXPECT_FALSE(memory::memory_last_attachment(context));
  EXPECT_TRUE(memory::memory_last_attachment(context));
}

}  // namespace
}  // namespace nvshare::interposer
