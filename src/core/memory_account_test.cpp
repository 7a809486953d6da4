#include "core/memory_account.h"

#include <gtest/gtest.h>

namespace nvshare::core {
namespace {

constexpr ClientId kClient{1};
constexpr Bytes kTotal = gib(16);

MemoryAccount brought(Bytes allocated, Bytes resident, Bytes pinned = {}, Bytes most = kTotal) {
  return {{allocated, pinned, resident}, kTotal, most};
}

TEST(MemoryAccount, WhatIsGivenCountsWhereItIs) {
  MemoryAccount account;
  account.grow(gib(3), {}, true, true);
  account.grow(gib(2), {}, true, false);
  account.grow(gib(1), {}, false, true);
  EXPECT_EQ(account.counted(), gib(6));
  EXPECT_EQ(account.counted_resident(), gib(4));
  EXPECT_EQ(account.counted_pinned(), gib(1));
  EXPECT_EQ(account.could_move(), gib(5));
}

TEST(MemoryAccount, AClaimCountsInFullAndIsBelievedAsFarAsThereIsRoom) {
  MemoryAccount account = brought(gib(10), gib(8), gib(3));
  EXPECT_EQ(account.counted(), gib(10));
  EXPECT_EQ(account.counted_resident(), Bytes{});
  EXPECT_TRUE(account.believe(gib(2)));
  EXPECT_EQ(account.counted_resident(), gib(2));
  EXPECT_EQ(account.counted_pinned(), gib(2)) << "no more than is believed to be there";
  EXPECT_FALSE(account.believe(Bytes{} - gib(1)));
  EXPECT_TRUE(account.believe(gib(100)));
  EXPECT_EQ(account.counted_resident(), gib(8));
  EXPECT_EQ(account.counted_pinned(), gib(3));
  EXPECT_FALSE(account.is_doubted());
}

TEST(MemoryAccount, WhatTheCoreHasMadeRoomForIsThereAlready) {
  MemoryAccount account = brought(gib(10), gib(8), gib(8));
  account.believe(gib(2));
  EXPECT_EQ(account.order(1, false, gib(8)), gib(8));
  EXPECT_EQ(account.there_already(gib(8)), gib(6));
  const MemoryMoved event = account.arrived(kClient, 1, gib(6));
  EXPECT_EQ(event.resident, gib(8));
  EXPECT_EQ(event.in_left, gib(2)) << "the client is told to bring in these";
  EXPECT_EQ(account.counted_pinned(), gib(2)) << "nobody was asked whether the rest may be pinned";
  EXPECT_EQ(account.there_already(gib(1)), Bytes{});
  EXPECT_TRUE(account.is_doubted());
  const auto rest = account.moved(kClient, {.order = 1, .in = gib(2), .done = true});
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->resident, gib(10));
  EXPECT_TRUE(account.orders().empty());
}

TEST(MemoryAccount, DoubtedMemoryThatIsFreedOrLeavesIsDoubtedNoMore) {
  MemoryAccount account = brought(gib(10), gib(8));
  account.believe(gib(2));
  ASSERT_TRUE(account.free(gib(5), gib(5), {}));
  EXPECT_EQ(account.counted(), gib(5));
  EXPECT_EQ(account.counted_resident(), gib(2));
  EXPECT_EQ(account.doubted(), gib(1));
  account.order(1, true, gib(2));
  ASSERT_TRUE(account.moved(kClient, {.order = 1, .out = gib(3), .done = true}));
  EXPECT_EQ(account.counted_resident(), Bytes{});
  EXPECT_EQ(account.doubted(), Bytes{});
}

TEST(MemoryAccount, MoreThanTheGpuHasIsBeyond) {
  MemoryAccount account = brought(gib(30), gib(30), gib(2), gib(14));
  EXPECT_EQ(account.beyond(), gib(16));
  account.believe(gib(16));
  EXPECT_EQ(account.counted(), gib(14));
  EXPECT_EQ(account.counted_resident(), gib(14));
  EXPECT_EQ(account.counted_pinned(), gib(2));
  EXPECT_EQ(brought(gib(18), gib(18), gib(15), gib(14)).beyond(), gib(3)) << "pinned memory is not";
}

TEST(MemoryAccount, WhatCannotBeIsRefusedAndChangesNothing) {
  MemoryAccount account = brought(gib(10), gib(8), gib(3));
  account.believe(kTotal);
  EXPECT_FALSE(account.free(gib(11), {}, {}));
  EXPECT_FALSE(account.free(gib(4), gib(4), gib(4)));
  EXPECT_FALSE(account.free(gib(1), gib(2), {}));
  EXPECT_FALSE(account.pin(gib(8)));
  EXPECT_FALSE(account.moved(kClient, {.order = 7, .out = gib(1)}));
  EXPECT_FALSE(account.moved(kClient, {.in = gib(1)}));
  account.order(1, false, gib(2));
  EXPECT_FALSE(account.moved(kClient, {.order = 1, .in = gib(3)}));
  EXPECT_EQ(account.counted(), gib(10));
  EXPECT_EQ(account.counted_resident(), gib(8));
  EXPECT_EQ(account.counted_pinned(), gib(3));
}

TEST(MemoryAccount, NoMoreIsPinnedThanTheGpuHas) {
  MemoryAccount account = brought(gib(30), gib(30), {}, gib(14));
  EXPECT_FALSE(account.pin(gib(17)));
  EXPECT_TRUE(account.pin(gib(15)));
  EXPECT_EQ(account.counted(), gib(15)) << "what is pinned is not beyond";
}

TEST(MemoryAccount, MessagesThatCrossNeverCountMoreThanTheCoreKnows) {
  MemoryAccount account;
  account.grow(gib(4), {}, true, false);
  ASSERT_TRUE(account.free(gib(1), gib(1), {})) << "it has come in, which is not told yet";
  EXPECT_EQ(account.resident(), Bytes{} - gib(1));
  EXPECT_EQ(account.changed(kClient, {}).resident, Bytes{});
  account.order(1, false, gib(4));
  const auto event = account.moved(kClient, {.order = 1, .in = gib(4), .done = true});
  ASSERT_TRUE(event);
  EXPECT_EQ(event->resident, gib(3));
}

TEST(MemoryAccount, WhatIsAwaitedCountsAndIsThereWhenItIsGiven) {
  MemoryAccount account;
  account.grow(gib(4), {}, true, true);
  account.await(gib(2));
  EXPECT_EQ(account.counted(), gib(6));
  EXPECT_EQ(account.counted_resident(), gib(4));
  EXPECT_FALSE(account.free(gib(5), gib(5), {}));
  MemoryAccount refused = account;
  EXPECT_EQ(account.give_awaited(), gib(2));
  EXPECT_EQ(account.counted_pinned(), gib(2));
  EXPECT_EQ(account.counted_resident(), gib(6));
  EXPECT_EQ(refused.withdraw_awaited(), gib(2));
  EXPECT_EQ(refused.counted(), gib(4));
}

TEST(MemoryAccount, CreditAndWhatItIsSpentOnAreOneSum) {
  MemoryAccount account;
  account.grow(mib(10), {}, true, true);
  account.credit(true) = {true, mib(64)};
  EXPECT_EQ(account.allocated() + account.credit_left(), mib(74));
  const Bytes taken = account.look_at_credit(true, mib(60));
  EXPECT_EQ(taken, mib(4));
  account.grow(taken, {}, true, true);
  EXPECT_EQ(account.allocated() + account.credit_left(), mib(74));
  EXPECT_EQ(account.look_at_credit(true, mib(74)), Bytes{} - mib(14));
  EXPECT_EQ(account.allocated(), Bytes{});
  EXPECT_EQ(account.look_at_credit(true, gib(10)), Bytes{}) << "nobody frees more than it has";
}

}  // namespace
}  // namespace nvshare::core
