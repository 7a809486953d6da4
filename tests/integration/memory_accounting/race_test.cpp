#include <random>
#include <thread>
#include <vector>

#include "machine.h"

// Many threads allocate and free on all roads against one limit.
namespace nvshare::interposer {
namespace {

constexpr int kThreads = 32;
#ifdef NVSHARE_UNDER_SANITIZER
constexpr int kSteps = 60;
#else
constexpr int kSteps = 300;
#endif
constexpr uint64_t kLimit = 96 * kMiB;
// Little is left of it, so that even a thread that runs alone comes to the end.
constexpr uint64_t kTaken = 84 * kMiB;

// What threads really hold, as they see it: added after it was given, taken off before it is freed.
std::atomic<uint64_t> g_held{0};
std::atomic<uint64_t> g_most{0};
std::atomic<uint64_t> g_refused{0};

void add_held(uint64_t bytes) {
  const uint64_t now = g_held += bytes;
  uint64_t most = g_most;
  while (now > most && !g_most.compare_exchange_weak(most, now)) {
  }
}

struct Piece {
  int road;
  uint64_t number;
  uint64_t bytes;
};

constexpr int kRoads = 5;

CUresult take(Piece& piece, CUstream stream) {
  CUdeviceptr address = 0;
  CUresult result = CUDA_ERROR_UNKNOWN;
  switch (piece.road) {
    case 0:
      result = own::cuMemAlloc_v2(&address, piece.bytes);
      break;
    case 1:
      result = own::cuMemAllocAsync(&address, piece.bytes, stream);
      break;
    case 2:
      result = own::cuMemAllocManaged(&address, piece.bytes, CU_MEM_ATTACH_GLOBAL);
      break;
    case 3: {
      CUmemAllocationProp where{};
      where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      where.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
      piece.bytes = (piece.bytes / (2 * kMiB) + 1) * 2 * kMiB;
      CUmemGenericAllocationHandle handle = 0;
      result = own::cuMemCreate(&handle, piece.bytes, &where, 0);
      address = handle;
      break;
    }
    default: {
      CUarray array{};
      piece.bytes = 1024 * 16;
      const CUDA_ARRAY_DESCRIPTOR shape{1024, 4, CU_AD_FORMAT_FLOAT, 1};
      result = own::cuArrayCreate_v2(&array, &shape);
      address = reinterpret_cast<uint64_t>(array);
      break;
    }
  }
  piece.number = address;
  return result;
}

CUresult give(const Piece& piece, CUstream stream) {
  switch (piece.road) {
    case 1:
      return own::cuMemFreeAsync(piece.number, stream);
    case 3:
      return own::cuMemRelease(piece.number);
    case 4:
      return own::cuArrayDestroy(reinterpret_cast<CUarray>(piece.number));
    default:
      return own::cuMemFree_v2(piece.number);
  }
}

void work(CUcontext context, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  ASSERT_OK(real<FunctionId::cuCtxSetCurrent>(context));
  CUstream stream{};
  ASSERT_OK(real<FunctionId::cuStreamCreate>(&stream, CU_STREAM_NON_BLOCKING));
  std::vector<Piece> mine;
  for (int step = 0; step < kSteps; ++step) {
    if (mine.empty() || random() % 100 < 55) {
      Piece piece{static_cast<int>(random() % kRoads), 0, 1 + random() % (4 * kMiB)};
      const CUresult result = take(piece, stream);
      if (result == CUDA_SUCCESS) {
        add_held(piece.bytes);
        mine.push_back(piece);
      } else {
        ASSERT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
        ++g_refused;
      }
    } else {
      std::swap(mine[random() % mine.size()], mine.back());
      g_held -= mine.back().bytes;
      ASSERT_OK(give(mine.back(), stream));
      mine.pop_back();
    }
  }
  for (const Piece& piece : mine) {
    g_held -= piece.bytes;
    ASSERT_OK(give(piece, stream));
  }
}

class MemoryRace : public Machine {};

TEST_F(MemoryRace, TheLimitHoldsAndNothingIsLost) {
  limit(kLimit);
  const CUdeviceptr taken = allocate(kTaken);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, context, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(g_most, kLimit - kTaken);
  EXPECT_GT(g_refused, 0u) << "the limit was never near";
  EXPECT_EQ(allocated(), kTaken);
  EXPECT_OK(own::cuMemFree_v2(taken));
  // All of it can still be had, and not a byte more.
  const CUdeviceptr most = allocate(kLimit - 13);
  const CUdeviceptr rest = allocate(13);
  CUdeviceptr more = 0;
  EXPECT_EQ(own::cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_OK(own::cuMemFree_v2(most));
  EXPECT_OK(own::cuMemFree_v2(rest));
}

TEST_F(MemoryRace, FreeingTheSameTwiceAtOnceCountsOnce) {
  constexpr int kRounds = 200;
  std::atomic<int> freed{0};
  std::vector<CUdeviceptr> addresses;
  for (int i = 0; i < kRounds; ++i) addresses.push_back(allocate(3 * kMiB));
  const CUdeviceptr kept = allocate(kMiB);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const CUdeviceptr address : addresses) {
        freed += own::cuMemFree_v2(address) == CUDA_SUCCESS ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(freed, kRounds);
  EXPECT_EQ(allocated(), kMiB);
  EXPECT_OK(own::cuMemFree_v2(kept));
}

TEST_F(MemoryRace, ContextsEndBesideEachOther) {
  constexpr int kRounds = 20;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      for (int round = 0; round < kRounds; ++round) {
        const CUcontext own_context = new_context(0);
        for (int j = 0; j < 5; ++j) allocate(3 * kMiB);
        EXPECT_OK(destroy_context(own_context));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocated(), 0u);
}

}  // namespace
}  // namespace nvshare::interposer
