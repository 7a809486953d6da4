#include <bit>
#include <thread>

#include "interposer/moving/testing/passing_machine.h"

// Host memory that several programs share.
namespace nvshare::interposer::moving::swap {
namespace {

using SwapPassing = PassingMachine;

// --- whose slabs are used ----------------------------------------------------------------------

TEST_F(SwapPassing, OwnedSlabsHoldWhatLeaves) {
  add(1, 4, 0b1111);
  wait_for_arena();
  EXPECT_EQ(told(SlabNews::kTaken), 0b1111u);
  EXPECT_EQ(times_told(SlabNews::kTaken), 1u);
  EXPECT_EQ(g_news.size(), 1u);
  EXPECT_EQ(free_bytes(), 64 * kMiB);
  EXPECT_EQ(visible(), 0b1111u);
  EXPECT_TRUE(swap_is_slow_to_end(gate)) << "the slabs are pinned";
  allocate(40 * kMiB, 1);
  allocate(20 * kMiB, 2);
  move_out_and_in();
}

TEST_F(SwapPassing, TheLastSlabMayBeShort) {
  const int file = memfd_create("shared", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, 20 * kMiB), 0);
  add_file(file, {connection, 1, 20 * kMiB, 0b11, 0b11});
  wait_for_arena();
  EXPECT_EQ(free_bytes(), 20 * kMiB);
  need(16 * kMiB);
  EXPECT_EQ(told(SlabNews::kPassed), 0b10u);
  EXPECT_EQ(bytes_told(SlabNews::kPassed), 4 * kMiB);
  EXPECT_EQ(give(1, 0b10), 4 * kMiB);
}

TEST_F(SwapPassing, SlabsOfOthersAreMappedAndNotUsed) {
  add(1, 4, 0);
  wait_for_arena();
  EXPECT_EQ(told(SlabNews::kTaken), 0b1111u);
  EXPECT_EQ(free_bytes(), 0u);
  EXPECT_EQ(visible(), 0u);
  const uint64_t pinned = driver_calls(FunctionId::cuMemHostRegister_v2);
  for (uint64_t slab = 0; slab < 4; ++slab) stamp(files[1], slab, 100 + slab);
  EXPECT_EQ(give(1, 0b0011), 32 * kMiB);
  EXPECT_EQ(free_bytes(), 32 * kMiB) << "at once";
  EXPECT_EQ(visible(), 0b0011u);
  EXPECT_EQ(g_untaken, 0u);
  allocate(30 * kMiB, 1);
  move_out_and_in();
  wait_for_arena();
  EXPECT_EQ(driver_calls(FunctionId::cuMemHostRegister_v2), pinned) << "without being pinned again";
  EXPECT_TRUE(has_stamp(files[1], 2, 102));
  EXPECT_TRUE(has_stamp(files[1], 3, 103));
}

TEST_F(SwapPassing, SlabsOfOthersStayHiddenWhenTheyArePinnedAgain) {
  add(1, 4, 0b0001);
  wait_for_arena();
  swap_context_leaving(context, true);
  arena_unpin(space_of(gate)->arena, context, false);
  swap_context_leaving(context, false);
  arena_prepare_later(*space_of(gate));
  wait_for_arena();
  EXPECT_TRUE(swap_is_slow_to_end(gate));
  EXPECT_EQ(visible(), 0b0001u);
}

TEST_F(SwapPassing, WhatIsNotThereIsNotMapped) {
  const int file = memfd_create("shared", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, 64 * kMiB), 0);
  files[1] = dup(file);
  add_file(file, {connection, 1, 64 * kMiB, 0b0010, 0b0110});
  wait_for_arena();
  EXPECT_EQ(told(SlabNews::kTaken), 0b0110u);
  EXPECT_EQ(mapped(), 0b0110u);
  EXPECT_EQ(pages(), 32 * kMiB);
  EXPECT_EQ(give(1, 0b1100), 32 * kMiB);
  EXPECT_EQ(told(SlabNews::kMissing), 0b1000u);
  EXPECT_EQ(bytes_told(SlabNews::kMissing), 16 * kMiB);
}

// --- slabs are passed on -----------------------------------------------------------------------

TEST_F(SwapPassing, SlabsThatHoldNothingArePassed) {
  add(1, 4, 0b1111);
  wait_for_arena();
  need(40 * kMiB);
  const uint64_t passed = told(SlabNews::kPassed);
  EXPECT_EQ(std::popcount(passed), 1) << "in whole slabs, and never less than enough";
  EXPECT_EQ(bytes_told(SlabNews::kPassed), 16 * kMiB);
  EXPECT_EQ(visible(), 0b1111u & ~passed);
  EXPECT_EQ(mapped(), 0b1111u);
  EXPECT_EQ(pages(), 64 * kMiB) << "the pages are for another program";
  need(0);
  EXPECT_EQ(told(SlabNews::kPassed), 0b1111u);
  EXPECT_EQ(times_told(SlabNews::kPassed), 2u) << "all of a segment together";
  EXPECT_EQ(free_bytes(), 0u);
  // And they can come back.
  need(~uint64_t{0});
  EXPECT_EQ(give(1, 0b0110), 32 * kMiB);
  allocate(30 * kMiB, 1);
  move_out_and_in();
}

TEST_F(SwapPassing, SlabsOfTwoSegmentsArePassedApart) {
  add(1, 2, 0b11);
  add(2, 2, 0b01);
  wait_for_arena();
  need(0);
  EXPECT_EQ(told(SlabNews::kPassed, 1), 0b11u);
  EXPECT_EQ(told(SlabNews::kPassed, 2), 0b01u);
  EXPECT_EQ(times_told(SlabNews::kPassed), 2u);
}

TEST_F(SwapPassing, AChunkThatIsAwayKeepsItsSlab) {
  add(1, 4, 0b1111);
  wait_for_arena();
  allocate(10 * kMiB, 1);
  EXPECT_TRUE(out_all());
  need(0);
  EXPECT_EQ(bytes_told(SlabNews::kPassed), 48 * kMiB);
  EXPECT_EQ(std::popcount(visible()), 1);
  for (uint64_t slab = 0; slab < 4; ++slab) {
    if ((told(SlabNews::kPassed) >> slab & 1) != 0) stamp(files[1], slab, 7);
  }
  EXPECT_TRUE(in_all());
  check_contents();
  need(0);
  EXPECT_EQ(told(SlabNews::kPassed), 0b1111u) << "a copy of what is here is of no use alone";
  check_contents();
}

// --- slabs go ----------------------------------------------------------------------------------

TEST_F(SwapPassing, ClosedSlabsAreUnmappedAndTold) {
  add(1, 4, 0b0001);
  wait_for_arena();
  stamp(files[1], 2, 5);
  close_slabs(1, 0b0110);
  wait_for_arena();
  EXPECT_EQ(told(SlabNews::kClosed), 0b0110u);
  EXPECT_EQ(mapped(), 0b1001u);
  EXPECT_EQ(pages(), 64 * kMiB) << "the scheduler frees the pages";
  EXPECT_TRUE(has_stamp(files[1], 2, 5));
  allocate(10 * kMiB, 1);
  move_out_and_in();
}

TEST_F(SwapPassing, OwnSlabsAreNotClosed) {
  add(1, 4, 0b0001);
  wait_for_arena();
  close_slabs(1, 0b1111);
  wait_for_arena();
  EXPECT_EQ(told(SlabNews::kClosed), 0b1110u);
  EXPECT_EQ(mapped(), 0b0001u);
  EXPECT_EQ(free_bytes(), 16 * kMiB);
}

TEST_F(SwapPassing, ASegmentWithoutSlabsIsForgotten) {
  add(1, 2, 0b01);
  wait_for_arena();
  need(0);
  close_slabs(1, 0b11);
  wait_for_arena();
  EXPECT_EQ(told(SlabNews::kClosed), 0b11u);
  EXPECT_FALSE(knows_shared());
  EXPECT_EQ(give(1, 0b01), 0u);
  EXPECT_EQ(told(SlabNews::kMissing), 0b01u);
  EXPECT_EQ(bytes_told(SlabNews::kMissing), 0u) << "it was never counted";
  close_slabs(2, 0b11);
  EXPECT_EQ(told(SlabNews::kClosed, 2), 0b11u) << "what is not mapped is closed";
}

TEST_F(SwapPassing, WhatTheDriverDoesNotUnpinStaysMapped) {
  add(1, 2, 0b01);
  wait_for_arena();
  refuse(FunctionId::cuMemHostUnregister, true);
  close_slabs(1, 0b10);
  wait_for_arena();
  refuse(FunctionId::cuMemHostUnregister, false);
  EXPECT_EQ(times_told(SlabNews::kClosed), 0u);
  EXPECT_EQ(mapped(), 0b11u);
}

// --- while a segment is being mapped -----------------------------------------------------------

TEST_F(SwapPassing, SlabsOfASegmentThatArrivesAreClosed) {
  add(1, 16, 0);
  close_slabs(1, 0xfffe);
  wait_for_arena();
  EXPECT_EQ(told(SlabNews::kClosed), 0xfffeu);
  EXPECT_EQ(mapped(), 0x0001u);
  EXPECT_EQ(told(SlabNews::kTaken) | 0xfffeu, 0xffffu);
}

TEST_F(SwapPassing, SlabsOfASegmentThatArrivesAreGiven) {
  add(1, 16, 0x0001);
  EXPECT_EQ(give(1, 0xf000), 64 * kMiB);
  allocate(70 * kMiB, 1);
  move_out_and_in();
  wait_for_arena();
  EXPECT_EQ(told(SlabNews::kTaken), 0xffffu);
  EXPECT_EQ(visible(), 0xf001u);
  EXPECT_EQ(g_untaken, 0u);
}

// Of a slab that is mapped, one in the middle of it, and one that comes later.
TEST_F(SwapPassing, SlabsChangeHandsInTheMiddle) {
  during_slab(4, [&] {
    EXPECT_EQ(mapped(), 0x1fu);
    EXPECT_EQ(give(1, 0x111), 48 * kMiB);
    EXPECT_EQ(free_bytes(), 16 * kMiB) << "of the slab that is mapped, at once";
    EXPECT_EQ(g_untaken, 32 * kMiB);
    close_slabs(1, 0x0c2);
  });
  add(1, 12, 0);
  wait_for_arena();
  EXPECT_EQ(visible(), 0x111u);
  EXPECT_EQ(free_bytes(), 48 * kMiB);
  EXPECT_EQ(told(SlabNews::kClosed), 0x0c2u);
  EXPECT_EQ(mapped(), 0xf3du);
  allocate(40 * kMiB, 1);
  move_out_and_in();
}

TEST_F(SwapPassing, TheSlabThatIsBeingMappedIsClosed) {
  during_slab(1, [&] { close_slabs(1, 0b110); });
  add(1, 4, 0b1000);
  wait_for_arena();
  EXPECT_EQ(told(SlabNews::kClosed), 0b110u);
  EXPECT_EQ(mapped(), 0b1001u);
  EXPECT_EQ(free_bytes(), 16 * kMiB);
}

// The scheduler disconnects a client that says it has mapped what it has closed.
TEST_F(SwapPassing, ASlabIsClosedAfterItIsToldAsTaken) {
  g_on_news = [&](const News& news) {
    if (news.what != SlabNews::kTaken) return;
    close_slabs(1, 0b10);
    for (int i = 0; i < 50 && times_told(SlabNews::kClosed) == 0; ++i) usleep(1000);
  };
  add(1, 2, 0b01);
  wait_for_arena();
  EXPECT_EQ(told(SlabNews::kClosed), 0b10u);
  EXPECT_EQ(g_news.back().what, SlabNews::kClosed);
}

// --- the scheduler is gone ---------------------------------------------------------------------

class SwapPassingForgotten : public PassingMachine {
 protected:
  // Slabs 0, 4 and 11 of 12 are ours, and were before the scheduler was gone.
  void check_forgotten() {
    wait_for_arena();
    EXPECT_FALSE(knows_shared());
    EXPECT_EQ(private_slabs(), 3);
    EXPECT_EQ(free_bytes(), 48 * kMiB);
    for (const SlabNews what : {SlabNews::kPassed, SlabNews::kMissing}) {
      EXPECT_EQ(times_told(what), 0u);
    }
    allocate(40 * kMiB, 1);
    move_out_and_in();
    EXPECT_EQ(give(1, 0b10), 0u) << "nobody knows of the segment";
    free(known.begin()->first);
    EXPECT_EQ(return_all_but(0), 48 * kMiB) << "returned, not passed";
    EXPECT_EQ(times_told(SlabNews::kPassed), 0u);
  }
};

TEST_F(SwapPassingForgotten, Afterwards) {
  add(1, 12, 0x811);
  wait_for_arena();
  swap_forget_shared(gate);
  check_forgotten();
}

TEST_F(SwapPassingForgotten, RightAfterItWasGiven) {
  add(1, 12, 0x811);
  swap_forget_shared(gate);
  check_forgotten();
}

TEST_F(SwapPassingForgotten, InTheMiddle) {
  for (uint64_t n = 0; n < 12; n += 3) {
    during_slab(n, [&] { swap_forget_shared(gate); });
    add(1, 12, 0x811);
    check_forgotten();
    swap_arena_need(gate, ~uint64_t{0}, nullptr);
    g_news.clear();
    close(files[1]);
  }
}

TEST_F(SwapPassingForgotten, NoPagesAreMadeForOthers) {
  during_slab(0, [&] { swap_forget_shared(gate); });
  add(1, 12, 0x811);
  wait_for_arena();
  EXPECT_EQ(pages(), 48 * kMiB);
}

// While the program runs, the thread that maps rests behind each slab.
TEST_F(SwapPassingForgotten, BeforeTheThreadLetsGoOfTheSegment) {
  gate.state = gate::kMetered;
  during_slab(0, [] { usleep(200'000); });
  add(1, 1, 0b1);
  while (free_bytes() == 0) std::this_thread::yield();
  swap_forget_shared(gate);
  wait_for_arena();
  EXPECT_FALSE(knows_shared());
  EXPECT_EQ(private_slabs(), 1);
  EXPECT_EQ(free_bytes(), 16 * kMiB);
}

TEST_F(SwapPassingForgotten, WhileAChunkIsAway) {
  add(1, 4, 0b0110);
  wait_for_arena();
  allocate(30 * kMiB, 1);
  EXPECT_TRUE(out_all());
  swap_forget_shared(gate);
  wait_for_arena();
  EXPECT_FALSE(knows_shared());
  EXPECT_TRUE(in_all());
  check_contents();
}

TEST_F(SwapPassingForgotten, TheSameNameOnTheNextConnectionIsAnotherSegment) {
  add(1, 2, 0b01);
  swap_forget_shared(gate);
  close(files[1]);
  ++connection;
  add(1, 2, 0b10);
  wait_for_arena();
  EXPECT_EQ(free_bytes(), 32 * kMiB);
  EXPECT_EQ(visible(), 0b10u);
  EXPECT_EQ(swap_slabs_given(gate, kConnection, 1, 0b01), 0u);
  EXPECT_EQ(give(1, 0b01), 16 * kMiB);
}

// --- a segment cannot be mapped ----------------------------------------------------------------

TEST_F(SwapPassing, ADescriptorThatCannotBeMappedIsTold) {
  const int small = memfd_create("small", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(small, kMiB), 0);
  add_file(small, {connection, 1, 64 * kMiB, 0b0011, 0b1111});
  add_file(-1, {connection, 2, 64 * kMiB, 0b1111, 0b1111});
  wait_for_arena();
  EXPECT_EQ(times_told(SlabNews::kTaken), 2u) << "the scheduler waits for the answer";
  EXPECT_EQ(told(SlabNews::kTaken, 1), 0u);
  EXPECT_EQ(told(SlabNews::kTaken, 2), 0u);
  EXPECT_EQ(told(SlabNews::kMissing, 1), 0b0011u);
  EXPECT_EQ(told(SlabNews::kMissing, 2), 0b1111u);
  EXPECT_EQ(bytes_told(SlabNews::kMissing), 96 * kMiB);
  EXPECT_EQ(g_untaken, 0u);
  EXPECT_FALSE(knows_shared());
  EXPECT_EQ(free_bytes(), 0u);
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
