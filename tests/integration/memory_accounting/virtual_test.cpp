#include "machine.h"

// Physical memory counts until its last handle and its last mapping are gone, whichever goes first.
namespace nvshare::interposer {
namespace {

constexpr uint64_t kChunk = 2 * kMiB;

class VirtualMemory : public Machine {
 protected:
  static CUmemGenericAllocationHandle create(uint64_t bytes = kChunk, int device = 0) {
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp where{};
    where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    where.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    EXPECT_OK(own::cuMemCreate(&handle, bytes, &where, 0));
    return handle;
  }
  void SetUp() override {
    Machine::SetUp();
    ASSERT_OK(own::cuMemAddressReserve(&range, kRange, 0, 0, 0));
  }
  void TearDown() override {
    EXPECT_OK(own::cuMemAddressFree(range, kRange));
    Machine::TearDown();
  }
  CUdeviceptr at(int chunk) const { return range + static_cast<uint64_t>(chunk) * kChunk; }

  static constexpr uint64_t kRange = 8 * kChunk;
  CUdeviceptr range = 0;
};

// The same whether it can move or not.
class Virtual : public VirtualMemory, public testing::WithParamInterface<wire::Backend> {
 protected:
  void SetUp() override {
    VirtualMemory::SetUp();
    for (Account& account : g_accounts) account.backend = GetParam();
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, Virtual,
                         testing::Values(wire::Backend::Native, wire::Backend::Swap),
                         [](const auto& backend) {
                           return backend.param == wire::Backend::Swap ? "swap" : "native";
                         });

// Where the driver's own handles matter.
using VirtualNative = VirtualMemory;

TEST_P(Virtual, CountsOnTheDeviceNamed) {
  limit(kChunk, 1);
  const auto handle = create(kChunk, 1);
  EXPECT_EQ(allocated(0), 0u);
  EXPECT_EQ(allocated(1), kChunk);
  EXPECT_OK(own::cuMemRelease(handle));
}

TEST_P(Virtual, NeedsNoContext) {
  CUcontext popped{};
  ASSERT_OK(real<FunctionId::cuCtxPopCurrent_v2>(&popped));
  const auto handle = create();
  EXPECT_EQ(allocated(), kChunk);
  EXPECT_OK(own::cuMemRelease(handle));
  EXPECT_EQ(allocated(), 0u);
  ASSERT_OK(real<FunctionId::cuCtxPushCurrent_v2>(context));
}

TEST_P(Virtual, AMappingKeepsReleasedMemory) {
  const auto handle = create();
  ASSERT_OK(own::cuMemMap(at(0), kChunk, 0, handle, 0));
  ASSERT_OK(own::cuMemMap(at(3), kChunk, 0, handle, 0));
  EXPECT_EQ(allocated(), kChunk);
  ASSERT_OK(own::cuMemRelease(handle));
  EXPECT_EQ(allocated(), kChunk);
  ASSERT_OK(own::cuMemUnmap(at(0), kChunk));
  EXPECT_EQ(allocated(), kChunk);
  ASSERT_OK(own::cuMemUnmap(at(3), kChunk));
  EXPECT_EQ(allocated(), 0u);
}

TEST_P(Virtual, AHandleKeepsUnmappedMemory) {
  const auto handle = create();
  ASSERT_OK(own::cuMemMap(at(0), kChunk, 0, handle, 0));
  ASSERT_OK(own::cuMemUnmap(at(0), kChunk));
  EXPECT_EQ(allocated(), kChunk);
  ASSERT_OK(own::cuMemRelease(handle));
  EXPECT_EQ(allocated(), 0u);
}

TEST_P(Virtual, RetainedHandlesCount) {
  const auto handle = create();
  CUmemGenericAllocationHandle same = 0;
  ASSERT_OK(own::cuMemMap(at(1), kChunk, 0, handle, 0));
  ASSERT_OK(own::cuMemRetainAllocationHandle(&same, reinterpret_cast<void*>(at(1) + 4096)));
  ASSERT_OK(own::cuMemUnmap(at(1), kChunk));
  ASSERT_OK(own::cuMemRelease(handle));
  EXPECT_EQ(allocated(), kChunk);
  ASSERT_OK(own::cuMemRelease(same));
  EXPECT_EQ(allocated(), 0u);
}

TEST_P(Virtual, AReleasedHandleComesBackByItsAddress) {
  const auto handle = create();
  CUmemGenericAllocationHandle again = 0;
  ASSERT_OK(own::cuMemMap(at(1), kChunk, 0, handle, 0));
  ASSERT_OK(own::cuMemRelease(handle));
  ASSERT_OK(own::cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at(1) + kChunk - 1)));
  ASSERT_OK(own::cuMemUnmap(at(1), kChunk));
  EXPECT_EQ(allocated(), kChunk);
  ASSERT_OK(own::cuMemRelease(again));
  EXPECT_EQ(allocated(), 0u);
}

TEST_P(Virtual, OneUnmapEndsManyMappings) {
  CUmemGenericAllocationHandle handles[3];
  for (auto& handle : handles) handle = create();
  // With a hole.
  ASSERT_OK(own::cuMemMap(at(0), kChunk, 0, handles[0], 0));
  ASSERT_OK(own::cuMemMap(at(1), kChunk, 0, handles[1], 0));
  ASSERT_OK(own::cuMemMap(at(5), kChunk, 0, handles[2], 0));
  for (const auto handle : handles) ASSERT_OK(own::cuMemRelease(handle));
  EXPECT_EQ(allocated(), 3 * kChunk);
  ASSERT_OK(own::cuMemUnmap(at(1), 3 * kChunk));
  EXPECT_EQ(allocated(), 2 * kChunk);
  ASSERT_OK(own::cuMemUnmap(at(0), kRange));
  EXPECT_EQ(allocated(), 0u);
}

TEST_P(Virtual, WhatFailsChangesNothing) {
  const auto handle = create();
  ASSERT_OK(own::cuMemMap(at(0), kChunk, 0, handle, 0));
  EXPECT_NE(own::cuMemMap(at(0), kChunk, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_NE(own::cuMemMap(at(1) + 4096, kChunk, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_NE(own::cuMemMap(at(1), kChunk, 0, 12345, 0), CUDA_SUCCESS);
  EXPECT_NE(own::cuMemUnmap(at(0) + kChunk / 2, kChunk), CUDA_SUCCESS);
  CUmemGenericAllocationHandle none = 0;
  EXPECT_NE(own::cuMemRetainAllocationHandle(&none, reinterpret_cast<void*>(at(2))), CUDA_SUCCESS);
  EXPECT_NE(own::cuMemRetainAllocationHandle(nullptr, reinterpret_cast<void*>(at(0))),
            CUDA_SUCCESS);
  ASSERT_OK(own::cuMemRelease(handle));
  EXPECT_NE(own::cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(allocated(), kChunk);
  ASSERT_OK(own::cuMemUnmap(at(0), kChunk));
  EXPECT_EQ(allocated(), 0u);
}

CUmemGenericAllocationHandle g_released = 0;
CUresult release_then_fail(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                           unsigned long long) {
  EXPECT_OK(own::cuMemRelease(g_released));
  return CUDA_ERROR_INVALID_VALUE;
}

TEST_F(VirtualNative, AMapThatFailsLetsGoOfMemoryReleasedMeanwhile) {
  g_released = create();
  const Instead instead(FunctionId::cuMemMap, reinterpret_cast<void*>(&release_then_fail));
  EXPECT_NE(own::cuMemMap(at(0), kChunk, 0, g_released, 0), CUDA_SUCCESS);
  EXPECT_EQ(allocated(), 0u);
}

// Handles and addresses that the driver hands out again before the call that freed them is over.

CUresult create_42(CUmemGenericAllocationHandle* handle, size_t, const CUmemAllocationProp*,
                   unsigned long long) {
  *handle = 42;
  return CUDA_SUCCESS;
}
bool g_first = true;
CUresult release_and_reuse(CUmemGenericAllocationHandle) {
  if (!g_first) return CUDA_SUCCESS;
  g_first = false;
  CUmemGenericAllocationHandle again = 0;
  CUmemAllocationProp where{};
  where.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return own::cuMemCreate(&again, 3 * kChunk, &where, 0);
}

TEST_F(VirtualNative, AHandleThatComesBackAtOnceIsCountedAnew) {
  const Instead creating(FunctionId::cuMemCreate, reinterpret_cast<void*>(&create_42));
  const Instead releasing(FunctionId::cuMemRelease, reinterpret_cast<void*>(&release_and_reuse));
  g_first = true;
  const auto handle = create(2 * kChunk);
  ASSERT_OK(own::cuMemRelease(handle));
  EXPECT_EQ(allocated(), 3 * kChunk);
  ASSERT_OK(own::cuMemRelease(handle));
  EXPECT_EQ(allocated(), 0u);
}

Signature<FunctionId::cuMemUnmap>* g_real_unmap = nullptr;
CUmemGenericAllocationHandle g_next = 0;
CUresult unmap_and_reuse(CUdeviceptr address, size_t size) {
  const CUresult result = g_real_unmap(address, size);
  EXPECT_OK(own::cuMemMap(address, size, 0, g_next, 0));
  EXPECT_OK(own::cuMemRelease(g_next));
  return result;
}

TEST_F(VirtualNative, AMappingInThePlaceOfAnotherKeepsItsOwnMemory) {
  const auto handle = create();
  g_next = create();
  ASSERT_OK(own::cuMemMap(at(0), kChunk, 0, handle, 0));
  ASSERT_OK(own::cuMemRelease(handle));
  EXPECT_EQ(allocated(), 2 * kChunk);
  g_real_unmap = reinterpret_cast<Signature<FunctionId::cuMemUnmap>*>(
      catching::g_driver[static_cast<unsigned>(FunctionId::cuMemUnmap)]);
  {
    const Instead instead(FunctionId::cuMemUnmap, reinterpret_cast<void*>(&unmap_and_reuse));
    ASSERT_OK(own::cuMemUnmap(at(0), kChunk));
  }
  EXPECT_EQ(allocated(), kChunk);
  ASSERT_OK(own::cuMemUnmap(at(0), kChunk));
  EXPECT_EQ(allocated(), 0u);
}

// Imported memory is its maker's, and counts there.
TEST_P(Virtual, ImportedHandlesAreNotCountedAgain) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemGenericAllocationHandle imported = 0;
  CUmemAllocationProp where{};
  where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  where.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  where.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  ASSERT_OK(own::cuMemCreate(&handle, kChunk, &where, 0));
  int file = -1;
  ASSERT_OK(own::cuMemExportToShareableHandle(&file, handle,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  EXPECT_EQ(g_accounts[0].pinned, kChunk) << "another process may have it";
  ASSERT_OK(real<FunctionId::cuMemImportFromShareableHandle>(
      &imported, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT_EQ(allocated(), kChunk);
  ASSERT_OK(own::cuMemMap(at(0), kChunk, 0, imported, 0));
  ASSERT_OK(own::cuMemUnmap(at(0), kChunk));
  ASSERT_OK(own::cuMemRelease(imported));
  EXPECT_EQ(allocated(), kChunk);
  ASSERT_OK(own::cuMemRelease(handle));
  EXPECT_EQ(allocated(), 0u);
}

}  // namespace
}  // namespace nvshare::interposer
