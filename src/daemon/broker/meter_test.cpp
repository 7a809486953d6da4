#include "daemon/broker/broker.h"
#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

core::Limits with_memory(Bytes memory) {
  core::Limits limits;
  limits.memory = memory;
  return limits;
}

// --- the meter ---------------------------------------------------------------------------------

struct BrokerMeter : testing::Test {
  static core::Config together() {
    core::Config config;
    config.share_mode = core::ShareMode::Concurrent;
    return config;
  }
  BrokerMeter()
      : t(together()), a(t.tenant("a")), b(t.tenant("b")), one(t.join(a)), two(t.join(b)) {
    t.want(one);
    t.want(two);
    first = t.granted(one);
    second = t.granted(two);
    EXPECT_NE(first, 0u);
    EXPECT_NE(second, 0u);
  }
  TestBroker t;
  TenantId a;
  TenantId b;
  ClientId one;
  ClientId two;
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

TEST_F(BrokerMeter, TimesThatOverlapAreSharedOut) {
  t.meter(one, first, 90ms);
  t.meter(two, second, 30ms);
  t.pass(100ms);  // when the core wants to know
  EXPECT_EQ(t.billed(a), 75ms);
  EXPECT_EQ(t.billed(b), 25ms);
}

TEST_F(BrokerMeter, TimesThatDoNotOverlapAreBilledAsTheyAre) {
  t.meter(one, first, 20ms);
  t.meter(two, second, 30ms);
  t.pass(100ms);
  EXPECT_EQ(t.billed(a), 20ms);
  EXPECT_EQ(t.billed(b), 30ms);
}

TEST_F(BrokerMeter, AMeterThatLiesIsBounded) {
  t.page_of.at(one)->program.grant = first;
  t.page_of.at(one)->program.used = UINT64_MAX;
  t.meter(two, second + 1, 30ms);  // of another grant
  t.pass(100ms);
  EXPECT_EQ(t.billed(a), 100ms);
  EXPECT_EQ(t.billed(b), 0ms);
  t.meter(one, first, 0ms);  // goes back
  t.pass(100ms);
  EXPECT_EQ(t.billed(a), 100ms);
}

TEST_F(BrokerMeter, AReleaseIsAReadingToo) {
  t.meter(one, first, 40ms);
  t.now += 50ms;
  t.release(two, second, 40ms);
  EXPECT_EQ(t.billed(a) + t.billed(b), 50ms);
  EXPECT_EQ(t.billed(b), 25ms);
  // What came before is not counted again.
  t.meter(one, first, 60ms);
  t.now += 20ms;
  t.release(one, first, 60ms);
  EXPECT_EQ(t.billed(a), 25ms + 20ms);
}

TEST_F(BrokerMeter, OnceASecondEveryShareIsKnown) {
  t.release(two, second, 0ms);
  t.broker.sample(t.now);
  EXPECT_FALSE(t.broker.find_tenant("a")->share_percent);
  t.meter(one, first, 600ms);
  t.now += 1s;
  t.broker.sample(t.now);
  EXPECT_NEAR(t.broker.find_tenant("a")->share_percent.value_or(-1), 60, 0.01);
  EXPECT_NEAR(t.broker.find_tenant("b")->share_percent.value_or(-1), 0, 0.01);
  EXPECT_EQ(wanted(*t.broker.find_tenant("a"), t.now), 1s);
  EXPECT_EQ(wanted(*t.broker.find_tenant("b"), t.now), 0s);
}

TEST_F(BrokerMeter, WhatWasUsedUnderAnotherLimitIsNoPartOfTheShare) {
  t.release(two, second, 0ms);
  t.now += 1s;
  t.broker.sample(t.now);
  t.meter(one, first, 400ms);
  t.now += 400ms;
  core::Limits half;
  half.core_percent = 50;
  ASSERT_TRUE(t.broker.find_tenant("a")->share_percent);
  ASSERT_TRUE(t.broker.set_limits(a, half, t.now));
  EXPECT_FALSE(t.broker.find_tenant("a")->share_percent) << "there is none yet";
  t.meter(one, first, 700ms);
  t.now += 600ms;
  t.broker.sample(t.now);
  EXPECT_NEAR(t.broker.find_tenant("a")->share_percent.value_or(-1), 50, 0.01);
  // Only what limits GPU time.
  half.memory = gib(1);
  t.meter(one, first, 900ms);
  t.now += 200ms;
  ASSERT_TRUE(t.broker.set_limits(a, half, t.now));
  EXPECT_TRUE(t.broker.find_tenant("a")->share_percent);
  t.meter(one, first, 1200ms);
  t.now += 800ms;
  t.broker.sample(t.now);
  EXPECT_NEAR(t.broker.find_tenant("a")->share_percent.value_or(-1), 50, 0.01);
}

// In a single second there are more turns of the one or of the other.
TEST_F(BrokerMeter, AShareIsThatOfSomeSeconds) {
  t.release(two, second, 0ms);
  Duration used{};
  for (int i = 0; i < 10; ++i) {
    t.meter(one, first, used += i % 2 == 0 ? 300ms : 700ms);
    t.now += 1s;
    t.broker.sample(t.now);
    if (i < 4) continue;
    EXPECT_NEAR(t.broker.find_tenant("a")->share_percent.value_or(-1), 50, 4.01) << i;
  }
  EXPECT_LE(t.broker.find_tenant("a")->samples.size(), 6u);
}

TEST_F(BrokerMeter, AShareBeginsAfreshAfterASecondOfNothingToDo) {
  t.release(two, second, 0ms);
  t.meter(one, first, 2s);
  t.now += 4s;
  t.broker.sample(t.now);
  t.release(one, first, 2s);
  for (int i = 0; i < 2; ++i) {
    t.now += 1s;
    t.broker.sample(t.now);
    EXPECT_EQ(t.broker.find_tenant("a")->share_percent, 0.0);
  }
  t.want(one);
  t.meter(one, t.granted(one), 800ms);
  t.now += 1s;
  t.broker.sample(t.now);
  EXPECT_NEAR(t.broker.find_tenant("a")->share_percent.value_or(-1), 80, 0.01);
  ASSERT_TRUE(t.broker.set_paused(a, true, t.now));
  EXPECT_FALSE(t.broker.find_tenant("a")->share_percent);
}

TEST_F(BrokerMeter, OnSeveralGpusAShareIsTheMeanOfThem) {
  constexpr Uuid kOther{9};
  ASSERT_TRUE(t.broker.add_gpu(kOther, "Another", gib(16), t.now));
  wire::Hello there = TestBroker::hello();
  std::memcpy(there.gpu, kOther.data(), kOther.size());
  const ClientId three = t.join(a, there);
  t.want(three);
  const std::uint64_t third = t.granted(three);
  t.release(two, second, 0ms);
  t.meter(one, first, 300ms);
  t.meter(three, third, 500ms);
  t.now += 1s;
  t.broker.sample(t.now);
  EXPECT_NEAR(t.broker.find_tenant("a")->share_percent.value_or(-1), 40, 0.01);
  // When it leaves one of them, what it had there is not taken for more of the other.
  t.meter(one, first, 600ms);
  t.release(three, third, 1s);
  t.broker.leave(three, t.now);
  for (const double share : {30.0, 30.0}) {
    t.now += 1s;
    t.broker.sample(t.now);
    EXPECT_LE(t.broker.find_tenant("a")->share_percent.value_or(-1), share + 10);
  }
}

TEST_F(BrokerMeter, AShareIsNeverMoreThanAllOfIt) {
  t.release(two, second, 0ms);
  t.now += 1s;
  t.broker.sample(t.now);
  t.meter(one, first, 2s);  // says late what it has used in the second before
  t.now += 1s;
  t.broker.sample(t.now);
  EXPECT_EQ(t.broker.find_tenant("a")->share_percent, 100.0);
}

// Running free a program is not metered call by call, and NVML knows better.
TEST(BrokerMeterAlone, WhoRunsFreeIsBilledForWhatTheGpuWasBusy) {
  TestBroker t;
  const TenantId a = t.tenant("a");
  const ClientId one = t.join(a);
  t.want(one);
  const std::uint64_t grant = t.granted(one);
  const auto second = [&](Duration said, std::optional<int> utilisation) {
    const Duration before = t.billed(a);
    t.now += 1s;
    t.meter(one, grant, said);
    t.broker.gpu_measured(GpuId{0}, utilisation, {}, {}, t.now);
    t.broker.sample(t.now);
    return t.billed(a) - before;
  };
  EXPECT_EQ(second(1s, 30), 300ms);
  EXPECT_EQ(second(1100ms, 30), 100ms) << "nor for more than it says";
  EXPECT_EQ(second(2100ms, std::nullopt), 1s);
  EXPECT_EQ(second(3050ms, 100), 950ms);
  EXPECT_EQ(second(4100ms, 100), 1050ms) << "its meter lags behind the clock";
  t.now += 3s;
  t.meter(one, grant, 7100ms);
  t.broker.sample(t.now);
  EXPECT_EQ(t.billed(a), 6400ms) << "nothing new was measured";
}

TEST(BrokerMeterAlone, WhatWasMeasuredBeforeItRanIsNotAboutIt) {
  TestBroker t;
  const TenantId a = t.tenant("a");
  const ClientId one = t.join(a);
  t.now += 1s;
  t.want(one);
  t.now += 999ms;
  t.broker.gpu_measured(GpuId{0}, 10, {}, {}, t.now);
  t.meter(one, t.granted(one), 999ms);
  t.broker.sample(t.now);
  EXPECT_EQ(t.billed(a), 999ms);
}

TEST(BrokerMeterAlone, UnderALimitTheMeterCounts) {
  TestBroker t;
  core::Limits most;
  most.core_percent = 99;
  const TenantId a = t.tenant("a", most);
  const ClientId one = t.join(a);
  t.want(one);
  t.now += 1s;
  t.meter(one, t.granted(one), 10ms);
  t.broker.gpu_measured(GpuId{0}, 0, {}, {}, t.now);
  t.broker.sample(t.now);
  EXPECT_EQ(t.billed(a), 10ms);
}

// --- memory ------------------------------------------------------------------------------------

struct BrokerMemory : testing::Test {
  BrokerMemory() : a(t.tenant("a", with_memory(gib(4)))), one(t.join(a)), two(t.join(a)) {}
  TestBroker t;
  TenantId a;
  ClientId one;
  ClientId two;
};

TEST_F(BrokerMemory, ALimitIsExactOverAllProcessesOfTheTenant) {
  EXPECT_TRUE(t.ask(one, gib(3)));
  EXPECT_FALSE(t.ask(two, gib(1) + Bytes{1}));
  EXPECT_EQ(t.allowed, static_cast<std::uint64_t>(gib(1).count));
  EXPECT_NE(t.lines.find("event=memory_refused"), std::string::npos);
  EXPECT_NE(t.lines.find("asked=1073741825 used=3221225472 limit=4294967296"), std::string::npos);
  EXPECT_TRUE(t.ask(two, gib(1)));
  EXPECT_FALSE(t.ask(one, Bytes{1}));
  EXPECT_EQ(t.allowed, 0u);
  EXPECT_EQ(t.page(one).tenant_allocated, static_cast<std::uint64_t>(gib(4).count));
  EXPECT_EQ(t.page(two).tenant_allocated, static_cast<std::uint64_t>(gib(4).count));
  t.free(one, gib(3));
  EXPECT_EQ(t.page(two).tenant_allocated, static_cast<std::uint64_t>(gib(1).count));
  EXPECT_TRUE(t.ask(two, gib(3)));
}

TEST_F(BrokerMemory, WhatAProcessHadIsFreeWhenItIsGone) {
  EXPECT_TRUE(t.ask(one, gib(4)));
  t.broker.leave(one, t.now);
  EXPECT_EQ(t.page(two).tenant_allocated, 0u);
  EXPECT_TRUE(t.ask(two, gib(4)));
}

TEST_F(BrokerMemory, SizesThatWouldOverflowAreRefused) {
  EXPECT_TRUE(t.ask(one, gib(1)));
  for (const std::uint64_t bytes : {UINT64_MAX, UINT64_MAX - (1u << 30), std::uint64_t{1} << 63,
                                    static_cast<std::uint64_t>(INT64_MAX)}) {
    EXPECT_FALSE(t.ask(one, bytes));
  }
  EXPECT_TRUE(t.ask(one, std::uint64_t{0}));
  EXPECT_EQ(t.broker.core().view(one)->allocated, gib(1));
  EXPECT_FALSE(t.gone(one));
}

TEST_F(BrokerMemory, FreeingMoreThanThereIsIsAnError) {
  EXPECT_TRUE(t.ask(one, gib(1)));
  EXPECT_TRUE(t.ask(two, gib(1)));
  t.free(one, gib(1) + Bytes{1});
  EXPECT_TRUE(t.gone(one));
  EXPECT_FALSE(t.gone(two));
}

// Nothing can be moved yet: a full card refuses, and who runs is not disturbed by having asked.
TEST_F(BrokerMemory, AFullCardRefusesAndNobodyStops) {
  const ClientId big = t.join(t.tenant("b"));
  t.want(big);
  EXPECT_NE(t.granted(big), 0u);
  EXPECT_FALSE(t.ask(big, gib(16)));
  EXPECT_TRUE(t.ask(big, gib(10)));
  EXPECT_FALSE(t.ask(big, gib(5)));
  EXPECT_TRUE(t.outbox.take<wire::Drop>(big).empty());
  EXPECT_TRUE(t.ask(one, gib(2)));
  EXPECT_EQ(t.broker.core().view(big)->state, core::ClientState::Running);
  EXPECT_EQ(t.lines.find("memory_cannot_move"), std::string::npos);
}

TEST(BrokerOverlap, IsToldToTheCoreWhenItChanges) {
  TestBroker t;
  t.join(t.tenant("a"));
  for (const bool possible : {true, true, false, false, true}) {
    t.broker.overlap_seen(GpuId{0}, possible, t.now);
    EXPECT_EQ(t.broker.gpus().at(GpuId{0}).overlap, possible);
  }
  t.broker.overlap_seen(GpuId{9}, true, t.now);
  std::size_t told = 0;
  for (std::size_t at = 0; (at = t.lines.find("mps_seen", at)) != std::string::npos; ++at) ++told;
  EXPECT_EQ(told, 2u);
}

// More processes mean a larger reserve; what is over it stays where it is.
TEST(BrokerReserve, NothingIsEverToldToMove) {
  TestBroker t({}, gib(4));
  const ClientId big = t.join(t.tenant("a"));
  EXPECT_TRUE(t.ask(big, gib(3)));
  for (int i = 0; i < 10; ++i) {
    const ClientId more = t.join(t.tenant("b" + std::to_string(i)));
    t.want(more);
    EXPECT_FALSE(t.ask(more, mib(100)) && i > 2);
  }
  t.want(big);
  t.pass(10s);
  EXPECT_EQ(t.lines.find("memory_cannot_move"), std::string::npos);
  t.broker.gpu_measured(GpuId{0}, 50, gib(4), Overhead{gib(2), 1}, t.now);
  t.pass(10s);
  EXPECT_EQ(t.lines.find("memory_cannot_move"), std::string::npos);
}

TEST(BrokerReserve, TheMeasuredOverheadReplacesTheEstimate) {
  TestBroker t({}, gib(4));
  const ClientId client = t.join(t.tenant("a"));
  EXPECT_FALSE(t.ask(client, mib(3900)));
  t.broker.gpu_measured(GpuId{0}, 0, mib(100), Overhead{mib(100), 1}, t.now);
  EXPECT_TRUE(t.ask(client, mib(3900)));
}

}  // namespace
}  // namespace nvshare::daemon
