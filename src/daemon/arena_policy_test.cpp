#include "daemon/arena_policy.h"

#include <gtest/gtest.h>

namespace nvshare::daemon {
namespace {

ArenaGpu gpu(Bytes safe, std::vector<Bytes> movable, Bytes pinned = {}) {
  ArenaGpu gpu{gib(16), safe, pinned, std::move(movable)};
  for (const Bytes one : gpu.movable) gpu.demand += one;
  return gpu;
}

TEST(ArenaPolicy, NobodyAloneNeedsAny) {
  EXPECT_EQ(arena_need(gpu(gib(10), {gib(20)})), Bytes{0});
}

TEST(ArenaPolicy, NothingWhileAllFitsWithRoomToSpare) {
  EXPECT_EQ(arena_need(gpu(gib(20), {gib(8), gib(9)})), Bytes{0});
  EXPECT_EQ(arena_need(gpu(gib(20), {gib(9), gib(10)})), mib(512)) << "a chunk each, ahead of need";
}

TEST(ArenaPolicy, WhatIsTooMuchAndAChunkMore) {
  EXPECT_EQ(arena_need(gpu(gib(10), {gib(8), gib(8)}), gib(8)), gib(6) + mib(256));
  EXPECT_EQ(arena_need(gpu(gib(10), {gib(8), gib(1), gib(8)}), gib(1)), gib(1)) << "all it has";
  EXPECT_EQ(arena_need(gpu(gib(10), {gib(8), Bytes{0}}, gib(8)), Bytes{0}), Bytes{0});
}

TEST(ArenaPolicy, InWholeUnits) {
  const Bytes odd = gib(1) + Bytes{1};
  EXPECT_EQ(arena_need(gpu(gib(2), {odd, gib(8)}), odd), gib(1) + mib(256));
  EXPECT_EQ(arena_unit(gib(4)), mib(64));
  EXPECT_EQ(arena_unit(gib(141)), mib(256));
}

}  // namespace
}  // namespace nvshare::daemon
