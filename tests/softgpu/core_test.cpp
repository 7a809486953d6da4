#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "softgpu/fixture.h"

// What most programs need: contexts, memory, copies, launches, streams, events.
namespace nvshare::softgpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMi = std::size_t{1} << 20;
constexpr unsigned long kMs = 1'000'000;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

using Core = Driver;

TEST_F(Core, CopiesReallyCopy) {
  const CUdeviceptr address = allocate(1024);
  std::vector<unsigned char> in(1024);
  std::vector<unsigned char> out(1024);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<unsigned char>(i * 7);
  EXPECT_OK(cuMemcpyHtoD_v2(address, in.data(), in.size()));
  EXPECT_OK(cuMemcpyDtoH_v2(out.data(), address, out.size()));
  EXPECT_EQ(in, out);
  const CUdeviceptr other = allocate(1024);
  EXPECT_OK(cuMemcpyDtoD_v2(other, address, 1024));
  std::fill(out.begin(), out.end(), 0);
  EXPECT_OK(cuMemcpyDtoH_v2(out.data(), other, out.size()));
  EXPECT_EQ(in, out);
  EXPECT_OK(cuMemFree_v2(address));
  EXPECT_OK(cuMemFree_v2(other));
}

TEST_F(Core, KernelsReallyWrite) {
  const CUdeviceptr address = allocate(4 * kMi);
  EXPECT_OK(fill(nullptr, address, 5, kMi));
  EXPECT_OK(launch("add32", nullptr, address, 37u, kMi));
  EXPECT_EQ(word(address), 42u);
  EXPECT_EQ(word(address + 4 * kMi - 4), 42u);
  const CUdeviceptr result = allocate(8);
  EXPECT_OK(launch("sum", nullptr, result, address, 4 * kMi));
  unsigned long total = 0;
  EXPECT_OK(cuMemcpyDtoH_v2(&total, result, 8));
  EXPECT_EQ(total, 42 * kMi);
}

TEST_F(Core, MemoryIsExact) {
  const std::size_t before = free_memory();
  std::vector<CUdeviceptr> all;
  for (std::size_t i = 0; i < before / (2 * kMi); ++i) all.push_back(allocate(2 * kMi));
  EXPECT_EQ(free_memory(), before % (2 * kMi));
  CUdeviceptr one = 0;
  EXPECT_EQ(cuMemAlloc_v2(&one, 2 * kMi), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_OK(cuMemFree_v2(all.back()));
  EXPECT_OK(cuMemAlloc_v2(&all.back(), 2 * kMi));
  for (const CUdeviceptr address : all) EXPECT_OK(cuMemFree_v2(address));
  EXPECT_EQ(free_memory(), before);
}

TEST_F(Core, SmallAllocationsShareABlock) {
  const std::size_t before = free_memory();
  std::vector<CUdeviceptr> all;
  for (int i = 0; i < 1000; ++i) all.push_back(allocate(100));
  EXPECT_GE(free_memory(), before - 2 * kMi);
  for (std::size_t i = 0; i < all.size(); i += 2) EXPECT_OK(cuMemFree_v2(all[i]));
  for (std::size_t i = 1; i < all.size(); i += 2) EXPECT_OK(cuMemFree_v2(all[i]));
  EXPECT_EQ(free_memory(), before);
  EXPECT_EQ(cuMemFree_v2(all[0]), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Core, ALoneProcessRunsAtFullSpeed) {
  CUevent start{};
  CUevent end{};
  EXPECT_OK(cuEventCreate(&start, 0));
  EXPECT_OK(cuEventCreate(&end, 0));
  const auto begun = Clock::now();
  // Behind something that lasts, so that nothing depends on how fast this thread is.
  EXPECT_OK(spin(nullptr, 50 * kMs));
  EXPECT_OK(cuEventRecord(start, nullptr));
  for (int i = 0; i < 200; ++i) EXPECT_OK(spin(nullptr, kMs));
  EXPECT_OK(cuEventRecord(end, nullptr));
  EXPECT_EQ(cuEventQuery(end), CUDA_ERROR_NOT_READY);
  EXPECT_OK(cuEventSynchronize(end));
  EXPECT_GE(milliseconds_since(begun), 250);
  float elapsed = 0;
  EXPECT_OK(cuEventElapsedTime(&elapsed, start, end));
  EXPECT_NEAR(elapsed, 200.4, 0.01);  // each kernel takes 2 us beside what it declares
  EXPECT_OK(cuEventDestroy_v2(start));
  EXPECT_OK(cuEventDestroy_v2(end));
}

TEST_F(Core, LaunchesDoNotWait) {
  const auto begun = Clock::now();
  EXPECT_OK(spin(nullptr, 100 * kMs));
  EXPECT_LT(milliseconds_since(begun), 50);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_OK(cuCtxSynchronize());
  EXPECT_GE(milliseconds_since(begun), 100);
  EXPECT_OK(cuStreamQuery(nullptr));
}

TEST_F(Core, CopyTimesFollowTheLink) {
  void* pinned = nullptr;
  EXPECT_OK(cuMemHostAlloc(&pinned, 100 * kMi, 0));
  const CUdeviceptr address = allocate(100 * kMi);
  CUevent start{};
  CUevent end{};
  EXPECT_OK(cuEventCreate(&start, 0));
  EXPECT_OK(cuEventCreate(&end, 0));
  EXPECT_OK(spin(nullptr, 20 * kMs));
  EXPECT_OK(cuEventRecord(start, nullptr));
  EXPECT_OK(cuMemcpyHtoDAsync_v2(address, pinned, 100 * kMi, nullptr));
  EXPECT_OK(cuEventRecord(end, nullptr));
  EXPECT_OK(cuEventSynchronize(end));
  float elapsed = 0;
  EXPECT_OK(cuEventElapsedTime(&elapsed, start, end));
  EXPECT_NEAR(elapsed, 1000.0 * 100 / 1024 / 50, 0.01);  // 50 GiB/s
  EXPECT_OK(cuMemFreeHost(pinned));
}

TEST_F(Core, StreamsOverlapUnlessTheLegacyStreamOrdersThem) {
  CUstream a{};
  CUstream b{};
  EXPECT_OK(cuStreamCreate(&a, CU_STREAM_DEFAULT));
  EXPECT_OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  const auto begun = Clock::now();
  EXPECT_OK(spin(a, 60 * kMs));
  EXPECT_OK(spin(b, 60 * kMs));
  EXPECT_OK(spin(nullptr, 10 * kMs));
  EXPECT_OK(cuStreamSynchronize(b));
  EXPECT_LT(milliseconds_since(begun), 100);
  EXPECT_OK(cuStreamSynchronize(nullptr));
  EXPECT_GE(milliseconds_since(begun), 70);
  EXPECT_OK(cuStreamDestroy_v2(a));
  EXPECT_OK(cuStreamDestroy_v2(b));
}

TEST_F(Core, EventsOrderStreams) {
  CUstream a{};
  CUstream b{};
  CUevent event{};
  EXPECT_OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  const CUdeviceptr address = allocate(4);
  EXPECT_OK(spin(a, 20 * kMs));
  EXPECT_OK(fill(a, address, 1, 1));
  EXPECT_OK(cuEventRecord(event, a));
  EXPECT_OK(cuStreamWaitEvent(b, event, 0));
  EXPECT_OK(launch("add32", b, address, 1u, 1ul));
  EXPECT_OK(cuStreamSynchronize(b));
  EXPECT_EQ(word(address), 2u);
}

TEST_F(Core, HostFunctionsRunInOrder) {
  std::vector<int> order;
  struct Mark {
    std::vector<int>* order;
    int number;
  };
  Mark marks[3] = {{&order, 0}, {&order, 1}, {&order, 2}};
  for (Mark& mark : marks) {
    EXPECT_OK(spin(nullptr, kMs));
    EXPECT_OK(cuLaunchHostFunc(
        nullptr,
        [](void* data) {
          auto* one = static_cast<Mark*>(data);
          one->order->push_back(one->number);
        },
        &mark));
  }
  EXPECT_OK(cuCtxSynchronize());
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST_F(Core, AHostFunctionThatWaitsHoldsUpItsStreamAlone) {
  CUstream a{};
  CUstream b{};
  EXPECT_OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  std::atomic<bool> go = false;
  EXPECT_OK(cuLaunchHostFunc(
      a,
      [](void* data) {
        while (!*static_cast<std::atomic<bool>*>(data)) std::this_thread::yield();
      },
      &go));
  EXPECT_OK(spin(a, kMs));
  EXPECT_OK(spin(b, kMs));
  EXPECT_OK(cuStreamSynchronize(b));
  EXPECT_EQ(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
  go = true;
  EXPECT_OK(cuStreamSynchronize(a));
}

TEST_F(Core, StreamsWaitForValuesInMemory) {
  unsigned* flag = nullptr;
  EXPECT_OK(cuMemHostAlloc(reinterpret_cast<void**>(&flag), 64, 0));
  *flag = 0;
  CUstream a{};
  EXPECT_OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  const CUdeviceptr address = allocate(8);
  EXPECT_OK(cuMemsetD32_v2(address, 0, 2));
  EXPECT_OK(
      cuStreamWaitValue32_v2(a, reinterpret_cast<CUdeviceptr>(flag), 3, CU_STREAM_WAIT_VALUE_GEQ));
  EXPECT_OK(cuStreamWriteValue32_v2(a, address, 9, 0));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
  __atomic_store_n(flag, 3, __ATOMIC_RELEASE);
  EXPECT_OK(cuStreamSynchronize(a));
  EXPECT_EQ(word(address), 9u);
  EXPECT_OK(cuStreamDestroy_v2(a));
  EXPECT_OK(cuMemFreeHost(flag));
}

TEST_F(Core, ManyLaunchesMoreThanTheQueueHolds) {
  const CUdeviceptr address = allocate(4);
  EXPECT_OK(fill(nullptr, address, 0, 1));
  for (int i = 0; i < 5000; ++i) ASSERT_OK(launch("add32", nullptr, address, 1u, 1ul));
  EXPECT_EQ(word(address), 5000u);
}

TEST_F(Core, ManyStreamsMoreThanThereAreLanes) {
  std::vector<CUstream> streams(150);
  const CUdeviceptr address = allocate(4 * 150);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    EXPECT_OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    EXPECT_OK(spin(streams[i], kMs));
    EXPECT_OK(fill(streams[i], address + 4 * i, static_cast<unsigned>(i), 1));
  }
  EXPECT_OK(cuCtxSynchronize());
  for (std::size_t i = 0; i < streams.size(); ++i) EXPECT_EQ(word(address + 4 * i), i);
  for (CUstream stream : streams) EXPECT_OK(cuStreamDestroy_v2(stream));
}

TEST_F(Core, ThreadsHaveTheirOwnDefaultStream) {
  const auto begun = Clock::now();
  unsigned long time = 100 * kMs;
  void* params[] = {&time};
  EXPECT_OK(cuLaunchKernel_ptsz(function("spin"), 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  std::thread([&] {
    EXPECT_OK(cuCtxSetCurrent(context));
    EXPECT_OK(cuStreamSynchronize_ptsz(nullptr));
  }).join();
  EXPECT_LT(milliseconds_since(begun), 90);
  EXPECT_OK(cuStreamSynchronize_ptsz(nullptr));
  EXPECT_GE(milliseconds_since(begun), 100);
}

TEST_F(Core, PointersFromCuGetProcAddressWork) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  EXPECT_OK(cuGetProcAddress_v2("cuMemAlloc", &found, 13000, 0, &status));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
  EXPECT_EQ(found, reinterpret_cast<void*>(&cuMemAlloc_v2));
  EXPECT_OK(cuGetProcAddress_v2("cuNoSuchThing", &found, 13000, 0, &status));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

TEST_F(Core, CallsAreCounted) {
  const auto before = softgpuCallCount("cuCtxGetDevice");
  CUdevice device = 0;
  EXPECT_OK(cuCtxGetDevice(&device));
  EXPECT_OK(cuCtxGetDevice(&device));
  EXPECT_EQ(softgpuCallCount("cuCtxGetDevice"), before + 2);
}

TEST_F(Core, CallsCanBeMadeToFail) {
  CUdevice device = 7;
  softgpuFailCalls("cuCtxGetDevice", 2);
  EXPECT_EQ(cuCtxGetDevice(&device), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuCtxGetDevice(&device), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(device, 7);
  EXPECT_OK(cuCtxGetDevice(&device));
}

TEST_F(Core, ForeignHandlesAreRefusedNotFollowed) {
  char buffer[64] = {};
  EXPECT_EQ(cuStreamSynchronize(reinterpret_cast<CUstream>(buffer)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventQuery(reinterpret_cast<CUevent>(buffer)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuModuleUnload(reinterpret_cast<CUmodule>(8)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMemFree_v2(0x1234), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD_v2(0x1234, buffer, 4), CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr address = allocate(16);
  EXPECT_EQ(cuMemcpyHtoD_v2(address, buffer, 17), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD_v2(address, buffer, ~std::size_t{0}), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace nvshare::softgpu
