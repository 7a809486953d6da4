#include "interposer/moving/swap/state.h"
#include "interposer/moving/testing/swap_machine.h"

// The end of a process, as far as the swap engine goes.
namespace nvshare::interposer::moving::swap {
namespace {

class SwapLeave : public SwapMachine {
 protected:
  static bool yes(void*) { return true; }
  static bool no(void*) { return false; }

  void free_silently(CUdeviceptr address) {
    const Freed freed = swap_free(address);
    EXPECT_TRUE(freed.ours);
    EXPECT_OK(freed.result);
    EXPECT_EQ(freed.bytes, 0u) << "it was told already";
    EXPECT_EQ(freed.resident, 0u);
    known.erase(address);
  }
  void free_all_silently() {
    while (!known.empty()) free_silently(known.begin()->first);
    told_resident = 0;
  }
};

TEST_F(SwapLeave, AllThatCouldMoveIsGivenBackAndCanStillBeFreed) {
  allocate(40 * kMiB, 1);
  allocate(300 * kMiB, 2);
  allocate(1000, 3);
  EXPECT_TRUE(out(100 * kMiB));
  const uint64_t resident = swap_resident(gate);
  EXPECT_TRUE(swap_is_slow_to_end(gate));
  const Freed freed = swap_leave(gate, yes, nullptr);
  EXPECT_TRUE(freed.ours);
  EXPECT_EQ(freed.bytes, live()) << "what was away too";
  EXPECT_EQ(freed.resident, resident);
  EXPECT_EQ(used(), used_before);
  for (const auto& [address, one] : known) EXPECT_TRUE(swap_range_of(address).ours);
  free_all_silently();
}

TEST_F(SwapLeave, WhoGaveUpHasEverythingAsItWas) {
  allocate(40 * kMiB, 1);
  const uint64_t before = used();
  EXPECT_FALSE(swap_leave(gate, no, nullptr).ours);
  EXPECT_EQ(used(), before);
  check_contents();
  check_sums();
}

TEST_F(SwapLeave, ADriverThatIsGoneDoesNoHarm) {
  allocate(40 * kMiB, 1);
  allocate(30 * kMiB, 2);
  refuse(FunctionId::cuCtxSynchronize, true);
  EXPECT_FALSE(swap_leave(gate, yes, nullptr).ours);
  refuse(FunctionId::cuCtxSynchronize, false);
  check_contents();
  refuse(FunctionId::cuMemUnmap, true);
  const Freed freed = swap_leave(gate, yes, nullptr);
  refuse(FunctionId::cuMemUnmap, false);
  EXPECT_EQ(freed.bytes, 0u) << "nothing of it is back";
  check_contents();
  free_all_silently();
}

TEST_F(SwapLeave, WithoutHostMemoryThereIsNothingToHurryFor) {
  gate::Gate other;
  EXPECT_FALSE(swap_is_slow_to_end(other));
  EXPECT_FALSE(swap_leave(other, yes, nullptr).ours);
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
