#include <atomic>
#include <random>
#include <shared_mutex>
#include <thread>

#include "interposer/moving/testing/swap_machine.h"

// Threads of a program allocate, free and use memory while it is moved. As with the real gate,
// nobody uses it during a move; to allocate and to free nobody waits.
namespace nvshare::interposer::moving::swap {
namespace {

constexpr int kThreads = 4;
constexpr int kMoves = 40;
constexpr uint64_t kMostEach = 12;

class SwapRace : public SwapMachine {
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
    ASSERT_OK(swap_allocate(gate, bytes, room, &address));
    resident += room ? bytes : 0;
    all += bytes;
    mine.push_back({address, bytes, 0});
  }

  void give(std::vector<Mine>& mine, size_t at) {
    const Freed freed = swap_free(mine[at].address);
    ASSERT_TRUE(freed.ours);
    ASSERT_OK(freed.result);
    ASSERT_EQ(freed.bytes, mine[at].bytes);
    resident -= freed.resident;
    all -= freed.bytes;
    mine.erase(mine.begin() + static_cast<long>(at));
  }

  // Checks what was written there, and writes something else.
  void use(Mine& one, uint64_t seed) {
    while (closing) std::this_thread::yield();
    const std::shared_lock passing(door);
    if (!swap_range_of(one.address).resident) return;
    std::vector<unsigned char> data(one.bytes);
    if (one.seed != 0) {
      ASSERT_OK(real<FunctionId::cuMemcpyDtoH_v2>(data.data(), one.address, data.size()));
      ASSERT_EQ(data, pattern(one.seed, one.bytes));
    }
    one.seed = seed | 1;
    data = pattern(one.seed, one.bytes);
    ASSERT_OK(real<FunctionId::cuMemcpyHtoD_v2>(one.address, data.data(), data.size()));
  }

  // Nobody moves while somebody is in the middle of using it.
  class Closed {
   public:
    explicit Closed(SwapRace& race) : race_(race) {
      race_.closing = true;
      race_.door.lock();
    }
    ~Closed() {
      race_.closing = false;
      race_.door.unlock();
    }

   private:
    SwapRace& race_;
  };

  std::shared_mutex door;
  std::atomic<bool> closing{false};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> resident{0};
  std::atomic<uint64_t> all{0};
};

TEST_F(SwapRace, ThreadsAllocateAndFreeDuringMoves) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([this, i] { work(1 + i); });
  std::mt19937_64 dice(99);
  for (int moves = 0; moves < kMoves;) {
    {
      const Closed closed(*this);
      told_resident = 0;
      EXPECT_TRUE(out(dice() % 4 == 0 ? ~uint64_t{0} : dice() % (60 * kMiB)));
      resident -= last.out;
      if (last.out > 0) ++moves;
    }
    {
      const Closed closed(*this);
      EXPECT_TRUE(in(dice() % 2 == 0 ? ~uint64_t{0} : dice() % (60 * kMiB)));
      resident += last.in;
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(all, 0u);
  EXPECT_EQ(resident, 0u);
  told_resident = 0;
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
