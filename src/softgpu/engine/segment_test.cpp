#include "softgpu/engine/segment.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <string>

#include "softgpu/engine/schedule.h"

namespace nvshare::softgpu {
namespace {

CardConfig one_gib() {
  CardConfig config;
  config.devices.resize(1);
  config.devices[0].memory = std::uint64_t{1} << 30;
  config.devices[0].link = 50;
  config.devices[0].slice = 2'000'000;
  config.devices[0].switch_cost = 50'000;
  return config;
}

std::string unique_name(const char* test) {
  return std::string(test) + "-" + std::to_string(getpid());
}

// Whether any trace of the card is visible on this machine.
bool visible(const std::string& name) {
  std::ifstream sockets("/proc/net/unix");
  std::string line;
  while (std::getline(sockets, line)) {
    if (line.find("/" + name + "/") != std::string::npos) return true;
  }
  return false;
}

// Runs `body` in a child that is then killed with SIGKILL; `body` leaks what is not to be let go.
template <typename Body>
void in_killed_child(Body body) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    body();
    (void)!write(ready[1], "x", 1);
    while (true) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

TEST(Segment, ProcessesMeetOnTheSameCard) {
  const std::string name = unique_name("meet");
  auto mine = Segment::join(name, one_gib());
  ASSERT_TRUE(mine) << mine.error().message;
  EXPECT_TRUE(charge_memory(**mine, 0, 600 << 20));
  const pid_t child = fork();
  if (child == 0) {
    (*mine)->abandon();
    CardConfig other = one_gib();
    other.devices[0].memory = 1;
    auto theirs = Segment::join(name, other);
    const bool good = theirs && !charge_memory(**theirs, 0, 500 << 20) &&
                      charge_memory(**theirs, 0, 424 << 20) && (*theirs)->slot() == 1;
    theirs->reset();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(memory_used((*mine)->card(), 0, -1), 600u << 20);
}

TEST(Segment, ManagedMemoryGivesWayTheLongestUnusedFirst) {
  const std::string name = unique_name("managed");
  auto mine = Segment::join(name, one_gib());
  ASSERT_TRUE(charge_managed(**mine, 0, 600 << 20));
  const pid_t child = fork();
  if (child == 0) {
    (*mine)->abandon();
    auto theirs = Segment::join(name, one_gib());
    const bool good =
        theirs && charge_managed(**theirs, 0, 500 << 20) &&
        managed_here(**theirs, 0) == 500 << 20 && charge_memory(**theirs, 0, 600 << 20) &&
        managed_here(**theirs, 0) == 424 << 20 && !charge_memory(**theirs, 0, 500 << 20) &&
        !charge_managed(**theirs, 0, 1 << 30);
    theirs->reset();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(managed_here(**mine, 0), 0u) << "pushed out by the other process";
  EXPECT_EQ(memory_used((*mine)->card(), 0, -1), 0u);
}

TEST(Segment, KillingTheLastProcessLeavesNothing) {
  const std::string name = unique_name("last");
  in_killed_child([&] {
    auto segment = Segment::join(name, one_gib());
    charge_memory(**segment, 0, 1 << 30);
    segment->release();
  });
  EXPECT_FALSE(visible(name));
  EXPECT_FALSE(Segment::look(name));
  auto fresh = Segment::join(name, one_gib());
  ASSERT_TRUE(fresh);
  EXPECT_TRUE(visible(name));
  EXPECT_EQ(memory_used((*fresh)->card(), 0, -1), 0u);
}

TEST(Segment, AKilledProcessIsReapedWhenItsMemoryIsWanted) {
  const std::string name = unique_name("reap");
  auto mine = Segment::join(name, one_gib());
  in_killed_child([&] {
    (*mine)->abandon();
    auto segment = Segment::join(name, one_gib());
    charge_memory(**segment, 0, 1 << 30);
    segment->release();
  });
  EXPECT_TRUE(charge_memory(**mine, 0, 1 << 30));
  EXPECT_EQ((*mine)->card().reaped, 1u);
}

TEST(Segment, TheFirstOneMayBeKilledAndTheOthersGoOn) {
  const std::string name = unique_name("first");
  std::unique_ptr<Segment> mine;
  in_killed_child([&] {
    auto segment = Segment::join(name, one_gib());
    charge_memory(**segment, 0, 4096);
    // The second one joins while the first lives, and outlives it.
    const pid_t second = fork();
    if (second == 0) {
      (*segment)->abandon();
      auto joined = Segment::join(name, one_gib());
      sleep(1);
      _exit(0);
    }
    usleep(300'000);
    segment->release();
  });
  auto third = Segment::join(name, one_gib());
  ASSERT_TRUE(third);
  EXPECT_EQ(memory_used((*third)->card(), 0, -1), 0u);
  EXPECT_EQ((*third)->slot(), 0);
}

TEST(Segment, AProcessKilledWhileItHoldsTheLockBlocksNobody) {
  const std::string name = unique_name("lock");
  auto mine = Segment::join(name, one_gib());
  in_killed_child([&] {
    (*mine)->abandon();
    auto segment = Segment::join(name, one_gib());
    auto* held = new Segment::Lock(**segment);
    (*segment)->self().usage[0].memory = 12345;
    (void)held;
    segment->release();
  });
  Segment::Lock lock(**mine);
  EXPECT_EQ(memory_used((*mine)->card(), 0, -1), 0u);
}

TEST(Segment, SharedAllocationsAreChargedOnceAndOutliveTheirMaker) {
  const std::string name = unique_name("shared");
  auto mine = Segment::join(name, one_gib());
  in_killed_child([&] {
    (*mine)->abandon();
    auto segment = Segment::join(name, one_gib());
    hold_shared(**segment, 0, 77, 100 << 20);
    segment->release();
  });
  EXPECT_TRUE(hold_shared(**mine, 0, 77, 100 << 20));
  {
    Segment::Lock lock(**mine);
    (*mine)->reap();
  }
  EXPECT_EQ(memory_used((*mine)->card(), 0, -1), 100u << 20);
  EXPECT_EQ(memory_used((*mine)->card(), 0, (*mine)->slot()), 100u << 20);
  drop_shared(**mine, 77);
  EXPECT_EQ(memory_used((*mine)->card(), 0, -1), 0u);
}

TEST(Segment, RefusesNamesThatAreNotNames) {
  EXPECT_FALSE(Segment::join("", one_gib()));
  EXPECT_FALSE(Segment::join("a/b", one_gib()));
  EXPECT_FALSE(Segment::join(std::string(41, 'x'), one_gib()));
}

}  // namespace
}  // namespace nvshare::softgpu
