#include <atomic>
#include <random>
#include <shared_mutex>
#include <thread>

#include "interposer/moving/testing/virtual_machine.h"

// Threads of a program make, map, unmap and release memory while it is moved, each in addresses of
// its own. Nobody uses it during a move; for the rest nobody waits.
namespace nvshare::interposer::moving::swap {
namespace {

constexpr int kThreads = 3;
constexpr uint64_t kEach = 8;
constexpr int kMoves = 40;

std::atomic<uint64_t> g_all{0};
std::atomic<uint64_t> g_resident{0};

void count_freed(const Freed& freed) {
  g_all -= freed.bytes;
  g_resident -= freed.resident;
}

class VirtualRace : public VirtualMachine {
 protected:
  struct Slot {
    Handle handle = 0;  // 0: released
    bool mapped = false;
    uint64_t seed = 0;
  };

  void work(uint64_t number) {
    ASSERT_OK(real<FunctionId::cuCtxSetCurrent>(context));
    std::mt19937_64 dice(number);
    Slot slots[kEach];
    while (!stop) {
      const uint64_t n = dice() % kEach;
      turn(slots[n], at(number * kEach + n), dice);
    }
    for (uint64_t n = 0; n < kEach; ++n) end_of(slots[n], at(number * kEach + n));
  }

  void turn(Slot& slot, CUdeviceptr address, std::mt19937_64& dice) {
    const CUmemAccessDesc access = may(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    const uint64_t what = dice() % 8;
    if (slot.handle == 0 && !slot.mapped) {
      const bool room = what != 0;
      slot.seed = 0;
      g_all += kGranule;
      g_resident += room ? kGranule : 0;
      ASSERT_OK(swap_create(gate, kGranule, kind(), room, &slot.handle));
    } else if (!slot.mapped) {
      ASSERT_OK(swap_map(address, kGranule, 0, slot.handle, 0));
      ASSERT_OK(swap_set_access(address, kGranule, &access, 1));
      slot.mapped = true;
    } else if (what == 0) {
      end_of(slot, address);
    } else if (what == 1 && slot.handle != 0) {
      ASSERT_OK(swap_unmap(address, kGranule, count_freed));
      slot.mapped = false;
    } else if (what == 2 && slot.handle != 0) {
      ASSERT_OK(swap_release(slot.handle, count_freed));
      slot.handle = 0;
    } else if (what == 3 && slot.handle == 0) {
      ASSERT_OK(swap_retain(address, &slot.handle));
    } else {
      use(slot, address, dice());
    }
  }

  void end_of(Slot& slot, CUdeviceptr address) {
    if (slot.mapped) {
      ASSERT_OK(swap_unmap(address, kGranule, count_freed));
    }
    if (slot.handle != 0) {
      ASSERT_OK(swap_release(slot.handle, count_freed));
    }
    slot = {};
  }

  void use(Slot& slot, CUdeviceptr address, uint64_t seed) {
    while (closing) std::this_thread::yield();
    const std::shared_lock passing(door);
    {
      const SwapHold hold(address);
      if (hold.away()) return;
    }
    if (slot.seed != 0) {
      ASSERT_TRUE(has(address, kGranule, slot.seed));
    }
    slot.seed = seed | 1;
    const auto data = pattern(slot.seed, kGranule);
    ASSERT_OK(real<FunctionId::cuMemcpyHtoD_v2>(address, data.data(), data.size()));
  }

  template <typename Body>
  void closed(Body body) {
    closing = true;
    door.lock();
    body();
    closing = false;
    door.unlock();
  }

  std::shared_mutex door;
  std::atomic<bool> closing{false};
  std::atomic<bool> stop{false};
};

TEST_F(VirtualRace, ThreadsMapAndUnmapDuringMoves) {
  g_all = g_resident = 0;
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) threads.emplace_back([this, i] { work(i); });
  std::mt19937_64 dice(99);
  for (int moves = 0; moves < kMoves;) {
    closed([&] {
      EXPECT_TRUE(out(dice() % 3 == 0 ? ~uint64_t{0} : dice() % (20 * kMiB)));
      g_resident -= last.out;
      if (last.out > 0) ++moves;
    });
    closed([&] {
      EXPECT_TRUE(in(dice() % 2 == 0 ? ~uint64_t{0} : dice() % (20 * kMiB)));
      g_resident += last.in;
    });
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(g_all, 0u);
  EXPECT_EQ(g_resident, 0u);
  told_resident = 0;
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
