#include "softgpu/engine/schedule.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <vector>

namespace nvshare::softgpu {
namespace {

constexpr Nanos kMs = 1'000'000;
constexpr Nanos kUs = 1'000;

// A card in private memory, driven by hand: no clock, no lock, no process.
class Schedule : public ::testing::Test {
 protected:
  Schedule()
      : card(*static_cast<Card*>(mmap(nullptr, sizeof(Card), PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    start_anew();
  }
  ~Schedule() override { munmap(&card, sizeof(Card)); }

  // Zero, as the kernel gives it, and two devices.
  void start_anew() {
    madvise(&card, sizeof(Card), MADV_DONTNEED);
    card.device_count = 2;
    for (Device& device : card.devices) {
      device.config.memory = std::uint64_t{1} << 30;
      device.config.link = 50;
      device.config.slice = 2 * kMs;
      device.config.switch_cost = 50 * kUs;
      device.turn.owner = -1;
    }
  }

  void join(int slot) { card.occupied |= bit(slot); }

  std::uint64_t kernel(int slot, int lane, Nanos duration, double width = 1,
                       std::vector<LanePoint> deps = {}) {
    return submit(card, slot, lane,
                  {Work::kCompute, 0, static_cast<double>(duration), width, deps});
  }
  std::uint64_t copy(int slot, int lane, Work work, double bytes, double cap = 50) {
    return submit(card, slot, lane, {work, 0, bytes, cap, {}});
  }
  Nanos finished(int slot, int lane, std::uint64_t seq) {
    EXPECT_GE(card.processes[slot].lanes[lane].completed, seq);
    return card.processes[slot].lanes[lane].at(seq).finished_at;
  }
  bool done(int slot, int lane, std::uint64_t seq) {
    return card.processes[slot].lanes[lane].completed >= seq;
  }

  Card& card;
};

TEST_F(Schedule, ALoneProcessRunsAtFullSpeed) {
  join(0);
  std::uint64_t last = 0;
  for (int i = 0; i < 1000; ++i) last = kernel(0, 0, kMs);
  EXPECT_EQ(earliest_completion(card, 0, 0, last), 1000 * kMs);
  advance(card, 999 * kMs);
  EXPECT_FALSE(done(0, 0, last));
  advance(card, 5000 * kMs);
  EXPECT_EQ(finished(0, 0, last), 1000 * kMs);
  EXPECT_EQ(card.processes[0].usage[0].compute_busy, 1000 * kMs);
}

TEST_F(Schedule, BusyProcessesGetEqualShares) {
  for (int count : {2, 3, 8}) {
    start_anew();
    for (int slot = 0; slot < count; ++slot) {
      join(slot);
      for (int i = 0; i < 1000; ++i) kernel(slot, 0, 300 * kUs + slot * 70 * kUs);
    }
    const Nanos end = 400 * kMs;
    advance(card, end);
    const double expected = 400.0 * kMs * 2000 / 2050 / count;
    for (int slot = 0; slot < count; ++slot) {
      EXPECT_NEAR(static_cast<double>(card.processes[slot].usage[0].compute_busy), expected,
                  2.1 * kMs)
          << count;
    }
  }
}

TEST_F(Schedule, TheResultDoesNotDependOnWhoLooksWhen) {
  auto play = [&](Nanos step) {
    start_anew();
    join(3);
    join(9);
    std::vector<Nanos> times;
    for (int i = 0; i < 100; ++i) {
      kernel(3, 0, 130 * kUs);
      kernel(9, 1, 710 * kUs);
      copy(9, 2, Work::kCopyIn, 1e6);
      copy(3, 2, Work::kCopyIn, 3e6, 10);
    }
    for (Nanos now = step; now <= 200 * kMs; now += step) advance(card, now);
    advance(card, 200 * kMs);
    for (std::uint64_t seq = 1; seq <= 100; ++seq) {
      times.push_back(finished(3, 0, seq));
      times.push_back(finished(9, 1, seq));
    }
    return times;
  };
  EXPECT_EQ(play(200 * kMs), play(37 * kUs));
}

TEST_F(Schedule, AnIdleProcessGivesItsTurnBack) {
  join(0);
  join(1);
  kernel(0, 0, kMs);
  const auto other = kernel(1, 0, 4 * kMs);
  advance(card, 10 * kMs);
  EXPECT_EQ(finished(1, 0, other), kMs + 50 * kUs + 4 * kMs);
}

TEST_F(Schedule, KernelsOfOneProcessOverlapWhileTheyFit) {
  join(0);
  const auto a = kernel(0, 0, 4 * kMs, 0.5);
  const auto b = kernel(0, 1, 3 * kMs, 0.5);
  const auto c = kernel(0, 2, 1 * kMs, 0.5);
  advance(card, 20 * kMs);
  EXPECT_EQ(finished(0, 0, a), 4 * kMs);
  EXPECT_EQ(finished(0, 1, b), 3 * kMs);
  EXPECT_EQ(finished(0, 2, c), 4 * kMs);
}

TEST_F(Schedule, CopiesShareTheLinkPerDirectionAndOverlapKernels) {
  join(0);
  join(1);
  const auto in0 = copy(0, 0, Work::kCopyIn, 50e6);
  const auto in1 = copy(1, 0, Work::kCopyIn, 50e6);
  const auto out = copy(0, 1, Work::kCopyOut, 50e6);
  const auto slow = copy(1, 1, Work::kCopyOut, 10e6, 10);
  const auto run = kernel(0, 2, 2 * kMs);
  advance(card, 20 * kMs);
  EXPECT_EQ(finished(0, 0, in0), 2 * kMs);
  EXPECT_EQ(finished(1, 0, in1), 2 * kMs);
  EXPECT_NEAR(static_cast<double>(finished(0, 1, out)), 1.2 * kMs, 2);
  EXPECT_EQ(finished(1, 1, slow), 1 * kMs);
  EXPECT_EQ(finished(0, 2, run), 2 * kMs);
}

TEST_F(Schedule, ItemsWaitForOtherLanes) {
  join(0);
  const auto first = kernel(0, 0, 2 * kMs);
  const auto marker = submit(card, 0, 1, {Work::kMarker, 0, 0, 0, {}});
  const std::vector<LanePoint> deps{LanePoint::of(0, first), LanePoint::of(1, marker)};
  const auto second = kernel(0, 2, kMs, 0.1, deps);
  EXPECT_TRUE(done(0, 1, marker));
  EXPECT_EQ(earliest_completion(card, 0, 2, second), 3 * kMs);
  advance(card, 10 * kMs);
  EXPECT_EQ(finished(0, 2, second), 3 * kMs);
}

TEST_F(Schedule, HostItemsHoldTheirLaneAlone) {
  join(0);
  const auto host = submit(card, 0, 0, {Work::kHost, 0, 0, 0, {}});
  const auto behind = kernel(0, 0, kMs);
  const auto beside = kernel(0, 1, kMs);
  advance(card, 5 * kMs);
  EXPECT_TRUE(host_ready(card, 0, 0));
  EXPECT_FALSE(done(0, 0, host));
  EXPECT_TRUE(done(0, 1, beside));
  EXPECT_EQ(earliest_completion(card, 0, 0, behind), kNever);
  complete_host(card, 0, 0);
  advance(card, 9 * kMs);
  EXPECT_EQ(finished(0, 0, host), 5 * kMs);
  EXPECT_EQ(finished(0, 0, behind), 6 * kMs);
}

TEST_F(Schedule, WorkWithoutEndKeepsNobodyElseFromTheirSlices) {
  join(0);
  join(1);
  const auto endless = submit(card, 0, 0, {Work::kCompute, 0, HUGE_VAL, 1, {}});
  const auto other = kernel(1, 0, 10 * kMs);
  EXPECT_EQ(earliest_completion(card, 0, 0, endless), kNever);
  advance(card, 1000 * kMs);
  EXPECT_FALSE(done(0, 0, endless));
  EXPECT_EQ(finished(1, 0, other), 5 * (2 * kMs + 50 * kUs) + 5 * 2 * kMs + 4 * 50 * kUs);
  clear_process(card, 0);
  const auto alone = kernel(1, 0, kMs);
  advance(card, 1002 * kMs);
  EXPECT_EQ(finished(1, 0, alone), 1001 * kMs + 50 * kUs);
}

TEST_F(Schedule, ThePredictionIsNeverTooLate) {
  for (int slot = 0; slot < 3; ++slot) join(slot);
  for (int i = 0; i < 50; ++i) {
    kernel(0, 0, 700 * kUs);
    kernel(1, 0, 90 * kUs);
  }
  const auto mine = kernel(2, 0, 300 * kUs);
  Nanos now = 0;
  int looks = 0;
  while (!done(2, 0, mine)) {
    const Nanos next = earliest_completion(card, 2, 0, mine);
    ASSERT_GT(next, now);
    now = next;
    advance(card, now);
    ++looks;
  }
  EXPECT_EQ(finished(2, 0, mine), now);
  EXPECT_LE(looks, 3);
}

TEST_F(Schedule, ARepairedCardGoesOnWhereItWas) {
  join(0);
  join(1);
  for (int i = 0; i < 10; ++i) {
    kernel(0, 0, kMs);
    kernel(1, 0, kMs);
  }
  advance(card, 3 * kMs);
  // As a process killed in the middle of finish() leaves it: state written, counter not.
  card.processes[1].usage[0] = Usage{};
  card.processes[0].pending = 0;
  repair(card);
  advance(card, 100 * kMs);
  EXPECT_TRUE(done(0, 0, 10));
  EXPECT_TRUE(done(1, 0, 10));
}

TEST_F(Schedule, ADeviceThatFellOffCompletesNothing) {
  join(0);
  const auto seq = kernel(0, 0, kMs);
  card.devices[0].lost = 1;
  advance(card, 10 * kMs);
  EXPECT_FALSE(done(0, 0, seq));
  EXPECT_EQ(earliest_completion(card, 0, 0, seq), kNever);
}

TEST_F(Schedule, AnAbortedLaneIsDoneAtOnce) {
  join(0);
  submit(card, 0, 0, {Work::kCompute, 0, HUGE_VAL, 1, {}});
  submit(card, 0, 0, {Work::kHost, 0, 0, 0, {}});
  const auto last = kernel(0, 0, kMs);
  const auto other = kernel(0, 1, kMs);
  advance(card, 5 * kMs);
  abort_lane(card, 0, 0);
  EXPECT_EQ(finished(0, 0, last), 5 * kMs);
  advance(card, 7 * kMs);
  EXPECT_EQ(finished(0, 1, other), 6 * kMs);
}

TEST_F(Schedule, BusyHistoryTellsHowMuchOfAPeriodWasUsed) {
  join(0);
  card.clock = 1000 * kMs;
  for (int i = 0; i < 10; ++i) {
    kernel(0, 0, 10 * kMs);
    advance(card, card.clock + 20 * kMs);
  }
  EXPECT_EQ(busy_between(card, 0, 0, 1000 * kMs, 1200 * kMs, false), 100 * kMs);
  EXPECT_EQ(busy_between(card, -1, 0, 1100 * kMs, 1200 * kMs, false), 50 * kMs);
  EXPECT_EQ(busy_between(card, 0, 1, 1000 * kMs, 1200 * kMs, false), 0);
}

}  // namespace
}  // namespace nvshare::softgpu
