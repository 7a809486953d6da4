// The book of host memory that clients of one home share.

#include "daemon/broker/shared_arena.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

// Clients as the library makes them, and processes that die slowly. They say and do anything that
// an honest client can.
class Players {
 public:
  explicit Players(unsigned seed) : dice_(seed) {}

  void play(int turn) {
    now_ = Time{Duration{turn}};
    const ClientId id{1 + roll(3)};
    if (!clients_.contains(id)) {
      come_back(id);
    } else {
      act(id);
    }
    expect_nobody_uses_what_is_released();
  }
  Bytes booked() const {
    Bytes sum = book_.unowned();
    for (const auto& [pid, bytes] : book_.held_by_orphans()) sum += bytes;
    for (const ClientId one : clients_) sum += book_.owned_by(one);
    return sum;
  }
  Bytes there() const {
    Bytes sum{};
    for (const auto& [segment, slabs] : alive_) sum += kSlab * std::popcount(slabs);
    return sum;
  }

 private:
  using Key = std::pair<ClientId, SegmentId>;
  using SlabMap = std::map<Key, Slabs>;

  std::uint64_t roll(std::uint64_t below) { return dice_() % below; }
  static std::string home(ClientId id) { return id.value == 3 ? "b" : "a"; }
  static int pid(ClientId id) { return static_cast<int>(id.value); }

  void act(ClientId id) {
    switch (roll(8)) {
      case 0:
        return get_segment(id);
      case 1:
        return get_offer(id);
      case 2:
        return map_slabs(id);
      case 3:
        return pass_slabs(id);
      case 4:
        return get_slabs(id);
      case 5:
        return tell(roll(2) == 0 ? book_.close_others(home(id), kSlab * 2)
                                 : book_.close_idle(now_ - Duration{20}));
      case 6:
        return unmap_slabs(id);
      default:
        if (roll(4) == 0) die(id);
    }
  }

  void get_segment(ClientId id) {
    if (alive_.size() > 4) return;
    const SegmentId made = next_++;
    const Bytes bytes = kSlab * (1 + static_cast<int>(roll(5)));
    alive_[made] = owns_[{id, made}] = told_[{id, made}] = book_.add(made, home(id), bytes, id);
  }
  void get_offer(ClientId id) {
    const SlabOffer offer = book_.offer(id, home(id), roll(2) == 0);
    if (offer.segment != 0) told_[{id, offer.segment}] = offer.there;
  }
  // Slabs that were told to close meanwhile are not mapped.
  void map_slabs(ClientId id) {
    for (auto& [key, slabs] : told_) {
      if (key.first != id || slabs == 0) continue;
      const Slabs mapped = slabs & ~to_close_[key];
      EXPECT_TRUE(book_.taken(id, key.second, mapped));
      maps_[key] |= mapped;
      EXPECT_EQ(owns_[key] & ~maps_[key], 0u) << "its own slabs are not closed";
      slabs = 0;
    }
  }
  void pass_slabs(ClientId id) {
    for (auto& [key, slabs] : owns_) {
      const Slabs some = slabs & maps_[key] & dice_();
      if (key.first != id || some == 0) continue;
      EXPECT_GT(book_.pass(id, key.second, some, now_), Bytes{});
      slabs &= ~some;
    }
  }
  void get_slabs(ClientId id) {
    const Bytes most = kSlab * (1 + static_cast<int>(roll(4)));
    for (const SlabRange& range : book_.give(id, home(id), most)) {
      for (const auto& [key, slabs] : owns_) {
        if (key.second != range.segment) continue;
        EXPECT_EQ(slabs & range.slabs, 0u) << "a slab has two owners";
      }
      owns_[{id, range.segment}] |= range.slabs;
    }
  }
  void tell(const std::vector<SlabClosing>& all) {
    for (const SlabClosing& one : all) to_close_[{one.client, one.segment}] |= one.slabs;
  }
  void unmap_slabs(ClientId id) {
    for (auto& [key, slabs] : to_close_) {
      if (key.first != id || slabs == 0 || told_[key] != 0) continue;
      EXPECT_TRUE(book_.closed(id, key.second, slabs));
      maps_[key] &= ~slabs;
      slabs = 0;
    }
  }
  // A dead process may still have pinned whatever it had mapped.
  void die(ClientId id) {
    clients_.erase(id);
    dying_.insert(id);
    for (const auto& [key, slabs] : owns_) {
      if (key.first == id) maps_[key] |= slabs;
    }
    for (SlabMap* all : {&told_, &to_close_, &owns_}) forget(*all, id);
    tell(book_.leave(id, pid(id), now_));
  }
  // Its process has ended, and another one has its number.
  void come_back(ClientId id) {
    clients_.insert(id);
    dying_.erase(id);
    forget(maps_, id);
    book_.process_ended(pid(id));
  }
  static void forget(SlabMap& all, ClientId id) {
    for (auto& [key, slabs] : all) {
      if (key.first == id) slabs = 0;
    }
  }
  void expect_nobody_uses_what_is_released() {
    for (const SlabRange& range : book_.take_closed()) {
      alive_[range.segment] &= ~range.slabs;
      for (const auto& [key, slabs] : maps_) {
        if (key.second != range.segment) continue;
        const Slabs uses = dying_.contains(key.first) ? slabs : slabs & owns_[key];
        EXPECT_EQ(uses & range.slabs, 0u) << "a slab is released too early";
      }
    }
  }

  std::mt19937 dice_;
  Time now_{};
  SharedArena book_;
  SegmentId next_ = 1;
  std::map<SegmentId, Slabs> alive_;  // not released yet
  std::set<ClientId> clients_{kOne, kTwo, kStranger};
  std::set<ClientId> dying_;
  SlabMap maps_;
  SlabMap told_;
  SlabMap to_close_;
  SlabMap owns_;
};

TEST(SharedArenaProperty, BooksAddUpOnRandomEvents) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Players players(seed);
    for (int turn = 0; turn < 300 && !HasFailure(); ++turn) {
      players.play(turn);
      ASSERT_EQ(players.booked(), players.there()) << "turn " << turn;
    }
  }
}

}  // namespace
}  // namespace nvshare::daemon
