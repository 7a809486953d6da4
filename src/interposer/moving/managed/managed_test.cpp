#include <thread>

#include "interposer/moving/managed/state.h"
#include "interposer/moving/testing/managed_machine.h"

namespace nvshare::interposer::moving::managed {
namespace {

using Managed = ManagedMachine;

TEST_F(Managed, MemoryLeavesTheCardAndComesBackWhereItWas) {
  for (const uint64_t bytes : {uint64_t{1}, 512 * kKiB, kMiB, kMiB + 1, 3 * kMiB, 40 * kMiB}) {
    allocate(bytes, bytes);
  }
  EXPECT_EQ(used(), live());
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, live());
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(managed_absent(gate), live());
  check_sums();
  check_contents();
  for (const auto& [address, one] : known) EXPECT_FALSE(managed_range_of(address).resident);
  EXPECT_TRUE(in_all());
  EXPECT_EQ(last.in, live());
  EXPECT_EQ(used(), live());
  check_sums();
  check_contents();
}

TEST_F(Managed, LargeAllocationsMoveInPieces) {
  const CUdeviceptr address = allocate(300 * kMiB, 1);
  EXPECT_TRUE(out(kMiB));
  EXPECT_EQ(last.out, 150 * kMiB);
  EXPECT_EQ(used(), 150 * kMiB);
  EXPECT_FALSE(managed_range_of(address).resident);
  check_sums();
  EXPECT_TRUE(in(150 * kMiB - 1));
  EXPECT_EQ(last.in, 0u) << "only whole pieces";
  EXPECT_TRUE(in(299 * kMiB));
  EXPECT_EQ(last.in, 150 * kMiB);
  EXPECT_EQ(used(), 300 * kMiB);
  EXPECT_TRUE(managed_range_of(address).resident);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(reports, 2) << "each is told";
  check_contents();
}

TEST_F(Managed, WhatCameFirstLeavesFirst) {
  const CUdeviceptr first = allocate(4 * kMiB, 1);
  const CUdeviceptr second = allocate(6 * kMiB, 2);
  const CUdeviceptr third = allocate(8 * kMiB, 3);
  EXPECT_TRUE(out(4 * kMiB + 1));
  EXPECT_EQ(last.out, 10 * kMiB);
  EXPECT_FALSE(managed_range_of(first).resident);
  EXPECT_FALSE(managed_range_of(second).resident);
  EXPECT_TRUE(managed_range_of(third).resident);
  EXPECT_TRUE(in(9 * kMiB));
  EXPECT_EQ(last.in, 4 * kMiB);
  EXPECT_TRUE(out(1));
  EXPECT_FALSE(managed_range_of(third).resident) << "the first came back later";
  EXPECT_TRUE(managed_range_of(first).resident);
  EXPECT_EQ(used(), 4 * kMiB);
  check_sums();
}

TEST_F(Managed, WhatDoesNotFitIsNotOvertaken) {
  const CUdeviceptr first = allocate(200 * kMiB, 0);
  const CUdeviceptr second = allocate(100 * kMiB, 0);
  const CUdeviceptr third = allocate(kMiB, 0);
  EXPECT_TRUE(out(200 * kMiB + 1));
  EXPECT_EQ(last.out, 300 * kMiB) << "in two steps";
  EXPECT_FALSE(managed_range_of(first).resident);
  EXPECT_FALSE(managed_range_of(second).resident);
  EXPECT_TRUE(managed_range_of(third).resident);
}

TEST_F(Managed, ManySmallOnesMoveTogether) {
  for (int i = 0; i < 1000; ++i) allocate(1 + i, 1 + i);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, live());
  EXPECT_LE(reports, 4);
  EXPECT_EQ(used(), 0u);
  EXPECT_TRUE(in_all());
  EXPECT_EQ(last.in, live());
  check_contents();
  check_sums();
}

TEST_F(Managed, MemoryWithoutRoomIsAwayUntilItIsBroughtIn) {
  const CUdeviceptr address = allocate_away(5 * kMiB);
  EXPECT_EQ(used(), 0u);
  EXPECT_FALSE(managed_range_of(address).resident);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, 0u);
  EXPECT_TRUE(in_all());
  EXPECT_EQ(used(), 5 * kMiB);
  EXPECT_TRUE(managed_range_of(address).resident);
  check_sums();
}

TEST_F(Managed, PlainMemoryBelongsOnTheDevice) {
  const CUdeviceptr plain = allocate(2 * kMiB, 1);
  const CUdeviceptr own = allocate({2 * kMiB, true, false, CU_MEM_ATTACH_HOST}, 2);
  const auto preferred = [](CUdeviceptr address) {
    int location = 0;
    EXPECT_OK(real<FunctionId::cuMemRangeGetAttribute>(
        static_cast<void*>(&location), sizeof location, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
        address, 2 * kMiB));
    return location;
  };
  EXPECT_EQ(preferred(plain), 0);
  EXPECT_EQ(preferred(own), -2) << "where it is to be is the program's affair";
  EXPECT_TRUE(managed_range_of(plain).plain);
  EXPECT_FALSE(managed_range_of(own).plain);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, 4 * kMiB) << "both move";
  EXPECT_EQ(used(), 0u);
  EXPECT_TRUE(in_all());
  EXPECT_EQ(used(), 4 * kMiB);
}

TEST_F(Managed, MoreThanTheCardHas) {
  for (int i = 0; i < 5; ++i) allocate(240 * kMiB, 0);
  allocate(8 * kMiB, 1);
  EXPECT_GT(live(), 1024 * kMiB);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(used(), 0u);
  EXPECT_TRUE(in(480 * kMiB));
  EXPECT_EQ(used(), 480 * kMiB);
  check_sums();
}

TEST_F(Managed, NothingIsPrefetchedToAFullCard) {
  allocate(900 * kMiB, 0);
  const uint64_t then = used();
  const CUdeviceptr address = allocate(200 * kMiB, 0);
  EXPECT_EQ(used(), then) << "it would push out what is there";
  EXPECT_TRUE(managed_range_of(address).resident) << "as the scheduler was told";
}

TEST_F(Managed, StopsWhenItIsTold) {
  for (int i = 0; i < 3; ++i) allocate(200 * kMiB, 0);
  on_progress = [] { return false; };
  EXPECT_FALSE(out_all());
  EXPECT_EQ(last.out, 200 * kMiB);
  EXPECT_EQ(reports, 1);
  check_sums();
}

TEST_F(Managed, FreesOnlyWhatBeginsThere) {
  const CUdeviceptr address = allocate(3 * kMiB, 1);
  EXPECT_FALSE(managed_free(address + 8).ours);
  EXPECT_FALSE(managed_free(0).ours);
  EXPECT_FALSE(managed_range_of(address - 1).ours);
  EXPECT_FALSE(managed_range_of(address + 3 * kMiB).ours);
  const Range range = managed_range_of(address + 3 * kMiB - 1);
  EXPECT_TRUE(range.ours);
  EXPECT_EQ(range.base, address);
  EXPECT_EQ(range.bytes, 3 * kMiB);
  EXPECT_EQ(range.context, context);
  EXPECT_EQ(range.device, 0);
  free(address);
  EXPECT_FALSE(managed_free(address).ours);
}

TEST_F(Managed, WhatIsFreedWasWhereItWas) {
  const CUdeviceptr address = allocate(300 * kMiB, 1);
  EXPECT_TRUE(out(1));
  const Freed freed = managed_free(address);
  EXPECT_EQ(freed.bytes, 300 * kMiB);
  EXPECT_EQ(freed.resident, 150 * kMiB);
  told_resident -= freed.resident;
  known.erase(address);
}

TEST_F(Managed, AFreeThatTheDriverRefusesChangesNothing) {
  const CUdeviceptr address = allocate(3 * kMiB, 1);
  fail_call(1);
  const Freed refused = managed_free(address);
  EXPECT_TRUE(refused.ours);
  EXPECT_EQ(refused.result, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(refused.bytes, 0u);
  EXPECT_TRUE(managed_range_of(address).ours);
  check_sums();
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, 3 * kMiB);
}

TEST_F(Managed, GoesWithItsContext) {
  allocate(2 * kMiB, 1);
  CUcontext other{};
  ASSERT_OK(real<FunctionId::cuCtxCreate_v2>(&other, 0, 0));
  const uint64_t kept = live();
  const CUdeviceptr here = allocate(3 * kMiB, 2);
  const CUdeviceptr away = allocate_away(5 * kMiB);
  managed_context_leaving(other, true);
  EXPECT_TRUE(in_all());
  EXPECT_EQ(last.in, 0u) << "nothing is moved in a context that ends";
  ASSERT_OK(real<FunctionId::cuCtxDestroy_v2>(other));
  const Freed freed = managed_context_gone(other);
  EXPECT_TRUE(freed.ours);
  EXPECT_EQ(freed.bytes, 8 * kMiB);
  EXPECT_EQ(freed.resident, 3 * kMiB);
  EXPECT_FALSE(managed_context_gone(other).ours);
  EXPECT_FALSE(managed_range_of(here).ours);
  known.erase(here);
  known.erase(away);
  told_resident -= freed.resident;
  EXPECT_EQ(live(), kept);
  check_sums();
  ASSERT_OK(real<FunctionId::cuCtxSetCurrent>(context));
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, kept);
}

TEST_F(Managed, AContextThatDidNotEndAfterAllIsMovedAgain) {
  allocate(2 * kMiB, 1);
  managed_context_leaving(context, true);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, 0u);
  managed_context_leaving(context, false);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, 2 * kMiB);
}

TEST_F(Managed, IsMovedByAThreadWithoutAContext) {
  allocate(2 * kMiB, 1);
  std::thread([&] {
    EXPECT_TRUE(out_all());
    CUcontext left{};
    EXPECT_OK(real<FunctionId::cuCtxGetCurrent>(&left));
    EXPECT_EQ(left, nullptr);
  }).join();
  EXPECT_EQ(last.out, 2 * kMiB);
}

TEST_F(Managed, IsForgottenInTheChildOfAFork) {
  const CUdeviceptr address = allocate(2 * kMiB, 1);
  managed_reset_after_fork();
  EXPECT_FALSE(managed_range_of(address).ours);
  EXPECT_EQ(managed_resident(gate), 0u);
  EXPECT_TRUE(out_all());
  EXPECT_OK(real<FunctionId::cuMemFree_v2>(address));
  known.clear();
  told_resident = 0;
}

// A device that cannot do it.
CUresult no_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS ? 0 : 1;
  return CUDA_SUCCESS;
}

TEST_F(Managed, IsNotPossibleWithoutConcurrentAccess) {
  void*& place = catching::g_driver[static_cast<unsigned>(FunctionId::cuDeviceGetAttribute)];
  void* before = place;
  place = reinterpret_cast<void*>(&no_attribute);
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(managed_is_possible(gate));
  EXPECT_FALSE(managed_is_possible(gate));
  const std::string said = ::testing::internal::GetCapturedStderr();
  place = before;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("unified memory"), std::string::npos) << said;
  gate::Gate other;
  EXPECT_TRUE(managed_is_possible(other));
}

TEST_F(Managed, WhatCannotBeFoundOutIsAskedAgain) {
  fail_call(2);
  EXPECT_FALSE(managed_is_possible(gate));
  fail_call(0);
  EXPECT_TRUE(managed_is_possible(gate));
}

}  // namespace
}  // namespace nvshare::interposer::moving::managed
