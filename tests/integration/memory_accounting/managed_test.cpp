#include "interposer/moving/managed/managed.h"

#include "machine.h"

// Under the backend `managed`: what the driver is asked for, what is counted, and what a program is
// told of memory that is not what it asked for.
namespace nvshare::interposer {
namespace {

class ManagedBackend : public Machine {
 protected:
  void SetUp() override {
    Machine::SetUp();
    choose(wire::Backend::Managed);
  }
  static void choose(wire::Backend backend) { g_accounts[0].backend = backend; }
  static uint64_t pinned() { return g_accounts[0].pinned; }

  template <typename Value>
  static Value ask(CUdeviceptr address, CUpointer_attribute attribute) {
    Value value{};
    EXPECT_OK(own::cuPointerGetAttribute(&value, attribute, address));
    return value;
  }
  static unsigned is_managed(CUdeviceptr address) {
    return ask<unsigned>(address, CU_POINTER_ATTRIBUTE_IS_MANAGED);
  }
};

TEST_F(ManagedBackend, PlainMemoryIsManagedAndCanMove) {
  const unsigned long plain = driver_calls(FunctionId::cuMemAlloc_v2);
  const unsigned long managed = driver_calls(FunctionId::cuMemAllocManaged);
  const CUdeviceptr address = allocate(3 * kMiB);
  EXPECT_EQ(driver_calls(FunctionId::cuMemAlloc_v2), plain);
  EXPECT_EQ(driver_calls(FunctionId::cuMemAllocManaged), managed + 1);
  EXPECT_EQ(allocated(), 3 * kMiB);
  EXPECT_EQ(pinned(), 0u);
  EXPECT_EQ(moving::managed::managed_resident(*link::gate_of_device(0)), 3 * kMiB);
  EXPECT_OK(own::cuMemFree_v2(address));
  EXPECT_EQ(allocated(), 0u);
  EXPECT_EQ(own::cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ManagedBackend, PitchedMemoryToo) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  ASSERT_OK(own::cuMemAllocPitch_v2(&address, &pitch, 1000, 100, 4));
  EXPECT_EQ(pitch, 1024u);
  EXPECT_EQ(allocated(), 102400u);
  EXPECT_EQ(pinned(), 0u);
  EXPECT_EQ(is_managed(address), 0u);
  EXPECT_OK(own::cuMemFree_v2(address));
}

TEST_F(ManagedBackend, ManagedMemoryOfTheProgramCanMoveAndIsWhatItIs) {
  CUdeviceptr address = 0;
  ASSERT_OK(own::cuMemAllocManaged(&address, 2 * kMiB, CU_MEM_ATTACH_GLOBAL));
  EXPECT_EQ(allocated(), 2 * kMiB);
  EXPECT_EQ(pinned(), 0u);
  EXPECT_EQ(is_managed(address), 1u);
  EXPECT_EQ(moving::managed::managed_resident(*link::gate_of_device(0)), 2 * kMiB);
  EXPECT_EQ(own::cuMemAllocManaged(&address, kMiB, 77), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(allocated(), 2 * kMiB) << "what the driver refuses is given back";
  EXPECT_OK(own::cuMemFree_v2(address));
  EXPECT_EQ(allocated(), 0u);
}

TEST_F(ManagedBackend, AProgramDoesNotSeeWhatItDidNotAskFor) {
  const CUdeviceptr address = allocate(kMiB);
  const CUdeviceptr other = allocate(kMiB);
  const CUdeviceptr inside = address + 4096;
  EXPECT_EQ(ask<unsigned>(inside, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(is_managed(inside), 0u);
  EXPECT_EQ(ask<unsigned>(inside, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 0u);
  EXPECT_EQ(ask<CUcontext>(inside, CU_POINTER_ATTRIBUTE_CONTEXT), context);
  EXPECT_EQ(ask<int>(inside, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 0);
  EXPECT_EQ(ask<uint64_t>(inside, CU_POINTER_ATTRIBUTE_RANGE_SIZE), kMiB);
  EXPECT_NE(ask<uint64_t>(address, CU_POINTER_ATTRIBUTE_BUFFER_ID),
            ask<uint64_t>(other, CU_POINTER_ATTRIBUTE_BUFFER_ID));
  uint64_t host = 0;
  EXPECT_EQ(own::cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, address),
            CUDA_ERROR_INVALID_VALUE);
  unsigned type = 0;
  unsigned managed = 9;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* answers[] = {&type, &managed};
  EXPECT_OK(own::cuPointerGetAttributes(2, attributes, answers, inside));
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(managed, 0u);
  CUdeviceptr base = 0;
  size_t size = 0;
  EXPECT_OK(own::cuMemGetAddressRange_v2(&base, &size, inside));
  EXPECT_EQ(base, address);
  EXPECT_EQ(size, kMiB);
  CUipcMemHandle handle{};
  EXPECT_EQ(own::cuIpcGetMemHandle(&handle, address), CUDA_ERROR_NOT_SUPPORTED);
  CUmemGenericAllocationHandle generic = 0;
  EXPECT_EQ(own::cuMemRetainAllocationHandle(&generic, reinterpret_cast<void*>(address)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_OK(own::cuMemFree_v2(address));
  EXPECT_OK(own::cuMemFree_v2(other));
}

TEST_F(ManagedBackend, TheLimitHolds) {
  limit(4 * kMiB);
  const CUdeviceptr address = allocate(3 * kMiB);
  CUdeviceptr more = 0;
  EXPECT_EQ(own::cuMemAlloc_v2(&more, kMiB + 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(own::cuMemAllocManaged(&more, kMiB + 1, CU_MEM_ATTACH_GLOBAL),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(own::cuMemAlloc_v2(&more, ~size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_OK(own::cuMemFree_v2(address));
}

TEST_F(ManagedBackend, WithoutALimitThereMayBeMoreThanTheCardHas) {
  const CUdeviceptr address = allocate(3 * 1024 * kMiB);
  EXPECT_NE(address, 0u);
  EXPECT_EQ(allocated(), 3 * 1024 * kMiB);
  EXPECT_OK(own::cuMemFree_v2(address));
}

TEST_F(ManagedBackend, WithoutRoomItIsAbsent) {
  g_accounts[0].full = true;
  const CUdeviceptr address = allocate(3 * kMiB);
  EXPECT_EQ(moving::managed::managed_absent(*link::gate_of_device(0)), 3 * kMiB);
  EXPECT_OK(own::cuMemFree_v2(address));
  EXPECT_EQ(moving::managed::managed_absent(*link::gate_of_device(0)), 0u);
}

TEST_F(ManagedBackend, IsFreedInStreamOrder) {
  const CUstream stream = new_stream();
  const CUdeviceptr plain = allocate(kMiB);
  CUdeviceptr managed = 0;
  ASSERT_OK(own::cuMemAllocManaged(&managed, kMiB, CU_MEM_ATTACH_GLOBAL));
  EXPECT_OK(own::cuMemFreeAsync(plain, stream));
  EXPECT_OK(own::cuMemFreeAsync(managed, stream));
  EXPECT_EQ(allocated(), 0u);
}

TEST_F(ManagedBackend, GoesWithItsContext) {
  const CUcontext other = new_context(0);
  allocate(5 * kMiB);
  EXPECT_EQ(allocated(), 5 * kMiB);
  EXPECT_OK(destroy_context(other));
  EXPECT_EQ(allocated(), 0u);
  ASSERT_OK(real<FunctionId::cuCtxSetCurrent>(context));
}

TEST_F(ManagedBackend, WhatTheDriverRefusesIsTheDriversError) {
  CUdeviceptr address = 0;
  EXPECT_EQ(own::cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemAlloc_v2(nullptr, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuMemAllocManaged(nullptr, 8, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(g_accounts[0].requests, 0u);
  const Instead refusing(
      FunctionId::cuMemAllocManaged,
      reinterpret_cast<void*>(&Refusing<Signature<FunctionId::cuMemAllocManaged>>::call));
  EXPECT_EQ(own::cuMemAlloc_v2(&address, kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allocated(), 0u);
}

TEST_F(ManagedBackend, EveryKindIsFreedAsWhatItIs) {
  const CUdeviceptr managed = allocate(kMiB);
  choose(wire::Backend::Swap);
  const CUdeviceptr swapped = allocate(2 * kMiB);
  choose(wire::Backend::Native);
  const CUdeviceptr native = allocate(4 * kMiB);
  EXPECT_EQ(allocated(), 7 * kMiB);
  EXPECT_EQ(pinned(), 4 * kMiB);
  EXPECT_EQ(moving::managed::managed_resident(*link::gate_of_device(0)), kMiB);
  EXPECT_EQ(moving::swap::swap_resident(*link::gate_of_device(0)), 2 * kMiB);
  EXPECT_OK(own::cuMemFree_v2(native));
  EXPECT_OK(own::cuMemFree_v2(swapped));
  EXPECT_EQ(allocated(), kMiB);
  EXPECT_OK(own::cuMemFree_v2(managed));
}

CUresult no_attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}

TEST_F(ManagedBackend, IsNativeOnADeviceThatCannot) {
  moving::managed::managed_reset_after_fork();  // nothing is known of the device
  const Instead cannot(FunctionId::cuDeviceGetAttribute, reinterpret_cast<void*>(&no_attribute));
  const unsigned long managed = driver_calls(FunctionId::cuMemAllocManaged);
  const CUdeviceptr address = allocate(kMiB);
  EXPECT_EQ(driver_calls(FunctionId::cuMemAllocManaged), managed);
  EXPECT_EQ(pinned(), kMiB);
  EXPECT_OK(own::cuMemFree_v2(address));
  moving::managed::managed_reset_after_fork();
}

}  // namespace
}  // namespace nvshare::interposer
