// The requirement on leases (seed 003) in virtual time: its rules, with the real core beneath them.

#include <algorithm>
#include <map>
#include <string>

#include "leases.h"

namespace nvshare::sim {
namespace {

using core::Admission;
using core::Answer;
using core::Outcome;

Scenario machine(Duration lasts) {
  return one_gpu(core::ComputePolicy::Metered, lasts);
}

// Of each lease that is granted: no request of a higher class that came earlier still waits.
struct Order : Observer {
  void after_step(const core::Event&, Time, const core::Decisions&, const core::Core&) override {}
  void after_answer(const ClientSpec&, const Answer& answer, Time now,
                    const core::Arbiter& arbiter) override {
    most_active = std::max(most_active, arbiter.gpu(core::GpuId{0}, now)->active);
    if (answer.outcome != Outcome::Acquired) return;
    const auto granted = arbiter.lease(answer.lease);
    ASSERT_TRUE(granted);
    for (const core::LeaseView& other : arbiter.leases()) {
      if (other.active || other.asked >= now) continue;
      ++waited_beside;
      EXPECT_LE(other.priority, granted->priority) << other.task_class << " waits";
      if (other.priority == granted->priority) {
        EXPECT_GE(other.asked, granted->asked) << other.task_class << " came earlier";
      }
    }
  }
  int waited_beside = 0;
  int most_active = 0;
};

TEST(Seed003, WaitersAreServedByClassThenArrival) {
  Scenario scenario = machine(20s);
  scenario.arbiter.slots = 1;
  // More work than the GPU has time for.
  for (const auto& [name, task_class] :
       {std::pair{"tts", "TTS"}, std::pair{"nmt", "NMT"}, std::pair{"asr", "ASR"}}) {
    scenario.clients.push_back(service(name, task_class, 40ms, 200ms));
    scenario.clients.back().processes = 2;
  }
  Order order;
  const Report report = play(scenario, &order);
  EXPECT_GT(order.waited_beside, 100);
  EXPECT_EQ(order.most_active, 1);
  const ServiceReport& asr = service_of(report, "asr");
  const ServiceReport& nmt = service_of(report, "nmt");
  const ServiceReport& tts = service_of(report, "tts");
  EXPECT_GT(asr.acquired, 150u);
  EXPECT_LT(asr.wait_p50, nmt.wait_p50);
  EXPECT_LT(nmt.wait_p50, tts.wait_p50);
  EXPECT_GT(nmt.acquired, tts.acquired) << "TTS has what the others leave";
}

TEST(Seed003, RepairIsShedFirstAndNeverQueues) {
  Scenario scenario = machine(20s);
  scenario.clients = {service("asr", "ASR", 50ms, 500ms), service("nmt", "NMT", 50ms, 500ms),
                      service("tts", "TTS", 50ms, 500ms),
                      service("repair", "SEMANTIC_REPAIR", 50ms, 500ms)};
  ClientSpec training = saturating("training", core::kNoCoreLimit, 2ms);
  training.limits.priority = -5;
  training.arrives = 10s;
  scenario.clients.push_back(training);
  struct Watch : Observer {
    void after_step(const core::Event&, Time, const core::Decisions&, const core::Core&) override {}
    void after_answer(const ClientSpec& service, const Answer& answer, Time now,
                      const core::Arbiter&) override {
      if (service.name != "repair") return;
      EXPECT_EQ(answer.waited, 0s);
      if (answer.outcome == Outcome::Acquired) last_acquired = now;
      if (answer.outcome == Outcome::Skipped && !first_skipped) first_skipped = now;
    }
    Time last_acquired{};
    std::optional<Time> first_skipped;
  } watch;
  const Report report = play(scenario, &watch);
  ASSERT_TRUE(watch.first_skipped);
  EXPECT_GT(*watch.first_skipped, Time{10s});
  EXPECT_LT(*watch.first_skipped, Time{12s}) << "one sample and one request later";
  EXPECT_LT(watch.last_acquired, *watch.first_skipped);
  const ServiceReport& repair = service_of(report, "repair");
  EXPECT_GE(repair.acquired, 19u);
  EXPECT_GE(repair.skipped, 15u);
  EXPECT_EQ(repair.requests, repair.acquired + repair.skipped);
  EXPECT_EQ(repair.given_up, repair.skipped);
  for (const char* name : {"asr", "nmt", "tts"}) {
    const ServiceReport& one = service_of(report, name);
    EXPECT_EQ(one.acquired, one.requests) << name;
    EXPECT_EQ(one.wait_max, 0s) << name << ": training is in nobody's way";
  }
}

// Section 7, so that it starves nobody: without a lease on the GPU the first waiter enters.
TEST(Seed003, TheFloorStarvesNobody) {
  Scenario scenario = machine(30s);
  scenario.clients = {load("others", 90, 0s, 30s), service("asr", "ASR", 5ms, 1s),
                      service("nmt", "NMT", 5ms, 1s), service("tts", "TTS", 5ms, 1s)};
  for (ClientSpec& spec : scenario.clients) {
    if (spec.lease) spec.arrives = 3s;
  }
  Order order;
  const Report report = play_with_spans(scenario, &order);
  ASSERT_EQ(high(report).size(), 1u);
  EXPECT_LT(high(report)[0].from, Time{3s});
  EXPECT_EQ(high(report)[0].to, Time{30s});
  EXPECT_EQ(order.most_active, 1) << "the floor is one lease at a time";
  for (const char* name : {"asr", "nmt", "tts"}) {
    const ServiceReport& one = service_of(report, name);
    EXPECT_GE(one.requests, 26u) << name;
    EXPECT_GE(one.acquired + 1, one.requests) << name;
    EXPECT_LT(one.wait_max, 1s) << name;
  }
}

// Section 4.3: from 85 on the pressure is high, and it is until the usage is at 78 or below.
TEST(Seed003, HysteresisBetweenTheMarks) {
  Scenario scenario = machine(16s);
  scenario.clients = {load("below", 82, 0s, 4s), load("above", 90, 4s, 8s),
                      load("between", 82, 8s, 12s), load("low", 75, 12s, 16s),
                      service("tts", "TTS", 100us, 2s)};
  const Report report = play_with_spans(scenario);
  const auto spans = high(report);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(report.gpus[0].pressure.times_high, 1);
  EXPECT_GT(spans[0].from, Time{4s}) << "82 % on the way up is normal";
  EXPECT_LE(spans[0].from, Time{5600ms}) << "two samples after 90 % came";
  EXPECT_GT(spans[0].to, Time{12s}) << "82 % on the way down is not";
  EXPECT_LE(spans[0].to, Time{13600ms});
}

// Section 6.3: the marks rise to 92 and 85 for 15 s, and fall back by themselves.
TEST(Seed003, ALongRecordingRaisesTheMarksForAWhile) {
  Scenario scenario = machine(30s);
  scenario.clients = {load("low", 75, 0s, 4s), load("middle", 88, 4s, 30s),
                      service("recording", "ASR", 100us, 1h)};
  ClientSpec& recording = scenario.clients.back();
  recording.arrives = 3s;
  recording.lease->asks.audio = 12s;
  const Report report = play_with_spans(scenario);
  ASSERT_EQ(high(report).size(), 1u);
  EXPECT_EQ(high(report)[0].from, Time{18s}) << "when the hint is 15 s old";
  EXPECT_EQ(report.gpus[0].pressure.raised, 15s);

  recording.lease->asks.audio = 7999ms;
  const Report without = play_with_spans(scenario);
  ASSERT_EQ(high(without).size(), 1u);
  EXPECT_LT(high(without)[0].from, Time{6s});
  EXPECT_EQ(without.gpus[0].pressure.raised, 0s);
}

TEST(Seed003, ABatchJobBelowKeepsAsrOutForOneTurnAtMost) {
  for (const core::ShareMode mode : {core::ShareMode::Auto, core::ShareMode::Turns}) {
    Scenario scenario = machine(20s);
    scenario.config.share_mode = mode;
    ClientSpec training = saturating("training", core::kNoCoreLimit, 2ms);
    training.limits.priority = -5;
    scenario.clients = {training, service("asr", "ASR", 100ms, 497ms)};
    scenario.clients[1].arrives = 1s;
    const Report report = play(scenario);
    const ServiceReport& asr = service_of(report, "asr");
    EXPECT_GE(asr.requests, 38u);
    EXPECT_EQ(asr.acquired, asr.requests);
    EXPECT_EQ(asr.wait_max, 0s);
    EXPECT_GT(report.clients[1].longest_wait, 0s) << "the job does have the GPU before";
    EXPECT_LE(report.clients[1].longest_wait, scenario.config.turn + 2ms);
    EXPECT_EQ(report.gpus[0].pressure.high, 0s);
    EXPECT_GT(report.gpus[0].utilization_percent, 99);
    EXPECT_GT(share_of(report, 0), 75) << "the job has the rest";
  }
}

// The holder has the priority of its class from its lease's beginning to the end, and no longer.
TEST(Seed003, ALeaseLendsThePriorityOfItsClass) {
  Scenario scenario = machine(9900ms);
  scenario.config.share_mode = core::ShareMode::Turns;
  scenario.clients = {saturating("batch", core::kNoCoreLimit, 1ms),
                      service("asr", "ASR", 100ms, 500ms)};
  struct Watch : Observer {
    void after_step(const core::Event&, Time, const core::Decisions&,
                    const core::Core& core) override {
      for (const core::ShareView& share : core.snapshot().shares) {
        if (share.tenant == core::TenantId{2}) priority = share.priority;
      }
    }
    void after_answer(const ClientSpec&, const Answer& answer, Time,
                      const core::Arbiter&) override {
      EXPECT_EQ(answer.outcome, Outcome::Acquired);
      EXPECT_EQ(priority, 8);
      ++leases;
    }
    int priority = 0;
    int leases = 0;
  } watch;
  const Report report = play(scenario, &watch);
  EXPECT_GE(watch.leases, 20);
  EXPECT_EQ(watch.priority, 0) << "after the last one";
  EXPECT_LE(report.clients[1].longest_wait, scenario.config.turn + 1ms);

  // Without leases both have half of the GPU while they want it.
  scenario.clients[1].lease.reset();
  EXPECT_GT(play(scenario).clients[1].wait, 2 * report.clients[1].wait);
}

TEST(Seed003, AnOverdueLeaseIsRevokedAndItsSlotGoesOn) {
  Scenario scenario = machine(10s);
  scenario.arbiter.slots = 1;
  scenario.clients = {service("stuck", "NMT", 5s, 1h), service("asr", "ASR", 10ms, 1s)};
  scenario.clients[0].lease->asks.hold_max = 2s;
  scenario.clients[1].arrives = 500ms;
  const Report report = play_with_spans(scenario);
  const ServiceReport& stuck = service_of(report, "stuck");
  const ServiceReport& asr = service_of(report, "asr");
  EXPECT_EQ(stuck.revoked, 1u);
  ASSERT_EQ(stuck.leases.size(), 1u);
  EXPECT_EQ(stuck.leases[0].to, Time{2s});
  ASSERT_GE(asr.leases.size(), 9u);
  EXPECT_EQ(asr.leases[0].from, Time{2s}) << "at once";
  EXPECT_EQ(asr.wait_max, 1500ms);
  EXPECT_EQ(asr.revoked, 0u);
  EXPECT_NEAR(static_cast<double>(report.clients[0].gpu_time / 1ms), 5000, 20)
      << "its work goes on";
}

// After a refusal a service gives up, asks again, or does without the GPU.
TEST(Seed003, RefusedServicesSkipAskAgainOrFallBack) {
  Scenario scenario = machine(10s);
  scenario.arbiter.slots = 1;
  scenario.clients = {service("holder", "ASR", 600ms, 1s), service("skips", "NMT", 10ms, 200ms),
                      service("asks-again", "NMT", 10ms, 200ms),
                      service("falls-back", "NMT", 10ms, 200ms)};
  for (std::size_t i = 1; i < 4; ++i) scenario.clients[i].lease->asks.max_wait = 100ms;
  scenario.clients[2].lease->refused = Refused::Retry;
  scenario.clients[3].lease->refused = Refused::FallBack;
  const Report report = play(scenario);
  const ServiceReport& skips = service_of(report, "skips");
  EXPECT_GE(skips.given_up, 10u);
  EXPECT_EQ(skips.timed_out, skips.given_up);
  EXPECT_EQ(skips.asked_again + skips.fell_back, 0u);
  EXPECT_NEAR(static_cast<double>(skips.requests), 50, 1);
  const ServiceReport& again = service_of(report, "asks-again");
  EXPECT_GE(again.asked_again, 10u);
  EXPECT_EQ(again.given_up + again.fell_back, 0u);
  EXPECT_GE(again.acquired + 1, again.requests) << "each comes to its turn";
  const ServiceReport& falls = service_of(report, "falls-back");
  EXPECT_GE(falls.fell_back, 10u);
  EXPECT_EQ(falls.fell_back, falls.timed_out);
  EXPECT_EQ(falls.given_up, 0u);
  for (const ServiceReport* one : {&skips, &again, &falls}) {
    EXPECT_LE(one->wait_max, 100ms) << one->name;
  }
}

// An answer FALLBACK_CPU is meant for the CPU, whatever the service does with other refusals.
TEST(Seed003, AClassThatFallsBackDoesItsWorkWithoutTheGpu) {
  Scenario scenario = machine(5s);
  scenario.arbiter.slots = 1;
  scenario.clients = {service("holder", "ASR", 3s, 1h), service("ocr", "NMT", 10ms, 100ms)};
  scenario.clients[1].lease->asks.refusal = core::Refusal::FallbackCpu;
  scenario.clients[1].lease->refused = Refused::Retry;
  scenario.clients[1].arrives = 50ms;
  const ServiceReport ocr = service_of(play(scenario), "ocr");
  EXPECT_NEAR(static_cast<double>(ocr.fell_back), 30, 2);
  EXPECT_EQ(ocr.asked_again, 0u);
  EXPECT_EQ(ocr.acquired, ocr.requests - ocr.fell_back);
}

// Whatever becomes of a request: the arbiter answers once, and the service goes on.
TEST(Seed003, EachRequestHasOneAnswer) {
  Scenario scenario = machine(20s);
  scenario.arbiter.slots = 2;
  scenario.arbiter.queue = 3;
  const char* const classes[] = {"ASR", "NMT", "TTS", "SEMANTIC_REPAIR"};
  const char* const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
  for (int i = 0; i < 8; ++i) {
    ClientSpec spec = service(names[i], classes[i % 4], (7 + 11 * i) * 1ms, (90 + 13 * i) * 1ms);
    spec.processes = 1 + i % 3;
    spec.lease->asks.max_wait = 40ms * i;
    spec.lease->asks.hold_max = 30ms;
    spec.lease->refused = static_cast<Refused>(i % 3);
    if (i == 5) spec.lease->asks.refusal = core::Refusal::FallbackCpu;
    scenario.clients.push_back(spec);
  }
  scenario.clients.push_back(load("load", 40, 5s, 15s));
  struct Count : Observer {
    void after_step(const core::Event&, Time, const core::Decisions&, const core::Core&) override {}
    void after_answer(const ClientSpec& service, const Answer& answer, Time now,
                      const core::Arbiter& arbiter) override {
      if (answer.outcome != Outcome::Revoked) ++answers[service.name];
      const auto gpu = arbiter.gpu(core::GpuId{0}, now);
      EXPECT_LE(gpu->active, 2);
      EXPECT_LE(gpu->waiting, 3);
      EXPECT_TRUE(gpu->active > 0 || gpu->waiting == 0) << "nobody waits for an idle GPU";
    }
    std::map<std::string, std::uint64_t> answers;
  } count;
  const Report report = play(scenario, &count);
  ServiceReport all;
  for (const ServiceReport& one : report.services) {
    const std::uint64_t asked = one.requests + one.asked_again;
    const auto processes = static_cast<std::uint64_t>(
        scenario.clients[static_cast<std::size_t>(one.tenant)].processes);
    EXPECT_LE(count.answers[one.name], asked) << one.name;
    EXPECT_GE(count.answers[one.name] + processes, asked) << one.name << ": the rest waits";
    EXPECT_LE(one.revoked, one.acquired) << one.name;
    all.acquired += one.acquired;
    all.timed_out += one.timed_out;
    all.skipped += one.skipped;
    all.fell_back += one.fell_back;
    all.queue_full += one.queue_full;
    all.revoked += one.revoked;
    all.asked_again += one.asked_again;
  }
  for (const auto seen : {all.acquired, all.timed_out, all.skipped, all.fell_back, all.queue_full,
                          all.revoked, all.asked_again}) {
    EXPECT_GT(seen, 0u) << "each of them comes to pass";
  }
}

// Services that leave take their leases and their requests along.
TEST(Seed003, AServiceThatLeavesGivesItsLeaseBack) {
  Scenario scenario = machine(5s);
  scenario.arbiter.slots = 1;
  scenario.clients = {service("leaves", "ASR", 4s, 1h), service("gives-up", "ASR", 1ms, 1h),
                      service("nmt", "NMT", 10ms, 1h)};
  scenario.clients[0].leaves = 1s;
  scenario.clients[1].arrives = 100ms;
  scenario.clients[1].leaves = 500ms;
  scenario.clients[2].arrives = 200ms;
  const Report report = play_with_spans(scenario);
  EXPECT_EQ(service_of(report, "gives-up").acquired, 0u);
  ASSERT_EQ(service_of(report, "nmt").leases.size(), 1u);
  EXPECT_EQ(service_of(report, "nmt").leases[0].from, Time{1s});
}

// Leases of one GPU and its usage are nothing to another GPU.
TEST(Seed003, EachGpuHasAStateOfItsOwn) {
  Scenario scenario = machine(10s);
  scenario.gpus[0].count = 2;
  scenario.clients = {load("load", 95, 0s, 10s), service("a", "TTS", 1ms, 1s),
                      service("b", "TTS", 1ms, 1s)};
  scenario.clients[0].gpu = scenario.clients[1].gpu = 0;
  scenario.clients[2].gpu = 1;
  const Report report = play(scenario);
  EXPECT_GT(report.gpus[0].pressure.high, 8s);
  EXPECT_EQ(report.gpus[1].pressure.high, 0s);
}

TEST(Seed003, AnUnknownClassIsAnError) {
  Scenario scenario = machine(1s);
  scenario.clients = {service("a", "OCR", 1ms, 1s)};
  const auto report = run(scenario);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().message,
            "a: there is no class 'OCR'; there are ASR, NMT, TTS, SEMANTIC_REPAIR");
}

}  // namespace
}  // namespace nvshare::sim
