#include "daemon/declared.h"

#include <gtest/gtest.h>

namespace nvshare::daemon {
namespace {

const TenantName kAlice{TenantKind::User, "user-1000", 1000};
const TenantName kBox{TenantKind::Container, "container-3f2a", 0};
const TenantName kRun{TenantKind::Run, "train", 1000};

LimitTables tables() {
  LimitTables all;
  all.users[1000] = {"alice", {40, {}, {}}};
  all.groups[7] = {"students", {20, gib(4), {}}};
  all.groups[8] = {"guests", {30, gib(2), -1}};
  all.named["container-3f2a"] = {"3f2a", {{}, gib(1), {}}};
  return all;
}

Declared declared() {
  return {tables(), [](std::uint32_t uid) -> Declared::Groups {
            if (uid == 1000) return {{7}};
            if (uid == 1001) return {{7, 8, 9}};
            return {{9}};
          }};
}

core::Limits defaults() {
  return {90, gib(16), 0};
}

using Limits = core::Limits;
using From = LimitSources;

TEST(Declared, WithoutAWordTheDefaultsHold) {
  const TenantName nobody{TenantKind::User, "user-5", 5};
  EXPECT_EQ(declared().limits_of(nobody, defaults()), (DeclaredLimits{defaults(), From{}}));
}

TEST(Declared, EachLimitIsTheHighestSourcesThatSaysIt) {
  Declared all = declared();
  EXPECT_EQ(
      all.limits_of(kAlice, defaults()),
      (DeclaredLimits{Limits{40, gib(4), 0}, From{Source::File, Source::Group, Source::Default}}));
  all.declare(kAlice, Source::Annotation, {50, gib(6), 1}, 0);
  EXPECT_EQ(all.limits_of(kAlice, defaults()),
            (DeclaredLimits{Limits{50, gib(6), 1},
                            From{Source::Annotation, Source::Annotation, Source::Annotation}}));
  all.declare(kAlice, Source::Limit, {{}, gib(8), {}}, 0);
  EXPECT_EQ(all.limits_of(kAlice, defaults()),
            (DeclaredLimits{Limits{50, gib(8), 1},
                            From{Source::Annotation, Source::Limit, Source::Annotation}}));
}

TEST(Declared, WhenASourceGoesTheNextHolds) {
  Declared all = declared();
  all.declare(kAlice, Source::Limit, {10, {}, 5}, 0);
  EXPECT_EQ(all.limits_of(kAlice, defaults()).limits, (Limits{10, gib(4), 5}));
  EXPECT_TRUE(all.limited_live(kAlice));
  EXPECT_TRUE(all.withdraw(kAlice, Source::Limit));
  EXPECT_FALSE(all.withdraw(kAlice, Source::Limit));
  EXPECT_FALSE(all.limited_live(kAlice));
  EXPECT_EQ(all.limits_of(kAlice, defaults()).limits, (Limits{40, gib(4), 0}));
  // The file without the tables of groups.
  LimitTables fewer = tables();
  fewer.groups.clear();
  EXPECT_EQ(Declared(fewer, {}).limits_of(kAlice, defaults()).limits, (Limits{40, gib(16), 0}));
}

TEST(Declared, OfSeveralGroupsTheTightestLimitHolds) {
  const TenantName bob{TenantKind::User, "user-1001", 1001};
  EXPECT_EQ(
      declared().limits_of(bob, defaults()),
      (DeclaredLimits{Limits{20, gib(2), -1}, From{Source::Group, Source::Group, Source::Group}}));
}

TEST(Declared, NoMemoryLimitIsLooserThanAny) {
  LimitTables all = tables();
  all.groups[7].limits.memory = Bytes{0};
  const auto both = [](std::uint32_t) { return std::vector<std::uint32_t>{7, 8}; };
  const auto reversed = [](std::uint32_t) { return std::vector<std::uint32_t>{8, 7}; };
  EXPECT_EQ(Declared(all, both).limits_of(kAlice, defaults()).limits.memory, gib(2));
  EXPECT_EQ(Declared(all, reversed).limits_of(kAlice, defaults()).limits.memory, gib(2));
  all.users[1000].limits.memory = Bytes{0};
  EXPECT_EQ(Declared(all, both).limits_of(kAlice, defaults()).limits.memory, std::nullopt);
}

TEST(Declared, GroupsAreOnlyAskedForWhereATableNamesOne) {
  LimitTables none = tables();
  none.groups.clear();
  bool asked = false;
  const Declared all(none, [&](std::uint32_t) {
    asked = true;
    return std::vector<std::uint32_t>{};
  });
  (void)all.limits_of(kAlice, defaults());
  EXPECT_FALSE(asked);
}

TEST(Declared, ARunHasItsOwnWishAndThenLiveChanges) {
  Declared all = declared();
  const Declaration wish = declare_all({25, {}, 3});
  EXPECT_EQ(
      all.limits_of(kRun, defaults(), wish),
      (DeclaredLimits{Limits{25, std::nullopt, 3}, From{Source::Run, Source::Run, Source::Run}}));
  all.declare(kRun, Source::Limit, {60, {}, {}}, 0);
  EXPECT_EQ(
      all.limits_of(kRun, defaults(), wish),
      (DeclaredLimits{Limits{60, std::nullopt, 3}, From{Source::Limit, Source::Run, Source::Run}}));
  TenantName other = kRun;
  other.uid = 1001;
  EXPECT_EQ(all.limits_of(other, defaults(), wish).limits.core_percent, 25)
      << "another user's run of the name";
}

TEST(Declared, LiveChangesAddUp) {
  Declared all;
  all.declare(kAlice, Source::Limit, {60, {}, {}}, 0);
  all.declare(kAlice, Source::Limit, {{}, gib(3), {}}, 0);
  all.declare(kAlice, Source::Limit, {50, {}, {}}, 0);
  EXPECT_EQ(all.limits_of(kAlice, defaults()).limits, (Limits{50, gib(3), 0}));
}

TEST(Declared, AContainerThatNeverComesIsForgotten) {
  Declared all = declared();
  all.declare(kBox, Source::Annotation, {50, {}, {}}, 1000);
  EXPECT_EQ(all.limits_of(kBox, defaults()).limits, (Limits{50, gib(1), 0}));
  all.declare(kAlice, Source::Limit, {50, {}, {}}, 1000);
  EXPECT_TRUE(all.expire(1000 + Declared::kLasts - 1).empty());
  EXPECT_FALSE(all.saw(kBox, 1001)) << "is known well enough";
  EXPECT_TRUE(all.saw(kBox, 1000 + Declared::kSeenEvery));
  EXPECT_TRUE(all.expire(1000 + Declared::kLasts).empty()) << "had a process an hour later";
  const auto gone = all.expire(1000 + Declared::kSeenEvery + Declared::kLasts);
  ASSERT_EQ(gone.size(), 1u) << "users stay";
  EXPECT_EQ(gone[0].name, kBox.name);
  EXPECT_EQ(all.limits_of(kBox, defaults()).limits, (Limits{90, gib(1), 0})) << "tables stay";
}

TEST(Declared, PausesAndLimitsComeBackFromTheState) {
  Declared all;
  all.set_paused(kBox, true, 5);
  all.declare(kAlice, Source::Limit, {50, {}, {}}, 6);
  all.declare(kRun, Source::Annotation, {50, {}, {}}, 6);
  const auto live = all.live();
  EXPECT_EQ(live.size(), 2u) << "an annotation is told again";
  Declared again;
  for (const LiveTenant& one : live) again.restore(one);
  EXPECT_EQ(again.live(), live);
  EXPECT_TRUE(again.paused(kBox));
  EXPECT_FALSE(again.paused(kAlice));
  again.set_paused(kBox, false, 7);
  EXPECT_EQ(again.live().size(), 1u);
}

TEST(Declared, EverySourceHasAName) {
  EXPECT_EQ(name_of(Source::Default), "default");
  EXPECT_EQ(name_of(Source::Run), "run");
  EXPECT_EQ(name_of(Source::Variable), "variable");
  EXPECT_EQ(name_of(Source::Group), "group");
  EXPECT_EQ(name_of(Source::File), "file");
  EXPECT_EQ(name_of(Source::Annotation), "annotation");
  EXPECT_EQ(name_of(Source::Limit), "limit");
}

TEST(Declared, GroupsAreAskedForOnceForEachBeginning) {
  int asked = 0;
  Declared all(tables(), [&](std::uint32_t) -> Declared::Groups {
    ++asked;
    return {{7}};
  });
  const TenantName bob{TenantKind::User, "user-1001", 1001};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(all.limits_of(bob, defaults()).limits.core_percent, 20);
  EXPECT_EQ(asked, 1);
  all.begins(bob);
  EXPECT_EQ(all.limits_of(bob, defaults()).limits.core_percent, 20);
  EXPECT_EQ(asked, 2);
}

TEST(Declared, AnAnswerThatFailsLiftsNoLimit) {
  Declared all(tables(), [](std::uint32_t) -> Declared::Groups { return std::nullopt; });
  const TenantName bob{TenantKind::User, "user-1001", 1001};
  EXPECT_EQ(all.limits_of(bob, defaults()).limits, (Limits{20, gib(2), -1})) << "of all groups";
}

TEST(Declared, APodThatNeverComesIsForgotten) {
  Declared all;
  const TenantName pod{TenantKind::Pod, "pod-0b1d2c3a-1111-2222-3333-444455556666", 0};
  all.declare(pod, Source::Limit, {30, {}, {}}, 1000);
  EXPECT_EQ(all.all().size(), 1u);
  EXPECT_TRUE(all.expire(1000 + Declared::kLasts - 1).empty());
  EXPECT_EQ(all.expire(1000 + Declared::kLasts).size(), 1u);
  EXPECT_TRUE(all.all().empty());
}

}  // namespace
}  // namespace nvshare::daemon
