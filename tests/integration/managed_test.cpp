#include <sys/wait.h>
#include <unistd.h>

#include "integration/preloaded.h"
#include "integration/process.h"

// A program whose memory is to be managed, as the scheduler tells it when it connects.
namespace nvshare::integration {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class ManagedMemory : public Preloaded {
 protected:
  void SetUp() override {
    scheduler().backend(wire::Backend::Managed);
    Preloaded::SetUp();
  }
  void TearDown() override {
    scheduler().full(false);
    EXPECT_TRUE(eventually([] { return scheduler().allocated() == 0; }, 20s));
    EXPECT_EQ(scheduler().resident(), 0u);
    Preloaded::TearDown();
  }
  // The program knows of the new backend when it has heard from the new connection, which whoever
  // allocates waits for.
  void change_backend(wire::Backend backend) {
    scheduler().backend(backend);
    ASSERT_TRUE(scheduler().reconnect(1));
    free(allocate(1));
  }
  void free(CUdeviceptr address) { EXPECT_OK(call<FunctionId::cuMemFree_v2>(address)); }
  std::size_t used() {
    size_t free = 0;
    size_t total = 0;
    EXPECT_OK(call<FunctionId::cuMemGetInfo_v2>(&free, &total));
    return total - free;
  }
};

TEST_F(ManagedMemory, LeavesAndComesBackAsOrdered) {
  const std::size_t used_before = used();
  const unsigned long managed_before = calls_of("cuMemAllocManaged");
  const CUdeviceptr first = allocate(20 * kMiB);
  const CUdeviceptr second = allocate(300 * kMiB);
  EXPECT_EQ(calls_of("cuMemAllocManaged"), managed_before + 2);
  EXPECT_EQ(scheduler().allocated(), 320 * kMiB);
  EXPECT_EQ(scheduler().pinned(), 0u);
  ASSERT_OK(fill(nullptr, first, 7, 20 * kMiB / 4));
  ASSERT_OK(fill(nullptr, second + 200 * kMiB, 8, 1));
  ASSERT_OK(call<FunctionId::cuCtxSynchronize>());
  EXPECT_EQ(used() - used_before, 320 * kMiB);

  ASSERT_TRUE(scheduler().close());
  FakeScheduler::Moved moved = scheduler().order_out(kMiB);
  EXPECT_TRUE(moved.done);
  EXPECT_EQ(moved.out, 20 * kMiB) << "what came first, and whole";
  EXPECT_EQ(used() - used_before, 300 * kMiB);
  moved = scheduler().order_out(~std::uint64_t{0});
  EXPECT_EQ(moved.out, 300 * kMiB);
  EXPECT_EQ(used(), used_before);
  EXPECT_EQ(scheduler().resident(), 0u);
  moved = scheduler().order_in(320 * kMiB);
  EXPECT_TRUE(moved.done);
  EXPECT_EQ(moved.in, 320 * kMiB);
  EXPECT_EQ(used() - used_before, 320 * kMiB);

  scheduler().open();
  EXPECT_EQ(word(first + 20 * kMiB - 4), 7u);
  EXPECT_EQ(word(second + 200 * kMiB), 8u);
  free(first);
  free(second);
}

TEST_F(ManagedMemory, IsToldWhereItWasWhenItIsFreed) {
  const CUdeviceptr first = allocate(20 * kMiB);
  const CUdeviceptr second = allocate(30 * kMiB);
  ASSERT_TRUE(scheduler().close());
  EXPECT_EQ(scheduler().order_out(1).out, 20 * kMiB);
  free(first);
  EXPECT_TRUE(eventually([] { return scheduler().allocated() == 30 * kMiB; }, 20s));
  EXPECT_EQ(scheduler().resident(), 30 * kMiB);
  free(second);
}

TEST_F(ManagedMemory, OfTheProgramsOwnMovesAsWell) {
  CUdeviceptr own = 0;
  ASSERT_OK(call<FunctionId::cuMemAllocManaged>(&own, 10 * kMiB, CU_MEM_ATTACH_GLOBAL));
  *reinterpret_cast<volatile unsigned*>(own) = 5;
  EXPECT_EQ(scheduler().pinned(), 0u);
  ASSERT_TRUE(scheduler().close());
  EXPECT_EQ(scheduler().order_out(~std::uint64_t{0}).out, 10 * kMiB);
  EXPECT_EQ(*reinterpret_cast<volatile unsigned*>(own), 5u);
  EXPECT_EQ(scheduler().order_in(~std::uint64_t{0}).in, 10 * kMiB);
  scheduler().open();
  EXPECT_EQ(word(own), 5u);
  free(own);
}

TEST_F(ManagedMemory, WithoutRoomIsUsedOnlyAfterItCameIn) {
  ASSERT_TRUE(scheduler().close());
  scheduler().full(true);
  const CUdeviceptr address = allocate(8 * kMiB);
  EXPECT_EQ(scheduler().resident(), 0u);
  Aside user(context, [&] { return fill(nullptr, address, 3, 16); });
  EXPECT_TRUE(scheduler().wait_for_waiting(1));
  EXPECT_FALSE(user.returned());
  EXPECT_EQ(scheduler().order_in(8 * kMiB).in, 8 * kMiB);
  scheduler().open();
  EXPECT_OK(user.result());
  EXPECT_EQ(word(address), 3u);
  free(address);
}

TEST_F(ManagedMemory, ComesBackByItselfWhenTheSchedulerIsGone) {
  const std::size_t used_before = used();
  const CUdeviceptr address = allocate(8 * kMiB);
  ASSERT_TRUE(scheduler().close());
  EXPECT_EQ(scheduler().order_out(~std::uint64_t{0}).out, 8 * kMiB);
  scheduler().hide(true);
  ASSERT_TRUE(scheduler().reconnect(0));
  EXPECT_TRUE(eventually([&] { return used() - used_before == 8 * kMiB; }, 20s));
  scheduler().hide(false);
  ASSERT_TRUE(scheduler().wait_for_clients(1));
  EXPECT_EQ(scheduler().allocated(), 8 * kMiB);
  EXPECT_EQ(scheduler().resident(), 8 * kMiB);
  free(address);
}

// The scheduler has chosen anew in between.
TEST_F(ManagedMemory, MovesBesideMemoryThatIsSwapped) {
  const CUdeviceptr managed = allocate(10 * kMiB);
  change_backend(wire::Backend::Swap);
  const CUdeviceptr swapped = allocate(20 * kMiB);
  // Zeros need no room on the host.
  ASSERT_OK(call<FunctionId::cuMemsetD8_v2>(swapped, static_cast<unsigned char>(0), 20 * kMiB));
  ASSERT_TRUE(scheduler().close());
  EXPECT_EQ(scheduler().order_out(kMiB).out, 20 * kMiB) << "what is swapped goes first";
  EXPECT_EQ(scheduler().order_in(~std::uint64_t{0}).in, 20 * kMiB);
  EXPECT_EQ(scheduler().order_out(20 * kMiB + 1).out, 30 * kMiB);
  EXPECT_EQ(scheduler().resident(), 0u);
  EXPECT_EQ(scheduler().order_in(29 * kMiB).in, 20 * kMiB);
  EXPECT_EQ(scheduler().order_in(10 * kMiB).in, 10 * kMiB);
  EXPECT_EQ(scheduler().resident(), 30 * kMiB);
  scheduler().open();
  free(managed);
  free(swapped);
  change_backend(wire::Backend::Managed);
}

TEST_F(ManagedMemory, GoesWithItsContext) {
  CUcontext other{};
  ASSERT_OK(call<FunctionId::cuCtxCreate_v2>(&other, 0u, 0));
  allocate(5 * kMiB);
  EXPECT_EQ(scheduler().allocated(), 5 * kMiB);
  ASSERT_OK(call<FunctionId::cuCtxDestroy_v2>(other));
  ASSERT_OK(call<FunctionId::cuCtxSetCurrent>(context));
}

TEST_F(ManagedMemory, MayBeMoreThanTheCardHas) {
  const CUdeviceptr address = allocate(3 * 1024 * kMiB);
  ASSERT_OK(fill(nullptr, address + 2 * 1024 * kMiB, 9, 1));
  EXPECT_EQ(word(address + 2 * 1024 * kMiB), 9u);
  free(address);
}

TEST_F(ManagedMemory, IsForgottenInAChild) {
  const CUdeviceptr address = allocate(kMiB);
  const pid_t child = ::fork();
  if (child == 0) {
    // Without a driver nothing can be freed, and nothing of the parent's is told to the scheduler.
    ::_exit(call<FunctionId::cuMemFree_v2>(address) == CUDA_SUCCESS ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(scheduler().allocated(), kMiB);
  free(address);
}

}  // namespace
}  // namespace nvshare::integration
