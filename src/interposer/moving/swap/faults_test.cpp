#include "interposer/moving/swap/state.h"
#include "interposer/moving/testing/fault_machine.h"

// Every call that a swap makes of the driver fails in turn. Nothing is lost, nothing is mixed up,
// nothing is left behind, and the next swap works.
namespace nvshare::interposer::moving::swap {
namespace {

class SwapFaults : public FaultMachine {
 protected:
  SwapFaults() : FaultMachine(24 * kMiB) {}

  // Something of every kind: small, large, zeros, never written, and already on the host, as it was
  // and changed since.
  void fill() {
    fill_at_first();
    EXPECT_TRUE(out_all());
    EXPECT_TRUE(in_all());
    write(changing, 4);
    allocate(5 * kMiB, 5);
    allocate(2 * kMiB, 0);
    allocate(300 * kKiB, 6);
    allocate_away(2 * kMiB);
  }

  void fill_at_first() {
    changing = allocate(3 * kMiB, 1);
    allocate(2 * kMiB + 5, 2);
    allocate(1000, 3);
  }

  CUdeviceptr changing = 0;
};

// The kernel has to be loaded when that was not possible before; without it, it goes on.
TEST_F(SwapFaults, OnTheFirstWayOut) {
  refuse(FunctionId::cuModuleLoadData, true);
  restart();
  const Enumerated found = fail_each(
      [&] {
        fill_at_first();
        refuse(FunctionId::cuModuleLoadData, false);
      },
      [&] { return out_all(); }, [&] { refuse(FunctionId::cuModuleLoadData, true); });
  refuse(FunctionId::cuModuleLoadData, false);
  EXPECT_GT(found.calls, 30u);
  EXPECT_GT(found.failures, 10u);
  EXPECT_LT(found.failures, found.calls);
}

TEST_F(SwapFaults, OnTheWayOut) {
  const Enumerated found = fail_each([&] { fill(); }, [&] { return out_all(); });
  EXPECT_GT(found.calls, 30u);
  EXPECT_GT(found.failures, 15u);
}

TEST_F(SwapFaults, OnTheWayIn) {
  const Enumerated found = fail_each(
      [&] {
        fill();
        EXPECT_TRUE(out_all());
      },
      [&] { return in_all(); });
  EXPECT_GT(found.calls, 40u);
  EXPECT_GT(found.failures, 30u);
}

TEST_F(SwapFaults, AndWhatIsDoneAboutThem) {
  fail_one_after_another([&] { fill(); });
}

TEST_F(SwapFaults, WhenAllocatingAndFreeing) {
  fill();
  for (const uint64_t bytes : {uint64_t{100}, kMiB, 5 * kMiB, 300 * kMiB}) {
    for (uint64_t n = 1;; ++n) {
      const uint64_t used_then = used();
      CUdeviceptr address = 0;
      fail_call(n);
      const CUresult result = swap_allocate(gate, bytes, true, &address);
      const uint64_t calls = calls_since();
      fail_call(0);
      if (result == CUDA_SUCCESS) {
        known[address] = {bytes, 0, false};
        told_resident += bytes;
        write(address, n);
        fail_call(n);
        const Freed freed = swap_free(address);
        const uint64_t calls_of_free = calls_since();
        fail_call(0);
        if (freed.result == CUDA_SUCCESS) {
          told_resident -= freed.resident;
          known.erase(address);
        } else {
          EXPECT_EQ(freed.bytes, 0u);
          check_all();
          free(address);
        }
        if (calls < n && calls_of_free < n) break;
      }
      tidy(*space_of(gate));
      check_all();
      EXPECT_EQ(used(), used_then) << bytes << " bytes, call " << n;
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
