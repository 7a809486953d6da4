// The book of host memory that clients of one home share.

#include "daemon/broker/shared_arena.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <random>
#include <set>

#include "wire/messages.h"

namespace nvshare::daemon {
namespace {

constexpr Bytes kSlab{static_cast<std::int64_t>(wire::kSlabBytes)};
constexpr SegmentId kSegment = 7;
const ClientId kOne{1};
const ClientId kTwo{2};
const ClientId kStranger{3};

struct SharedArenaTest : testing::Test {
  // Four slabs, the last of half a size, all of the first client's.
  SharedArenaTest() {
    EXPECT_EQ(book.add(kSegment, "home", kSlab * 3 + mib(8), kOne), 0b1111u);
    EXPECT_TRUE(book.taken(kOne, kSegment, 0b1111));
  }
  // The second client maps what there is.
  void invite() {
    const SlabOffer offer = book.offer(kTwo, "home", false);
    EXPECT_EQ(offer.segment, kSegment);
    EXPECT_EQ(offer.there, 0b1111u);
    EXPECT_TRUE(book.taken(kTwo, kSegment, offer.there));
  }
  SharedArena book;
};

TEST_F(SharedArenaTest, ASlabChangesHands) {
  invite();
  EXPECT_EQ(book.pass(kOne, kSegment, 0b1001, Time{1s}), kSlab + mib(8));
  EXPECT_EQ(book.owned_by(kOne), kSlab * 2);
  EXPECT_EQ(book.unowned(), kSlab + mib(8));
  const auto given = book.give(kTwo, "home", kSlab);
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0].slabs, 0b0001u);
  EXPECT_EQ(given[0].mapped, kSlab) << "it can be used at once";
  EXPECT_EQ(book.owned_by(kTwo), kSlab);
  EXPECT_EQ(book.unowned(), mib(8));
}

TEST_F(SharedArenaTest, AClientPassesOnlyItsOwn) {
  invite();
  EXPECT_EQ(book.pass(kTwo, kSegment, 0b0001, Time{1s}), Bytes{});
  EXPECT_EQ(book.pass(kStranger, kSegment, 0b0001, Time{1s}), Bytes{});
  EXPECT_EQ(book.pass(kOne, kSegment + 1, 0b0001, Time{1s}), Bytes{});
  EXPECT_EQ(book.pass(kOne, kSegment, 0b10000, Time{1s}), Bytes{}) << "there is no such slab";
  EXPECT_EQ(book.pass(kOne, kSegment, 0, Time{1s}), Bytes{});
  EXPECT_FALSE(book.taken(kStranger, kSegment, 0b0001));
  EXPECT_FALSE(book.closed(kOne, kSegment, 0b0001)) << "it was not told to";
  EXPECT_EQ(book.owned_by(kOne), kSlab * 3 + mib(8));
}

TEST_F(SharedArenaTest, AnotherHomeGetsNoSlabs) {
  invite();
  book.pass(kOne, kSegment, 0b1111, Time{1s});
  EXPECT_TRUE(book.give(kStranger, "elsewhere", kSlab).empty());
  EXPECT_EQ(book.offer(kStranger, "elsewhere", true).segment, 0u);
  EXPECT_TRUE(book.close_others("home", kSlab).empty());
  // What the other home lacks is unmapped everywhere before its pages go.
  const auto tell = book.close_others("elsewhere", kSlab);
  ASSERT_EQ(tell.size(), 2u);
  EXPECT_TRUE(book.take_closed().empty());
  for (const SlabClosing& one : tell) EXPECT_TRUE(book.closed(one.client, one.segment, one.slabs));
  const auto gone = book.take_closed();
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].bytes, kSlab);
  EXPECT_EQ(book.unowned(), kSlab * 2 + mib(8));
}

TEST_F(SharedArenaTest, FreeSlabsCloseAfterAWhile) {
  book.pass(kOne, kSegment, 0b0011, Time{5s});
  EXPECT_TRUE(book.close_idle(Time{4s}).empty());
  const auto tell = book.close_idle(Time{5s});
  ASSERT_EQ(tell.size(), 1u);
  EXPECT_EQ(tell[0].slabs, 0b0011u);
  EXPECT_TRUE(book.closed(kOne, kSegment, 0b0011));
  EXPECT_EQ(book.take_closed().at(0).bytes, kSlab * 2);
}

// The GPU may write to its slabs until the kernel has taken the process apart.
TEST_F(SharedArenaTest, SlabsOfADeadClientStayUntilItsProcessHasEnded) {
  invite();
  const auto tell = book.leave(kOne, 4711, Time{});
  ASSERT_EQ(tell.size(), 1u);
  EXPECT_TRUE(book.closed(kTwo, kSegment, tell[0].slabs));
  EXPECT_TRUE(book.take_closed().empty());
  EXPECT_EQ(book.held_by_orphans().at(4711), kSlab * 3 + mib(8));
  EXPECT_EQ(book.unowned(), Bytes{});
  EXPECT_TRUE(book.give(kTwo, "home", kSlab).empty());
  book.process_ended(4711);
  EXPECT_TRUE(book.orphans().empty());
  EXPECT_EQ(book.take_closed().at(0).bytes, kSlab * 3 + mib(8));
  EXPECT_TRUE(book.empty());
}

TEST_F(SharedArenaTest, AProcessThatLivesOnLetsGoOfSlabs) {
  book.leave(kOne, 4711, Time{});
  EXPECT_EQ(book.orphaned_segments(), std::vector<SegmentId>{kSegment});
  book.let_go(kSegment, 0b0010);
  EXPECT_EQ(book.held_by_orphans().at(4711), kSlab * 2 + mib(8));
  EXPECT_EQ(book.take_closed().at(0).slabs, 0b0010u);
  book.let_go(kSegment, ~Slabs{0});
  EXPECT_TRUE(book.held_by_orphans().empty());
  EXPECT_EQ(book.take_closed().at(0).slabs, 0b1101u);
  EXPECT_TRUE(book.empty());
}

TEST_F(SharedArenaTest, SlabsThatAreBeingMappedAreGivenLast) {
  const SlabOffer offer = book.offer(kTwo, "home", false);
  book.pass(kOne, kSegment, 0b0001, Time{1s});
  auto given = book.give(kTwo, "home", kSlab);
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0].mapped, Bytes{});
  // The client could not map the slab: it says so and passes it on.
  EXPECT_TRUE(book.taken(kTwo, kSegment, offer.there & ~Slabs{1}));
  EXPECT_EQ(book.pass(kTwo, kSegment, 0b0001, Time{2s}), kSlab);
  given = book.give(kTwo, "home", kSlab);
  EXPECT_TRUE(given.empty()) << "it has not mapped that one";
  EXPECT_EQ(book.give(kOne, "home", kSlab).at(0).slabs, 0b0001u);
}

// Whatever clients say and do, no slab has two owners, none is released while a client or a dead
// client's process may have it, and the sums are those of the slabs.
TEST(SharedArenaProperty, BooksAddUpOnRandomEvents) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 dice(seed);
    const auto roll = [&](unsigned below) { return dice() % below; };
    SharedArena book;
    std::map<SegmentId, Slabs> alive;                      // not released yet
    std::map<std::pair<ClientId, SegmentId>, Slabs> maps;  // as a client would
    std::map<std::pair<ClientId, SegmentId>, Slabs> told, to_close, owns;
    std::set<ClientId> clients{ClientId{1}, ClientId{2}, ClientId{3}};
    std::map<int, ClientId> dying;
    SegmentId next = 1;
    const auto home = [](ClientId id) { return id.value == 3 ? "b" : "a"; };
    const auto tell = [&](const std::vector<SlabClosing>& all) {
      for (const SlabClosing& one : all) to_close[{one.client, one.segment}] |= one.slabs;
    };
    const auto hand_out = [&](ClientId id, const std::vector<SlabRange>& given) {
      for (const SlabRange& range : given) {
        for (const auto& [key, slabs] : owns) {
          if (key.second != range.segment) continue;
          EXPECT_EQ(slabs & range.slabs, 0u) << "seed " << seed;
        }
        owns[{id, range.segment}] |= range.slabs;
      }
    };
    for (int turn = 0; turn < 300; ++turn) {
      const ClientId id{1 + roll(3)};
      if (!clients.contains(id)) {
        clients.insert(ClientId{id.value});  // another process of that number
        if (dying.contains(static_cast<int>(id.value))) {
          for (auto& [key, slabs] : maps) {
            if (key.first == id) slabs = 0;
          }
          dying.erase(static_cast<int>(id.value));
          book.process_ended(static_cast<int>(id.value));
        }
        continue;
      }
      switch (roll(8)) {
        case 0: {
          if (alive.size() > 4) break;
          const SegmentId made = next++;
          alive[made] = owns[{id, made}] = told[{id, made}] =
              book.add(made, home(id), kSlab * (1 + static_cast<int>(roll(5))), id);
          break;
        }
        case 1: {
          const SlabOffer offer = book.offer(id, home(id), roll(2) == 0);
          if (offer.segment != 0) told[{id, offer.segment}] = offer.there;
          break;
        }
        case 2:
          for (auto& [key, slabs] : told) {
            if (key.first != id || slabs == 0) continue;
            // Slabs that were told to close meanwhile are not mapped.
            const Slabs mapped = slabs & ~to_close[key];
            EXPECT_TRUE(book.taken(id, key.second, mapped)) << "seed " << seed;
            maps[key] |= mapped;
            const Slabs missing = owns[key] & ~maps[key];
            EXPECT_EQ(missing, 0u);
            slabs = 0;
          }
          break;
        case 3:
          for (auto& [key, slabs] : owns) {
            const Slabs some = slabs & maps[key] & dice();
            if (key.first != id || some == 0) continue;
            EXPECT_GT(book.pass(id, key.second, some, Time{Duration{turn}}), Bytes{});
            slabs &= ~some;
          }
          break;
        case 4:
          hand_out(id, book.give(id, home(id), kSlab * (1 + static_cast<int>(roll(4)))));
          break;
        case 5:
          tell(roll(2) == 0 ? book.close_others(home(id), kSlab * 2)
                            : book.close_idle(Time{Duration{turn - 20}}));
          break;
        case 6:
          for (auto& [key, slabs] : to_close) {
            if (key.first != id || slabs == 0 || told[key] != 0) continue;
            EXPECT_TRUE(book.closed(id, key.second, slabs)) << "seed " << seed;
            maps[key] &= ~slabs;
            slabs = 0;
          }
          break;
        case 7: {
          if (roll(4) != 0) break;
          clients.erase(id);
          dying[static_cast<int>(id.value)] = id;
          // A dead process may still have pinned whatever it had mapped.
          for (const auto& [key, slabs] : owns) {
            if (key.first == id) maps[key] |= slabs;
          }
          for (auto* all : {&told, &to_close, &owns}) {
            for (auto& [key, slabs] : *all) {
              if (key.first == id) slabs = 0;
            }
          }
          tell(book.leave(id, static_cast<int>(id.value), Time{Duration{turn}}));
          break;
        }
      }
      for (const SlabRange& range : book.take_closed()) {
        alive[range.segment] &= ~range.slabs;
        for (const auto& [key, slabs] : maps) {
          const bool dies = dying.contains(static_cast<int>(key.first.value));
          const Slabs uses = dies ? slabs : slabs & owns[key];
          if (key.second != range.segment) continue;
          EXPECT_EQ(uses & range.slabs, 0u) << "seed " << seed;
        }
      }
      Bytes sum = book.unowned();
      for (const auto& [pid, bytes] : book.held_by_orphans()) sum += bytes;
      for (const ClientId one : clients) sum += book.owned_by(one);
      Bytes there{};
      for (const auto& [segment, slabs] : alive) there += kSlab * std::popcount(slabs);
      ASSERT_EQ(sum, there) << "seed " << seed << " turn " << turn;
    }
  }
}

}  // namespace
}  // namespace nvshare::daemon
