#include <thread>

#include "interposer/moving/swap/backing.h"
#include "interposer/moving/testing/virtual_machine.h"

namespace nvshare::interposer::moving::swap {
namespace {

constexpr auto kNone = CU_MEM_ACCESS_FLAGS_PROT_NONE;
constexpr auto kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

using VirtualSwap = VirtualMachine;

// A large range of addresses, filled from its beginning; handles are kept, or not.
TEST_F(VirtualSwap, SegmentsGrowMoveAndShrink) {
  for (uint64_t i = 0; i < 6; ++i) {
    const Handle handle = grow(i % 3 == 0 ? 20 * kMiB : kGranule, 1 + i);
    if (i % 2 == 0) release(handle);
  }
  EXPECT_EQ(used() - used_before, made);
  there_and_back();
  EXPECT_EQ(used() - used_before, made);
  grow(kGranule, 7);
  there_and_back();
  // The second, whose handle is kept, and all behind the third.
  const CUdeviceptr second = range + 20 * kMiB;
  unmap(second, kGranule);
  EXPECT_EQ(freed.bytes, 0u);
  release(*handles.begin());
  EXPECT_EQ(freed.bytes, kGranule);
  EXPECT_EQ(freed.resident, kGranule);
  unmap(second + 2 * kGranule, end - second - 2 * kGranule);
  there_and_back();
  EXPECT_EQ(written.size(), 2u);
}

TEST_F(VirtualSwap, WhatIsMappedTwiceIsTheSameMemoryAfterwards) {
  const Handle handle = grow(3 * kGranule, 1);
  map(handle, at(10));
  EXPECT_TRUE(has(at(10), 3 * kGranule, 1));
  there_and_back();
  EXPECT_EQ(last.in, 3 * kGranule);
  EXPECT_TRUE(has(at(10), 3 * kGranule, 1));
  fill(at(10), 3 * kGranule, 2);
  written.erase(range);
  EXPECT_TRUE(has(range, 3 * kGranule, 2));
  unmap(at(10), 3 * kGranule);
  EXPECT_TRUE(has(range, 3 * kGranule, 2));
}

TEST_F(VirtualSwap, WhatIsMappedNowhereKeepsItsContents) {
  const Handle handle = grow(2 * kGranule, 1);
  unmap(range, 2 * kGranule);
  there_and_back();
  EXPECT_EQ(last.in, 2 * kGranule);
  EXPECT_EQ(last.copied, 2 * kGranule);
  map(handle, at(5));
  EXPECT_TRUE(has(at(5), 2 * kGranule, 1));
}

TEST_F(VirtualSwap, RightsAreWhatTheyWere) {
  grow(kGranule, 1);
  grow(kGranule, 2);
  grow(kGranule, 3);
  CUmemAccessDesc access[2] = {may(kRead), may(kReadWrite)};
  access[1].location.id = 1;
  EXPECT_OK(swap_set_access(at(0), kGranule, access, 2));
  access[0].flags = kNone;
  EXPECT_OK(swap_set_access(at(1), kGranule, access, 1));
  written.erase(at(1));
  there_and_back();
  const CUmemLocation peer{CU_MEM_LOCATION_TYPE_DEVICE, 1};
  unsigned long long flags = 99;
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(access_at(at(0)), kRead);
    EXPECT_EQ(access_at(at(1)), kNone);
    EXPECT_EQ(access_at(at(2) + kGranule - 1), kReadWrite);
    EXPECT_OK(swap_get_access(&flags, &peer, at(0)));
    EXPECT_EQ(flags, kReadWrite);
    EXPECT_TRUE(out_all());
  }
  // Given while it is away.
  const CUmemAccessDesc all = may(kReadWrite);
  EXPECT_OK(swap_set_access(at(0), 3 * kGranule, &all, 1));
  EXPECT_EQ(access_at(at(1)), kReadWrite);
  EXPECT_TRUE(in_all());
  EXPECT_EQ(access_at(at(1)), kReadWrite);
  EXPECT_TRUE(has(at(1), kGranule, 2));
}

TEST_F(VirtualSwap, WithoutRoomItComesLater) {
  const Handle handle = create(2 * kGranule, false);
  map(handle, range);
  EXPECT_EQ(used(), used_before);
  EXPECT_EQ(swap_absent(gate), 2 * kGranule);
  EXPECT_TRUE(in_all());
  fill(range, 2 * kGranule, 1);
  there_and_back();
}

TEST_F(VirtualSwap, OneRangeCanBeThereInPart) {
  grow(kGranule, 1);
  const Handle away = create(kGranule, false);
  EXPECT_OK(swap_map(at(1), kGranule, 0, away, 0));
  const Handle here = create(kGranule);
  EXPECT_OK(swap_map(at(2), kGranule, 0, here, 0));
  const CUmemAccessDesc access = may(kReadWrite);
  EXPECT_NE(swap_set_access(at(0), 4 * kGranule, &access, 1), CUDA_SUCCESS) << "a hole";
  EXPECT_OK(swap_set_access(at(0), 3 * kGranule, &access, 1));
  fill(at(2), kGranule, 3);
  EXPECT_TRUE(in_all());
  fill(at(1), kGranule, 2);
  there_and_back();
}

TEST_F(VirtualSwap, WhatGoesWhileItIsAwayDoesNotComeBack) {
  const Handle mapped = grow(kGranule, 1);
  const Handle kept = grow(kGranule, 2);
  const Handle unmapped = grow(kGranule, 3);
  EXPECT_TRUE(out_all());
  release(mapped);
  EXPECT_EQ(freed.bytes, 0u);
  unmap(at(0), kGranule);
  EXPECT_EQ(freed.bytes, kGranule);
  EXPECT_EQ(freed.resident, 0u);
  unmap(at(2), kGranule);
  EXPECT_EQ(freed.bytes, 0u);
  release(unmapped);
  EXPECT_EQ(freed.bytes, kGranule);
  check_sums();
  // Elsewhere when it is back.
  map(kept, at(7));
  unmap(at(1), kGranule);
  EXPECT_TRUE(in_all());
  EXPECT_EQ(last.in, kGranule);
  EXPECT_TRUE(has(at(7), kGranule, 2));
  EXPECT_NE(real<FunctionId::cuMemcpyDtoH_v2>(static_cast<void*>(&range), at(1), 1), CUDA_SUCCESS);
}

// Whether it is there or away, what is wrong is wrong in the same way.
TEST_F(VirtualSwap, MistakesAreTheDriversAlsoWhileItIsAway) {
  const Handle one = grow(kGranule, 1);
  const Handle two = create(2 * kGranule);
  // Memory that we do not follow.
  Handle foreign = 0;
  const CUmemAllocationProp properties = kind();
  ASSERT_OK(real<FunctionId::cuMemCreate>(&foreign, kGranule, &properties, 0));
  ASSERT_OK(real<FunctionId::cuMemMap>(at(20), kGranule, 0, foreign, 0));
  const auto mistakes = [&] {
    CUmemAccessDesc wrong[] = {may(kReadWrite), may(kReadWrite), may(kReadWrite)};
    wrong[0].location.id = 99;
    wrong[1].location.type = CU_MEM_LOCATION_TYPE_INVALID;
    wrong[2].flags = static_cast<CUmemAccess_flags>(7);
    const CUmemAccessDesc right = may(kReadWrite);
    Handle none = 0;
    return std::vector<CUresult>{
        swap_map(at(0), kGranule, 0, one, 0),
        swap_map(at(0), kGranule, 0, two, 0),
        swap_map(at(0), 2 * kGranule, 0, two, 0),
        swap_map(at(1), kGranule, kGranule, two, 0),
        swap_map(at(1), kMiB, 0, one, 0),
        swap_map(at(1) + 4096, kGranule, 0, one, 0),
        swap_map(at(1), 0, 0, one, 0),
        swap_map(at(1), kGranule, 0, one, 1),
        swap_map(0, kGranule, 0, one, 0),
        swap_map(range + kRange, kGranule, 0, one, 0),
        swap_map(range + kRange - kGranule, 2 * kGranule, 0, two, 0),
        swap_map(at(20), kGranule, 0, one, 0),
        swap_map(at(19), 2 * kGranule, 0, two, 0),
        swap_unmap(at(0) + kGranule / 2, kGranule, note_freed),
        swap_unmap(at(0), kGranule / 2, note_freed),
        swap_unmap(at(0), 0, note_freed),
        swap_set_access(at(0), 2 * kGranule, &right, 1),
        swap_set_access(at(0), kGranule / 2, &right, 1),
        swap_set_access(at(0), kGranule, nullptr, 1),
        swap_set_access(at(0), kGranule, &right, 0),
        swap_set_access(at(0), kGranule, &wrong[0], 1),
        swap_set_access(at(0), kGranule, &wrong[1], 1),
        swap_set_access(at(0), kGranule, &wrong[2], 1),
        swap_unreserve(range, kRange),
        swap_retain(at(0), nullptr),
        swap_retain(at(1), &none),
        swap_properties(nullptr, one),
        swap_release(one + 1000, note_freed),
    };
  };
  const std::vector<CUresult> here = mistakes();
  for (size_t i = 0; i < here.size(); ++i) EXPECT_NE(here[i], CUDA_SUCCESS) << i;
  EXPECT_TRUE(out_all());
  const std::vector<CUresult> away = mistakes();
  for (size_t i = 0; i < here.size(); ++i) EXPECT_EQ(here[i], away[i]) << i;
  EXPECT_TRUE(in_all());
  check_all();
  ASSERT_OK(real<FunctionId::cuMemUnmap>(at(20), kGranule));
  ASSERT_OK(real<FunctionId::cuMemRelease>(foreign));
}

TEST_F(VirtualSwap, OneUnmapEndsWhatIsThereAwayAndNotOurs) {
  release(grow(kGranule, 1));
  const Handle away = create(kGranule, false);
  map(away, at(2));
  release(away);
  Handle foreign = 0;
  const CUmemAllocationProp properties = kind();
  ASSERT_OK(real<FunctionId::cuMemCreate>(&foreign, kGranule, &properties, 0));
  ASSERT_OK(real<FunctionId::cuMemMap>(at(4), kGranule, 0, foreign, 0));
  ASSERT_OK(real<FunctionId::cuMemRelease>(foreign));
  unmap(at(0), 5 * kGranule);
  EXPECT_EQ(freed.bytes, 2 * kGranule);
  EXPECT_EQ(freed.resident, kGranule);
  EXPECT_EQ(used(), used_before);
}

TEST_F(VirtualSwap, HandlesAreOursAndStayTheSame) {
  const Handle handle = grow(kGranule, 1);
  EXPECT_TRUE(swap_is_handle(handle));
  EXPECT_FALSE(swap_is_handle(1));
  EXPECT_FALSE(swap_is_handle(range));
  Handle again = 0;
  release(handle);
  EXPECT_EQ(swap_release(handle, note_freed), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(swap_map(at(3), kGranule, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(out_all());
  EXPECT_OK(swap_retain(at(0) + 4096, &again));
  EXPECT_EQ(again, handle);
  handles.insert(again);
  CUmemAllocationProp found{};
  EXPECT_OK(swap_properties(&found, again));
  EXPECT_EQ(found.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_TRUE(in_all());
  found = {};
  EXPECT_OK(swap_properties(&found, again));
  EXPECT_EQ(found.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

TEST_F(VirtualSwap, WhatOthersGetHoldOfStays) {
  const Handle handle = grow(kGranule, 1);
  grow(kGranule, 2);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(swap_pin(handle).what, SwapPinned::kAway);
  EXPECT_EQ(swap_pin_at(at(0), 1).what, SwapPinned::kAway);
  EXPECT_TRUE(in_all());
  const SwapPinned pinned = swap_pin(handle);
  EXPECT_EQ(pinned.what, SwapPinned::kPinned);
  EXPECT_EQ(pinned.bytes, kGranule);
  EXPECT_EQ(pinned.gate, &gate);
  EXPECT_FALSE(swap_is_handle(pinned.handle));
  EXPECT_EQ(swap_pin(handle).bytes, 0u);
  EXPECT_EQ(swap_pin_at(at(0), 1).what, SwapPinned::kNotOurs) << "it is already";
  EXPECT_EQ(swap_pin(handle + 1000).what, SwapPinned::kNotOurs);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, kGranule);
  EXPECT_EQ(used() - used_before, kGranule);
  EXPECT_TRUE(has(at(0), kGranule, 1));
  EXPECT_TRUE(in_all());
  EXPECT_EQ(swap_pin_at(at(0), 2 * kGranule).bytes, kGranule);
  release(handle);
  unmap(at(0), kGranule);
  EXPECT_EQ(freed.pinned, kGranule);
  EXPECT_EQ(freed.resident, kGranule);
}

TEST_F(VirtualSwap, SomeKindsAreLeftAlone) {
  CUmemAllocationProp one = kind();
  one.allocFlags.gpuDirectRDMACapable = 1;
  EXPECT_TRUE(swap_can_follow(gate, kGranule, one, 0)) << "as PyTorch asks for it";
  EXPECT_FALSE(swap_can_follow(gate, kGranule, one, 1));
  EXPECT_FALSE(swap_can_follow(gate, kGranule + 4096, one, 0));
  EXPECT_FALSE(swap_can_follow(gate, 0, one, 0));
  EXPECT_TRUE(swap_can_follow(gate, 256 * kMiB, one, 0));
  EXPECT_FALSE(swap_can_follow(gate, 258 * kMiB, one, 0));
  one.location.type = CU_MEM_LOCATION_TYPE_HOST;
  EXPECT_FALSE(swap_can_follow(gate, kGranule, one, 0));
  one = kind();
  one.allocFlags.compressionType = 1;
  EXPECT_FALSE(swap_can_follow(gate, kGranule, one, 0));
  one = kind();
  one.allocFlags.usage = 1;
  EXPECT_FALSE(swap_can_follow(gate, kGranule, one, 0));
}

// While somebody asks the driver about it, or changes it.
TEST_F(VirtualSwap, WhatIsHeldIsNotMoved) {
  grow(kGranule, 1);
  grow(2 * kGranule, 2);
  {
    const SwapHold hold(at(0));
    EXPECT_FALSE(hold.away());
    EXPECT_TRUE(out_all());
    EXPECT_EQ(last.out, 2 * kGranule);
  }
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, kGranule);
  std::thread mover;
  {
    const SwapHold hold(at(0));
    EXPECT_TRUE(hold.away());
    mover = std::thread([&] { EXPECT_TRUE(in_all()); });
    while (swap_resident(gate) < 2 * kGranule) std::this_thread::yield();
    EXPECT_EQ(swap_absent(gate), kGranule);
  }
  mover.join();
  EXPECT_EQ(last.in, 3 * kGranule) << "it was waited for";
  check_all();
}

// It belongs to the device.
TEST_F(VirtualSwap, OutlivesTheContextThatItWasMovedIn) {
  grow(3 * kGranule, 1);
  EXPECT_TRUE(out_all());
  swap_context_leaving(context, true);
  EXPECT_OK(real<FunctionId::cuCtxDestroy_v2>(context));
  EXPECT_EQ(swap_context_gone(context).bytes, 0u);
  EXPECT_TRUE(in_all());
  EXPECT_EQ(last.in, 0u) << "there is no context to copy it in";
  ASSERT_OK(real<FunctionId::cuCtxCreate_v2>(&context, 0, 0));
  swap_context_made(gate, context);
  EXPECT_TRUE(in_all());
  check_all();
  there_and_back();
}

TEST_F(VirtualSwap, AFullCardRefusesAndNothingIsLeftBehind) {
  Handle handle = 0;
  EXPECT_EQ(swap_create(gate, uint64_t{2} << 30, kind(), true, &handle), CUDA_ERROR_OUT_OF_MEMORY);
  check_sums();
  EXPECT_EQ(used(), used_before);
}

TEST_F(VirtualSwap, WhatTheHostHasIsNotCopiedAgain) {
  const Handle handle = grow(2 * kGranule, 1);
  grow(kGranule, 0);
  there_and_back();
  EXPECT_EQ(last.copied, 2 * kGranule);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, 3 * kGranule);
  EXPECT_EQ(last.copied, 0u);
  EXPECT_TRUE(in_all());
  // Also when it is somewhere else by then.
  unmap(range, 2 * kGranule);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.copied, 0u);
  EXPECT_TRUE(in_all());
  map(handle, at(9));
  EXPECT_TRUE(has(at(9), 2 * kGranule, 1));
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
