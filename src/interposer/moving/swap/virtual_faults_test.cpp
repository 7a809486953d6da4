#include "interposer/moving/swap/state.h"
#include "interposer/moving/testing/virtual_machine.h"

// Every call of the driver fails in turn while memory moves that the program made itself.
namespace nvshare::interposer::moving::swap {
namespace {

class VirtualFaults : public VirtualMachine {
 protected:
  VirtualFaults() : VirtualMachine(32 * kMiB) {}

  // Something of every kind: mapped once, twice, nowhere, to be read only, zeros, away from the
  // beginning, and plain memory beside it.
  void prepare() {
    release(grow(kGranule, 1));
    map(grow(2 * kGranule, 2), at(20));
    written[at(20)] = {2 * kGranule, 2};
    nowhere = grow(kGranule, 3);
    end -= kGranule;
    unmap(end, kGranule);
    grow(kGranule, 4);
    const CUmemAccessDesc access = may(CU_MEM_ACCESS_FLAGS_PROT_READ);
    EXPECT_OK(swap_set_access(end - kGranule, kGranule, &access, 1));
    grow(kGranule, 0);
    map(create(kGranule, false), at(30));
    allocate(kGranule, 5);
  }

  void check_all() override {
    VirtualMachine::check_all();
    if (nowhere == 0 || swap_absent(gate) > 0) return;
    map(nowhere, at(40));
    EXPECT_TRUE(has(at(40), kGranule, 3));
    unmap(at(40), kGranule);
  }

  Handle nowhere = 0;
};

TEST_F(VirtualFaults, OnTheWayOut) {
  const Enumerated found = fail_each([&] { prepare(); }, [&] { return out_all(); });
  EXPECT_GT(found.calls, 40u);
  EXPECT_GT(found.failures, 25u);
}

TEST_F(VirtualFaults, OnTheWayIn) {
  const Enumerated found = fail_each(
      [&] {
        prepare();
        EXPECT_TRUE(out_all());
      },
      [&] { return in_all(); });
  EXPECT_GT(found.calls, 50u);
  EXPECT_GT(found.failures, 40u);
}

TEST_F(VirtualFaults, AndWhatIsDoneAboutThem) {
  fail_one_after_another([&] { prepare(); });
}

// What fails has changed nothing, and what succeeds leaves nothing behind.
TEST_F(VirtualFaults, InCallsOfTheProgram) {
  const CUmemAccessDesc access = may(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_TRUE(swap_can_follow(gate, kGranule, kind(), 0));
  for (uint64_t n = 1; n < 6; ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    const uint64_t used_then = used();
    Handle handle = 0;
    fail_call(n);
    const bool created = swap_create(gate, kGranule, kind(), true, &handle) == CUDA_SUCCESS;
    const bool mapped = created && swap_map(at(0), kGranule, 0, handle, 0) == CUDA_SUCCESS;
    const bool open = mapped && swap_set_access(at(0), kGranule, &access, 1) == CUDA_SUCCESS;
    fail_call(0);
    EXPECT_EQ(created, n > 1);
    EXPECT_EQ(mapped, n > 2);
    EXPECT_EQ(open, n > 3);
    EXPECT_EQ(swap_is_mapped(at(0), 1), mapped);
    if (created) {
      handles.insert(handle);
      made += kGranule;
      told_resident += kGranule;
      there_and_back();
      unmap(range, kRange);
      release(handle);
    }
    check_sums();
    EXPECT_EQ(used(), used_then);
  }
}

TEST_F(VirtualFaults, InTheEnd) {
  for (uint64_t n = 1; n < 4; ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    const Handle handle = grow(kGranule, n);
    fail_call(n);
    const bool unmapped = swap_unmap(range, kRange, note_freed) == CUDA_SUCCESS;
    if (unmapped) release(handle);
    fail_call(0);
    EXPECT_EQ(unmapped, n > 1);
    if (!unmapped) {
      there_and_back();
      unmap(range, kRange);
      release(handle);
    }
    EXPECT_EQ(freed.bytes, kGranule);
    written.clear();
    end = range;
    check_sums();
    tidy(*space_of(gate));
    EXPECT_EQ(used(), used_before) << "what the driver did not take back is tried again";
  }
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
