// The queue, the leases and their ends, with normal usage. Usage is arbiter_pressure_test.cpp's.

#include "core/arbiter/arbiter.h"

#include <gtest/gtest.h>

#include "core/arbiter/testing.h"

namespace nvshare::core {
namespace {

ArbiterConfig with_slots(int slots) {
  ArbiterConfig config;
  config.slots = slots;
  return config;
}

class ArbiterTest : public ::testing::Test {
 protected:
  ArbiterTest() { a.usage(10); }
  // Asks and expects a lease.
  LeaseId acquire(const std::string& task_class) {
    EXPECT_EQ(a.ask(task_class), "ACQUIRED");
    return a.last();
  }
  // Asks and expects to wait.
  LeaseId wait(const LeaseRequest& request) {
    EXPECT_EQ(a.ask(request), "");
    return request.lease;
  }
  LeaseId wait(const std::string& task_class) { return wait(a.request(task_class)); }

  TestArbiter a{with_slots(1)};
};

TEST_F(ArbiterTest, AFreeGpuIsGivenAtOnce) {
  const LeaseId lease = acquire("ASR");
  const Answer* answer = a.find(lease);
  EXPECT_EQ(answer->waited, 0s);
  EXPECT_EQ(answer->expires, a.now + 30s);
  EXPECT_EQ(a.active(), 1);
}

TEST_F(ArbiterTest, ABusyGpuIsWaitedForInTurn) {
  const LeaseId first = acquire("ASR");
  const LeaseId second = wait("ASR");
  const LeaseId third = wait("ASR");
  a.pass(100ms);
  a.release(first);
  EXPECT_EQ(a.answer_to(second), "ACQUIRED");
  EXPECT_EQ(a.find(second)->waited, 100ms);
  EXPECT_EQ(a.answer_to(third), "");
  a.release(second);
  EXPECT_EQ(a.answer_to(third), "ACQUIRED");
}

TEST_F(ArbiterTest, AHigherClassIsServedFirst) {
  const LeaseId holder = acquire("TTS");
  const LeaseId tts = wait("TTS");
  const LeaseId nmt = wait("NMT");
  const LeaseId asr = wait("ASR");
  a.release(holder);
  EXPECT_EQ(a.answer_to(asr), "ACQUIRED");
  a.release(asr);
  EXPECT_EQ(a.answer_to(nmt), "ACQUIRED");
  a.release(nmt);
  EXPECT_EQ(a.answer_to(tts), "ACQUIRED");
}

TEST_F(ArbiterTest, EqualPrioritiesAreServedByArrival) {
  ArbiterConfig config = with_slots(1);
  config.classes = {{"B", 50}, {"A", 50}};
  a.arbiter.set_config(config, a.now);
  const LeaseId holder = acquire("A");
  const LeaseId b = wait("B");
  const LeaseId again = wait("A");
  a.release(holder);
  EXPECT_EQ(a.answer_to(b), "ACQUIRED");
  EXPECT_EQ(a.answer_to(again), "");
}

TEST_F(ArbiterTest, AWaitEndsOnTime) {
  acquire("ASR");
  LeaseRequest request = a.request("ASR");
  request.max_wait = 500ms;
  const LeaseId late = wait(request);
  a.pass(500ms - Duration{1});
  EXPECT_EQ(a.answer_to(late), "");
  a.pass(Duration{1});
  EXPECT_EQ(a.answer_to(late), "TIMEOUT GPU_BUSY");
  EXPECT_EQ(a.find(late)->waited, 500ms);
  EXPECT_EQ(a.waiting(), 0);
}

TEST_F(ArbiterTest, NoWaitAtAllIsAnsweredAtOnce) {
  acquire("ASR");
  LeaseRequest request = a.request("ASR");
  request.max_wait = 0s;
  EXPECT_EQ(a.ask(request), "TIMEOUT GPU_BUSY");
}

TEST_F(ArbiterTest, ARefusalSaysWhenToComeAgain) {
  LeaseRequest holder = a.request("ASR");
  holder.gpu_hold = 3s;
  EXPECT_EQ(a.ask(holder), "ACQUIRED");
  a.pass(1s, 10.0);
  LeaseRequest request = a.request("NMT");
  request.max_wait = 0s;
  a.ask(request);
  EXPECT_EQ(a.find(request.lease)->retry_after, 2s);
}

TEST_F(ArbiterTest, AClassLearnsHowLongItUsuallyHolds) {
  const LeaseId first = acquire("ASR");
  a.pass(200ms);
  a.release(first);
  const LeaseId second = acquire("ASR");
  EXPECT_EQ(a.arbiter.lease(second)->expected_end, a.now + 200ms);
}

TEST_F(ArbiterTest, AnOverdueLeaseIsRevoked) {
  LeaseRequest request = a.request("ASR");
  request.hold_max = 2s;
  EXPECT_EQ(a.ask(request), "ACQUIRED");
  const LeaseId next = wait("ASR");
  a.pass(2s - Duration{1}, 10.0);
  EXPECT_EQ(a.answer_to(next), "");
  a.pass(Duration{1});
  EXPECT_EQ(a.answer_to(request.lease), "REVOKED OVERDUE");
  EXPECT_EQ(a.answer_to(next), "ACQUIRED");
}

TEST_F(ArbiterTest, ALeaseThatEndsMakesRoomBeforeAWaitIsOver) {
  LeaseRequest holder = a.request("ASR");
  holder.hold_max = 1s;
  a.ask(holder);
  LeaseRequest request = a.request("ASR");
  request.max_wait = 1s;
  wait(request);
  a.pass(1s, 10.0);
  EXPECT_EQ(a.answer_to(request.lease), "ACQUIRED");
}

TEST_F(ArbiterTest, AHoldIsNoLongerThanTheClassesOwn) {
  LeaseRequest request = a.request("ASR");
  request.hold_max = 1h;
  a.ask(request);
  EXPECT_EQ(a.find(request.lease)->expires, a.now + 30s);
}

TEST_F(ArbiterTest, ARenewedLeaseLastsLonger) {
  const LeaseId lease = acquire("ASR");
  a.pass(20s);
  auto until = a.arbiter.renew(lease, std::nullopt, a.now);
  ASSERT_TRUE(until);
  EXPECT_EQ(*until, a.now + 30s);
  until = a.arbiter.renew(lease, 5s, a.now);
  ASSERT_TRUE(until);
  EXPECT_EQ(*until, a.now + 5s);
  a.pass(5s);
  EXPECT_EQ(a.answer_to(lease), "REVOKED OVERDUE");
}

TEST_F(ArbiterTest, OnlyAnActiveLeaseIsRenewed) {
  const LeaseId lease = acquire("ASR");
  const LeaseId waiter = wait("ASR");
  EXPECT_FALSE(a.arbiter.renew(waiter, std::nullopt, a.now));
  EXPECT_FALSE(a.arbiter.renew(LeaseId{999}, std::nullopt, a.now));
  EXPECT_FALSE(a.arbiter.renew(lease, 0s, a.now));
  EXPECT_FALSE(a.arbiter.renew(lease, 25h, a.now));
  EXPECT_FALSE(a.arbiter.renew(lease, std::nullopt, a.now + 30s));
}

TEST_F(ArbiterTest, AReleaseOfAnUnknownLeaseIsRefused) {
  const auto result = a.arbiter.release(LeaseId{7}, a.now);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "no such lease");
}

TEST_F(ArbiterTest, AWithdrawnRequestLeavesItsPlace) {
  const LeaseId holder = acquire("ASR");
  const LeaseId gone = wait("ASR");
  const LeaseId next = wait("NMT");
  a.release(gone);
  EXPECT_EQ(a.waiting(), 1);
  a.release(holder);
  EXPECT_EQ(a.answer_to(gone), "");
  EXPECT_EQ(a.answer_to(next), "ACQUIRED");
}

TEST_F(ArbiterTest, TheQueueIsBounded) {
  ArbiterConfig config = with_slots(1);
  config.queue = 2;
  a.arbiter.set_config(config, a.now);
  acquire("ASR");
  wait("ASR");
  wait("ASR");
  EXPECT_EQ(a.ask("ASR"), "QUEUE_FULL GPU_BUSY");
  EXPECT_EQ(a.waiting(), 2);
}

TEST_F(ArbiterTest, TheLastInLineGivesWayToAHigherClass) {
  ArbiterConfig config = with_slots(1);
  config.queue = 2;
  a.arbiter.set_config(config, a.now);
  const LeaseId holder = acquire("TTS");
  const LeaseId first = wait("NMT");
  const LeaseId second = wait("NMT");
  EXPECT_EQ(a.ask("TTS"), "QUEUE_FULL GPU_BUSY") << "of a lower class";
  EXPECT_EQ(a.ask("NMT"), "QUEUE_FULL GPU_BUSY") << "of the same class";
  a.pass(100ms);
  const LeaseId high = wait("ASR");
  EXPECT_EQ(a.answer_to(second), "QUEUE_FULL GPU_BUSY");
  EXPECT_EQ(a.answer_to(first), "");
  a.release(holder);
  EXPECT_EQ(a.answer_to(high), "ACQUIRED");
  a.release(high);
  EXPECT_EQ(a.answer_to(first), "ACQUIRED");
}

TEST_F(ArbiterTest, AClassHasItsOwnSlots) {
  ArbiterConfig config = with_slots(3);
  config.classes = {{"ASR", 90, 3s, 30s, Refusal::Wait, Refusal::Wait, 1}, {"NMT", 80}};
  a.arbiter.set_config(config, a.now);
  const LeaseId asr = acquire("ASR");
  const LeaseId second = wait("ASR");
  acquire("NMT");  // a lower class need not wait for a slot of a higher one
  a.release(asr);
  EXPECT_EQ(a.answer_to(second), "ACQUIRED");
}

TEST_F(ArbiterTest, ARequestMayWantToSkipWhatItsClassWaitsFor) {
  acquire("ASR");
  LeaseRequest skips = a.request("ASR");
  skips.refusal = Refusal::Skip;
  EXPECT_EQ(a.ask(skips), "SKIPPED GPU_BUSY");
  LeaseRequest falls = a.request("ASR");
  falls.refusal = Refusal::FallbackCpu;
  EXPECT_EQ(a.ask(falls), "FALLBACK_CPU GPU_BUSY");
  EXPECT_EQ(a.waiting(), 0);
}

TEST_F(ArbiterTest, EachGpuHasItsOwnQueueAndLeases) {
  TestArbiter two{with_slots(1), 2};
  two.usage(10, 0);
  two.usage(10, 1);
  EXPECT_EQ(two.ask("ASR", 0), "ACQUIRED");
  EXPECT_EQ(two.ask("ASR", 1), "ACQUIRED");
  EXPECT_EQ(two.ask("ASR", 1), "");
  EXPECT_EQ(two.waiting(0), 0);
  EXPECT_EQ(two.waiting(1), 1);
}

TEST_F(ArbiterTest, AGpuWithAFreeSlotOfTheClassComesFirst) {
  ArbiterConfig config;
  config.classes[0].slots = 1;  // ASR
  TestArbiter two(config, 2);
  EXPECT_EQ(two.ask("ASR", 0), "ACQUIRED");
  EXPECT_EQ(two.ask("NMT", 1), "ACQUIRED");
  EXPECT_EQ(two.ask("NMT", 1), "ACQUIRED");
  EXPECT_EQ(two.arbiter.roomiest(config.classes[0], two.now), GpuId{1});
  EXPECT_EQ(two.arbiter.roomiest(config.classes[1], two.now), GpuId{0});
}

TEST_F(ArbiterTest, TheRoomiestGpuIsNormalFirstThenEmptyThenIdle) {
  TestArbiter three{with_slots(2), 3};
  const TaskClass& asr = *three.arbiter.find_class("ASR");
  three.usage(95, 0);
  three.usage(50, 1);
  three.usage(40, 2);
  EXPECT_EQ(three.arbiter.roomiest(asr, three.now), GpuId{2});
  three.ask("ASR", 2);
  EXPECT_EQ(three.arbiter.roomiest(asr, three.now), GpuId{1});
  EXPECT_FALSE(Arbiter{}.roomiest(asr, three.now));
}

TEST_F(ArbiterTest, AGpuThatGoesEndsItsLeasesAndWaits) {
  const LeaseId holder = acquire("ASR");
  const LeaseId waiter = wait("ASR");
  for (const Answer& answer : a.arbiter.remove_gpu(GpuId{0}, a.now)) a.answers.push_back(answer);
  EXPECT_EQ(a.answer_to(holder), "REVOKED GPU_GONE");
  EXPECT_EQ(a.answer_to(waiter), "TIMEOUT GPU_GONE");
  EXPECT_TRUE(a.arbiter.leases().empty());
  EXPECT_EQ(a.ask("ASR"), "there is no such GPU");
}

TEST_F(ArbiterTest, ARestoredLeaseCountsUntilItsEnd) {
  ASSERT_TRUE(a.arbiter.restore(a.request("ASR"), a.now - 10s, a.now + 20s));
  EXPECT_EQ(a.active(), 1);
  LeaseRequest request = a.request("ASR");
  request.max_wait = 1min;
  const LeaseId next = wait(request);
  a.pass(20s, 10.0);
  EXPECT_EQ(a.answer_to(next), "ACQUIRED");
}

TEST_F(ArbiterTest, FewerSlotsEndNoLease) {
  TestArbiter b{with_slots(2)};
  b.usage(10);
  b.ask("ASR");
  const LeaseId first = b.last();
  b.ask("ASR");
  b.arbiter.set_config(with_slots(1), b.now);
  EXPECT_EQ(b.active(), 2);
  EXPECT_EQ(b.ask("ASR"), "");
  const LeaseId third = b.last();
  b.release(first);
  EXPECT_EQ(b.answer_to(third), "");
}

TEST_F(ArbiterTest, MoreSlotsServeTheWaiting) {
  acquire("ASR");
  const LeaseId next = wait("ASR");
  for (const Answer& answer : a.arbiter.set_config(with_slots(2), a.now)) {
    a.answers.push_back(answer);
  }
  EXPECT_EQ(a.answer_to(next), "ACQUIRED");
}

TEST_F(ArbiterTest, AClassThatIsTakenAwayKeepsItsWaiters) {
  const LeaseId holder = acquire("ASR");
  const LeaseId waiter = wait("NMT");
  ArbiterConfig config = with_slots(1);
  config.classes = {{"ASR", 90}};
  a.arbiter.set_config(config, a.now);
  EXPECT_EQ(a.ask("NMT"), "there is no class 'NMT'; there are ASR");
  a.release(holder);
  EXPECT_EQ(a.answer_to(waiter), "ACQUIRED");
}

TEST_F(ArbiterTest, BadRequestsAreRefusedAndChangeNothing) {
  LeaseRequest request = a.request("ASR");
  request.max_wait = -1ms;
  EXPECT_EQ(a.ask(request), "maxWaitMs: -1ms is not from 0ns to 600.00s");
  request = a.request("ASR");
  request.hold_max = 0s;
  EXPECT_NE(a.ask(request).find("holdMaxMs"), std::string::npos);
  request = a.request("ASR");
  request.audio = -1ms;
  EXPECT_NE(a.ask(request).find("estimatedAudioMs"), std::string::npos);
  request = a.request("ASR");
  request.gpu_hold = -1ms;
  EXPECT_NE(a.ask(request).find("estimatedGpuHoldMs"), std::string::npos);
  EXPECT_NE(a.ask("ASX").find("ASR, NMT, TTS, SEMANTIC_REPAIR"), std::string::npos);
  EXPECT_EQ(a.ask("ASR", 9), "there is no such GPU");
  request = a.request("ASR");
  a.ask(request);
  EXPECT_EQ(a.ask(request), "this lease is there already");
  EXPECT_EQ(a.arbiter.leases().size(), 1U);
}

TEST_F(ArbiterTest, TheListHasTheActiveFirstThenTheWaitingInOrder) {
  const LeaseId holder = acquire("TTS");
  const LeaseId tts = wait("TTS");
  const LeaseId asr = wait("ASR");
  const auto all = a.arbiter.leases();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].lease, holder);
  EXPECT_TRUE(all[0].active);
  EXPECT_EQ(all[1].lease, asr);
  EXPECT_EQ(all[2].lease, tts);
  EXPECT_EQ(all[2].until, a.now + 3s);
}

TEST_F(ArbiterTest, EveryOutcomeIsCounted) {
  const LeaseId holder = acquire("ASR");
  a.ask("SEMANTIC_REPAIR");
  LeaseRequest request = a.request("ASR");
  request.max_wait = 0s;
  a.ask(request);
  request = a.request("ASR");
  request.refusal = Refusal::FallbackCpu;
  a.ask(request);
  const LeaseId next = wait("ASR");
  a.pass(1s, 10.0);
  a.release(holder);
  EXPECT_EQ(a.answer_to(next), "ACQUIRED");
  a.pass(31s);
  const LeaseCounts& asr = a.arbiter.counts().at("ASR");
  EXPECT_EQ(asr.acquired, 2U);
  EXPECT_EQ(asr.timed_out, 1U);
  EXPECT_EQ(asr.fell_back, 1U);
  EXPECT_EQ(asr.released, 1U);
  EXPECT_EQ(asr.revoked, 1U);
  EXPECT_EQ(asr.waited, 1s);
  EXPECT_EQ(a.arbiter.counts().at("SEMANTIC_REPAIR").skipped, 1U);
}

}  // namespace
}  // namespace nvshare::core
