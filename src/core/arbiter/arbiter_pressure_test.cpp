// The queue is gated by the usage, and the defects of other arbiters, each by name.

#include <gtest/gtest.h>

#include "core/arbiter/arbiter.h"
#include "core/arbiter/testing.h"

namespace nvshare::core {
namespace {

class ArbiterPressure : public ::testing::Test {
 protected:
  // A lease that is there before the pressure is, so that the floor rule is not asked.
  LeaseId hold() {
    a.usage(10);
    EXPECT_EQ(a.ask("ASR"), "ACQUIRED");
    return a.last();
  }
  void keep(const Answers& more) { a.answers.insert(a.answers.end(), more.begin(), more.end()); }

  TestArbiter a;
};

std::array<double, kPriorities> billed_at(int priority, double percent) {
  std::array<double, kPriorities> billed{};
  billed[static_cast<std::size_t>(priority - kLowestPriority)] = percent;
  return billed;
}

TEST_F(ArbiterPressure, AHighClassWaitsUntilTheUsageIsLow) {
  hold();
  a.pass(800ms);
  a.usage(90);
  EXPECT_EQ(a.ask("ASR"), "");
  const LeaseId waiter = a.last();
  a.pass(800ms);
  a.usage(79);
  EXPECT_EQ(a.answer_to(waiter), "");
  a.pass(800ms);
  a.usage(78);
  EXPECT_EQ(a.answer_to(waiter), "ACQUIRED");
}

TEST_F(ArbiterPressure, AWaitUnderPressureEndsWithItsReason) {
  hold();
  a.pass(800ms);
  a.usage(90);
  LeaseRequest request = a.request("NMT");
  request.max_wait = 1s;
  EXPECT_EQ(a.ask(request), "");
  a.pass(1s);
  EXPECT_EQ(a.answer_to(request.lease), "TIMEOUT GPU_USAGE_HIGH");
}

TEST_F(ArbiterPressure, ALowClassIsShedAtOnce) {
  hold();
  a.pass(800ms);
  a.usage(90);
  EXPECT_EQ(a.ask("SEMANTIC_REPAIR"), "SKIPPED GPU_USAGE_HIGH");
}

TEST_F(ArbiterPressure, AClassThatShedsLeavesTheQueueWhenThePressureComes) {
  ArbiterConfig config;
  config.slots = 1;
  config.classes = {{"ASR", 90}, {"IDLE", 30, 3s, 30s, Refusal::Wait, Refusal::FallbackCpu, {}}};
  keep(a.arbiter.set_config(config, a.now));
  hold();
  EXPECT_EQ(a.ask("IDLE"), "");
  const LeaseId idle = a.last();
  EXPECT_EQ(a.ask("ASR"), "");
  a.pass(800ms);
  a.usage(90);
  EXPECT_EQ(a.answer_to(idle), "FALLBACK_CPU GPU_USAGE_HIGH");
  EXPECT_EQ(a.waiting(), 1);
}

TEST_F(ArbiterPressure, TheFloorLetsOneEnterWhenThereIsNoLease) {
  a.usage(99);
  EXPECT_EQ(a.ask("TTS"), "ACQUIRED");
  EXPECT_EQ(a.ask("ASR"), "");
}

TEST_F(ArbiterPressure, TheFloorIsTheHighestClassesAfterARelease) {
  const LeaseId holder = hold();
  a.pass(800ms);
  a.usage(99);
  a.ask("TTS");
  const LeaseId tts = a.last();
  a.ask("ASR");
  const LeaseId first = a.last();
  a.ask("ASR");
  const LeaseId second = a.last();
  a.release(holder);
  EXPECT_EQ(a.answer_to(first), "ACQUIRED");
  EXPECT_EQ(a.answer_to(second), "");
  EXPECT_EQ(a.answer_to(tts), "");
  a.release(first);
  EXPECT_EQ(a.answer_to(second), "ACQUIRED");
  a.release(second);
  EXPECT_EQ(a.answer_to(tts), "ACQUIRED");
}

TEST_F(ArbiterPressure, TheFloorIsLookedAtWhenALeaseIsRevoked) {
  a.usage(99);
  LeaseRequest holder = a.request("ASR");
  holder.hold_max = 1s;
  a.ask(holder);
  a.ask("NMT");
  const LeaseId waiter = a.last();
  a.pass(1s, 99.0);
  EXPECT_EQ(a.answer_to(waiter), "ACQUIRED");
}

TEST_F(ArbiterPressure, TheFloorIsNotForALowClass) {
  a.usage(99);
  EXPECT_EQ(a.ask("SEMANTIC_REPAIR"), "SKIPPED GPU_USAGE_HIGH");
}

TEST_F(ArbiterPressure, ABatchJobOfLowPriorityHoldsNoServiceUp) {
  a.usage(100, 0, billed_at(-5, 98));
  EXPECT_EQ(a.ask("ASR"), "ACQUIRED");
  EXPECT_EQ(a.ask("TTS"), "ACQUIRED");
  EXPECT_EQ(a.state(), "NORMAL");
  EXPECT_EQ(a.arbiter.gpu(GpuId{0}, a.now)->usage, 100);
  EXPECT_EQ(a.ask("SEMANTIC_REPAIR"), "SKIPPED GPU_USAGE_HIGH");  // below the batch job
}

TEST_F(ArbiterPressure, AnOldSampleShedsTheLowAndLetsTheHighPass) {
  a.usage(99);
  a.pass(2s + Duration{1});
  EXPECT_EQ(a.state(), "UNKNOWN");
  EXPECT_EQ(a.ask("ASR"), "ACQUIRED");
  EXPECT_EQ(a.ask("NMT"), "ACQUIRED");
  EXPECT_EQ(a.ask("SEMANTIC_REPAIR"), "SKIPPED GPU_USAGE_UNKNOWN");
}

TEST_F(ArbiterPressure, WaitersPassWhenTheSampleBecomesTooOld) {
  hold();
  a.pass(800ms);
  a.usage(99);
  a.ask("ASR");
  const LeaseId waiter = a.last();
  a.pass(2s);
  EXPECT_EQ(a.answer_to(waiter), "");
  a.pass(Duration{1});
  EXPECT_EQ(a.answer_to(waiter), "ACQUIRED");
}

TEST_F(ArbiterPressure, ALongAudioRaisesTheMarksOfItsGpuAlone) {
  TestArbiter two{{}, 2};
  for (const int gpu : {0, 1}) {
    two.usage(10, gpu);
    two.ask("ASR", gpu);
  }
  LeaseRequest request = two.request("ASR", 0);
  request.audio = 12s;
  two.ask(request);
  two.pass(800ms);
  two.usage(88, 0);
  two.usage(88, 1);
  EXPECT_EQ(two.state(0), "NORMAL");
  EXPECT_EQ(two.state(1), "HIGH_PRESSURE");
  EXPECT_EQ(two.arbiter.gpu(GpuId{0}, two.now)->marks, (Marks{92, 85}));
  ASSERT_TRUE(two.arbiter.gpu(GpuId{0}, two.now)->raised_until);
}

TEST_F(ArbiterPressure, ALongAudioCountsFromTheThresholdOn) {
  a.usage(10);
  LeaseRequest request = a.request("ASR");
  request.audio = 7999ms;
  a.ask(request);
  EXPECT_FALSE(a.arbiter.gpu(GpuId{0}, a.now)->raised_until);
  request = a.request("ASR");
  request.audio = 8s;
  a.ask(request);
  EXPECT_TRUE(a.arbiter.gpu(GpuId{0}, a.now)->raised_until);
}

TEST_F(ArbiterPressure, TheMarksFallBackByThemselves) {
  a.usage(10);
  LeaseRequest request = a.request("ASR");
  request.audio = 8s;
  a.ask(request);
  a.pass(14s, 88.0);
  EXPECT_EQ(a.state(), "NORMAL");
  a.pass(1s, 88.0);
  EXPECT_EQ(a.state(), "HIGH_PRESSURE");
}

TEST_F(ArbiterPressure, ALowClassRaisesNoMarks) {
  a.usage(10);
  LeaseRequest request = a.request("SEMANTIC_REPAIR");
  request.audio = 20s;
  a.ask(request);
  EXPECT_FALSE(a.arbiter.gpu(GpuId{0}, a.now)->raised_until);
}

TEST_F(ArbiterPressure, NewMarksHoldAtOnce) {
  hold();
  a.pass(800ms);
  a.usage(90);
  a.ask("ASR");
  const LeaseId waiter = a.last();
  ArbiterConfig config;
  config.usage.high_water = 99;
  config.usage.low_water = 95;
  keep(a.arbiter.set_config(config, a.now));
  EXPECT_EQ(a.answer_to(waiter), "ACQUIRED");
}

// lingua_1: the queue drained whatever the state was.
TEST(ArbiterDefects, HysteresisWithoutEffect) {
  TestArbiter a;
  a.usage(10);
  a.ask("ASR");
  a.ask("ASR");
  const LeaseId holder = a.last();
  a.pass(800ms);
  a.usage(90);
  a.ask("NMT");
  const LeaseId waiter = a.last();
  a.pass(800ms);
  a.usage(90);
  a.release(holder);
  EXPECT_EQ(a.answer_to(waiter), "") << "a lease that ends is no reason";
  a.pass(800ms);
  a.usage(80);
  EXPECT_EQ(a.answer_to(waiter), "") << "between the marks the state stays";
  a.pass(800ms);
  a.usage(78);
  EXPECT_EQ(a.answer_to(waiter), "ACQUIRED");
}

// lingua_1: first come, first served, whatever the priority.
TEST(ArbiterDefects, AQueueThatIgnoresPriority) {
  ArbiterConfig config;
  config.slots = 1;
  TestArbiter a{config};
  a.usage(10);
  a.ask("TTS");
  const LeaseId holder = a.last();
  a.ask("TTS");
  a.ask("ASR");
  const LeaseId asr = a.last();
  a.release(holder);
  EXPECT_EQ(a.answer_to(asr), "ACQUIRED");
}

// lingua_1: the hint was there, and nothing read it.
TEST(ArbiterDefects, AHintWithoutACaller) {
  TestArbiter a;
  a.usage(10);
  LeaseRequest request = a.request("ASR");
  request.audio = 12s;
  a.ask(request);
  EXPECT_EQ(a.arbiter.gpu(GpuId{0}, a.now)->marks, (Marks{92, 85}));
}

// lingua_1: a release that got lost blocked the GPU for ever.
TEST(ArbiterDefects, ALostReleaseBlocksTheGpu) {
  ArbiterConfig config;
  config.slots = 1;
  TestArbiter a{config};
  a.usage(10);
  a.ask("ASR");
  a.pass(28s, 10.0);
  a.ask("ASR");
  const LeaseId waiter = a.last();
  a.pass(2s, 10.0);
  EXPECT_EQ(a.answer_to(waiter), "ACQUIRED");
}

// lingua_1: a sampler that hung left its last state in force.
TEST(ArbiterDefects, StaleUsageFreezesTheState) {
  TestArbiter a;
  a.usage(10);
  a.ask("ASR");
  a.pass(800ms);
  a.usage(99);
  EXPECT_EQ(a.state(), "HIGH_PRESSURE");
  a.pass(3s);
  EXPECT_EQ(a.state(), "UNKNOWN");
  EXPECT_EQ(a.ask("ASR"), "ACQUIRED");
}

// lingua_1: the fields for the dispatcher were never filled.
TEST(ArbiterDefects, AStatusThatIsNeverSent) {
  ArbiterConfig config;
  config.slots = 1;
  TestArbiter a{config};
  a.usage(60);
  a.ask("ASR");
  a.ask("ASR");
  a.pass(300ms);
  const auto view = a.arbiter.gpu(GpuId{0}, a.now);
  EXPECT_EQ(view->state, Admission::Normal);
  EXPECT_EQ(view->usage, 60);
  EXPECT_EQ(view->age, 300ms);
  EXPECT_EQ(view->waiting, 1);
}

TEST(ArbiterDefects, OneUsageNumberForAllGpus) {
  TestArbiter a{{}, 2};
  a.usage(95, 0);
  a.usage(20, 1);
  EXPECT_EQ(a.state(0), "HIGH_PRESSURE");
  EXPECT_EQ(a.state(1), "NORMAL");
}

TEST(ArbiterDefects, AHighClassThatJumpsItsOwnQueue) {
  TestArbiter a;
  a.usage(10);
  a.ask("ASR");
  a.pass(800ms);
  a.usage(90);
  a.ask("ASR");
  const LeaseId first = a.last();
  a.ask("ASR");
  const LeaseId second = a.last();
  a.pass(800ms);
  a.usage(50);
  ASSERT_EQ(a.answers.size(), 3U);
  EXPECT_EQ(a.answers[1].lease, first);
  EXPECT_EQ(a.answers[2].lease, second);
}

TEST(ArbiterDefects, ASemanticRepairThatWaits) {
  ArbiterConfig config;
  config.slots = 1;
  TestArbiter a{config};
  a.usage(10);
  a.ask("ASR");
  EXPECT_EQ(a.ask("SEMANTIC_REPAIR"), "SKIPPED GPU_BUSY");
  LeaseRequest request = a.request("SEMANTIC_REPAIR");
  request.max_wait = 10s;
  request.refusal = Refusal::Wait;
  EXPECT_EQ(a.ask(request), "SKIPPED GPU_BUSY");
  a.pass(800ms);
  a.usage(90);
  EXPECT_EQ(a.ask("SEMANTIC_REPAIR"), "SKIPPED GPU_USAGE_HIGH");
  EXPECT_EQ(a.waiting(), 0);
}

// mGPUmanager: one lock for the machine, so one client that is slow held up all.
TEST(ArbiterDefects, OneLockForAllGpus) {
  ArbiterConfig config;
  config.slots = 1;
  TestArbiter a{config, 2};
  a.usage(10, 0);
  a.usage(10, 1);
  a.ask("ASR", 0);
  a.ask("ASR", 0);
  EXPECT_EQ(a.ask("ASR", 1), "ACQUIRED");
}

}  // namespace
}  // namespace nvshare::core
