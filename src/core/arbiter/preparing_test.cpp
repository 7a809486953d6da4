// A holder's memory is on the GPU before its lease is granted.

#include "core/arbiter/testing.h"

namespace nvshare::core {
namespace {

struct PreparingTest : testing::Test {
  std::string ask(const std::string& task_class, std::optional<Duration> max_wait = std::nullopt) {
    LeaseRequest request = t.request(task_class);
    request.has_memory = true;
    request.max_wait = max_wait;
    return t.ask(request);
  }
  TestArbiter t;
};

TEST_F(PreparingTest, ALeaseIsGrantedWhenTheMemoryIsThere) {
  EXPECT_EQ(ask("ASR"), "PREPARING");
  EXPECT_EQ(t.active(), 1) << "its slot is taken";
  EXPECT_TRUE(t.arbiter.lease(t.last())->preparing);
  t.pass(700ms);
  t.ready(t.last());
  const Answer& answer = *t.find(t.last());
  EXPECT_EQ(text_of(answer), "ACQUIRED");
  EXPECT_EQ(answer.waited, 700ms);
  EXPECT_EQ(answer.expires, t.now + 30s) << "it is held from now on";
  EXPECT_FALSE(t.arbiter.lease(t.last())->preparing);
}

TEST_F(PreparingTest, TheWaitForMemoryIsPartOfTheWait) {
  ask("ASR", 500ms);
  t.pass(499ms);
  EXPECT_EQ(t.answer_to(t.last()), "PREPARING");
  t.pass(1ms);
  EXPECT_EQ(t.answer_to(t.last()), "TIMEOUT GPU_MEMORY");
  EXPECT_EQ(t.active(), 0);
  EXPECT_EQ(t.arbiter.counts().at("ASR").timed_out, 1u);
  EXPECT_EQ(t.arbiter.counts().at("ASR").acquired, 0u);
}

TEST_F(PreparingTest, AClassThatDoesNotWaitDoesNotWaitForMemory) {
  t.usage(10);
  EXPECT_EQ(ask("SEMANTIC_REPAIR"), "PREPARING");
  t.pass(0ms);
  EXPECT_EQ(t.answer_to(t.last()), "SKIPPED GPU_MEMORY");
}

TEST_F(PreparingTest, ARequestThatAsksToBeSkippedDoesNotWaitForMemory) {
  t.usage(10);
  LeaseRequest request = t.request("ASR");
  request.has_memory = true;
  request.refusal = Refusal::FallbackCpu;
  EXPECT_EQ(t.ask(request), "PREPARING");
  t.pass(0ms);
  EXPECT_EQ(t.answer_to(t.last()), "FALLBACK_CPU GPU_MEMORY");
}

TEST_F(PreparingTest, AClassThatDoesNotWaitIsLetInWhenItsMemoryIsThere) {
  t.usage(10);
  ask("SEMANTIC_REPAIR");
  t.ready(t.last());
  EXPECT_EQ(t.answer_to(t.last()), "ACQUIRED");
}

TEST_F(PreparingTest, MemoryThatComesTooLateIsTooLate) {
  ask("ASR", 500ms);
  t.now += 501ms;
  t.ready(t.last());
  EXPECT_EQ(t.answer_to(t.last()), "TIMEOUT GPU_MEMORY");
}

TEST_F(PreparingTest, TheSlotGoesToTheNextWhenTheMemoryDoesNotCome) {
  for (int i = 0; i < 4; ++i) ask("ASR", 100ms);
  EXPECT_EQ(t.ask("NMT"), "");
  const LeaseId next = t.last();
  t.pass(100ms);
  EXPECT_EQ(t.answer_to(next), "ACQUIRED");
}

TEST_F(PreparingTest, ARequestIsWithdrawnWhileItsMemoryComes) {
  ask("ASR");
  t.release(t.last());
  EXPECT_EQ(t.active(), 0);
  EXPECT_FALSE(t.arbiter.counts().contains("ASR")) << "it never was a lease";
}

TEST_F(PreparingTest, ALeaseThatIsNotPreparingIsNotReady) {
  EXPECT_EQ(t.ask("ASR"), "ACQUIRED");
  EXPECT_FALSE(t.arbiter.ready(t.last(), t.now));
  ask("ASR");
  EXPECT_FALSE(t.arbiter.renew(t.last(), std::nullopt, t.now));
}

TEST_F(PreparingTest, AGpuThatGoesEndsTheWait) {
  ask("ASR");
  const Answers answers = t.arbiter.remove_gpu(GpuId{0}, t.now);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(text_of(answers[0]), "TIMEOUT GPU_GONE");
}

}  // namespace
}  // namespace nvshare::core
