#include "daemon/broker/placement.h"

#include <cstring>

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

constexpr Uuid kSecond{9, 8, 7};
constexpr Uuid kUnknown{6, 6, 6};

// Two GPUs of 16 GiB.
class RunPlacerTest : public ::testing::Test {
 protected:
  RunPlacerTest() { EXPECT_TRUE(t.broker.add_gpu(kSecond, "Second GPU", gib(16), t.now)); }

  static wire::RunBegin begin(wire::GpuChoice choice, const std::vector<Uuid>& gpus = {},
                              int wanted = 1) {
    auto message = wire::make<wire::RunBegin>();
    message.choice = choice;
    message.gpus_wanted = static_cast<std::uint16_t>(wanted);
    for (const Uuid& uuid : gpus) {
      std::memcpy(message.gpus[message.gpu_count++], uuid.data(), uuid.size());
    }
    return message;
  }
  TenantId run(const std::string& name, const wire::RunBegin& how,
               std::optional<Bytes> memory = {}) {
    const auto id = t.broker.begin_run({TenantKind::Run, name, 1000}, {.memory = memory}, t.now);
    EXPECT_TRUE(id);
    welcome = wire::make<wire::Welcome>();
    t.broker.place_run(*id, how, welcome);
    return *id;
  }
  const RunPlacement& placed(TenantId id) { return t.broker.tenants().at(id).placed; }
  std::vector<GpuId> auto_run(const std::string& name, std::optional<Bytes> memory = {}) {
    return placed(run(name, begin(wire::GpuChoice::Auto), memory)).gpus;
  }
  std::string said() const {
    return {welcome.placement, wire::text_length(welcome.placement, sizeof welcome.placement)};
  }

  TestBroker t;
  wire::Welcome welcome{};
  const GpuId first{0};
  const GpuId second{1};
};

TEST_F(RunPlacerTest, AProgramOnTheFirstGpuSendsTheNextRunToTheSecond) {
  t.join(run("a", begin(wire::GpuChoice::Chosen, {kTestGpu})));
  EXPECT_EQ(auto_run("b"), std::vector{second});
  EXPECT_EQ(said(), "placed on GPU 1: it was idle; GPU 0 had 1 program");
  ASSERT_EQ(welcome.gpu_count, 1u);
  EXPECT_EQ(std::memcmp(welcome.gpus[0], kSecond.data(), kSecond.size()), 0);
}

TEST_F(RunPlacerTest, RunsThatBeginAtOnceSpread) {
  std::map<GpuId, int> runs;
  for (int i = 0; i < 10; ++i) ++runs[auto_run("run-" + std::to_string(i)).at(0)];
  EXPECT_EQ(runs[first], 5);
  EXPECT_EQ(runs[second], 5);
}

TEST_F(RunPlacerTest, ARunCountsUntilItsFirstClientHasComeOrItEnds) {
  const TenantId a = run("a", begin(wire::GpuChoice::Auto));
  EXPECT_TRUE(placed(a).awaited);
  t.join(a);
  EXPECT_FALSE(placed(a).awaited) << "the client counts from now on";
  const TenantId b = run("b", begin(wire::GpuChoice::Auto));
  EXPECT_EQ(placed(b).gpus, std::vector{second});
  t.broker.end_run(b, t.now);
  EXPECT_EQ(auto_run("c"), std::vector{second});
}

// After a restart of the scheduler programs may come back before their keeper does.
TEST_F(RunPlacerTest, ARunWhoseProgramsAreBackAlreadyCountsOnce) {
  const auto a = t.broker.begin_run({TenantKind::Run, "a", 1000}, {.memory = gib(10)}, t.now);
  const ClientId client = t.join(*a);
  ASSERT_TRUE(t.ask(client, gib(4)));
  t.broker.place_run(*a, begin(wire::GpuChoice::Kept, {kTestGpu}), welcome);
  EXPECT_FALSE(placed(*a).awaited);
  EXPECT_EQ(auto_run("b"), std::vector{second});
  EXPECT_EQ(said(), "placed on GPU 1: it was idle; GPU 0 had 1 program");
}

TEST_F(RunPlacerTest, TheRunsMemoryLimitIsReserved) {
  ASSERT_EQ(auto_run("a", gib(10)), std::vector{first});
  ASSERT_EQ(auto_run("b"), std::vector{second});
  ASSERT_EQ(auto_run("c", gib(2)), std::vector{second}) << "more is free there";
  EXPECT_EQ(auto_run("d", gib(8)), std::vector{second}) << "10 GiB of the first are taken";
}

TEST_F(RunPlacerTest, OnlyGpusThatTheRunCanSeeAreChosen) {
  t.join(run("a", begin(wire::GpuChoice::Chosen, {kTestGpu})));
  const TenantId b = run("b", begin(wire::GpuChoice::Auto, {kTestGpu}));
  EXPECT_EQ(placed(b).gpus, std::vector{first});
  const TenantId c = run("c", begin(wire::GpuChoice::Auto, {kUnknown}));
  EXPECT_TRUE(placed(c).gpus.empty());
  EXPECT_EQ(welcome.gpu_count, 0u);
}

// The best one is chosen first, and the program sees them in the machine's order.
TEST_F(RunPlacerTest, SeveralGpusAreChosenEachOnce) {
  t.join(run("a", begin(wire::GpuChoice::Chosen, {kTestGpu})));
  const TenantId b = run("b", begin(wire::GpuChoice::Auto, {}, 9));
  EXPECT_EQ(placed(b).gpus, (std::vector{first, second}));
  EXPECT_EQ(said(),
            "placed on GPUs 0 and 1: first GPU 1, because it was idle; GPU 0 had 1 program");
}

TEST_F(RunPlacerTest, AChoiceIsKeptInItsOrder) {
  const TenantId a = run("a", begin(wire::GpuChoice::Chosen, {kSecond, kTestGpu, kUnknown}));
  EXPECT_EQ(placed(a).gpus, (std::vector{second, first}));
  EXPECT_EQ(said(), "placed on GPUs 1 and 0: it was asked for");
  const TenantId b = run("b", begin(wire::GpuChoice::Kept, {kSecond}));
  EXPECT_EQ(placed(b).gpus, std::vector{second});
  EXPECT_EQ(said(), "placed on GPU 1: it was there before the scheduler was started again");
}

TEST_F(RunPlacerTest, ARunThatSaysNothingIsPlacedNowhere) {
  for (const auto choice : {wire::GpuChoice::None, wire::GpuChoice{77}}) {
    const TenantId a = run("a", begin(choice, {kSecond}));
    EXPECT_TRUE(placed(a).gpus.empty());
    EXPECT_FALSE(placed(a).awaited);
    EXPECT_EQ(welcome.gpu_count, 0u);
    EXPECT_EQ(said(), "");
    t.broker.end_run(a, t.now);
  }
}

// GPUs that programs have named may not be all there are.
TEST_F(RunPlacerTest, WithoutNvmlNothingIsPlaced) {
  t.broker.accept_claimed_gpus();
  EXPECT_TRUE(auto_run("a").empty());
}

TEST(RunPlacer, OnAMachineWithOneGpuNothingIsPlaced) {
  TestBroker t;
  const auto id = t.broker.begin_run({TenantKind::Run, "a", 1000}, {}, t.now);
  auto begin = wire::make<wire::RunBegin>();
  begin.choice = wire::GpuChoice::Auto;
  auto welcome = wire::make<wire::Welcome>();
  t.broker.place_run(*id, begin, welcome);
  EXPECT_TRUE(t.broker.tenants().at(*id).placed.gpus.empty());
  EXPECT_EQ(welcome.gpu_count, 0u);
}

// A run may say anything.
TEST_F(RunPlacerTest, LiesAboutTheNumberOfGpusDoNoHarm) {
  auto message = begin(wire::GpuChoice::Chosen, {kSecond});
  message.gpu_count = 65535;
  EXPECT_EQ(placed(run("a", message)).gpus, std::vector{second});
  message.choice = wire::GpuChoice::Auto;
  message.gpus_wanted = 65535;
  EXPECT_EQ(placed(run("b", message)).gpus, std::vector{second});
}

}  // namespace
}  // namespace nvshare::daemon
