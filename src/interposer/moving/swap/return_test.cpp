#include <sys/stat.h>

#include <thread>

#include "interposer/moving/swap/state.h"
#include "interposer/moving/testing/swap_machine.h"

// Host memory that is not needed any more.
namespace nvshare::interposer::moving::swap {
namespace {

// 192 MiB of host memory: twelve slabs. The program does not run, or they would take their time.
struct SwapReturn : SwapMachine {
  void SetUp() override {
    SwapMachine::SetUp();
    gate.state = gate::kClosed;
  }
};

TEST_F(SwapReturn, WhatHoldsNothingGoesBack) {
  EXPECT_EQ(return_all_but(100 * kMiB), 80 * kMiB) << "in whole slabs, and never less than enough";
  EXPECT_EQ(return_all_but(100 * kMiB), 0u);
  EXPECT_EQ(return_all_but(0), 112 * kMiB);
  EXPECT_FALSE(swap_is_slow_to_end(gate)) << "nothing is pinned any more";
  // And more can come, and is used.
  swap_arena_need(gate, 64 * kMiB, nullptr);
  add_arena(64 * kMiB);
  wait_for_arena();
  allocate(60 * kMiB, 1);
  EXPECT_TRUE(out_all());
  EXPECT_TRUE(in_all());
  check_contents();
}

TEST_F(SwapReturn, ThePagesAreFreedAtOnce) {
  return_all_but(0);
  swap_arena_need(gate, ~uint64_t{0}, nullptr);
  const int descriptor = add_arena(128 * kMiB);
  wait_for_arena();
  const auto pages = [&] {
    struct stat now {};
    EXPECT_EQ(fstat(descriptor, &now), 0);
    return static_cast<uint64_t>(now.st_blocks) * 512;
  };
  EXPECT_EQ(pages(), 128 * kMiB);
  EXPECT_EQ(return_all_but(64 * kMiB), 64 * kMiB);
  EXPECT_EQ(pages(), 64 * kMiB) << "a part of a segment";
  EXPECT_EQ(return_all_but(0), 64 * kMiB);
  EXPECT_EQ(pages(), 0u);
}

TEST_F(SwapReturn, WhatIsAwayStaysAndCopiesOfWhatIsHereGo) {
  allocate(60 * kMiB, 1);
  allocate(60 * kMiB, 2);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(return_all_but(0), 64 * kMiB) << "the rest is in use";
  EXPECT_TRUE(in(60 * kMiB));
  EXPECT_EQ(return_all_but(0), 64 * kMiB) << "the host's copy of what is here is of no use alone";
  EXPECT_TRUE(in_all());
  check_contents();
  EXPECT_EQ(return_all_but(0), 64 * kMiB);
}

TEST_F(SwapReturn, CopiesStayWhenThereIsNoSlabToGain) {
  allocate(60 * kMiB, 1);
  EXPECT_TRUE(out_all());
  EXPECT_TRUE(in_all());
  EXPECT_EQ(return_all_but(177 * kMiB), 0u);
  EXPECT_TRUE(out_all());
  EXPECT_EQ(last.copied, 0u) << "the host had it";
  EXPECT_TRUE(in_all());
}

TEST_F(SwapReturn, WhatTheDriverDoesNotUnpinStays) {
  refuse(FunctionId::cuMemHostUnregister, true);
  EXPECT_EQ(return_all_but(0), 0u);
  refuse(FunctionId::cuMemHostUnregister, false);
  EXPECT_EQ(arena_free(space_of(gate)->arena), 192 * kMiB);
  EXPECT_EQ(return_all_but(0), 192 * kMiB);
}

// While it comes and goes, moves find what was promised.
TEST_F(SwapReturn, MovesAlwaysFindWhatIsEnough) {
  allocate(40 * kMiB, 1);
  allocate(20 * kMiB, 2);
  for (int round = 0; round < 4; ++round) {
    for (const auto& [address, one] : known) write(address, one.seed + 1);
    std::thread returns([&] { EXPECT_EQ(return_all_but(64 * kMiB), 128 * kMiB); });
    EXPECT_TRUE(out_all());
    EXPECT_TRUE(in_all());
    returns.join();
    check_contents();
    swap_arena_need(gate, ~uint64_t{0}, nullptr);
    add_arena(128 * kMiB);
    wait_for_arena();
  }
}

}  // namespace
}  // namespace nvshare::interposer::moving::swap
