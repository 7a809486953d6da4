#include "softgpu/nvml/view.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "softgpu/engine/schedule.h"

namespace nvshare::softgpu {
namespace {

constexpr Nanos kSecond = 1'000'000'000;
constexpr Nanos kStart = 1000 * kSecond + 7'000'000;  // no multiple of the period

// A card without processes behind it, driven by hand.
class ViewTest : public ::testing::Test {
 protected:
  ViewTest() {
    void* memory = mmap(nullptr, sizeof(Card), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    card_ = static_cast<Card*>(memory);
    card_->device_count = 2;
    card_->clock = card_->born_at = kStart;
    for (int i = 0; i < 2; ++i) {
      card_->devices[i].config.memory = std::uint64_t{1} << 30;
      card_->devices[i].config.link = 10;
      card_->devices[i].config.slice = 2'000'000;
      card_->devices[i].turn.owner = -1;
    }
  }
  ~ViewTest() override { munmap(card_, sizeof(Card)); }

  void arrive(int slot, int pid) {
    card_->occupied |= bit(slot);
    card_->processes[slot].pid = pid;
    card_->processes[slot].usage[0].has_context = 1;
  }
  void work(int slot, Work what, double amount, double width) {
    submit(*card_, slot, 0, {what, 0, amount, width, {}});
  }
  View at(Nanos time) {
    advance(*card_, time);
    return View(card_, config_, time);
  }

  Card* card_;
  CardConfig config_;
};

TEST_F(ViewTest, WithoutACardThereIsWhatWasConfigured) {
  config_.devices.resize(3);
  config_.devices[1].memory = 4096;
  const View view(nullptr, config_, kStart);
  EXPECT_EQ(view.device_count(), 3);
  EXPECT_EQ(view.memory(1).total, 4096u);
  EXPECT_EQ(view.memory(1).used, 0u);
  EXPECT_TRUE(view.processes(1).empty());
  EXPECT_TRUE(view.periods_after(0).empty());
  EXPECT_EQ(view.busy(1, view.last_period()).compute, 0u);
  EXPECT_FALSE(view.lost(1));
}

TEST_F(ViewTest, ACardThatIsOpenIsAsItIsAndNotAsConfigured) {
  config_.devices.resize(5);
  EXPECT_EQ(at(kStart).device_count(), 2);
}

TEST_F(ViewTest, ProcessesAreThoseWithAContextOrMemoryOnTheDevice) {
  arrive(0, 100);
  arrive(3, 103);
  card_->processes[3].usage[0].has_context = 0;
  card_->processes[3].usage[1].memory = 500;
  card_->processes[0].usage[0].memory = 300;
  const View view = at(kStart);
  ASSERT_EQ(view.processes(0).size(), 1u);
  EXPECT_EQ(view.processes(0)[0].pid, 100u);
  EXPECT_EQ(view.processes(0)[0].memory, 300u);
  ASSERT_EQ(view.processes(1).size(), 1u);
  EXPECT_EQ(view.processes(1)[0].pid, 103u);
  EXPECT_EQ(view.memory(1).used, 500u);
}

TEST_F(ViewTest, SharedMemoryIsSeenAtTheProcessThatIsChargedForIt) {
  arrive(0, 100);
  arrive(1, 101);
  card_->shared[0] = {700, bit(0) | bit(1), 1, 0};
  const View view = at(kStart);
  ASSERT_EQ(view.processes(0).size(), 2u);
  EXPECT_EQ(view.processes(0)[0].memory + view.processes(0)[1].memory, 700u);
  EXPECT_EQ(view.memory(0).used, 700u);
}

TEST_F(ViewTest, APeriodIsBusyForThePartInWhichAKernelRan) {
  arrive(0, 100);
  at(1001 * kSecond);
  work(0, Work::kCompute, 50e6, 1);
  const View view = at(1001 * kSecond + kSamplePeriod);
  EXPECT_EQ(view.last_period().end, 1001 * kSecond + kSamplePeriod);
  EXPECT_EQ(view.busy(0, view.last_period()).compute, 25u);
  EXPECT_EQ(view.busy(0, view.last_period(), 0).compute, 25u);
  EXPECT_EQ(view.busy(0, view.last_period()).copy, 0u);
  EXPECT_EQ(view.busy(1, view.last_period()).compute, 0u);
}

TEST_F(ViewTest, TheRunningPeriodDoesNotCountYet) {
  arrive(0, 100);
  at(1001 * kSecond);
  work(0, Work::kCompute, 1e12, 1);
  const View view = at(1001 * kSecond + kSamplePeriod - 1);
  EXPECT_EQ(view.last_period().end, 1001 * kSecond);
  EXPECT_EQ(view.busy(0, view.last_period()).compute, 0u);
}

TEST_F(ViewTest, TwoBusyProcessesHaveHalfEach) {
  arrive(0, 100);
  arrive(1, 101);
  at(1001 * kSecond);
  work(0, Work::kCompute, 1e12, 1);
  work(1, Work::kCompute, 1e12, 1);
  const View view = at(1002 * kSecond);
  EXPECT_EQ(view.busy(0, view.last_period()).compute, 100u);
  EXPECT_EQ(view.busy(0, view.last_period(), 0).compute, 50u);
  EXPECT_EQ(view.busy(0, view.last_period(), 1).compute, 50u);
}

TEST_F(ViewTest, CopiesBothWaysAreNotMoreThanAllTheTime) {
  arrive(0, 100);
  at(1001 * kSecond);
  work(0, Work::kCopyIn, 1e12, 10);
  submit(*card_, 0, 1, {Work::kCopyOut, 0, 1e12, 10, {}});
  const View view = at(1002 * kSecond);
  EXPECT_EQ(view.busy(0, view.last_period()).copy, 100u);
  EXPECT_EQ(view.busy(0, view.last_period()).compute, 0u);
  EXPECT_NEAR(static_cast<double>(view.moved(0).in), 10e9, 1e6);
  EXPECT_NEAR(static_cast<double>(view.moved(0).out), 10e9, 1e6);
}

TEST_F(ViewTest, PeriodsAreThoseAfterATimeAndAfterTheCardsBirth) {
  arrive(0, 100);
  const View young = at(1000 * kSecond + 2 * kSamplePeriod + 1);
  ASSERT_EQ(young.periods_after(0).size(), 2u);
  EXPECT_EQ(young.periods_after(0)[0].end, 1000 * kSecond + kSamplePeriod);
  const View old = at(1100 * kSecond);
  EXPECT_EQ(old.periods_after(0).size(), static_cast<std::size_t>(kSamplePeriods));
  EXPECT_EQ(old.periods_after(0).back().end, 1100 * kSecond);
  EXPECT_EQ(old.periods_after(1100 * kSecond - kSamplePeriod).size(), 1u);
  EXPECT_TRUE(old.periods_after(1100 * kSecond).empty());
  EXPECT_TRUE(old.periods_after(kNever).empty());
}

// The oldest period that is handed out must still be whole in the history.
TEST_F(ViewTest, TheOldestPeriodIsExact) {
  arrive(0, 100);
  at(1001 * kSecond);
  work(0, Work::kCompute, 1e15, 1);
  for (const Nanos late : {Nanos{0}, kBucketLength / 2, kSamplePeriod - 1}) {
    const View view = at(1101 * kSecond + late);
    for (const Period period : view.periods_after(0)) {
      EXPECT_EQ(view.busy(0, period, 0).compute, 100u) << period.end;
    }
  }
}

}  // namespace
}  // namespace nvshare::softgpu
