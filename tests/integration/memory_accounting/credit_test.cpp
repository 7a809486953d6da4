#include <unistd.h>

#include <chrono>
#include <thread>

#include "integration/preloaded.h"

// What a program under the whole library allocates and frees without a word to the scheduler. Here
// that is of the kind that never leaves the GPU, the fake scheduler's native memory.
namespace nvshare::integration {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class CreditOfPrograms : public Preloaded {
 protected:
  void SetUp() override {
    Preloaded::SetUp();
    before = known(0);
    free(allocate(kMiB));  // connected
    ASSERT_EQ(known(before), before);
  }
  void TearDown() override {
    scheduler().revoke();
    EXPECT_EQ(known(before), before);
    scheduler().show(0, 0);
    Preloaded::TearDown();
  }
  // What the scheduler knows of, once that is what is expected or has had time to be.
  static std::uint64_t known(std::uint64_t expected,
                             std::uint64_t (FakeScheduler::*what)() = &FakeScheduler::allocated) {
    for (int i = 0; i < 2000 && (scheduler().*what)() != expected; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return (scheduler().*what)();
  }
  void free(CUdeviceptr address) { EXPECT_OK(call<FunctionId::cuMemFree_v2>(address)); }
  // The library holds allocations back from its hello until it is welcome.
  void reconnect_as(wire::Backend backend) {
    scheduler().backend(backend);
    ASSERT_TRUE(scheduler().reconnect(1));
    free(allocate(kMiB));
  }
  std::size_t free_memory() {
    std::size_t left = 0;
    std::size_t total = 0;
    EXPECT_OK(call<FunctionId::cuMemGetInfo_v2>(&left, &total));
    return left;
  }

  std::uint64_t before = 0;
};

TEST_F(CreditOfPrograms, NothingIsSaidWithinIt) {
  const CUdeviceptr asked_for = allocate(3 * kMiB);
  scheduler().lend(16 * kMiB);
  const std::uint64_t said = scheduler().told_of_memory();
  for (int i = 0; i < 500; ++i) free(allocate(16 * kMiB));
  const CUdeviceptr silent = allocate(4 * kMiB);
  free(asked_for);
  EXPECT_EQ(scheduler().told_of_memory(), said);
  scheduler().revoke();
  EXPECT_EQ(scheduler().allocated(), before + 4 * kMiB);
  free(silent);
  EXPECT_EQ(known(before), before);
  EXPECT_EQ(scheduler().told_of_memory(), said + 1);
}

TEST_F(CreditOfPrograms, MoreThanThatIsAskedFor) {
  scheduler().lend(4 * kMiB);
  const std::uint64_t said = scheduler().told_of_memory();
  const CUdeviceptr large = allocate(5 * kMiB);
  EXPECT_EQ(scheduler().told_of_memory(), said + 1);
  const CUdeviceptr small = allocate(4 * kMiB);
  EXPECT_EQ(scheduler().told_of_memory(), said + 1);
  free(large);
  free(small);  // the cap is 8 MiB
  scheduler().revoke();
  EXPECT_EQ(known(before), before);
  EXPECT_EQ(scheduler().told_of_memory(), said + 2);
}

TEST_F(CreditOfPrograms, AHelloTellsWhatThereIsWithoutIt) {
  scheduler().lend(16 * kMiB);
  const CUdeviceptr silent = allocate(4 * kMiB);
  ASSERT_TRUE(scheduler().reconnect(1));
  EXPECT_EQ(scheduler().allocated(), before + 4 * kMiB);
  const std::uint64_t said = scheduler().told_of_memory();
  free(silent);
  EXPECT_EQ(known(before), before);
  EXPECT_EQ(scheduler().told_of_memory(), said + 1) << "the credit went with the connection";
}

TEST_F(CreditOfPrograms, WhatIsFreeIsExact) {
  scheduler().show(100 * kMiB, before);
  EXPECT_EQ(free_memory(), 100 * kMiB - before);
  scheduler().lend(16 * kMiB);
  const CUdeviceptr silent = allocate(4 * kMiB);
  EXPECT_EQ(free_memory(), 96 * kMiB - before);
  free(silent);
  EXPECT_EQ(free_memory(), 100 * kMiB - before);
}

// The scheduler learns by message that it is pinned, and must not hear earlier that it is freed.
TEST_F(CreditOfPrograms, WhatBecamePinnedIsFreedByMessage) {
  reconnect_as(wire::Backend::Swap);
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle{};
  int file = -1;
  ASSERT_OK(call<FunctionId::cuMemCreate>(&handle, 2 * kMiB, &prop, 0ull));
  ASSERT_OK(call<FunctionId::cuMemExportToShareableHandle>(
      static_cast<void*>(&file), handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0ull));
  ::close(file);
  const std::uint64_t all = before + 2 * kMiB;
  ASSERT_EQ(known(all, &FakeScheduler::pinned), all);
  scheduler().lend(16 * kMiB);
  const std::uint64_t said = scheduler().told_of_memory();
  ASSERT_OK(call<FunctionId::cuMemRelease>(handle));
  EXPECT_EQ(known(before), before);
  EXPECT_EQ(scheduler().told_of_memory(), said + 1);
  EXPECT_EQ(scheduler().pinned(), before);
  reconnect_as(wire::Backend::Native);
}

// Whatever is taken away while threads allocate and free: in the end both know the same.
TEST_F(CreditOfPrograms, IsTakenAwayWhileThreadsUseIt) {
  std::atomic<bool> done{false};
  std::vector<std::unique_ptr<Aside>> threads;
  for (std::size_t thread = 1; thread <= 4; ++thread) {
    threads.push_back(std::make_unique<Aside>(context, [&, thread] {
      for (std::size_t i = 0; !done.load(); ++i) {
        CUdeviceptr one = 0;
        CUdeviceptr other = 0;
        CUresult result = call<FunctionId::cuMemAlloc_v2>(&one, (thread + i % 7) * 4096);
        if (result != CUDA_SUCCESS) return result;
        result = call<FunctionId::cuMemAlloc_v2>(&other, thread * kMiB);
        if (result != CUDA_SUCCESS) return result;
        if (result = call<FunctionId::cuMemFree_v2>(one); result != CUDA_SUCCESS) return result;
        if (result = call<FunctionId::cuMemFree_v2>(other); result != CUDA_SUCCESS) return result;
      }
      return CUDA_SUCCESS;
    }));
  }
  for (int i = 0; i < 2000; ++i) {
    scheduler().lend(kMiB * static_cast<std::size_t>(i % 12));
    std::this_thread::sleep_for(std::chrono::microseconds(i % 200));
    scheduler().revoke();
  }
  done = true;
  for (const auto& thread : threads) EXPECT_OK(thread->result());
  scheduler().revoke();
  EXPECT_EQ(known(before), before);
  EXPECT_EQ(scheduler().complaints(), "");
}

}  // namespace
}  // namespace nvshare::integration
