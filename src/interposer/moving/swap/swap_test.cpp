#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "interposer/gate/records.h"
#include "interposer/moving/swap/state.h"
#include "interposer/moving/testing/swap_machine.h"

namespace nvshare::interposer::moving::swap {
namespace {

using Swap = SwapMachine;

TEST_F(Swap, MemoryLeavesTheCardAndComesBackWhereItWas) {
  for (const uint64_t bytes : {uint64_t{1}, 512 * kKiB, kMiB, kMiB + 1, 3 * kMiB, 40 * kMiB}) {
    allocate(bytes, bytes);
  }
  const uint64_t used_then = used();
  EXPECT_GE(used_then - used_before, live());
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, live());
  EXPECT_EQ(used(), used_before);
  EXPECT_EQ(swap_absent(gate), live());
  check_sums();
  for (const auto& [address, one] : known) EXPECT_FALSE(swap_range_of(address).resident);
  EXPECT_TRUE(in_all());
  EXPECT_EQ(last.in, live());
  EXPECT_EQ(used(), used_then);
  check_sums();
  check_contents();
}

// The card has 1 GiB, and chunks of a sixteenth of that at most: five of 60 MiB.
TEST_F(Swap, LargeAllocationsMoveInChunks) {
  const CUdeviceptr address = allocate(300 * kMiB, 1);
  EXPECT_TRUE(out(kMiB));
  EXPECT_EQ(last.out, 60 * kMiB);
  EXPECT_FALSE(swap_range_of(address).resident);
  EXPECT_EQ(used() - used_before, 240 * kMiB);
  check_sums();
  EXPECT_TRUE(in(60 * kMiB - 1));
  EXPECT_EQ(last.in, 0u) << "only whole chunks";
  EXPECT_TRUE(in(299 * kMiB));
  EXPECT_EQ(last.in, 60 * kMiB);
  EXPECT_TRUE(swap_range_of(address).resident);
  check_contents();
}

TEST_F(Swap, SmallAllocationsShareAndCostNoCallsOfTheDriver) {
  allocate(1000, 1);
  const uint64_t creates = driver_calls(FunctionId::cuMemCreate);
  std::vector<CUdeviceptr> addresses;
  for (int i = 0; i < 1000; ++i) addresses.push_back(allocate(1 + i, 2 + i));
  EXPECT_EQ(driver_calls(FunctionId::cuMemCreate), creates);
  EXPECT_EQ(used() - used_before, 2 * kMiB);
  for (size_t i = 0; i < addresses.size(); i += 2) free(addresses[i]);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(used(), used_before);
  EXPECT_TRUE(in_all());
  check_contents();
  check_sums();
}

TEST_F(Swap, NoEmptyRegionStaysWhenAnOlderOneFindsRoomMeanwhile) {
  const CUdeviceptr first = allocate(kMiB, 1);
  allocate(kMiB, 2);
  EXPECT_EQ(used() - used_before, 2 * kMiB);
  before_next(FunctionId::cuMemCreate, [&] { free(first); });
  const CUdeviceptr third = allocate(kMiB, 3);
  EXPECT_EQ(used() - used_before, 4 * kMiB);
  check_contents();
  free(third);
  EXPECT_EQ(used() - used_before, 2 * kMiB);
}

TEST_F(Swap, MemoryWithoutRoomIsAwayUntilItIsBroughtIn) {
  const CUdeviceptr large = allocate_away(5 * kMiB);
  const CUdeviceptr small = allocate_away(100);
  EXPECT_EQ(used(), used_before);
  EXPECT_EQ(swap_absent(gate), 5 * kMiB + 100);
  check_sums();
  EXPECT_TRUE(in_all());
  EXPECT_EQ(last.copied, 0u);
  write(large, 1);
  write(small, 2);
  EXPECT_TRUE(out_all());
  EXPECT_TRUE(in_all());
  check_contents();
}

// Who has room may use it at once, whatever of the small memory is away; who has none is not there.
TEST_F(Swap, SmallMemoryIsWhereItIsWanted) {
  allocate(100, 1);
  EXPECT_TRUE(out_all());
  const CUdeviceptr here = allocate(100, 2);
  EXPECT_TRUE(swap_range_of(here).resident);
  EXPECT_EQ(swap_resident(gate), 100u);
  const CUdeviceptr away = allocate_away(100);
  EXPECT_FALSE(swap_range_of(away).resident);
  EXPECT_EQ(swap_absent(gate), 200u);
  EXPECT_TRUE(in_all());
  check_contents();
}

TEST_F(Swap, FindsTheAllocationThatAnAddressLiesIn) {
  const CUdeviceptr large = allocate(5 * kMiB, 1);
  const CUdeviceptr small = allocate(700, 1);
  EXPECT_EQ(swap_range_of(large + 5 * kMiB - 1).base, large);
  EXPECT_EQ(swap_range_of(large + 5 * kMiB - 1).bytes, 5 * kMiB);
  EXPECT_FALSE(swap_range_of(large + 5 * kMiB).ours);
  EXPECT_EQ(swap_range_of(small + 699).base, small);
  EXPECT_EQ(swap_range_of(small + 699).context, context);
  EXPECT_EQ(swap_range_of(small + 699).gate, &gate);
  EXPECT_FALSE(swap_range_of(small + 700).ours);
  EXPECT_FALSE(swap_free(large + 1).ours);
  EXPECT_FALSE(swap_free(1).ours);
}

TEST_F(Swap, WhatIsFreedIsNotMoved) {
  const CUdeviceptr gone = allocate(40 * kMiB, 1);
  allocate(3 * kMiB, 2);
  free(gone);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, 3 * kMiB);
  const CUdeviceptr away = known.begin()->first;
  const Freed freed = swap_free(away);
  EXPECT_EQ(freed.bytes, 3 * kMiB);
  EXPECT_EQ(freed.resident, 0u);
  known.clear();
  EXPECT_TRUE(in_all());
  EXPECT_EQ(last.in, 0u);
}

TEST_F(Swap, TellsOfItsProgressAndStopsWhenTold) {
  for (int i = 0; i < 6; ++i) allocate(128 * kMiB, 0);
  on_progress = [] { return false; };
  EXPECT_FALSE(out_all());
  EXPECT_GE(reports, 1);
  check_sums();
  on_progress = nullptr;
  EXPECT_TRUE(out_all());
  EXPECT_TRUE(in_all());
  EXPECT_GE(reports, 2);
}

TEST_F(Swap, WithoutHostMemoryItStaysAndIsWhole) {
  for (int i = 0; i < 4; ++i) allocate(60 * kMiB, 1 + i);
  EXPECT_FALSE(out_all());
  EXPECT_EQ(last.out, 180 * kMiB);
  check_sums();
  EXPECT_EQ(used() - used_before, 60 * kMiB);
  EXPECT_TRUE(in_all());
  check_contents();
  check_sums();
}

TEST_F(Swap, AllOfTheHostMemoryIsOfUseHoweverItIsCut) {
  std::vector<CUdeviceptr> addresses;
  for (uint64_t i = 0; i < 48; ++i) addresses.push_back(allocate(4 * kMiB, 1 + i));
  EXPECT_TRUE(out_all());
  for (size_t i = 0; i < addresses.size(); i += 2) free(addresses[i]);
  allocate(96 * kMiB, 1000);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(swap_absent(gate), 192 * kMiB);
  EXPECT_TRUE(in_all());
  check_contents();
}

// What the host keeps of memory that is on the card goes when the room is needed.
TEST_F(Swap, CopiesOfWhatIsHereMakeRoomForOthers) {
  allocate(100 * kMiB, 1);
  EXPECT_TRUE(out_all());
  EXPECT_TRUE(in_all());
  allocate(150 * kMiB, 2);
  // The first is the cheapest to move out, but then there is room for one chunk of the other only.
  EXPECT_FALSE(out_all());
  EXPECT_EQ(last.out, 150 * kMiB);
  EXPECT_TRUE(in_all());
  free(known.begin()->second.bytes == 100 * kMiB ? known.rbegin()->first : known.begin()->first);
  write(known.begin()->first, 3);
  allocate(90 * kMiB, 4);
  EXPECT_TRUE(out(91 * kMiB));
  EXPECT_TRUE(in_all());
  check_contents();
}

// The scheduler takes nothing from a program that has nowhere to put it yet.
TEST_F(Swap, SaysHowMuchHostMemoryIsNotReadyYet) {
  static std::atomic<uint64_t> most{0};
  static std::atomic<uint64_t> latest{1};
  add_arena(40 * kMiB, [](gate::Gate&, uint64_t bytes) {
    if (bytes > most.load()) most = bytes;
    latest = bytes;
  });
  EXPECT_EQ(most.load(), 40 * kMiB) << "before anybody could think otherwise";
  wait_for_arena();
  EXPECT_EQ(latest.load(), 0u);
}

// What cannot be used must not count for the program for ever.
TEST_F(Swap, SaysWhichHostMemoryCannotBeMapped) {
  static std::atomic<uint64_t> untaken{1};
  static std::atomic<uint64_t> missing{0};
  const int descriptor = memfd_create("short", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(descriptor, 16 * kMiB), 0);
  swap_add_arena(
      gate, descriptor, 32 * kMiB, [](gate::Gate&, uint64_t bytes) { untaken = bytes; },
      [](gate::Gate&, uint64_t bytes) { missing += bytes; });
  wait_for_arena();
  EXPECT_EQ(missing.load(), 32 * kMiB);
  EXPECT_EQ(untaken.load(), 0u);
}

TEST_F(Swap, SaysWhichHostMemoryHasNoPages) {
  static std::atomic<int> descriptor{-1};
  static std::atomic<uint64_t> untaken{0};
  const uint64_t before = arena_free(space_of(gate)->arena);
  descriptor = -1;
  // Cut short under the thread that takes it in, when it has one slab of three.
  descriptor = add_arena(48 * kMiB, [](gate::Gate&, uint64_t bytes) {
    untaken = bytes;
    if (bytes != 32 * kMiB) return;
    while (descriptor < 0) std::this_thread::yield();
    EXPECT_EQ(ftruncate(descriptor, 16 * kMiB), 0);
  });
  wait_for_arena();
  EXPECT_EQ(missing(), 32 * kMiB);
  EXPECT_EQ(untaken.load(), 0u);
  EXPECT_EQ(arena_free(space_of(gate)->arena), before + 16 * kMiB);
}

// The scheduler's memory is freed when its program is gone: no child of it may keep it.
TEST_F(Swap, AChildOfAForkKeepsNoHostMemoryThatIsOnItsWay) {
  Arena& arena = space_of(gate)->arena;
  int descriptor = -1;
  {
    const Lock nobody_pins(arena.pinning);
    for (int i = 0; i < 3; ++i) add_arena(4 * kMiB);
    while (arena.incoming->descriptor >= 0) std::this_thread::yield();
    descriptor = arena.incoming->next->next->descriptor;
    ASSERT_GE(fcntl(descriptor, F_GETFD), 0);
    const pid_t child = fork();
    if (child == 0) {
      swap_reset_after_fork();
      _exit(fcntl(descriptor, F_GETFD) < 0 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_GE(fcntl(descriptor, F_GETFD), 0) << "the parent's own stays";
  }
  wait_for_arena();
}

TEST_F(Swap, WaitsForHostMemoryThatIsOnItsWay) {
  for (int i = 0; i < 4; ++i) allocate(60 * kMiB, 1 + i);
  space_of(gate)->arena.pending.fetch_add(1);
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    add_arena(64 * kMiB);
    while (space_of(gate)->arena.pending.load() > 1) std::this_thread::yield();
    space_of(gate)->arena.pending.fetch_sub(1);
  });
  EXPECT_TRUE(out_all());
  late.join();
  EXPECT_EQ(used(), used_before);
  EXPECT_TRUE(in_all());
  check_contents();
}

TEST_F(Swap, WhatTheHostHasIsNotCopiedAgain) {
  const CUdeviceptr first = allocate(40 * kMiB, 1);
  const CUdeviceptr second = allocate(3 * kMiB, 2);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.copied, 43 * kMiB);
  EXPECT_TRUE(in_all());
  EXPECT_EQ(last.copied, 43 * kMiB);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, 43 * kMiB);
  EXPECT_EQ(last.copied, 0u);
  EXPECT_TRUE(in_all());
  check_contents();
  // One bit in one of them.
  auto data = pattern(2, 3 * kMiB);
  data[3 * kMiB - 1] ^= 1;
  ASSERT_OK(real<FunctionId::cuMemcpyHtoD_v2>(second + 3 * kMiB - 1, &data[3 * kMiB - 1], 1));
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.copied, 3 * kMiB);
  EXPECT_TRUE(in_all());
  std::vector<unsigned char> found(data.size());
  ASSERT_OK(real<FunctionId::cuMemcpyDtoH_v2>(found.data(), second, found.size()));
  EXPECT_EQ(found, data);
  write(second, 2);
  write(first, 0);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.copied, 3 * kMiB) << "zeros are not copied";
  EXPECT_TRUE(in_all());
  EXPECT_EQ(last.copied, 3 * kMiB);
  check_contents();
}

TEST_F(Swap, ZerosNeedNoHostMemory) {
  for (int i = 0; i < 5; ++i) allocate(100 * kMiB, 0);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.out, 500 * kMiB);
  EXPECT_EQ(last.copied, 0u);
  EXPECT_TRUE(in_all());
  EXPECT_EQ(last.copied, 0u);
  check_contents();
}

TEST_F(Swap, AFullCardRefusesAndNothingIsLeftBehind) {
  allocate(900 * kMiB, 0);
  const uint64_t used_then = used();
  CUdeviceptr address = 0;
  EXPECT_EQ(swap_allocate(gate, 300 * kMiB, true, &address), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(used(), used_then);
  check_sums();
  // The first of the shared chunks is small, and so is the last when there is no room.
  std::vector<CUdeviceptr> filling;
  while (used() + 36 * kMiB <= 1024 * kMiB) filling.push_back(allocate(30 * kMiB, 0));
  for (int i = 0; i < 4; ++i) allocate(kMiB, i);
  EXPECT_LE(used(), 1024 * kMiB);
}

TEST_F(Swap, BringingInWhatDoesNotFitFailsAndLosesNothing) {
  allocate(60 * kMiB, 1);
  allocate(70 * kMiB, 2);
  EXPECT_TRUE(out_all());
  CUdeviceptr other = 0;
  const uint64_t used_then = used();
  ASSERT_OK(real<FunctionId::cuMemAlloc_v2>(&other, 940 * kMiB));
  EXPECT_FALSE(in_all());
  check_sums();
  EXPECT_EQ(used() - used_then, 940 * kMiB + swap_resident(gate));
  ASSERT_OK(real<FunctionId::cuMemFree_v2>(other));
  EXPECT_TRUE(in_all());
  check_contents();
}

TEST_F(Swap, AContextTakesItsMemoryWithIt) {
  CUcontext second{};
  ASSERT_OK(real<FunctionId::cuCtxCreate_v2>(&second, 0, 0));
  CUdeviceptr addresses[3];
  ASSERT_OK(swap_allocate(gate, 5 * kMiB, true, &addresses[0]));
  ASSERT_OK(swap_allocate(gate, 100, true, &addresses[1]));
  ASSERT_OK(swap_allocate(gate, 7 * kMiB, false, &addresses[2]));
  CUcontext popped{};
  ASSERT_OK(real<FunctionId::cuCtxPopCurrent_v2>(&popped));
  allocate(3 * kMiB, 1);
  EXPECT_TRUE(swap_out(
      gate, ~uint64_t{0}, [](void*, Moved&) { return true; }, nullptr));
  EXPECT_TRUE(swap_in(
      gate, ~uint64_t{0}, [](void*, Moved&) { return true; }, nullptr));
  swap_context_leaving(second, true);
  EXPECT_TRUE(swap_out(
      gate, ~uint64_t{0}, [](void*, Moved&) { return true; }, nullptr));
  EXPECT_EQ(swap_absent(gate), 3 * kMiB) << "the one that is leaving is left alone";
  ASSERT_OK(real<FunctionId::cuCtxDestroy_v2>(second));
  const Freed freed = swap_context_gone(second);
  EXPECT_TRUE(freed.ours);
  EXPECT_EQ(freed.gate, &gate);
  EXPECT_EQ(freed.bytes, 12 * kMiB + 100);
  EXPECT_EQ(freed.resident, 12 * kMiB + 100);
  EXPECT_FALSE(swap_context_gone(second).ours);
  EXPECT_EQ(used(), used_before);
  EXPECT_FALSE(swap_range_of(addresses[0]).ours);
  told_resident = 0;
  EXPECT_TRUE(in_all());
  check_contents();
}

// What takes long is done before it is needed: as soon as there is host memory, and a context.
TEST_F(Swap, IsPreparedAheadOfNeed) {
  const Space& space = *space_of(gate);
  for (const Slab* slab = space.arena.slabs; slab != nullptr; slab = slab->next) {
    EXPECT_EQ(slab->pinned_in, context);
  }
  const uint64_t loaded = driver_calls(FunctionId::cuModuleLoadData);
  EXPECT_GT(loaded, 0u);
  allocate(3 * kMiB, 1);
  EXPECT_TRUE(out_all());
  EXPECT_TRUE(in_all());
  EXPECT_EQ(driver_calls(FunctionId::cuModuleLoadData), loaded);
}

// When something is first to leave, the card is full: the driver has no memory for anything of
// ours.
struct SwapOfAFullCard : Swap {
  static void card_is_full(bool full) {
    for (const FunctionId id :
         {FunctionId::cuStreamCreate, FunctionId::cuEventCreate, FunctionId::cuModuleLoadData}) {
      refuse(id, full);
    }
  }
  void TearDown() override {
    card_is_full(false);
    Swap::TearDown();
  }
};

TEST_F(SwapOfAFullCard, NothingIsMadeWhenItLeaves) {
  for (int i = 0; i < 6; ++i) allocate(3 * kMiB, 1 + i);
  card_is_full(true);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(used(), used_before);
  EXPECT_TRUE(in_all());
  check_contents();
}

// What could not be made is, as soon as more host memory comes.
TEST_F(SwapOfAFullCard, WhatCouldNotBeMadeIsTriedAgain) {
  CUcontext other{};
  card_is_full(true);
  ASSERT_OK(real<FunctionId::cuCtxCreate_v2>(&other, 0, 0));
  allocate(3 * kMiB, 1);
  wait_for_arena();
  card_is_full(false);
  add_arena(16 * kMiB);
  wait_for_arena();
  card_is_full(true);
  EXPECT_TRUE(out_all());
  EXPECT_TRUE(in_all());
  check_contents();
  while (!known.empty()) free(known.begin()->first);
  swap_context_leaving(other, true);
  ASSERT_OK(real<FunctionId::cuCtxDestroy_v2>(other));
  swap_context_gone(other);
  wait_for_arena();
}

// As the driver's cuMemFree: refused where it is, and where it is not, the capture goes on.
TEST_F(Swap, FreesDuringACaptureAsTheDriverDoes) {
  const CUdeviceptr address = allocate(3 * kMiB, 1);
  const CUdeviceptr small = allocate(100, 1);
  CUstream stream{};
  CUgraph graph{};
  ASSERT_OK(real<FunctionId::cuStreamCreate>(&stream, CU_STREAM_NON_BLOCKING));
  ASSERT_OK(real<FunctionId::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  gate::g_captures = 1;
  EXPECT_EQ(swap_free(address).result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_TRUE(swap_range_of(address).ours);
  CUdeviceptr none = 0;
  EXPECT_EQ(swap_allocate(gate, 100, true, &none), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(real<FunctionId::cuStreamEndCapture>(stream, &graph),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  ASSERT_OK(real<FunctionId::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  free(address);
  free(small);
  check_sums();
  EXPECT_GT(used(), used_before) << "it may still be in use";
  CUdeviceptr other = allocate(100, 2);
  EXPECT_NE(other, small);
  EXPECT_OK(real<FunctionId::cuStreamEndCapture>(stream, &graph));
  gate::g_captures = 0;
  free(other);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(used(), used_before);
}

TEST_F(Swap, TellsWhereTheTimeWent) {
  for (int i = 0; i < 3; ++i) allocate(60 * kMiB, 1 + i);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(out_all());
  const auto wall = static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  const SwapTimes out = swap_times(gate);
  EXPECT_GT(out.hash, 0u);
  EXPECT_GT(out.unmap, 0u);
  EXPECT_GT(out.copy, 1'000'000u) << "60 MiB at 50 GiB/s";
  EXPECT_LE(out.hash + out.map + out.unmap + out.submit + out.copy + out.place + out.tell, wall);
  EXPECT_TRUE(in_all());
  const SwapTimes in = swap_times(gate);
  EXPECT_EQ(in.hash, 0u) << "of the last move alone";
  EXPECT_GT(in.map, 0u);
  EXPECT_GT(in.copy, 1'000'000u);
}

TEST_F(Swap, OtherGatesHaveNothing) {
  gate::Gate other;
  EXPECT_EQ(swap_absent(other), 0u);
  EXPECT_EQ(swap_resident(other), 0u);
  EXPECT_TRUE(swap_in(
      other, 1, [](void*, Moved&) { return true; }, nullptr));
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
