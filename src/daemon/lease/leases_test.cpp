#include "daemon/lease/leases.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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

}  // namespace
}  // namespace nvshare::daemon
