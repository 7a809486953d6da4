#include "softgpu/fixture.h"

// Managed memory: the part that a device uses takes room there.
namespace nvshare::softgpu {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr CUmemLocation kHost{CU_MEM_LOCATION_TYPE_HOST, 0};
constexpr CUmemLocation kDevice{CU_MEM_LOCATION_TYPE_DEVICE, 0};

using Managed = Driver;

TEST_F(Managed, ManagedMemoryTakesRoomWhereItIsUsed) {
  const std::size_t before = free_memory();
  CUdeviceptr managed = 0;
  ASSERT_OK(cuMemAllocManaged(&managed, 64 * kMiB, CU_MEM_ATTACH_GLOBAL));
  EXPECT_EQ(free_memory(), before) << "nothing is used yet";
  ASSERT_OK(cuMemsetD32_v2(managed, 7, 1));
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_EQ(free_memory(), before - 2 * kMiB) << "by a memset";
  ASSERT_OK(fill(nullptr, managed + 4 * kMiB, 8, kMiB));
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_EQ(free_memory(), before - 6 * kMiB) << "by a kernel";
  EXPECT_EQ(word(managed + 10 * kMiB), 0u);
  EXPECT_EQ(free_memory(), before - 8 * kMiB) << "by a copy";
  ASSERT_OK(cuMemPrefetchAsync_v2(managed, 2 * kMiB, kHost, 0, nullptr));
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_EQ(free_memory(), before - 6 * kMiB);
  EXPECT_EQ(*reinterpret_cast<unsigned*>(managed), 7u);
  ASSERT_OK(cuMemFree_v2(managed));
  EXPECT_EQ(free_memory(), before);
}

TEST_F(Managed, ThereMayBeMoreManagedMemoryThanRoom) {
  const std::size_t before = free_memory();
  const std::size_t much = 3 * before / 2 / kMiB * kMiB;
  CUdeviceptr managed = 0;
  ASSERT_OK(cuMemAllocManaged(&managed, much, CU_MEM_ATTACH_GLOBAL));
  ASSERT_OK(cuMemPrefetchAsync_v2(managed, much, kDevice, 0, nullptr));
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_LT(free_memory(), 2 * kMiB);
  ASSERT_OK(cuMemsetD32_v2(managed + much - 4, 9, 1));
  EXPECT_EQ(word(managed + much - 4), 9u);
  // Plain memory pushes it out, as far as there is need.
  CUdeviceptr plain = 0;
  ASSERT_OK(cuMemAlloc_v2(&plain, before / 2));
  EXPECT_LT(free_memory(), 4 * kMiB);
  ASSERT_OK(cuMemFree_v2(managed));
  EXPECT_GE(free_memory(), before / 2 - 2 * kMiB);
  // It never pushes out plain memory.
  CUdeviceptr rest = 0;
  ASSERT_OK(cuMemAlloc_v2(&rest, free_memory() / (2 * kMiB) * (2 * kMiB)));
  ASSERT_OK(cuMemAllocManaged(&managed, 8 * kMiB, CU_MEM_ATTACH_GLOBAL));
  ASSERT_OK(cuMemsetD32_v2(managed, 5, 2 * kMiB));
  EXPECT_EQ(word(managed + 4 * kMiB), 5u) << "used from afar";
  EXPECT_OK(cuMemFree_v2(managed));
  EXPECT_OK(cuMemFree_v2(rest));
  EXPECT_OK(cuMemFree_v2(plain));
  EXPECT_EQ(free_memory(), before);
}

TEST_F(Managed, PrefetchingTakesTheTimeOfTheLinkForWhatIsNotThereYet) {
  CUdeviceptr managed = 0;
  CUevent start{};
  CUevent end{};
  ASSERT_OK(cuEventCreate(&start, 0));
  ASSERT_OK(cuEventCreate(&end, 0));
  ASSERT_OK(cuMemAllocManaged(&managed, 512 * kMiB, CU_MEM_ATTACH_GLOBAL));
  const auto prefetch = [&](CUmemLocation location) {
    EXPECT_OK(spin(nullptr, 20'000'000));  // so that the host's own pace does not show
    EXPECT_OK(cuEventRecord(start, nullptr));
    EXPECT_OK(cuMemPrefetchAsync_v2(managed, 512 * kMiB, location, 0, nullptr));
    EXPECT_OK(cuEventRecord(end, nullptr));
    EXPECT_OK(cuEventSynchronize(end));
    float elapsed = -1;
    EXPECT_OK(cuEventElapsedTime_v2(&elapsed, start, end));
    return elapsed;
  };
  EXPECT_NEAR(prefetch(kDevice), 10.f, 0.1f) << "half a GiB at 50 GiB/s";
  EXPECT_NEAR(prefetch(kDevice), 0.f, 0.1f) << "all of it is there";
  EXPECT_NEAR(prefetch(kHost), 10.f, 0.1f);
  EXPECT_NEAR(prefetch(kHost), 0.f, 0.1f);
  EXPECT_OK(cuMemFree_v2(managed));
}

}  // namespace
}  // namespace nvshare::softgpu
