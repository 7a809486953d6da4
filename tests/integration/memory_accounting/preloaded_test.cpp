#include "integration/preloaded.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

// A program under the whole library, and what the scheduler hears of its memory.
namespace nvshare::integration {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class MemoryOfContexts : public Preloaded {
 protected:
  void SetUp() override {
    Preloaded::SetUp();
    before = settled(0);
  }
  void TearDown() override {
    EXPECT_EQ(settled(before), before);
    Preloaded::TearDown();
  }
  // What the scheduler knows of, once that is what is expected or has had time to be.
  static std::uint64_t settled(std::uint64_t expected) {
    for (int i = 0; i < 2000 && scheduler().allocated() != expected; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return scheduler().allocated();
  }
  CUcontext new_context(CUdevice device) {
    CUcontext made{};
    EXPECT_OK(call<FunctionId::cuCtxCreate_v2>(&made, 0u, device));
    return made;
  }

  std::uint64_t before = 0;
};

TEST_F(MemoryOfContexts, GoesWithDestroy) {
  const CUdeviceptr kept = allocate(kMiB);
  const CUcontext other = new_context(0);
  allocate(5 * kMiB);
  EXPECT_EQ(settled(before + 6 * kMiB), before + 6 * kMiB);
  ASSERT_OK(call<FunctionId::cuCtxDestroy_v2>(other));
  EXPECT_EQ(settled(before + kMiB), before + kMiB);
  EXPECT_OK(call<FunctionId::cuMemFree_v2>(kept));
}

TEST_F(MemoryOfContexts, GoesWithTheLastAttachment) {
  const CUcontext other = new_context(0);
  CUcontext same{};
  ASSERT_OK(call<FunctionId::cuCtxAttach>(&same, 0u));
  allocate(5 * kMiB);
  ASSERT_OK(call<FunctionId::cuCtxDetach>(other));
  const CUdeviceptr more = allocate(kMiB);
  EXPECT_EQ(settled(before + 6 * kMiB), before + 6 * kMiB);
  EXPECT_OK(call<FunctionId::cuMemFree_v2>(more));
  ASSERT_OK(call<FunctionId::cuCtxDetach>(other));
  EXPECT_EQ(settled(before), before);
}

TEST_F(MemoryOfContexts, GoesWithTheLastReleaseOfThePrimary) {
  CUcontext primary{};
  ASSERT_OK(call<FunctionId::cuDevicePrimaryCtxRetain>(&primary, 1));
  ASSERT_OK(call<FunctionId::cuDevicePrimaryCtxRetain>(&primary, 1));
  ASSERT_OK(call<FunctionId::cuCtxPushCurrent_v2>(primary));
  const CUdeviceptr kept = allocate(7 * kMiB);
  allocate(2 * kMiB);
  ASSERT_OK(call<FunctionId::cuDevicePrimaryCtxRelease_v2>(1));
  ASSERT_OK(call<FunctionId::cuMemFree_v2>(kept));
  EXPECT_EQ(settled(before + 2 * kMiB), before + 2 * kMiB);
  ASSERT_OK(call<FunctionId::cuDevicePrimaryCtxRelease_v2>(1));
  EXPECT_EQ(settled(before), before);
  CUcontext popped{};
  EXPECT_OK(call<FunctionId::cuCtxPopCurrent_v2>(&popped));
}

TEST_F(MemoryOfContexts, GoesWithAReset) {
  CUcontext primary{};
  ASSERT_OK(call<FunctionId::cuDevicePrimaryCtxRetain>(&primary, 1));
  ASSERT_OK(call<FunctionId::cuCtxPushCurrent_v2>(primary));
  allocate(7 * kMiB);
  EXPECT_EQ(settled(before + 7 * kMiB), before + 7 * kMiB);
  ASSERT_OK(call<FunctionId::cuDevicePrimaryCtxReset_v2>(1));
  EXPECT_EQ(settled(before), before);
  CUcontext popped{};
  EXPECT_OK(call<FunctionId::cuCtxPopCurrent_v2>(&popped));
}

// The child has no driver; whatever it calls, its parent's memory stays what it is.
TEST_F(MemoryOfContexts, IsNotTheChildsOfAFork) {
  const CUdeviceptr address = allocate(3 * kMiB);
  const pid_t child = ::fork();
  if (child == 0) {
    CUdeviceptr more = 0;
    const bool refused = call<FunctionId::cuMemAlloc_v2>(&more, kMiB) != CUDA_SUCCESS &&
                         call<FunctionId::cuMemFree_v2>(address) != CUDA_SUCCESS;
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(settled(before + 3 * kMiB), before + 3 * kMiB);
  EXPECT_OK(call<FunctionId::cuMemFree_v2>(address));
}

// Whoever is to make room gives up what its pools keep as well, which nobody knows of.
// The kernel drops what the scheduler hands over when no more files can be open; and tells nobody.
class TooManyFiles {
 public:
  TooManyFiles() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{256, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (int fd; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) files_.push_back(fd);
  }
  ~TooManyFiles() {
    for (const int fd : files_) ::close(fd);
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }
  TooManyFiles(const TooManyFiles&) = delete;
  TooManyFiles& operator=(const TooManyFiles&) = delete;

 private:
  rlimit before_{};
  std::vector<int> files_;
};

TEST_F(MemoryOfContexts, OnTheHostThatDoesNotArriveIsMissed) {
  const int descriptor = ::memfd_create("arena", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(descriptor, 4 * kMiB), 0);
  const auto missing = [](std::uint64_t expected) {
    for (int i = 0; i < 2000 && scheduler().told_missing() != expected; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return scheduler().told_missing();
  };
  std::uint64_t expected = 0;
  {
    const TooManyFiles open;
    expected += scheduler().give_arena(descriptor, 4 * kMiB);
    EXPECT_EQ(missing(expected), expected);
  }
  EXPECT_GT(expected, 0u);
  scheduler().give_arena(descriptor, 4 * kMiB);  // arrives
  expected += scheduler().give_arena(descriptor, 8 * kMiB);
  EXPECT_EQ(missing(expected), expected) << "it is not as large as it was said";
  ::close(descriptor);
}

TEST_F(MemoryOfContexts, IsNotKeptByPoolsWhenOthersNeedTheRoom) {
  CUmemoryPool pool{};
  ASSERT_OK(call<FunctionId::cuDeviceGetDefaultMemPool>(&pool, 0));
  std::uint64_t all = ~std::uint64_t{0};
  ASSERT_OK(call<FunctionId::cuMemPoolSetAttribute>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                                    static_cast<void*>(&all)));
  CUdeviceptr address = 0;
  ASSERT_OK(call<FunctionId::cuMemAllocAsync>(&address, 8 * kMiB, CUstream{}));
  ASSERT_OK(call<FunctionId::cuMemFreeAsync>(address, CUstream{}));
  ASSERT_OK(call<FunctionId::cuCtxSynchronize>());
  const auto reserved = [&] {
    std::uint64_t bytes = 0;
    EXPECT_OK(call<FunctionId::cuMemPoolGetAttribute>(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                                      static_cast<void*>(&bytes)));
    return bytes;
  };
  EXPECT_EQ(reserved(), 8 * kMiB);
  ASSERT_TRUE(scheduler().close());
  EXPECT_TRUE(scheduler().order_in(kMiB).done);
  EXPECT_EQ(reserved(), 8 * kMiB) << "nobody needs it";
  EXPECT_TRUE(scheduler().order_out(kMiB).done);
  EXPECT_EQ(reserved(), 0u);
}

}  // namespace
}  // namespace nvshare::integration
