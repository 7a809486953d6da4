// What the metered policy promises: long-run shares within 0.5 points of the limit for every kind
// of workload, over-commit included, and no idle GPU while somebody with budget has work.

#include "scenarios.h"

namespace nvshare::sim {
namespace {

using core::ComputePolicy;

constexpr Duration kLong = 60s;

// A share is off by a kernel or so over the time it is taken over (docs/policies.md has the bound);
// this leaves 0.3 points.
Duration long_enough(const ClientSpec& a, const ClientSpec& b = {}) {
  return std::max({kLong, 400 * a.work.kernel, 400 * b.work.kernel});
}

Scenario metered(Duration lasts = kLong) {
  return one_gpu(ComputePolicy::Metered, lasts);
}

ClientSpec phases(const char* name, int cores) {
  ClientSpec spec = saturating(name, cores);
  spec.work.kind = WorkloadKind::Phases;
  spec.work.phases = {{WorkloadKind::Saturating, 300ms}, {WorkloadKind::Idle, 100ms}};
  return spec;
}

struct Model {
  const char* name;
  ClientSpec (*make)(const char* name, int cores);
  double duty;  // of the GPU, when nobody limits it
};

const Model kModels[] = {
    {"saturating", [](const char* n, int c) { return saturating(n, c); }, 100},
    {"fine", [](const char* n, int c) { return saturating(n, c, 10us); }, 100},
    {"two-millisecond", [](const char* n, int c) { return saturating(n, c, 2ms); }, 100},
    {"long", [](const char* n, int c) { return saturating(n, c, 200ms); }, 100},
    {"one-second", [](const char* n, int c) { return saturating(n, c, 1s); }, 100},
    {"bursty", [](const char* n, int c) { return bursty(n, c, 60ms, 40ms); }, 60},
    {"quick-bursts", [](const char* n, int c) { return bursty(n, c, 3ms, 2ms); }, 60},
    {"slow-bursts", [](const char* n, int c) { return bursty(n, c, 600ms, 400ms); }, 60},
    {"phases", phases, 75},
};

// Of two of a lower priority neither takes the few turns there are from the other, with a limit or
// without.
TEST(Metered, ALowerPriorityIsServedWithALimitAndWithout) {
  ClientSpec always = saturating("high", 100, 1ms);
  ClientSpec often = bursty("high", 100, 30ms, 30ms);
  for (ClientSpec high : {always, often}) {
    high.limits.priority = 1;
    Scenario scenario = metered();
    scenario.clients = {high, saturating("limited", 60, 1ms), saturating("free", 100, 1ms)};
    const Report report = play(scenario);
    for (const ClientReport& client : report.clients) {
      EXPECT_LE(client.longest_wait, 2100ms) << client.name;
    }
  }
}

// What was billed before the limit came is not taken off again when it has come.
TEST(Metered, ALimitCountsFromTheMomentItIsSet) {
  for (const Duration at : {4500ms, 5000ms}) {
    Scenario scenario = metered(10s);
    scenario.clients = {saturating("A", 100, 1900ms)};
    scenario.clients[0].changes = {{at, {.core_percent = 10, .memory = {}}}};
    EXPECT_LE(play(scenario).clients[0].gpu_time, 6s) << at.count();
  }
}

// The requirement's knobs: below 100 % a part of what was used beyond a limit is forgiven.
TEST(Metered, OverrunsAndTailsAreForgivenAsFarAsTold) {
  const auto share = [](int carryover, int tails) {
    Scenario scenario = metered();
    scenario.config.carryover_percent = carryover;
    scenario.config.tail_billing_percent = tails;
    scenario.clients = {saturating("A", 25, 50ms)};
    return share_of(play(scenario), 0);
  };
  EXPECT_NEAR(share(100, 100), 25, 0.5);
  for (const auto& [half, none] :
       {std::pair{share(50, 100), share(0, 100)}, std::pair{share(100, 50), share(100, 0)}}) {
    EXPECT_GT(half, 30);
    EXPECT_GT(none, half + 5);
  }
}

TEST(Metered, OneClientGetsItsLimitWhateverItsKernels) {
  for (const Model& model : kModels) {
    for (int limit : {1, 5, 10, 25, 50, 75, 90, 99}) {
      SCOPED_TRACE(testing::Message() << model.name << " at " << limit << " %");
      Scenario scenario = metered();
      scenario.clients = {model.make("A", limit)};
      scenario.lasts = long_enough(scenario.clients[0]);
      const double wanted = std::min<double>(limit, model.duty);
      const double share = share_of(play(scenario), 0);
      EXPECT_NEAR(share, wanted, 0.5);
    }
  }
}

TEST(Metered, PairsGetTheirLimitsInEveryMix) {
  struct Pair {
    int a, b;
    double want_a, want_b;
  };
  const Pair pairs[] = {{25, 75, 25, 75},  {30, 60, 30, 60},       {50, 50, 50, 50},
                        {50, 100, 50, 50}, {80, 80, 50, 50},       {10, 90, 10, 90},
                        {75, 100, 75, 25}, {50, 60, 45.45, 54.55}, {90, 60, 60, 40},
                        {1, 100, 1, 99},   {100, 100, 50, 50},     {99, 100, 95, 5}};
#ifdef NVSHARE_UNDER_SANITIZER  // the arithmetic is the same and takes ten times as long
  const Model saturated[] = {kModels[0], kModels[3]};
#else
  const Model saturated[] = {kModels[0], kModels[1], kModels[2], kModels[3]};
#endif
  for (const Pair& pair : pairs) {
    for (const Model& first : saturated) {
      for (const Model& second : saturated) {
        SCOPED_TRACE(testing::Message()
                     << pair.a << " " << first.name << " + " << pair.b << " " << second.name);
        Scenario scenario = metered();
        scenario.clients = {first.make("A", pair.a), second.make("B", pair.b)};
        scenario.lasts = long_enough(scenario.clients[0], scenario.clients[1]);
        const Report report = play(scenario);
        EXPECT_NEAR(share_of(report, 0), pair.want_a, 0.5);
        EXPECT_NEAR(share_of(report, 1), pair.want_b, 0.5);
      }
    }
  }
}

// The promise holds beside best effort however the third one behaves: who has no limit gives way.
TEST(Metered, BestEffortGivesWayToLimits) {
  for (int priority : {0, 5}) {
    SCOPED_TRACE(priority);
    Scenario scenario = metered();
    scenario.clients = {saturating("training", 40, 2ms), bursty("service", 30, 20ms, 60ms),
                        saturating("notebook", 100, 500us)};
    scenario.clients[1].limits.priority = priority;
    const Report report = play(scenario);
    EXPECT_NEAR(share_of(report, 0), 40, 0.5);
    EXPECT_NEAR(share_of(report, 1), 25, 2);
    EXPECT_GE(report.gpus[0].utilization_percent, 99.9);
  }
}

// Best effort is never starved, even by tenants that wake with what they have saved.
TEST(Metered, BestEffortKeepsItsFloor) {
  Scenario scenario = metered();
  scenario.clients = {bursty("A", 50, 300ms, 300ms), bursty("B", 49, 300ms, 300ms),
                      saturating("notebook", 100, 2ms)};
  const Report report = play(scenario);
  EXPECT_GE(share_of(report, 2), 5);
  EXPECT_LE(report.clients[2].longest_wait, 250ms);
}

// Not by bursts that follow each other closely, either.
TEST(Metered, BestEffortKeepsItsFloorBesideManyBursts) {
  for (const auto& [burst, gap] : {std::pair<Duration, Duration>{60ms, 40ms}, {3ms, 2ms}}) {
    for (const int tenants : {2, 12}) {
      SCOPED_TRACE(testing::Message() << tenants << " in bursts of " << ms(burst) << " ms");
      Scenario scenario = metered(20s);
      for (int i = 0; i < tenants; ++i) {
        scenario.clients.push_back(bursty("L", std::min(95, 240 / tenants), burst, gap));
      }
      scenario.clients.push_back(saturating("rest", 100, 1ms));
      EXPECT_NEAR(share_of(play(scenario), tenants), 5, 0.3);
    }
  }
}

// Where turns are long because handing over is: that is no more than it is owed in the long run,
// the limits wait for no longer than it is owed now, and it is not handed over to more often than
// needed.
TEST(Metered, BestEffortTakesNoMoreThanItsFloorInLongTurns) {
  Scenario scenario = metered(20s);
  scenario.hand_over = 500us;
  scenario.clients = {bursty("A", 95, 60ms, 40ms), bursty("B", 95, 60ms, 40ms),
                      saturating("rest", 100, 1ms)};
  EXPECT_NEAR(share_of(play(scenario), 2), 5, 0.3);
  for (int i : {0, 1}) scenario.clients[i] = bursty("A", 95, 3ms, 2ms);
  EXPECT_GE(play(scenario).gpus[0].utilization_percent, 86);
  scenario.clients[0] = saturating("A", 60, 1ms);
  scenario.clients[1] = bursty("B", 50, 20ms, 40ms);
  EXPECT_LE(play(scenario).clients[1].longest_wait, 20ms);
}

// A limit that waits for a long kernel which began in its gap does not give way on top of that.
TEST(Metered, ALongKernelInAGapIsWhatBestEffortWasOwed) {
  Scenario scenario = metered();
  scenario.clients = {bursty("A", 95, 300ms, 20ms), saturating("rest", 100, 50ms)};
  EXPECT_GE(share_of(play(scenario), 0), 85);
}

// A bursty client catches up after its gaps: beside a saturating one it has what it is promised.
TEST(Metered, BurstyBesideSaturating) {
  for (int other : {50, 100}) {
    SCOPED_TRACE(other);
    Scenario scenario = metered();
    scenario.clients = {bursty("A", 50, 60ms, 40ms), saturating("B", other, 2ms)};
    const Report report = play(scenario);
    EXPECT_NEAR(share_of(report, 0), 50, 0.5);
    EXPECT_NEAR(share_of(report, 1), 50, 0.5);
  }
}

// Bursts come one after the other, and everyone who fits keeps its rhythm.
TEST(Metered, BurstyClientsThatFitLoseNothing) {
  using Burst = std::pair<Duration, Duration>;
  const std::vector<std::vector<Burst>> kCases = {
      {{20ms, 30ms}, {20ms, 30ms}},
      {{40ms, 60ms}, {40ms, 60ms}},
      {{8ms, 12ms}, {8ms, 12ms}},
      {{10ms, 30ms}, {10ms, 30ms}, {10ms, 30ms}},
  };
  for (const auto& bursts : kCases) {
    for (int limit : {100, 60}) {
      SCOPED_TRACE(testing::Message() << bursts[0].first.count() / 1000 << " and "
                                      << bursts[1].first.count() / 1000 << " us, limit " << limit);
      Scenario scenario = metered();
      for (const auto& [busy, idle] : bursts) {
        scenario.clients.push_back(bursty("B", limit, busy, idle));
      }
      const Report report = play(scenario);
      for (std::size_t i = 0; i < bursts.size(); ++i) {
        const auto& [busy, idle] = bursts[i];
        const double solo =
            100.0 * static_cast<double>(busy.count()) / static_cast<double>((busy + idle).count());
        EXPECT_GE(share_of(report, static_cast<int>(i)), 0.97 * solo) << i;
      }
    }
  }
}

// Who wants more than there is leaves no gaps when others could run in them.
TEST(Metered, BurstyClientsThatDoNotFitFillTheGpu) {
  for (int limit : {100, 50}) {
    SCOPED_TRACE(limit);
    Scenario scenario = metered();
    scenario.clients = {bursty("A", limit, 60ms, 40ms), bursty("B", limit, 60ms, 40ms)};
    const Report report = play(scenario);
    EXPECT_NEAR(share_of(report, 0), 50, 1);
    EXPECT_NEAR(share_of(report, 1), 50, 1);
  }
}

// Where it takes long until a program that has been given the GPU uses it, turns are longer, and
// what is lost stays little; shares are what they were.
TEST(Metered, TurnsAreAsLongAsHandingOverAsksFor) {
  const struct {
    Duration hand_over;
    double used;  // of the GPU, at least
  } kCases[] = {{20us, 99.5}, {50us, 98.9}, {200us, 98.9}, {500us, 98.9}, {2ms, 95.9}};
  for (const auto& [hand_over, used] : kCases) {
    SCOPED_TRACE(hand_over.count());
    Scenario scenario = metered();
    scenario.hand_over = hand_over;
    scenario.clients = {saturating("A", 100, 20us), saturating("B", 100, 2ms)};
    const Report report = play(scenario);
    EXPECT_GE(report.gpus[0].utilization_percent, used);
    EXPECT_NEAR(share_of(report, 0), share_of(report, 1), 0.5);
  }
}

// A bursty program beside others does not make their turns long: its gaps are its own.
TEST(Metered, GapsOfAProgramAreNotTakenForHandingOver) {
  Scenario scenario = metered();
  scenario.hand_over = 20us;
  scenario.clients = {saturating("A", 100, 1ms), saturating("B", 100, 1ms),
                      bursty("C", 100, 3ms, 1ms)};
  EXPECT_LE(play(scenario).clients[2].longest_wait, 40ms);
}

// Limits, and what each gets.
const struct {
  int a, b;
  double want_a, want_b;
} kPairs[] = {
    {25, 75, 25, 75}, {30, 60, 30, 60}, {50, 50, 50, 50}, {50, 100, 50, 50}, {80, 80, 50, 50}};

// Kernels of several lengths beside each other, where handing over takes as long as on a quiet
// machine and as on a real card (tests/gpu/compute).
TEST(Metered, PairsLoseLittleToHandOvers) {
  const struct {
    Duration takes;
    double points;
    double used;  // of what limits allow, at least
  } kHandOvers[] = {{60us, 1, 98.5}, {700us, 1.5, 98.5}};
  const Duration kKernels[] = {10us, 200us, 2ms};
  for (const auto& hand_over : kHandOvers) {
    for (const auto& pair : kPairs) {
      for (const Duration kernel_a : kKernels) {
        for (const Duration kernel_b : kKernels) {
          SCOPED_TRACE(testing::Message()
                       << pair.a << "+" << pair.b << ", kernels of " << kernel_a.count() / 1000
                       << " and " << kernel_b.count() / 1000 << " us, hand-overs of "
                       << hand_over.takes.count() / 1000);
          Scenario scenario = metered(10s);
          scenario.hand_over = hand_over.takes;
          scenario.clients = {saturating("A", pair.a, kernel_a), saturating("B", pair.b, kernel_b)};
          const Report report = play(scenario);
          EXPECT_NEAR(share_of(report, 0), pair.want_a, hand_over.points);
          EXPECT_NEAR(share_of(report, 1), pair.want_b, hand_over.points);
          const double allowed = pair.want_a + pair.want_b;
          EXPECT_GE(share_of(report, 0) + share_of(report, 1), hand_over.used / 100 * allowed);
        }
      }
    }
  }
}

struct Warm {
  double a;  // percent of the GPU
  double b;
  double grants;  // each of which has its hand-over
};

// Of two that have taken turns before: in ten seconds that begin one second after a pause.
Warm two_when_warm(int a, int b, Duration hand_over) {
  const auto clients_after = [&](Duration lasts) {
    Scenario scenario = metered(lasts);
    scenario.hand_over = hand_over;
    scenario.clients = {phases("A", a), phases("B", b)};
    for (ClientSpec& client : scenario.clients) {
      client.work.phases = {{WorkloadKind::Saturating, 4s},
                            {WorkloadKind::Idle, 700ms},
                            {WorkloadKind::Saturating, 60s}};
    }
    return play(scenario).clients;
  };
  const auto before = clients_after(5700ms);
  const auto after = clients_after(15700ms);
  Warm warm{};
  Duration unused{};
  for (std::size_t i = 0; i < 2; ++i) {
    const Duration used = after[i].gpu_time - before[i].gpu_time;
    (i == 0 ? warm.a : warm.b) = static_cast<double>(used.count()) / 1e8;
    unused += after[i].run - before[i].run - used;
  }
  warm.grants = static_cast<double>(unused.count()) / static_cast<double>(hand_over.count());
  return warm;
}

// The same where they cost as much as those of training programs on a real card, once that is
// known.
TEST(Metered, LongTurnsMakeUpForSlowHandOvers) {
  for (const auto& pair : kPairs) {
    SCOPED_TRACE(testing::Message() << pair.a << "+" << pair.b);
    const Warm warm = two_when_warm(pair.a, pair.b, 1360us);
    EXPECT_NEAR(warm.a, pair.want_a, 1.5);
    EXPECT_NEAR(warm.b, pair.want_b, 1.5);
    EXPECT_GE(warm.a + warm.b, 0.988 * (pair.want_a + pair.want_b));
  }
}

// 75 ms that last for 150 are one turn, also where turns are of 110 to 150: two hand-overs in 300
// ms and not three.
TEST(Metered, WhatATurnLeavesIsNoTurnOfItsOwn) {
  for (const Duration hand_over : {280us, 300us, 330us, 380us, 450us, 600us}) {
    SCOPED_TRACE(hand_over.count());
    const Warm warm = two_when_warm(50, 100, hand_over);
    EXPECT_LE(warm.grants, 1.2 * 2 * 10'000 / 300);
    EXPECT_NEAR(warm.a, 50, 0.7);
  }
}

// A hand-over of which 350 us are seen costs four times that on a real card (0007): turns are of
// 140 ms then, and so are those of a limit of 50 %, with what it earns meanwhile.
TEST(Metered, TurnsAreAsLongAsHandOversCost) {
  for (const auto& [a, b] : {std::pair(100, 100), std::pair(50, 100)}) {
    SCOPED_TRACE(testing::Message() << a << "+" << b);
    const double grants = two_when_warm(a, b, 350us).grants;
    EXPECT_GE(grants, 10'000 / 155.0);
    EXPECT_LE(grants, 10'000 / 135.0);
  }
}

// The one with more of the GPU would have two or three turns and then the other one: each of them
// has one, in the time in which the smaller limit earns 75 ms. (77 to 784 grants, otherwise.)
TEST(Metered, TurnsInARowAreOne) {
  const struct {
    int a;
    int b;
    int grants;
  } kCases[] = {{25, 75, 75}, {30, 60, 95}, {20, 70, 72}};
  for (const Duration hand_over : {350us, 1000us}) {
    for (const auto& [a, b, grants] : kCases) {
      SCOPED_TRACE(testing::Message() << a << "+" << b << ", " << hand_over.count());
      const Warm warm = two_when_warm(a, b, hand_over);
      EXPECT_LE(warm.grants, grants);
      EXPECT_NEAR(warm.a, a, 1);
      EXPECT_NEAR(warm.b, b, 1);
    }
  }
}

// How late a job of 20 ms is that comes to two others, at worst, for several times at which it
// comes.
Duration latest(int cores_a, int cores_b, Duration hand_over, const core::Limits& limits) {
  Duration worst{};
  for (int i = 0; i < 24; ++i) {
    Scenario scenario = metered(24s);
    scenario.hand_over = hand_over;
    scenario.clients = {saturating("A", cores_a, 200us), saturating("B", cores_b, 200us),
                        saturating("C", limits.core_percent, 200us)};
    ClientSpec& job = scenario.clients[2];
    job.limits = limits;
    job.arrives = 20s + i * 71ms;
    job.work.total = 20ms;
    const Report report = play(scenario);
    const auto finished = report.clients[2].finished;
    if (!finished) return Duration::max();
    worst = std::max(worst, *finished - Time{} - job.arrives - 20ms);
  }
  return worst;
}

// However long the turns of the others are: not beyond what they had when it came, nor until they
// have caught up with what they once missed.
TEST(Metered, WhoComesNewWaitsForATurnAtMost) {
  for (const Duration hand_over : {350us, 1000us}) {
    for (const auto& [a, b] : {std::pair(10, 85), std::pair(15, 80), std::pair(30, 60)}) {
      SCOPED_TRACE(testing::Message() << a << "+" << b << ", " << hand_over.count());
      EXPECT_LE(latest(a, b, hand_over, {.core_percent = 10, .memory = {}}), 190ms);
      EXPECT_LE(latest(a, b, hand_over, {.core_percent = 100, .memory = {}}), 145ms);
      EXPECT_LE(latest(a, b, hand_over, {.core_percent = 10, .memory = {}, .priority = 2}), 2ms);
    }
  }
}

// A burst of what a limit has when it comes after a long time is not cut, also where hand-overs are
// quick.
TEST(Metered, ABurstOfTwelveTurnsIsWithinAnAllowance) {
  for (const Duration hand_over : {20us, 60us, 130us}) {
    SCOPED_TRACE(hand_over.count());
    Scenario scenario = metered();
    scenario.hand_over = hand_over;
    scenario.clients = {saturating("A", 66, 200us), saturating("D", 20, 200us),
                        bursty("C", 20, 60ms, 700ms)};
    EXPECT_GE(share_of(play(scenario), 2), 7.7);
  }
}

// Who has had far less than the others does not wait for the rest of their turns.
TEST(Metered, WhoIsFarBehindIsServedAtOnce) {
  for (const Duration hand_over : {0us, 300us, 1000us}) {
    SCOPED_TRACE(hand_over.count());
    Scenario scenario = metered(20s);
    scenario.hand_over = hand_over;
    scenario.clients = {saturating("A", 100, 200us), saturating("B", 100, 200us),
                        bursty("C", 100, 3ms, 450ms)};
    EXPECT_LE(play(scenario).clients[2].longest_wait, 1ms);
  }
}

// There is nobody to hand over to any more, whatever that took before.
TEST(Metered, WhoIsAloneHasShortTurnsAgain) {
  Scenario scenario = metered(6s);
  scenario.hand_over = 1ms;
  scenario.clients = {saturating("A", 10, 200us), saturating("B", 50, 200us)};
  scenario.clients[1].leaves = 4s;
  const auto report = run(scenario, true);
  ASSERT_TRUE(report);
  Duration longest{};
  Time before = Time{} + 5s;
  for (const Span& span : report->clients[0].spans) {
    if (span.from > before) longest = std::max(longest, span.from - before);
    before = std::max(before, span.to);
  }
  EXPECT_LE(longest, 60ms);
  EXPECT_GT(longest, 40ms);
}

// No error adds up: after an hour shares are as exact as after five minutes.
TEST(Metered, NothingDriftsInAnHour) {
#ifdef NVSHARE_UNDER_SANITIZER  // the arithmetic is the same and takes ten times as long
  constexpr Duration kAnHour = 10min;
#else
  constexpr Duration kAnHour = 60min;
#endif
  for (const Duration lasts : {Duration(5min), kAnHour}) {
    SCOPED_TRACE(lasts.count());
    Scenario scenario = metered(lasts);
    scenario.hand_over = 50us;
    scenario.clients = {saturating("fine", 25, 10us), saturating("long", 40, 30ms),
                        bursty("bursty", 20, 3ms, 27ms), saturating("rest", 100, 2ms)};
    const Report report = play(scenario);
    EXPECT_NEAR(share_of(report, 0), 25, 0.1);
    EXPECT_NEAR(share_of(report, 1), 40, 0.1);
    EXPECT_NEAR(share_of(report, 2), 8, 0.1) << "3 ms of 30, and of the waiting for long kernels";
    EXPECT_GE(report.gpus[0].utilization_percent, 98.5);
  }
}

// With what is earned while it runs a tenant could run again at once, for ever shorter times, each
// with its hand-over.
TEST(Metered, LimitsAreNotSpentInSlivers) {
  Scenario scenario = metered();
  scenario.hand_over = 50us;
  scenario.clients = {saturating("A", 25, 10us), saturating("B", 40, 10us),
                      saturating("rest", 100, 10us)};
  const Report report = play(scenario);
  EXPECT_NEAR(share_of(report, 0), 25, 0.1);
  EXPECT_NEAR(share_of(report, 1), 40, 0.1);
  EXPECT_GE(report.gpus[0].utilization_percent, 98.5);
}

TEST(Metered, ManyOverCommittedTenantsScale) {
  Scenario scenario = metered();
  double sum = 0;
  for (int limit : {20, 40, 60, 80}) {
    scenario.clients.push_back(saturating("T", limit, 2ms));
    sum += limit;
  }
  const Report report = play(scenario);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(share_of(report, i), 100 * (20 + 20 * i) / sum, 0.5);
  EXPECT_GE(report.gpus[0].utilization_percent, 99.5);
}

// What a tenant has goes to its processes in equal parts, however long their turns come out.
TEST(Metered, ProcessesOfATenantShareItsLimitEqually) {
  for (const Duration hand_over :
       {Duration(0us), Duration(20us), Duration(70us), Duration(200us)}) {
    for (const int limit : {10, 25, 60, 100}) {
      for (const int processes : {2, 3, 4}) {
        SCOPED_TRACE(testing::Message() << processes << " at " << limit << " %, hand-over "
                                        << hand_over.count() << " ns");
        Scenario scenario = metered();
        scenario.hand_over = hand_over;
        scenario.clients = {saturating("A", limit, 1ms)};
        scenario.clients[0].processes = processes;
        const Report report = play(scenario);
        const double each = share_of(report, 0) / processes;
        for (const ClientReport& one : report.clients) {
          EXPECT_NEAR(100.0 * one.gpu_time / report.lasted, each, 0.1);
        }
      }
    }
  }
}

// Each is still capped by its own limit when the others are idle.
TEST(Metered, OverCommittedTenantsKeepTheirOwnLimit) {
  Scenario scenario = metered();
  scenario.clients = {saturating("A", 80), saturating("B", 80)};
  scenario.clients[1].leaves = kLong / 2;
  const Report report = play(scenario);
  EXPECT_NEAR(share_of(report, 0), (50 + 80) / 2.0, 0.5);
}

// However long turns have become, a higher priority waits for the shortest only.
TEST(Metered, AHigherPriorityStartsWithinOneTurn) {
  for (const Duration hand_over : {Duration(50us), Duration(500us)}) {
    SCOPED_TRACE(hand_over.count());
    Scenario scenario = metered();
    scenario.hand_over = hand_over;
    scenario.clients = {saturating("A", 100, 1ms), bursty("B", 100, 60ms, 30ms),
                        bursty("urgent", 100, 3ms, 100ms)};
    scenario.clients[2].limits.priority = 5;
    EXPECT_LE(play(scenario).clients[2].longest_wait, scenario.config.turn + 1ms + hand_over);
  }
}

TEST(Metered, LowPriorityGetsWhatIsLeftButNeverNothing) {
  Scenario scenario = metered();
  scenario.clients = {saturating("high", 100, 2ms), saturating("low", 100, 2ms)};
  scenario.clients[0].limits.priority = 5;
  const Report report = play(scenario);
  EXPECT_GE(share_of(report, 0), 99);
  EXPECT_GT(share_of(report, 1), 0.05);
}

// What a tenant could not have because a higher priority had everything it does not make up for.
TEST(Metered, AHigherPriorityWithoutALimitLeavesNothingToMakeUpFor) {
  Scenario scenario = metered(40s);
  scenario.clients = {saturating("high", 100, 2ms), saturating("batch", 30, 2ms),
                      saturating("rest", 100, 2ms)};
  scenario.clients[0].limits.priority = 5;
  scenario.clients[0].leaves = 20s;
  scenario.clients[2].arrives = 20s;
  EXPECT_NEAR(share_of(play(scenario), 1) * 2, 30, 1);
}

// But what a higher priority uses within its own limit it does: both have what they are promised.
TEST(Metered, AHigherPriorityWithALimitTakesNothingFromLowerOnes) {
  Scenario scenario = metered(400s);
  scenario.clients = {saturating("high", 30, 2s), saturating("low", 50, 2ms),
                      saturating("rest", 100, 2ms)};
  scenario.clients[0].limits.priority = 5;
  const Report report = play(scenario);
  EXPECT_NEAR(share_of(report, 0), 30, 0.5);
  EXPECT_NEAR(share_of(report, 1), 50, 0.5);
}

// What is lost between turns is nobody's to save up: a limit holds as soon as there is room for it.
TEST(Metered, WhatHandOversTakeIsNotSavedUp) {
  Scenario scenario = metered(80s);
  scenario.hand_over = 5ms;
  scenario.clients = {saturating("A", 50, 1ms), saturating("B", 50, 1ms)};
  scenario.clients[1].leaves = 60s;
  const double both = share_of(play(scenario), 0);
  scenario.lasts = 60s;
  const double until_then = share_of(play(scenario), 0);
  EXPECT_LE(both * 80 - until_then * 60, (50 + 2) * 20);
}

// Watches that the GPU is never idle while a client with work has budget and memory.
class NeverIdleWithWork : public Observer {
 public:
  void after_step(const core::Event&, Time now, const core::Decisions&,
                  const core::Core& core) override {
    const core::Snapshot s = core.snapshot();
    bool busy = false;
    for (const auto& c : s.clients)
      busy |= c.state != core::ClientState::Idle && c.state != core::ClientState::Waiting;
    if (busy) return;
    for (const auto& c : s.clients) {
      if (c.state != core::ClientState::Waiting) continue;
      const std::string why = *core.explain(c.id, now);
      EXPECT_NE(why.find("has used up its"), std::string::npos) << "idle while a client " << why;
      ++waits;
    }
  }
  int waits = 0;
};

TEST(Metered, TheGpuIsNeverIdleWhileSomebodyWithBudgetHasWork) {
  NeverIdleWithWork watch;
  for (const Model& first : kModels) {
    for (const Model& second : kModels) {
      SCOPED_TRACE(testing::Message() << first.name << " + " << second.name);
      Scenario scenario = metered(5s);
      scenario.clients = {first.make("A", 30), second.make("B", 50)};
      play(scenario, &watch);
    }
  }
  EXPECT_GT(watch.waits, 0);
}

}  // namespace
}  // namespace nvshare::sim
