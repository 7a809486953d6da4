#include "machine.h"

// How much memory the program sees.
namespace nvshare::interposer {
namespace {

class MemoryInfo : public Machine {
 protected:
  void look() {
    ASSERT_OK(own::cuMemGetInfo_v2(&free, &total));
    ASSERT_OK(own::cuDeviceTotalMem_v2(&device, 0));
    ASSERT_OK(real<FunctionId::cuMemGetInfo_v2>(&real_free, &real_total));
  }
  size_t free = 0;
  size_t total = 0;
  size_t device = 0;
  size_t real_free = 0;
  size_t real_total = 0;
};

TEST_F(MemoryInfo, IsTheDriversWithoutALimit) {
  allocate(100 * kMiB);
  look();
  EXPECT_EQ(total, 1024 * kMiB);
  EXPECT_EQ(device, 1024 * kMiB);
  EXPECT_EQ(free, real_free);
}

TEST_F(MemoryInfo, IsTheTenantsWithOne) {
  limit(256 * kMiB);
  look();
  EXPECT_EQ(total, 256 * kMiB);
  EXPECT_EQ(device, 256 * kMiB);
  EXPECT_EQ(free, 256 * kMiB);
  allocate(100 * kMiB);
  look();
  EXPECT_EQ(free, 156 * kMiB);
  allocate(156 * kMiB);
  look();
  EXPECT_EQ(free, 0u);
}

TEST_F(MemoryInfo, NeverShowsMoreThanThereIs) {
  limit(4096 * kMiB);
  look();
  EXPECT_EQ(total, 1024 * kMiB);
  EXPECT_EQ(device, 1024 * kMiB);
  EXPECT_EQ(free, real_free);
  // Others have taken what would be ours.
  limit(512 * kMiB);
  CUdeviceptr others = 0;
  ASSERT_OK(real<FunctionId::cuMemAlloc_v2>(&others, 900 * kMiB));
  look();
  EXPECT_EQ(free, real_free);
  EXPECT_LT(free, 512 * kMiB);
}

TEST_F(MemoryInfo, SurvivesALimitLoweredBelowWhatIsAllocated) {
  allocate(100 * kMiB);
  limit(50 * kMiB);
  look();
  EXPECT_EQ(total, 50 * kMiB);
  EXPECT_EQ(free, 0u);
}

TEST_F(MemoryInfo, ErrorsAndMissingPlacesAreTheDrivers) {
  limit(256 * kMiB);
  look();
  free = total = 1;
  EXPECT_OK(own::cuMemGetInfo_v2(nullptr, &total));
  EXPECT_EQ(total, 256 * kMiB);
  EXPECT_OK(own::cuMemGetInfo_v2(&free, nullptr));
  EXPECT_EQ(free, 256 * kMiB);
  EXPECT_EQ(own::cuDeviceTotalMem_v2(&device, 99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(own::cuDeviceTotalMem_v2(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  CUcontext popped{};
  ASSERT_OK(real<FunctionId::cuCtxPopCurrent_v2>(&popped));
  free = 7;
  EXPECT_EQ(own::cuMemGetInfo_v2(&free, &total), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(free, 7u);
  ASSERT_OK(real<FunctionId::cuCtxPushCurrent_v2>(context));
}

TEST_F(MemoryInfo, TheOldestFormsTellTheSame) {
  limit(256 * kMiB);
  allocate(kMiB);
  unsigned old_free = 0;
  unsigned old_total = 0;
  unsigned old_device = 0;
  ASSERT_OK(own::cuMemGetInfo(&old_free, &old_total));
  ASSERT_OK(own::cuDeviceTotalMem(&old_device, 0));
  EXPECT_EQ(old_free, 255 * kMiB);
  EXPECT_EQ(old_total, 256 * kMiB);
  EXPECT_EQ(old_device, 256 * kMiB);
  limit(uint64_t{1} << 40);
  ASSERT_OK(own::cuMemGetInfo(&old_free, &old_total));
  EXPECT_EQ(old_total, 0xffffffffu);
}

}  // namespace
}  // namespace nvshare::interposer
