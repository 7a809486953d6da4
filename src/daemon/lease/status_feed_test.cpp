#include "daemon/lease/status_feed.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace nvshare::daemon {
namespace {

using namespace std::chrono_literals;

constexpr HttpCall kFirst{1};
constexpr HttpCall kSecond{2};
constexpr StatusFeed::User kUser{1000};

// A feed in virtual time. The status is a number, and the body has the time, too.
struct Feed {
  Feed() : feed([this] { return text(); }) {
    feed.set_send(
        [this](HttpCall call, const std::string& event) { heard[call].push_back(event); });
  }

  StatusText text() {
    ++looks;
    return {fmt::format("{} at {}\n", value, now.time_since_epoch().count()),
            std::to_string(value)};
  }
  static std::string event(int value, Time at) {
    return fmt::format("event: status\ndata: {} at {}\n\n", value, at.time_since_epoch().count());
  }
  // Turns until `until`: those that the feed asks for.
  void pass(Duration duration) {
    const Time until = now + duration;
    int turns = 0;
    while (true) {
      const auto next = feed.end_of_turn(now);
      ASSERT_LT(++turns, 1000) << "it asks for turns for ever";
      if (!next || *next > until) break;
      now = *next;
    }
    now = until;
  }
  void change() {
    ++value;
    pass(0s);
  }

  Time now{100s};
  int value = 0;
  int looks = 0;
  StatusFeed feed;
  std::map<HttpCall, std::vector<std::string>> heard;
};

TEST(StatusFeed, AStreamBeginsWithTheStatus) {
  Feed f;
  EXPECT_EQ(f.feed.open(kFirst, kUser, f.now), Feed::event(0, f.now));
  f.pass(1s);
  EXPECT_TRUE(f.heard[kFirst].empty()) << "nothing has changed";
}

TEST(StatusFeed, AChangeIsToldInTheTurnInWhichItIs) {
  Feed f;
  f.feed.open(kFirst, kUser, f.now);
  f.pass(1s);
  f.change();
  ASSERT_EQ(f.heard[kFirst].size(), 1u);
  EXPECT_EQ(f.heard[kFirst][0], Feed::event(1, f.now));
}

TEST(StatusFeed, ATimeThatPassesIsNoChange) {
  Feed f;
  f.feed.open(kFirst, kUser, f.now);
  for (int i = 0; i < 40; ++i) f.pass(100ms);
  EXPECT_TRUE(f.heard[kFirst].empty());
}

TEST(StatusFeed, ChangesInShortOrderAreToldTogether) {
  Feed f;
  f.feed.open(kFirst, kUser, f.now);
  f.pass(1s);
  for (int i = 0; i < 1000; ++i) {
    f.change();
    f.pass(1ms);
  }
  f.pass(1s);
  EXPECT_EQ(f.heard[kFirst].size(), 11u) << "one at once, then ten a second";
  EXPECT_TRUE(f.heard[kFirst].back().starts_with("event: status\ndata: 1000 at "))
      << "the last change is told";
}

TEST(StatusFeed, AHeartbeatComesWithoutAChange) {
  Feed f;
  const Time begin = f.now;
  f.feed.open(kFirst, kUser, f.now);
  f.pass(StatusFeed::kHeartbeat - 1ms);
  EXPECT_TRUE(f.heard[kFirst].empty());
  f.pass(1ms);
  ASSERT_EQ(f.heard[kFirst].size(), 1u);
  EXPECT_EQ(f.heard[kFirst][0], Feed::event(0, begin + StatusFeed::kHeartbeat));
  f.pass(1s);
  f.change();  // counts as a heartbeat
  f.pass(StatusFeed::kHeartbeat - 1ms);
  EXPECT_EQ(f.heard[kFirst].size(), 2u);
  f.pass(1ms);
  EXPECT_EQ(f.heard[kFirst].size(), 3u);
}

TEST(StatusFeed, AnIdleFeedIsWokenForHeartbeatsAlone) {
  Feed f;
  f.feed.open(kFirst, kUser, f.now);
  f.pass(0s);
  const int before = f.looks;
  f.pass(60s);
  EXPECT_LE(f.looks - before, 24) << "a heartbeat, and one look after it";
}

TEST(StatusFeed, NobodyLooksWithoutListeners) {
  Feed f;
  f.change();
  EXPECT_EQ(f.feed.end_of_turn(f.now), std::nullopt);
  EXPECT_EQ(f.looks, 0);
  f.feed.open(kFirst, kUser, f.now);
  f.pass(1s);
  f.feed.close(kFirst);
  f.feed.close(kSecond);
  const int before = f.looks;
  f.change();
  f.pass(60s);
  EXPECT_EQ(f.looks, before);
}

TEST(StatusFeed, AllStreamsHearTheSame) {
  Feed f;
  f.feed.open(kFirst, kUser, f.now);
  f.pass(3s);
  f.feed.open(kSecond, {}, f.now);
  f.change();
  f.pass(1s);
  EXPECT_EQ(f.heard[kFirst], f.heard[kSecond]);
  f.feed.close(kFirst);
  f.change();
  EXPECT_EQ(f.heard[kFirst].size(), 1u);
  EXPECT_EQ(f.heard[kSecond].size(), 2u);
}

TEST(StatusFeed, AnotherListenerHearsOfChangesAlone) {
  Feed f;
  int changes = 0;
  f.feed.on_change([&] { ++changes; });
  f.pass(1s);
  EXPECT_EQ(changes, 1) << "it knows nothing yet";
  f.pass(60s);
  EXPECT_EQ(changes, 1);
  f.change();
  EXPECT_EQ(changes, 2);
  // A stream that begins hides no change from it.
  f.pass(1s);
  ++f.value;
  f.feed.open(kFirst, kUser, f.now);
  f.pass(1s);
  EXPECT_EQ(changes, 3);
  f.feed.close(kFirst);
  f.feed.on_change({});
  f.change();
  EXPECT_EQ(changes, 3);
}

TEST(StatusFeed, StreamsHaveABoundAndAUserHasHalfOfIt) {
  constexpr std::size_t kHalf = StatusFeed::kMostStreams / 2;
  constexpr std::size_t kForAdmins = StatusFeed::kMostStreams / 16;
  Feed f;
  HttpCall call{0};
  const auto open = [&](const StatusFeed::User& user) {
    ++call.value;
    return f.feed.open(call, user, f.now).has_value();
  };
  for (std::size_t i = 0; i < kHalf; ++i) EXPECT_TRUE(open({}));
  EXPECT_FALSE(open({})) << "all of TCP is one user";
  for (std::size_t i = 0; i < kHalf - kForAdmins; ++i) EXPECT_TRUE(open(kUser));
  EXPECT_FALSE(open(kUser));
  EXPECT_FALSE(open({1001}));
  for (std::size_t i = 0; i < kForAdmins; ++i) EXPECT_TRUE(open({0, true}));
  EXPECT_FALSE(open({0, true})) << "all are taken";
  EXPECT_EQ(f.feed.streams(), StatusFeed::kMostStreams);
  f.feed.close(HttpCall{1});
  EXPECT_FALSE(open({1001}));
  EXPECT_TRUE(open({0, true}));
}

}  // namespace
}  // namespace nvshare::daemon
