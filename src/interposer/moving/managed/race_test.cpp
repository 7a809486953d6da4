#include <atomic>
#include <random>
#include <thread>

#include "interposer/moving/testing/managed_machine.h"

// Threads of a program allocate, use and free memory while it is moved. Unlike with swapping they
// may use it in the middle of a move.
namespace nvshare::interposer::moving::managed {
namespace {

constexpr int kThreads = 4;
constexpr int kMoves = 60;
constexpr uint64_t kMostEach = 12;

class ManagedRace : public ManagedMachine {
 protected:
  struct Mine {
    CUdeviceptr address;
    uint64_t bytes;
    uint64_t seed;
  };

  void work(uint64_t number) {
    ASSERT_OK(real<FunctionId::cuCtxSetCurrent>(context));
    std::mt19937_64 dice(number);
    std::vector<Mine> mine;
    while (!stop || !mine.empty()) {
      const uint64_t kind = dice() % 4;
      if (kind == 0 && !stop && mine.size() < kMostEach) {
        take(dice, mine);
      } else if (kind == 1 && !mine.empty()) {
        give(mine, dice() % mine.size());
      } else if (!mine.empty() && !stop) {
        use(mine[dice() % mine.size()], dice());
      }
    }
  }

  void take(std::mt19937_64& dice, std::vector<Mine>& mine) {
    const uint64_t bytes = dice() % 3 == 0 ? kMiB + dice() % (4 * kMiB) : 1 + dice() % (100 * kKiB);
    const bool room = dice() % 4 != 0;
    CUdeviceptr address = 0;
    ASSERT_OK(managed_allocate(gate, {bytes, room, true, CU_MEM_ATTACH_GLOBAL}, &address));
    resident += room ? bytes : 0;
    all += bytes;
    mine.push_back({address, bytes, 0});
  }

  void give(std::vector<Mine>& mine, size_t at) {
    const Freed freed = managed_free(mine[at].address);
    ASSERT_TRUE(freed.ours);
    ASSERT_OK(freed.result);
    ASSERT_EQ(freed.bytes, mine[at].bytes);
    resident -= freed.resident;
    all -= freed.bytes;
    mine.erase(mine.begin() + static_cast<long>(at));
  }

  // Checks what was written there, and writes something else.
  void use(Mine& one, uint64_t seed) {
    std::vector<unsigned char> data(one.bytes);
    ASSERT_OK(real<FunctionId::cuMemcpyDtoH_v2>(data.data(), one.address, data.size()));
    ASSERT_EQ(data, pattern(one.seed, one.bytes));
    one.seed = seed | 1;
    data = pattern(one.seed, one.bytes);
    ASSERT_OK(real<FunctionId::cuMemcpyHtoD_v2>(one.address, data.data(), data.size()));
  }

  std::atomic<bool> stop{false};
  std::atomic<uint64_t> resident{0};
  std::atomic<uint64_t> all{0};
};

TEST_F(ManagedRace, ThreadsAllocateUseAndFreeDuringMoves) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([this, i] { work(1 + i); });
  std::mt19937_64 dice(99);
  for (int moves = 0; moves < kMoves;) {
    EXPECT_TRUE(out(dice() % 4 == 0 ? ~uint64_t{0} : dice() % (60 * kMiB)));
    resident -= last.out;
    if (last.out > 0) ++moves;
    EXPECT_TRUE(in(dice() % 2 == 0 ? ~uint64_t{0} : dice() % (60 * kMiB)));
    resident += last.in;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(all, 0u);
  EXPECT_EQ(resident, 0u);
  told_resident = 0;
}

// Two threads that free the same memory: one of them has freed it, and nothing is counted twice.
TEST_F(ManagedRace, FreedTwiceIsFreedOnce) {
  for (int round = 0; round < 200; ++round) {
    const CUdeviceptr address = allocate(100 * kKiB, 1);
    std::atomic<int> good{0};
    std::atomic<uint64_t> bytes{0};
    const auto free_it = [&] {
      const Freed freed = managed_free(address);
      const CUresult result = freed.ours ? freed.result : real<FunctionId::cuMemFree_v2>(address);
      if (result == CUDA_SUCCESS) ++good;
      bytes += freed.bytes;
    };
    std::thread other(free_it);
    free_it();
    other.join();
    told_resident -= bytes;
    EXPECT_EQ(good, 1);
    EXPECT_EQ(bytes, 100 * kKiB);
    known.erase(address);
    check_sums();
  }
}

}  // namespace
}  // namespace nvshare::interposer::moving::managed
