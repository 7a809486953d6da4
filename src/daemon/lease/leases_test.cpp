#include "daemon/lease/leases.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <utility>
#include <vector>

#include "daemon/lease/testing.h"

namespace nvshare::daemon {
namespace {

TEST(Leases, EndWithTheProcessThatOwnsThem) {
  LeaseWorld w;
  const std::string first = w.lease("ASR");
  const std::string second = w.lease("NMT");
  const std::string kept = w.lease("ASR", R"(,"ownerPid":null)");
  w.leases.look();
  EXPECT_EQ(w.get("/v1/leases")["leases"].size(), 3u);
  w.picture.gone(kOwner);
  w.leases.look();
  ASSERT_EQ(w.get("/v1/leases")["leases"].size(), 1u);
  EXPECT_EQ(w.get("/v1/leases")["leases"][0]["leaseId"], kept);
  EXPECT_EQ(LeaseWorld::of(w.call("GET", "/v1/leases/" + first))["reason"], "OWNER_GONE");
  EXPECT_EQ(w.call("DELETE", "/v1/leases/" + second).status, 410);
}

// The number alone may be another process's by now.
TEST(Leases, AProcessWithTheSameNumberIsNotTheOwner) {
  LeaseWorld w;
  w.lease("ASR");
  w.picture.process(kOwner, 1, "/", Picture::kStarted + 1);
  w.leases.look();
  EXPECT_TRUE(w.leases.empty());
}

TEST(Leases, AnOwnerThatIsGoneGetsNone) {
  LeaseWorld w;
  w.picture.gone(kOwner);
  EXPECT_EQ(w.ask("ASR").status, 400);
  EXPECT_TRUE(w.leases.empty());
  EXPECT_TRUE(w.leases.arbiter().leases().empty());
}

TEST(Leases, WhatAnOwnerWaitsForGoesWithIt) {
  LeaseWorld w;
  w.settings.arbiter.slots = 1;
  w.leases.set_config(w.settings.arbiter);
  const std::string held = w.lease("ASR", R"(,"ownerPid":null)");
  EXPECT_EQ(w.ask("ASR").status, 0);
  w.picture.gone(kOwner);
  w.leases.look();
  EXPECT_EQ(w.leases.arbiter().leases().size(), 1u) << "only the held one";
}

TEST(Leases, OnlyTheNewestOfTheLostOnesAreRemembered) {
  LeaseWorld w;
  const std::string first = w.lease("ASR", R"(,"holdMaxMs":1)");
  w.pass(1ms);
  EXPECT_EQ(w.call("GET", "/v1/leases/" + first).status, 410);
  for (std::size_t i = 0; i < Leases::kMostPast; ++i) {
    w.lease("ASR", R"(,"holdMaxMs":1)");
    w.pass(1ms);
  }
  EXPECT_EQ(w.call("GET", "/v1/leases/" + first).status, 404);
}

// What another scheduler of the same machine knows afterwards.
struct Restarted : LeaseWorld {
  explicit Restarted(const LeaseWorld& before, const std::function<void(LeaseWorld&)>& then = {}) {
    broker.now = before.broker.now;
    if (then) then(*this);
    const auto uuid = [](GpuId) { return kTestGpu; };
    for (const KeptLease& lease : before.leases.kept(uuid)) {
      kept.push_back(lease);
      results.push_back(static_cast<bool>(leases.restore(lease, GpuId{0})));
    }
  }
  std::vector<KeptLease> kept;
  std::vector<bool> results;
};

TEST(Leases, OutlastARestartWithinTheirDeadline) {
  LeaseWorld w;
  const std::string owned = w.lease("ASR", R"(,"holdMaxMs":9000,"trace":"call 7")");
  w.pass(1s);
  const std::string nobodys = w.lease("NMT", R"(,"ownerPid":null)");
  Restarted next(w);
  ASSERT_EQ(next.results, (std::vector<bool>{true, true}));
  const auto shown = next.get("/v1/leases/" + owned);
  EXPECT_EQ(shown["expiresAt"], "2023-11-14T22:13:29.123Z");
  EXPECT_EQ(shown["trace"], "call 7");
  EXPECT_EQ(next.get("/v1/status")["gpus"][0]["active_leases"], 2);
  EXPECT_FALSE(next.leases.restore(next.kept[0], GpuId{0})) << "it is there already";
  const auto renewed = next.call("POST", "/v1/leases/" + owned + "/renew");
  EXPECT_EQ(LeaseWorld::of(renewed)["expiresAt"], "2023-11-14T22:13:30.123Z") << "as at first";
  next.picture.gone(kOwner);
  next.leases.look();
  EXPECT_EQ(next.call("GET", "/v1/leases/" + owned).status, 410) << "the owner is watched again";
  EXPECT_EQ(next.call("DELETE", "/v1/leases/" + nobodys).status, 204);
}

TEST(Leases, OfAnOwnerThatEndedMeanwhileAreGone) {
  LeaseWorld w;
  const std::string name = w.lease("ASR");
  const auto other_process = [](LeaseWorld& world) {
    world.picture.process(kOwner, 1, "/", Picture::kStarted + 1);
  };
  Restarted next(w, other_process);
  EXPECT_EQ(next.results, std::vector<bool>{false});
  EXPECT_EQ(LeaseWorld::of(next.call("GET", "/v1/leases/" + name))["reason"], "OWNER_GONE");
  EXPECT_TRUE(next.leases.empty());
}

TEST(Leases, ThatAreOverdueByThenAreGone) {
  LeaseWorld w;
  const std::string name = w.lease("ASR", R"(,"holdMaxMs":1000)");
  Restarted next(w, [](LeaseWorld& world) { world.broker.now += 1s; });
  EXPECT_EQ(next.results, std::vector<bool>{false});
  EXPECT_EQ(LeaseWorld::of(next.call("GET", "/v1/leases/" + name))["reason"], "OVERDUE");
}

TEST(Leases, OfAClassThatIsGoneAreDropped) {
  LeaseWorld w;
  w.lease("NMT");
  Restarted next(w, [](LeaseWorld& world) {
    world.settings.arbiter.classes.erase(world.settings.arbiter.classes.begin() + 1);
    world.leases.set_config(world.settings.arbiter);
  });
  EXPECT_EQ(next.results, std::vector<bool>{false});
  EXPECT_TRUE(next.leases.empty());
}

TEST(Leases, EveryChangeOfAnActiveOneIsTold) {
  LeaseWorld w;
  int told = 0;
  w.leases.on_change([&] { ++told; });
  const auto told_again = [&] { return std::exchange(told, 0) > 0; };
  const std::string name = w.lease("ASR", R"(,"holdMaxMs":1000)");
  EXPECT_TRUE(told_again());
  w.call("POST", "/v1/leases/" + name + "/renew");
  EXPECT_TRUE(told_again());
  w.pass(1s);
  EXPECT_TRUE(told_again()) << "it is overdue";
  const std::string second = w.lease("ASR");
  told = 0;
  w.call("DELETE", "/v1/leases/" + second);
  EXPECT_TRUE(told_again());
}

// A process of this machine, through its descriptor.
TEST(OwnerWatch, TellsOfTheEndAtOnce) {
  auto reactor = Reactor::make();
  ASSERT_TRUE(reactor);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const Processes processes;
  int ended = 0;
  OwnerWatch watch(*reactor, processes, [&](int pid) {
    ended = pid;
    reactor->stop();
  });
  EXPECT_TRUE(watch.add(child));
  EXPECT_TRUE(watch.add(child));
  watch.remove(child);  // one lease is left
  kill(child, SIGKILL);
  const Time start = reactor->now();
  reactor->run([&]() -> std::optional<Time> {
    if (reactor->now() - start > 5s) reactor->stop();
    return reactor->now() + 100ms;
  });
  EXPECT_EQ(ended, child);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(watch.add(child)) << "it is gone";
}

// Of five requests of a process four get leases. It ends, and the fifth is not granted on the way.
TEST(Leases, AnOwnerThatEndsTakesItsWaitingRequestsAlong) {
  LeaseWorld w;
  for (int i = 0; i < 4; ++i) w.lease("ASR");
  EXPECT_EQ(w.ask("ASR").status, 0);
  w.picture.process(kOwner, 1, "/", Picture::kStarted + 1);  // another process has its number
  w.leases.look();
  EXPECT_TRUE(w.leases.empty());
  EXPECT_EQ(w.replies.size(), 1u) << "the one that waited is told";
}

// Another user's leases do not make room for themselves in what is known of this one's.
TEST(Leases, ALateLeaseIsKnownHoweverManyOthersHaveEnded) {
  LeaseWorld w;
  const std::string late = w.lease("ASR", R"(,"holdMaxMs":1)");
  w.pass(1ms);
  w.peer = HttpPeer{kOtherOwner, 1001};
  for (std::size_t i = 0; i < Leases::kMostPast; ++i) {
    w.lease("ASR", R"(,"holdMaxMs":1)");
    w.pass(1ms);
  }
  w.peer = HttpPeer{kOwner, 1000};
  EXPECT_EQ(w.call("DELETE", "/v1/leases/" + late).status, 410);
  EXPECT_EQ(w.leases.overdue().size(), 1u) << "the other one's";
}

}  // namespace
}  // namespace nvshare::daemon
