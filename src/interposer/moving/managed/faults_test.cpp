#include <thread>

#include "interposer/moving/testing/managed_machine.h"

// Every call of the driver fails in turn. The books stay exact, contents stay what they are, and
// the next order works.
namespace nvshare::interposer::moving::managed {
namespace {

class ManagedFaults : public ManagedMachine {
 protected:
  void fill() {
    for (uint64_t i = 1; i <= 6; ++i) allocate(i * kMiB, i);
    allocate(300 * kMiB, 0);
    allocate_away(2 * kMiB);
  }

  // As the link's thread does it, without a context. Answers how many calls it took.
  template <typename Body>
  uint64_t with_fault(uint64_t n, Body body) {
    uint64_t calls = 0;
    std::thread([&] {
      fail_call(n);
      body();
      calls = calls_since();
      fail_call(0);
    }).join();
    return calls;
  }

  // Moves with each call failing in turn, and says whether all worked when none did.
  template <typename Move, typename Undo>
  void fail_every_call(Move move, Undo undo) {
    for (uint64_t n = 1;; ++n) {
      SCOPED_TRACE("call " + std::to_string(n));
      bool done = false;
      const uint64_t calls = with_fault(n, [&] { done = move(); });
      check_sums();
      EXPECT_TRUE(move());
      check_sums();
      EXPECT_TRUE(undo());
      check_sums();
      if (HasFailure()) return;
      if (calls < n) {
        EXPECT_TRUE(done);
        return;
      }
    }
  }
};

TEST_F(ManagedFaults, WhenMovingOut) {
  fill();
  EXPECT_TRUE(in_all());
  fail_every_call([&] { return out_all(); }, [&] { return in_all(); });
  EXPECT_EQ(used(), live());
  check_contents();
}

TEST_F(ManagedFaults, WhenMovingIn) {
  fill();
  EXPECT_TRUE(out_all());
  fail_every_call([&] { return in_all(); }, [&] { return out_all(); });
  EXPECT_EQ(used(), 0u);
  check_contents();
}

TEST_F(ManagedFaults, AnOrderEndsInPart) {
  for (uint64_t i = 1; i <= 3; ++i) allocate(200 * kMiB, 0);
  // The capture mode, the context (there is one already), then a prefetch and a wait for each.
  bool partly = false;
  for (uint64_t n = 1; n < 12; ++n) {
    fail_call(n);
    const bool done = out_all();
    const bool failed = calls_since() >= n;
    fail_call(0);
    if (failed && last.out > 0 && last.out < live()) {
      partly = true;
      EXPECT_FALSE(done);
      EXPECT_EQ(used(), live() - last.out) << "call " << n;
    }
    check_sums();
    EXPECT_TRUE(in_all());
  }
  EXPECT_TRUE(partly);
}

TEST_F(ManagedFaults, WhenAllocatingAndFreeing) {
  fill();
  for (const uint64_t bytes : {uint64_t{100}, kMiB, 300 * kMiB}) {
    for (uint64_t n = 1;; ++n) {
      SCOPED_TRACE(std::to_string(bytes) + " bytes, call " + std::to_string(n));
      const uint64_t used_then = used();
      CUdeviceptr address = 0;
      fail_call(n);
      const CUresult result = managed_allocate(gate, {bytes, true, true, 1}, &address);
      const uint64_t calls = calls_since();
      fail_call(0);
      EXPECT_EQ(result == CUDA_SUCCESS, address != 0);
      if (address != 0) {
        known[address] = {bytes, 0};
        told_resident += bytes;
        check_sums();
        fail_call(n);
        const Freed freed = managed_free(address);
        fail_call(0);
        told_resident -= freed.resident;
        if (freed.result == CUDA_SUCCESS) {
          known.erase(address);
        } else {
          EXPECT_EQ(freed.bytes, 0u);
          free(address);
        }
      }
      check_sums();
      EXPECT_EQ(used(), used_then);
      if (HasFailure()) return;
      if (calls < n) break;
    }
  }
}

}  // namespace
}  // namespace nvshare::interposer::moving::managed
