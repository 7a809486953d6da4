#include "daemon/kept.h"

#include <gtest/gtest.h>

namespace nvshare::daemon {
namespace {

const TenantName kAlice{TenantKind::User, "user-1000", 1000};
const TenantName kBox{TenantKind::Container, "container-3f2a", 0};
const TenantName kTrain{TenantKind::Run, "train", 1000};

class KeptTest : public testing::Test {
 protected:
  Kept fresh() {
    return Kept(
        log, {},
        [this](const State& state, Durable durable) -> Result<void> {
          if (full) return Error{"no space"};
          written.emplace_back(state, durable);
          return {};
        },
        [this] { return wall; });
  }
  // What a scheduler after this one knows.
  Kept restarted(const Kept& kept, std::string boot = "b") {
    Kept next = fresh();
    next.restore(kept.state(), boot, [this](const KeptRun& run) { return run.pid != dead; });
    return next;
  }
  Kept begun() {
    Kept kept = fresh();
    kept.restore({}, "b", [](const KeptRun&) { return true; });
    KeptRun run{"train", 1000, 4711, 5};
    run.limits = {25, gib(4), 0};
    kept.run_begins(run);
    return kept;
  }
  int lines(const std::string& event) const {
    int count = 0;
    for (const std::string& line : logged) count += line.find(event) != line.npos ? 1 : 0;
    return count;
  }

  std::vector<std::pair<State, Durable>> written;
  std::vector<std::string> logged;
  Log log{Level::Info, [this](std::string_view line) { logged.emplace_back(line); }};
  WallTime wall = 1'000'000;
  bool full = false;
  int dead = 0;
  core::Limits defaults{90, std::nullopt, 0};
};

TEST_F(KeptTest, TheChangesOfPeopleOutlastARestart) {
  Kept kept = fresh();
  kept.set_limits(kAlice, {40, {}, {}});
  kept.set_paused(kBox, true);
  kept.set_setting("turn", "9ms", "5ms");
  kept.set_scheduling(false);
  const Kept next = restarted(kept);
  EXPECT_EQ(next.limits_of(kAlice, defaults).limits.core_percent, 40);
  EXPECT_EQ(next.limits_of(kAlice, defaults).from.cores, Source::Limit);
  EXPECT_TRUE(next.paused(kBox));
  EXPECT_FALSE(next.scheduling());
  EXPECT_EQ(next.settings().at("turn"), "9ms");
}

TEST_F(KeptTest, ASettingThatIsAsTheFileSaysIsNotKept) {
  Kept kept = fresh();
  kept.set_setting("turn", "9ms", "5ms");
  kept.set_setting("turn", "5ms", "5ms");
  EXPECT_TRUE(kept.settings().empty());
}

TEST_F(KeptTest, ARunComesBackWithWhatItBeganWithAndLiveChanges) {
  Kept kept = begun();
  kept.set_limits(kTrain, {60, {}, {}});
  Kept next = restarted(kept);
  ASSERT_EQ(next.runs().size(), 1u);
  EXPECT_EQ(next.runs()[0], kept.runs()[0]);
  EXPECT_EQ(next.limits_of(kTrain, defaults),
            (DeclaredLimits{{60, gib(4), 0}, {Source::Limit, Source::Run, Source::Run}}));
  next.reset_limits(kTrain);
  EXPECT_EQ(next.limits_of(kTrain, defaults).limits.core_percent, 25);
}

TEST_F(KeptTest, ARunWhoseProcessIsGoneIsDroppedWithItsChanges) {
  Kept kept = begun();
  kept.set_limits(kTrain, {60, {}, {}});
  dead = 4711;
  const Kept next = restarted(kept);
  EXPECT_TRUE(next.runs().empty());
  EXPECT_TRUE(next.live().empty());
  dead = 0;
  EXPECT_TRUE(restarted(kept, "another boot").runs().empty()) << "numbers of another boot";
}

TEST_F(KeptTest, ARunThatBeginsHasNothingOfAnEarlierOne) {
  Kept kept = begun();
  kept.set_limits(kTrain, {60, {}, {}});
  kept.set_paused(kTrain, true);
  kept.forget_run(kTrain);
  kept.run_begins({"train", 1000, 4712, 6});
  EXPECT_EQ(kept.runs().size(), 1u);
  EXPECT_EQ(kept.limits_of(kTrain, defaults).from.cores, Source::Run);
  EXPECT_FALSE(kept.paused(kTrain));
}

TEST_F(KeptTest, ANewKeeperOfARunChangesNothingElse) {
  Kept kept = begun();
  const core::Limits asked = kept.runs().front().limits;
  kept.set_limits(kTrain, {60, {}, {}});
  EXPECT_EQ(kept.asked_by(kTrain), asked);
  EXPECT_FALSE(kept.asked_by({TenantKind::Run, "train", 1001}));
  kept.run_begins({"train", 1000, 4712, 6});
  EXPECT_EQ(kept.runs().size(), 1u);
  EXPECT_EQ(kept.runs().front().pid, 4712);
  EXPECT_EQ(kept.runs().front().limits, asked);
  EXPECT_EQ(kept.limits_of(kTrain, defaults).limits.core_percent, 60);
}

TEST_F(KeptTest, ARunThatIsBegunAgainHasWhatItAsksForBelowLiveChanges) {
  Kept kept = begun();
  kept.set_limits(kTrain, {60, {}, {}});
  kept.run_asks(kTrain, {.core_percent = 20, .memory = gib(2)});
  kept.run_begins({"train", 1000, 4712, 6});
  const DeclaredLimits limits = kept.limits_of(kTrain, defaults);
  EXPECT_EQ(limits.limits.core_percent, 60) << "nvshare limit goes before";
  EXPECT_EQ(limits.limits.memory, gib(2));
  EXPECT_EQ(limits.from.memory, Source::Run);
  kept.reset_limits(kTrain);
  EXPECT_EQ(kept.limits_of(kTrain, defaults).limits.core_percent, 20);
}

TEST_F(KeptTest, ChangesOfRunsThatAreGoneAreForgotten) {
  Kept kept = begun();
  kept.set_limits(kTrain, {60, {}, {}});
  kept.set_limits(kAlice, {60, {}, {}});
  const auto never = [](const TenantName&) { return false; };
  const auto always = [](const TenantName&) { return true; };
  EXPECT_TRUE(kept.look(always, always).empty());
  EXPECT_EQ(kept.live().size(), 2u);
  EXPECT_EQ(kept.runs().size(), 1u);
  EXPECT_TRUE(kept.look(never, never).empty());
  EXPECT_TRUE(kept.runs().empty());
  ASSERT_EQ(kept.live().size(), 1u);
  EXPECT_EQ(kept.live()[0].is.name, "user-1000");
}

TEST_F(KeptTest, AContainerThatStaysAwayExpires) {
  Kept kept = fresh();
  kept.set_limits(kBox, {60, {}, {}});
  const auto always = [](const TenantName&) { return true; };
  const auto never = [](const TenantName&) { return false; };
  wall += Declared::kLasts;
  EXPECT_TRUE(kept.look(always, always).empty()) << "has a process";
  wall += Declared::kLasts - 1;
  EXPECT_TRUE(kept.look(always, never).empty());
  EXPECT_EQ(restarted(kept).live().size(), 1u);
  ++wall;
  ASSERT_EQ(kept.look(always, never).size(), 1u);
  EXPECT_TRUE(kept.live().empty());
}

// A container may use no GPU for days.
TEST_F(KeptTest, AContainerThatIsThereDoesNotExpire) {
  Kept kept = fresh();
  kept.set_limits(kBox, {60, {}, {}});
  const auto always = [](const TenantName&) { return true; };
  const auto never = [](const TenantName&) { return false; };
  int asked = 0;
  std::optional<std::set<std::string>> there{{kBox.name}};
  const auto look = [&](WallTime seconds) {
    std::size_t gone = 0;
    for (const WallTime end = wall + seconds; wall < end; wall += 60) {
      gone += kept.look(always, never, [&] { return ++asked, there; }).size();
    }
    return gone;
  };
  EXPECT_EQ(look(3 * Declared::kLasts), 0u);
  EXPECT_LE(asked, 3 * Declared::kLasts / Declared::kSeenEvery) << "not at each look";
  there = std::nullopt;
  EXPECT_EQ(look(3 * Declared::kLasts), 0u) << "it cannot be told";
  there.emplace();
  EXPECT_EQ(look(Declared::kPromised), 0u) << "was there until now";
  EXPECT_EQ(look(2 * Declared::kSeenEvery), 1u);
  asked = 0;
  EXPECT_EQ(look(Declared::kLasts), 0u);
  EXPECT_EQ(asked, 0) << "there is no container with a change";
}

TEST_F(KeptTest, AContainerOutlastsALongAbsenceOfTheScheduler) {
  Kept before = fresh();
  before.set_limits(kBox, {60, {}, {}});
  const auto never = [](const TenantName&) { return false; };
  wall += 3 * Declared::kLasts;
  Kept kept = restarted(before);
  EXPECT_TRUE(kept.look(never, never).empty()) << "its programs are on their way back";
  ASSERT_EQ(kept.live().size(), 1u);
  wall += Kept::kAfterRestart - 1;
  EXPECT_TRUE(kept.look(never, never).empty());
  ++wall;
  EXPECT_EQ(kept.look(never, never).size(), 1u);
}

TEST_F(KeptTest, IsWrittenWhenItHasChangedAndNotTooOften) {
  Kept kept = begun();
  EXPECT_FALSE(kept.write_some(Time{1s}));
  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written[0].second, Durable::No);
  EXPECT_FALSE(kept.write_some(Time{1s})) << "nothing has changed";
  const auto never = [](const TenantName&) { return false; };
  (void)kept.look(never, never);
  EXPECT_EQ(kept.write_some(Time{1s + 1ms}), Time{1s + Kept::kEvery});
  EXPECT_EQ(written.size(), 1u);
  EXPECT_FALSE(kept.write_some(Time{1s + Kept::kEvery}));
  ASSERT_EQ(written.size(), 2u);
  EXPECT_TRUE(written[1].first.runs.empty());
}

TEST_F(KeptTest, ARunWithTheNameOfAnEarlierOneIsWrittenSoon) {
  Kept kept = begun();
  (void)kept.write_some(Time{1s});
  kept.forget_run(kTrain);
  kept.run_begins({"train", 1000, 4712, 6});
  EXPECT_EQ(kept.write_some(Time{1s + 1ms}), Time{1s + Kept::kSoon});
  EXPECT_FALSE(kept.write_some(Time{1s + Kept::kSoon}));
  ASSERT_EQ(written.size(), 2u);
  EXPECT_EQ(written[1].first.runs.at(0).pid, 4712);
  kept.forget_run({TenantKind::Run, "other", 1000});
  const Time later{1s + 2 * Kept::kSoon};
  EXPECT_GT(kept.write_some(later), later) << "there was none: it can wait";
}

TEST_F(KeptTest, AChangeOfAPersonIsWrittenAtOnceAndDurable) {
  Kept kept = fresh();
  kept.set_limits(kAlice, {60, {}, {}});
  EXPECT_TRUE(kept.write_now());
  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written[0].second, Durable::Yes);
  EXPECT_EQ(written[0].first, kept.state());
  EXPECT_FALSE(kept.write_some(Time{1s})) << "is written";
}

TEST_F(KeptTest, AFullDiskIsToldOnceAndTriedAgain) {
  Kept kept = fresh();
  full = true;
  kept.set_limits(kAlice, {60, {}, {}});
  EXPECT_FALSE(kept.write_now());
  EXPECT_EQ(kept.write_problem(), "no space");
  EXPECT_EQ(kept.write_some(Time{1s}), Time{2s});
  EXPECT_EQ(kept.write_some(Time{2s}), Time{3s});
  EXPECT_EQ(lines("state_not_written"), 1);
  full = false;
  EXPECT_FALSE(kept.write_some(Time{3s}));
  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written[0].second, Durable::Yes) << "the change of a person is still owed";
  EXPECT_EQ(lines("state_written_again"), 1);
  EXPECT_TRUE(kept.write_problem().empty());
}

}  // namespace
}  // namespace nvshare::daemon
