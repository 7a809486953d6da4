#include "interposer/moving/swap/virtual.h"
#include "machine.h"

// Memory that the program makes itself and that can move: what the scheduler is told of it.
namespace nvshare::interposer {
namespace {

constexpr uint64_t kChunk = 2 * kMiB;

class VirtualMoves : public Machine {
 protected:
  void SetUp() override {
    Machine::SetUp();
    account.backend = wire::Backend::Swap;
    ASSERT_OK(own::cuMemAddressReserve(&range, kRange, 0, 0, 0));
  }
  void TearDown() override {
    EXPECT_OK(own::cuMemAddressFree(range, kRange));
    if (far_context != nullptr) {
      EXPECT_OK(destroy_context(far_context));
    }
    Machine::TearDown();
  }

  static CUmemAllocationProp kind() {
    CUmemAllocationProp where{};
    where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    where.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    where.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return where;
  }
  static CUmemGenericAllocationHandle create(const CUmemAllocationProp& where = kind()) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_OK(own::cuMemCreate(&handle, kChunk, &where, 0));
    return handle;
  }
  // On device 1, away until its gate is passed.
  CUmemGenericAllocationHandle create_far_away() {
    far_context = new_context(1);
    moving::swap::swap_context_made(*link::gate_of_device(1), far_context);
    EXPECT_OK(real<FunctionId::cuCtxSetCurrent>(context));
    Account& far = g_accounts[1];
    far.backend = wire::Backend::Swap;
    far.full = far.brings_in = true;
    CUmemAllocationProp where = kind();
    where.location.id = 1;
    return create(where);
  }
  static bool note(void*, moving::Moved& moved) {
    g_accounts[0].absent += moved.out - moved.in;
    return true;
  }
  static void bring_in() {
    EXPECT_TRUE(moving::swap::swap_in(*link::gate_of_device(0), ~uint64_t{0}, note, nullptr));
  }

  static constexpr uint64_t kRange = 8 * kChunk;
  CUdeviceptr range = 0;
  CUcontext far_context{};
  Account& account = g_accounts[0];
};

TEST_F(VirtualMoves, IsCountedAsMovableAndWhereItIs) {
  const auto here = create();
  account.full = true;
  const auto absent = create();
  EXPECT_EQ(account.allocated, 2 * kChunk);
  EXPECT_EQ(account.pinned, 0u);
  EXPECT_EQ(account.absent, kChunk);
  EXPECT_OK(own::cuMemMap(range, kChunk, 0, absent, 0));
  EXPECT_OK(own::cuMemRelease(absent));
  bring_in();
  EXPECT_EQ(account.absent, 0u);
  EXPECT_OK(own::cuMemUnmap(range, kChunk));
  EXPECT_EQ(account.allocated, kChunk);
  EXPECT_OK(own::cuMemRelease(here));
}

TEST_F(VirtualMoves, IsNotMadeAboveTheLimit) {
  limit(kChunk);
  const auto handle = create();
  const CUmemAllocationProp where = kind();
  CUmemGenericAllocationHandle none = 0;
  EXPECT_EQ(own::cuMemCreate(&none, kChunk, &where, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(account.allocated, kChunk);
  EXPECT_OK(own::cuMemRelease(handle));
}

TEST_F(VirtualMoves, WhatTheDriverRefusesIsGivenBack) {
  using Create = Signature<FunctionId::cuMemCreate>;
  const Instead instead(FunctionId::cuMemCreate, reinterpret_cast<void*>(&Refusing<Create>::call));
  const CUmemAllocationProp where = kind();
  CUmemGenericAllocationHandle none = 0;
  EXPECT_EQ(own::cuMemCreate(&none, kChunk, &where, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(account.allocated, 0u);
}

TEST_F(VirtualMoves, IsPinnedOnceItIsExported) {
  const auto handle = create();
  int file = -1;
  EXPECT_EQ(own::cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(account.pinned, 0u) << "it was not exported";
  for (int i = 0; i < 2; ++i) {
    EXPECT_OK(own::cuMemExportToShareableHandle(&file, handle,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    EXPECT_EQ(account.pinned, kChunk);
  }
  EXPECT_EQ(account.allocated, kChunk);
  EXPECT_OK(own::cuMemRelease(handle));
  EXPECT_EQ(account.pinned, 0u);
}

// The gate of this test stands open, and nobody brings it in.
TEST_F(VirtualMoves, IsNotExportedWhileItIsAway) {
  account.full = true;
  const auto handle = create();
  int file = -1;
  EXPECT_EQ(
      own::cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(account.pinned, 0u);
  EXPECT_OK(own::cuMemRelease(handle));
}

// A program with two GPUs waits for the one on which the memory is, and device 0 is current here.
TEST_F(VirtualMoves, IsWaitedForWhereItIsToBeExported) {
  const auto handle = create_far_away();
  int file = -1;
  EXPECT_OK(own::cuMemExportToShareableHandle(&file, handle,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  EXPECT_EQ(g_accounts[1].pinned, kChunk);
  EXPECT_EQ(g_accounts[1].absent, 0u);
  EXPECT_OK(own::cuMemRelease(handle));
}

TEST_F(VirtualMoves, IsWaitedForWhereItIsToBeToldOf) {
  const auto handle = create_far_away();
  EXPECT_OK(own::cuMemMap(range, kChunk, 0, handle, 0));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_OK(own::cuMemGetAddressRange_v2(&base, &bytes, range));
  EXPECT_EQ(base, range);
  EXPECT_EQ(g_accounts[1].absent, 0u);
  EXPECT_OK(own::cuMemUnmap(range, kChunk));
  EXPECT_OK(own::cuMemRelease(handle));
}

CUmemGenericAllocationHandle g_seen = 0;
CUresult bind(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle handle, size_t,
              size_t, unsigned long long) {
  g_seen = handle;
  return CUDA_SUCCESS;
}
CUresult bind_address(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t,
                      unsigned long long) {
  return CUDA_SUCCESS;
}
CUresult map_array(CUarrayMapInfo* list, unsigned count, CUstream) {
  g_seen = list[count - 1].memHandle.memHandle;
  return CUDA_SUCCESS;
}

TEST_F(VirtualMoves, IsPinnedOnceItIsBound) {
  const Instead binding(FunctionId::cuMulticastBindMem, reinterpret_cast<void*>(&bind));
  const Instead by_address(FunctionId::cuMulticastBindAddr, reinterpret_cast<void*>(&bind_address));
  const Instead mapping(FunctionId::cuMemMapArrayAsync, reinterpret_cast<void*>(&map_array));
  const auto bound = create();
  EXPECT_OK(own::cuMulticastBindMem(7, 0, bound, 0, kChunk, 0));
  EXPECT_EQ(account.pinned, kChunk);
  EXPECT_FALSE(moving::swap::swap_is_handle(g_seen));

  const auto mapped = create();
  EXPECT_OK(own::cuMemMap(range, kChunk, 0, mapped, 0));
  EXPECT_OK(own::cuMulticastBindAddr(7, 0, range, kChunk, 0));
  EXPECT_EQ(account.pinned, 2 * kChunk);

  const auto in_array = create();
  CUarrayMapInfo list[2]{};
  list[1].memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  list[1].memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  list[1].memHandle.memHandle = in_array;
  g_seen = 0;
  EXPECT_OK(own::cuMemMapArrayAsync(list, 2, nullptr));
  EXPECT_EQ(account.pinned, 3 * kChunk);
  EXPECT_NE(g_seen, 0u);
  EXPECT_FALSE(moving::swap::swap_is_handle(g_seen));
  EXPECT_EQ(list[1].memHandle.memHandle, in_array) << "the program's list is its own";

  EXPECT_OK(own::cuMemUnmap(range, kChunk));
  for (const auto handle : {bound, mapped, in_array}) EXPECT_OK(own::cuMemRelease(handle));
  EXPECT_EQ(account.pinned, 0u);
}

TEST_F(VirtualMoves, IsPinnedOnceAnotherDeviceMayUseIt) {
  const auto handle = create();
  EXPECT_OK(own::cuMemMap(range, kChunk, 0, handle, 0));
  CUmemAccessDesc access[2] = {
      {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
      {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_NONE}};
  EXPECT_OK(own::cuMemSetAccess(range, kChunk, access, 2));
  EXPECT_EQ(account.pinned, 0u);
  access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  EXPECT_OK(own::cuMemSetAccess(range, kChunk, access, 2));
  EXPECT_EQ(account.pinned, kChunk);
  EXPECT_OK(own::cuMemUnmap(range, kChunk));
  EXPECT_OK(own::cuMemRelease(handle));
}

TEST_F(VirtualMoves, OddKindsAreTheDriversAndPinned) {
  CUmemAllocationProp odd = kind();
  odd.allocFlags.usage = 1;
  const auto handle = create(odd);
  EXPECT_FALSE(moving::swap::swap_is_handle(handle));
  EXPECT_EQ(account.pinned, kChunk);
  const auto ours = create();
  EXPECT_OK(own::cuMemMap(range, kChunk, 0, ours, 0));
  EXPECT_OK(own::cuMemMap(range + kChunk, kChunk, 0, handle, 0));
  EXPECT_EQ(own::cuMemMap(range, kChunk, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_OK(own::cuMemRelease(handle));
  EXPECT_OK(own::cuMemRelease(ours));
  EXPECT_EQ(account.allocated, 2 * kChunk);
  EXPECT_OK(own::cuMemUnmap(range, kRange));
  EXPECT_EQ(account.allocated, 0u);
}

}  // namespace
}  // namespace nvshare::interposer
