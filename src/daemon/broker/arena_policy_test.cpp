#include "daemon/broker/arena_policy.h"

#include <gtest/gtest.h>

#include <random>

namespace nvshare::daemon {
namespace {

ArenaGpu gpu(Bytes safe, const std::vector<Bytes>& movable, Bytes pinned = {}) {
  ArenaGpu gpu{gib(16), safe, pinned, {}};
  for (const Bytes one : movable) {
    gpu.demand += one;
    gpu.clients.push_back({one, {}});
  }
  return gpu;
}

TEST(ArenaPolicy, NobodyAloneNeedsAny) {
  EXPECT_EQ(arena_held(gpu(gib(10), {gib(20)})), Bytes{0});
}

TEST(ArenaPolicy, NothingWhileAllFitsWithRoomToSpare) {
  EXPECT_EQ(arena_held(gpu(gib(20), {gib(8), gib(9)})), Bytes{0});
  EXPECT_EQ(arena_held(gpu(gib(20), {gib(9), gib(10)})), mib(512)) << "a chunk each, ahead of need";
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

TEST(ArenaPolicy, ASleeperNeedsAPlaceForAllOfItAlsoAlone) {
  const ArenaGpu alone = gpu(gib(10), {gib(8)});
  EXPECT_EQ(sleep_need(alone, gib(8)), gib(8) + mib(256));
  EXPECT_EQ(sleep_need(alone, gib(8) + Bytes{1}), gib(8) + mib(512));
  EXPECT_EQ(sleep_need(alone, Bytes{}), Bytes{});
}

TEST(ArenaPolicy, WhatSomebodyHasIsHeldWhetherItIsNeededOrNot) {
  ArenaGpu full = gpu(gib(10), {gib(8), gib(8)});
  full.clients[0].made = gib(7);
  full.clients[1].made = gib(1);
  EXPECT_EQ(arena_held(full), gib(7) + gib(6) + mib(256));
}

// How much more a client could have is the most with which what all need then is there.
TEST(ArenaRoom, IsExact) {
  std::mt19937_64 random(7);
  const auto below = [&](Bytes n) {
    return Bytes{static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n.count))};
  };
  for (int round = 0; round < 3000; ++round) {
    ArenaGpu one{round % 2 == 0 ? gib(8) : gib(24), below(gib(12)), below(gib(2)), {}};
    for (auto n = 1 + random() % 4; n > 0; --n) {
      const Bytes movable = random() % 4 == 0 ? Bytes{} : below(gib(6));
      one.clients.push_back({movable, random() % 2 == 0 ? Bytes{} : below(gib(4))});
      one.demand += movable;
    }
    const Bytes most = below(gib(16));
    ArenaRoom room(one, most);
    for (std::size_t client = 0; client < one.clients.size(); ++client) {
      const auto fits = [&](Bytes more) {
        ArenaGpu grown = one;
        grown.grow(client, more, true);
        grown.clients[client].made = {};
        return grown.demand <= grown.safe || arena_held(grown) <= most;
      };
      const Bytes wish = below(gib(12));
      const Bytes answer = room.of(client, wish);
      ASSERT_TRUE(answer == Bytes{} || fits(answer)) << round;
      ASSERT_TRUE(answer == wish || (answer < wish && !fits(answer + Bytes{1}))) << round;
    }
  }
}

}  // namespace
}  // namespace nvshare::daemon
