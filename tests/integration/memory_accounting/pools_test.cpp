#include <atomic>
#include <chrono>
#include <thread>

#include "interposer/gate/records.h"
#include "machine.h"

// What pools keep beyond what is in use, when others need the room.
namespace nvshare::interposer {
namespace {

class Pools : public Machine {
 protected:
  void SetUp() override {
    Machine::SetUp();
    stream = new_stream();
  }
  static CUmemoryPool new_pool(CUdevice device = 0) {
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    CUmemoryPool pool{};
    EXPECT_OK(own::cuMemPoolCreate(&pool, &props));
    return pool;
  }
  // As frameworks do it: nothing goes back to the device by itself.
  static void keep_all(CUmemoryPool pool) {
    uint64_t all = ~uint64_t{0};
    EXPECT_OK(real<FunctionId::cuMemPoolSetAttribute>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                                      static_cast<void*>(&all)));
  }
  // So much was taken from it and given back.
  void fill(CUmemoryPool pool, uint64_t bytes) {
    keep_all(pool);
    CUdeviceptr address = 0;
    ASSERT_OK(own::cuMemAllocFromPoolAsync(&address, bytes, pool, stream));
    ASSERT_OK(own::cuMemFreeAsync(address, stream));
    ASSERT_OK(real<FunctionId::cuStreamSynchronize>(stream));
    ASSERT_EQ(reserved(pool), bytes) << "the test needs a pool that keeps what it has";
  }
  static uint64_t reserved(CUmemoryPool pool) {
    uint64_t bytes = 0;
    EXPECT_OK(real<FunctionId::cuMemPoolGetAttribute>(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                                      static_cast<void*>(&bytes)));
    return bytes;
  }

  CUstream stream{};
};

TEST_F(Pools, GiveBackWhatNobodyUses) {
  const CUmemoryPool one = new_pool();
  const CUmemoryPool two = new_pool();
  fill(one, 8 * kMiB);
  fill(two, 6 * kMiB);
  CUdeviceptr used = 0;
  ASSERT_OK(own::cuMemAllocFromPoolAsync(&used, 10 * kMiB, two, stream));
  memory::memory_trim_pools(0);
  EXPECT_EQ(reserved(one), 0u);
  EXPECT_EQ(reserved(two), 10 * kMiB) << "in use";
  EXPECT_EQ(allocated(), 10 * kMiB) << "what is kept was never counted";
  ASSERT_OK(own::cuMemFreeAsync(used, stream));
  for (const CUmemoryPool pool : {one, two}) EXPECT_OK(own::cuMemPoolDestroy(pool));
}

// cuMemAllocAsync takes from it, and nobody has to ask for it before.
TEST_F(Pools, TheOneThatIsAlwaysThereDoesAsWell) {
  CUmemoryPool pool{};
  ASSERT_OK(real<FunctionId::cuDeviceGetDefaultMemPool>(&pool, 0));
  fill(pool, 4 * kMiB);
  memory::memory_trim_pools(0);
  EXPECT_EQ(reserved(pool), 0u);
}

TEST_F(Pools, OfAnotherDeviceKeepTheirs) {
  const CUmemoryPool pool = new_pool(1);
  fill(pool, 4 * kMiB);
  memory::memory_trim_pools(0);
  EXPECT_EQ(reserved(pool), 4 * kMiB);
  memory::memory_trim_pools(1);
  EXPECT_EQ(reserved(pool), 0u);
  EXPECT_OK(own::cuMemPoolDestroy(pool));
}

TEST_F(Pools, AreLeftAloneWhileTheProgramCaptures) {
  const CUmemoryPool pool = new_pool();
  fill(pool, 4 * kMiB);
  gate::g_captures = 1;
  memory::memory_trim_pools(0);
  gate::g_captures = 0;
  EXPECT_EQ(reserved(pool), 4 * kMiB);
  // One that was not seen to begin is not broken either.
  ASSERT_OK(real<FunctionId::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  memory::memory_trim_pools(0);
  CUgraph graph{};
  EXPECT_OK(real<FunctionId::cuStreamEndCapture>(stream, &graph));
  EXPECT_OK(own::cuMemPoolDestroy(pool));
}

std::atomic<bool> g_trims{false};
std::atomic<bool> g_destroyed_meanwhile{false};

CUresult trim_slowly(CUmemoryPool, size_t) {
  g_trims = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  g_trims = false;
  return CUDA_SUCCESS;
}

CUresult note_destroyed(CUmemoryPool) {
  if (g_trims) g_destroyed_meanwhile = true;
  return CUDA_SUCCESS;
}

// The driver would look at a pool that is no more.
TEST_F(Pools, AreNotDestroyedWhileTheyAreTrimmed) {
  const CUmemoryPool pool = new_pool();
  {
    const Instead trim(FunctionId::cuMemPoolTrimTo, reinterpret_cast<void*>(trim_slowly));
    const Instead destroy(FunctionId::cuMemPoolDestroy, reinterpret_cast<void*>(note_destroyed));
    // The one that is always there comes first, and needs no care.
    const Instead none(
        FunctionId::cuDeviceGetDefaultMemPool,
        reinterpret_cast<void*>(&Refusing<Signature<FunctionId::cuDeviceGetDefaultMemPool>>::call));
    std::thread other([] { memory::memory_trim_pools(0); });
    while (!g_trims) std::this_thread::yield();
    EXPECT_OK(own::cuMemPoolDestroy(pool));
    other.join();
  }
  EXPECT_FALSE(g_destroyed_meanwhile);
  const unsigned long before = driver_calls(FunctionId::cuMemPoolTrimTo);
  memory::memory_trim_pools(0);
  EXPECT_EQ(driver_calls(FunctionId::cuMemPoolTrimTo), before + 1) << "it is not trimmed any more";
  EXPECT_OK(real<FunctionId::cuMemPoolDestroy>(pool));
}

// Whoever is handed one by the driver does not know whether it still is one.
TEST_F(Pools, AreTheProgramsOwnOnly) {
  const CUmemoryPool pool = new_pool();
  ASSERT_OK(real<FunctionId::cuDeviceSetMemPool>(0, pool));
  CUmemoryPool same{};
  ASSERT_OK(own::cuDeviceGetMemPool(&same, 0));
  ASSERT_EQ(same, pool);
  fill(pool, 4 * kMiB);
  memory::memory_trim_pools(0);
  EXPECT_EQ(reserved(pool), 0u) << "it is known to be the program's";
  // As a thread that was handed it before another destroyed it.
  static CUmemoryPool late;
  late = pool;
  EXPECT_OK(own::cuMemPoolDestroy(pool));
  {
    const Instead current(FunctionId::cuDeviceGetMemPool,
                          reinterpret_cast<void*>(+[](CUmemoryPool* to, CUdevice) {
                            *to = late;
                            return CUDA_SUCCESS;
                          }));
    ASSERT_OK(own::cuDeviceGetMemPool(&same, 0));
  }
  const unsigned long before = driver_calls(FunctionId::cuMemPoolTrimTo);
  memory::memory_trim_pools(0);
  EXPECT_EQ(driver_calls(FunctionId::cuMemPoolTrimTo), before + 1);
}

}  // namespace
}  // namespace nvshare::interposer
