// Why a request waits, in virtual time.

#include "core/arbiter/testing.h"

namespace nvshare::core {
namespace {

class ArbiterExplain : public testing::Test {
 protected:
  static ArbiterConfig config() {
    ArbiterConfig config;
    config.slots = 2;
    config.classes[2].slots = 1;  // TTS
    return config;
  }
  // Two leases of ASR, so that no slot is left.
  void fill() {
    a.usage(10);
    a.ask("ASR");
    a.ask("ASR");
  }
  std::string why(LeaseId lease) const {
    const auto why = a.arbiter.explain(lease, a.now);
    return why ? text_of(*why, a.now) : "";
  }

  TestArbiter a{config()};
};

TEST_F(ArbiterExplain, AnUnknownLeaseHasNoReason) {
  EXPECT_FALSE(a.arbiter.explain(LeaseId{7}, a.now));
}

TEST_F(ArbiterExplain, ALeaseSaysSinceWhenAndUntilWhen) {
  a.usage(10);
  a.ask("ASR");
  a.pass(1200ms);
  EXPECT_EQ(why(a.last()), "held for 1.20s, ends in 28.80s");
  const auto view = a.arbiter.explain(a.last(), a.now);
  EXPECT_EQ(view->lease.acquired, a.now - 1200ms);
  EXPECT_TRUE(view->ahead.empty());
}

TEST_F(ArbiterExplain, MemoryThatComesIsTheReason) {
  a.usage(10);
  LeaseRequest request = a.request("ASR");
  request.has_memory = true;
  a.ask(request);
  a.pass(500ms);
  EXPECT_EQ(
      why(a.last()),
      "waits for 500ms: its slot is taken, and its memory comes to the GPU; gives up in 2.50s");
  a.ready(a.last());
  EXPECT_EQ(why(a.last()), "held for 0ms, ends in 30.00s");
}

TEST_F(ArbiterExplain, NoSlotIsTheReason) {
  fill();
  a.ask("NMT");
  a.pass(500ms);
  EXPECT_EQ(why(a.last()),
            "waits for 500ms: no slot is free (2 of 2 are taken); gives up in 2.50s");
}

TEST_F(ArbiterExplain, TheSlotsOfTheClassAreTheReason) {
  a.usage(10);
  a.ask("TTS");
  a.ask("TTS");
  EXPECT_EQ(why(a.last()),
            "waits for 0ms: no slot of TTS is free (1 of 1 are taken); gives up in 3.00s");
}

TEST_F(ArbiterExplain, HighPressureIsTheReasonWithUsageAndMark) {
  a.usage(10);
  a.ask("ASR");
  a.pass(800ms);
  a.usage(91.26);
  a.ask("ASR");
  EXPECT_EQ(why(a.last()),
            "waits for 0ms: the GPU is under high pressure (usage 91.3%, and it ends at 78%); "
            "gives up in 3.00s");
}

TEST_F(ArbiterExplain, TheUsageIsWhatTheClassCannotPushAside) {
  std::array<double, kPriorities> billed{};
  billed[0] = 5;  // of the lowest priority
  a.usage(10);
  a.ask("ASR");
  a.pass(800ms);
  a.usage(96, 0, billed);
  a.ask("ASR");
  EXPECT_DOUBLE_EQ(a.arbiter.explain(a.last(), a.now)->usage.value_or(0), 91);
}

TEST_F(ArbiterExplain, RaisedMarksAreTheOnesThatCount) {
  a.usage(10);
  LeaseRequest request = a.request("ASR");
  request.audio = 10s;
  a.ask(request);
  a.pass(800ms);
  a.usage(95);
  a.ask("NMT");
  EXPECT_EQ(a.arbiter.explain(a.last(), a.now)->marks, (Marks{92, 85}));
}

TEST_F(ArbiterExplain, RequestsInFrontAreCountedByClass) {
  fill();
  a.ask("NMT");
  const LeaseId first = a.last();
  a.ask("NMT");
  const LeaseId second = a.last();
  a.ask("TTS");
  const LeaseId third = a.last();
  a.ask("ASR");
  EXPECT_EQ(why(first),
            "waits for 0ms: no slot is free (2 of 2 are taken); behind 1 ASR; gives up in 3.00s");
  using Ahead = std::vector<std::pair<std::string, int>>;
  EXPECT_EQ(a.arbiter.explain(second, a.now)->ahead, (Ahead{{"ASR", 1}, {"NMT", 1}}));
  EXPECT_EQ(a.arbiter.explain(third, a.now)->ahead, (Ahead{{"ASR", 1}, {"NMT", 2}}));
  EXPECT_TRUE(a.arbiter.explain(a.last(), a.now)->ahead.empty());
}

// What the explanation names is what the arbiter waits for.
TEST_F(ArbiterExplain, WhatIsInFrontIsServedFirst) {
  fill();
  const LeaseId held = a.last();
  a.ask("NMT");
  const LeaseId waiter = a.last();
  a.ask("ASR");
  ASSERT_EQ(a.arbiter.explain(waiter, a.now)->ahead.size(), 1U);
  a.release(held);
  EXPECT_EQ(a.answer_to(waiter), "");
  EXPECT_TRUE(a.arbiter.explain(waiter, a.now)->ahead.empty());
  a.release(a.last());
  EXPECT_EQ(a.answer_to(waiter), "ACQUIRED");
}

TEST_F(ArbiterExplain, RequestsForAnotherGpuAreNotInFront) {
  TestArbiter two{config(), 2};
  for (const int gpu : {0, 1}) {
    two.usage(10, gpu);
    for (int i = 0; i < 3; ++i) two.ask("ASR", gpu);
  }
  const auto why = two.arbiter.explain(two.last(), two.now);
  EXPECT_FALSE(why->lease.active);
  EXPECT_TRUE(why->ahead.empty());
}

}  // namespace
}  // namespace nvshare::core
