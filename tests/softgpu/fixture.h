#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "softgpu/driver.h"

namespace nvshare::softgpu {

using namespace nvshare::cuda;

#define EXPECT_OK(call) EXPECT_EQ((call), CUDA_SUCCESS)
#define ASSERT_OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

// The kernels that the tests use.
inline constexpr const char* kModule =
    "//@softgpu kernel fill32 = fill(ptr, u32, u64)\n"
    "//@softgpu kernel add32 = add(ptr, u32, u64)\n"
    "//@softgpu kernel copy = copy(ptr, ptr, u64)\n"
    "//@softgpu kernel sum = checksum(ptr, ptr, u64)\n"
    "//@softgpu kernel hash = hash(ptr, ptr, u64)\n"
    "//@softgpu kernel spin = spin(u64)\n"
    "//@softgpu kernel noop = noop()\n"
    "//@softgpu global table = 4096\n";

// A card that no other process on this machine has.
inline void use_own_card() {
  setenv("NVSHARE_SOFTGPU_CARD", ("test-" + std::to_string(getpid())).c_str(), 1);
}

// A context and the module, on a card of the test's own with 1 GiB.
class Driver : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    use_own_card();
    setenv("NVSHARE_SOFTGPU_MEMORY", "1Gi", 1);
    setenv("NVSHARE_SOFTGPU_COUNT", "2", 1);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  }
  void SetUp() override {
    ASSERT_OK(cuCtxCreate_v2(&context, 0, 0));
    ASSERT_OK(cuModuleLoadData(&module, kModule));
  }
  void TearDown() override { EXPECT_OK(cuCtxDestroy_v2(context)); }

  CUfunction function(const char* name) {
    CUfunction found{};
    EXPECT_OK(cuModuleGetFunction(&found, module, name));
    return found;
  }

  template <typename... Values>
  CUresult launch(const char* name, CUstream stream, Values... values) {
    void* params[] = {&values..., nullptr};
    return cuLaunchKernel(function(name), 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
  }
  CUresult fill(CUstream stream, CUdeviceptr to, unsigned value, unsigned long count) {
    return launch("fill32", stream, to, value, count);
  }
  CUresult spin(CUstream stream, unsigned long nanoseconds) {
    return launch("spin", stream, nanoseconds);
  }
  CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_OK(cuMemAlloc_v2(&address, bytes));
    return address;
  }
  unsigned word(CUdeviceptr address) {
    unsigned value = 0;
    EXPECT_OK(cuMemcpyDtoH_v2(&value, address, sizeof value));
    return value;
  }
  std::size_t free_memory() {
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_OK(cuMemGetInfo_v2(&free, &total));
    return free;
  }

  CUcontext context{};
  CUmodule module{};
};

}  // namespace nvshare::softgpu
