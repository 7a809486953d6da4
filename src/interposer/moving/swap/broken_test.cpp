#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "interposer/moving/swap/state.h"
#include "interposer/moving/testing/swap_machine.h"

// A copy fails on the way, as the software GPU does it: its context is broken from then on. What
// the card and the host have is all there, and goes with the context. The fault is set before the
// driver begins, so every case is a process of its own.
namespace nvshare::interposer::moving::swap {
namespace {

constexpr const char* kFault = "NVSHARE_SOFTGPU_FAIL_COPY";
constexpr int kCopiesBefore = 3;  // to write what is moved then

class SwapBroken : public SwapMachine {
 protected:
  SwapBroken() : SwapMachine(24 * kMiB) {}

  // What the host has of an allocation that is away.
  std::vector<unsigned char> on_the_host(CUdeviceptr address) {
    Allocation wanted;
    wanted.address = address;
    Space& space = *space_of(gate);
    const Lock lock(space.mutex);
    const Allocation* found = space.allocations.at_or_before(wanted);
    const Chunk& chunk = *found->region->chunks;
    EXPECT_EQ(chunk.content, Content::kCopied);
    EXPECT_TRUE(chunk.copy.valid);
    std::vector<unsigned char> all;
    for (const Extent* piece = chunk.copy.pieces; piece != nullptr; piece = piece->next) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(piece->address);
      all.insert(all.end(), bytes, bytes + piece->bytes);
    }
    const auto begin = all.begin() + static_cast<long>(address - chunk.address);
    return {begin, begin + static_cast<long>(found->bytes)};
  }

  std::vector<unsigned char> on_the_card(CUdeviceptr address, uint64_t bytes) {
    std::vector<unsigned char> found(bytes);
    EXPECT_OK(real<FunctionId::cuMemcpyDtoH_v2>(found.data(), address, bytes));
    return found;
  }
};

TEST_F(SwapBroken, DISABLED_OneCopyFails) {
  // There is none to be had afterwards.
  CUcontext other{};
  ASSERT_OK(real<FunctionId::cuCtxCreate_v2>(&other, 0, 0));
  ASSERT_OK(real<FunctionId::cuCtxSetCurrent>(context));
  allocate(3 * kMiB, 1);
  allocate(2 * kMiB + 5, 2);
  allocate(1000, 3);
  const bool moved = out_all() && in_all();
  EXPECT_FALSE(moved);
  check_sums();
  const CUcontext broken = context;
  context = other;
  ASSERT_OK(real<FunctionId::cuCtxSetCurrent>(context));
  for (const auto& [address, one] : known) {
    const bool here = swap_range_of(address).resident;
    EXPECT_EQ(here ? on_the_card(address, one.bytes) : on_the_host(address),
              pattern(one.seed, one.bytes));
    if (here) {
      EXPECT_NE(swap_free(address).result, CUDA_SUCCESS) << "as the driver refuses it";
    }
  }
  check_sums();
  swap_context_leaving(broken, true);
  EXPECT_OK(real<FunctionId::cuCtxDestroy_v2>(broken));
  const Freed freed = swap_context_gone(broken);
  EXPECT_EQ(freed.bytes, live());
  EXPECT_EQ(freed.resident, told_resident);
  known.clear();
  told_resident = 0;
}

// How the case with this fault ends.
int run_with(int copy) {
  const pid_t child = fork();
  if (child == 0) {
    setenv(kFault, std::to_string(copy).c_str(), 1);
    execl("/proc/self/exe", "swap", "--gtest_filter=*OneCopyFails",
          "--gtest_also_run_disabled_tests", nullptr);
    _exit(127);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(SwapBrokenContext, LosesNothingWhicheverCopyFailed) {
  // Out: what has changed is asked for, and three chunks; in: the same three.
  for (int n = 1; n <= 7; ++n) EXPECT_EQ(run_with(kCopiesBefore + n), 0) << "copy " << n;
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
