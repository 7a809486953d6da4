#include "daemon/host/gpus.h"

#include <gtest/gtest.h>

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

constexpr Time kStart{100s};
constexpr Time kLater = kStart + OverheadEstimate::kSettles;

TEST(Overhead, IsWhatIsUsedBesideWhatClientsHave) {
  OverheadEstimate estimate(kStart);
  EXPECT_EQ(estimate.add(mib(600), Bytes{0}, 1, kLater).bytes, mib(600));
  EXPECT_EQ(estimate.add(gib(2), gib(3), 1, kLater).bytes, Bytes{0})
      << "asked for, and not taken yet";
}

TEST(Overhead, MemoryThatWasJustFreedIsNone) {
  OverheadEstimate estimate(kStart);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(estimate.add(gib(61), gib(60), 1, kLater).bytes, gib(1));
  EXPECT_EQ(estimate.add(gib(61), gib(10), 1, kLater).bytes, gib(1));
  EXPECT_EQ(estimate.add(gib(61), gib(10), 1, kLater + 10s).bytes, gib(1))
      << "memory moved meanwhile, and nothing could be read";
}

// Whatever the period of the sampler is.
TEST(Overhead, WhatStaysIsBelievedAfterAWhile) {
  for (const Duration period : {50ms, 800ms, 2000ms}) {
    OverheadEstimate estimate(kStart);
    estimate.add(gib(1), Bytes{0}, 1, kLater);
    Time now = kLater;
    while ((now += period) <= kLater + OverheadEstimate::kBelieved) {
      EXPECT_EQ(estimate.add(gib(3), Bytes{0}, 2, now).clients, 1) << "of whom it was measured";
    }
    Overhead last;
    for (std::size_t i = 0; i < OverheadEstimate::kFewest; ++i) {
      last = estimate.add(gib(3), Bytes{0}, 2, now += period);
    }
    EXPECT_EQ(last.bytes, gib(3));
    EXPECT_EQ(last.clients, 2);
  }
}

// Programs that have memory are not back yet when the scheduler starts again.
TEST(Overhead, IsAtMostWhatIsUsedUntilProgramsAreBack) {
  OverheadEstimate estimate(kStart);
  EXPECT_TRUE(estimate.add(gib(60), Bytes{0}, 1, kStart).at_most);
  EXPECT_TRUE(estimate.add(gib(60), gib(59), 1, kLater - 1ns).at_most);
  const Overhead known = estimate.add(gib(60), gib(57), 1, kLater);
  EXPECT_FALSE(known.at_most);
  EXPECT_EQ(known.bytes, gib(3));
}

// Two programs come back, and NVML is looked at, in every order and as late as can be: once both
// are back the GPU holds what it held before.
TEST(Overhead, ClientsThatComeBackAreNotTakenForIt) {
  enum What { kFirst, kSecond, kLook, kLookAgain };
  std::vector<int> order{kFirst, kSecond, kLook, kLookAgain};
  do {
    for (const Duration late : {0s, 10s}) {
      TestBroker t;
      OverheadEstimate estimate(t.now);
      const auto look = [&] {
        const auto clients = static_cast<int>(t.broker.gpus().at(GpuId{0}).clients.size());
        const Bytes booked = resident_on(t.broker, GpuId{0});
        t.broker.gpu_measured(GpuId{0}, {}, {}, estimate.add(gib(15), booked, clients, t.now),
                              t.now);
      };
      const auto join = [&](const char* name, Bytes bytes) {
        auto hello = TestBroker::hello();
        hello.allocated = hello.resident = static_cast<std::uint64_t>(bytes.count);
        t.join(t.tenant(name), hello);
      };
      look();
      t.now += late;
      for (const int what : order) {
        if (what == kFirst) join("a", gib(10));
        if (what == kSecond) join("b", gib(4));
        if (what == kLook || what == kLookAgain) look();
        t.now += 100ms;
        const bool both = t.broker.gpus().at(GpuId{0}).clients.size() == 2;
        const Bytes safe = *t.broker.core().safe_limit(GpuId{0});
        if (both) {
          EXPECT_GE(safe, gib(16) - mib(1100)) << "contexts take 1 GiB";
        } else if (late == 0s) {
          EXPECT_GE(safe, mib(14700)) << "no less than one would guess";
        }
      }
      look();
      EXPECT_GE(*t.broker.core().safe_limit(GpuId{0}), gib(16) - mib(1100));
      EXPECT_LE(*t.broker.core().safe_limit(GpuId{0}), gib(15));
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(MeterCheck, ComparesWhatWasBilledWithWhatWasSeen) {
  MeterCheck check;
  check.add(10s, 40, kStart);
  EXPECT_FALSE(check.metered()) << "nothing to compare with yet";
  check.add(10s + 500ms, 40, kStart + 1s);
  EXPECT_DOUBLE_EQ(check.metered().value_or(0), 50);
  EXPECT_DOUBLE_EQ(check.seen().value_or(0), 40);
  for (int i = 2; i < 40; ++i) check.add(10s + i * 250ms, 25, kStart + i * 1s);
  EXPECT_NEAR(check.metered().value_or(0), 25, 0.1);
  EXPECT_NEAR(check.seen().value_or(0), 25, 0.1);
  check.add(1s, 25, kStart + 40s);
  EXPECT_NEAR(check.metered().value_or(0), 25, 0.1) << "a tenant is gone with its bill";
  check.add(1s + 250ms, 25, kStart + 41s);
  EXPECT_NEAR(check.metered().value_or(0), 25, 0.1);
}

TEST(MeterCheck, SaysTheSameWithAnotherPeriod) {
  const auto after = [](Duration period) {
    MeterCheck check;
    check.add(0s, 0, kStart);
    check.add(period * 8 / 10, 80, kStart + period);
    for (Time now = kStart + 2 * period; now <= kStart + period + 4s; now += period) {
      check.add(period * 8 / 10 + (now - kStart - period) / 2, 50, now);
    }
    return check.metered().value_or(0);
  };
  EXPECT_NEAR(after(100ms), after(1s), 0.1);
  EXPECT_NEAR(after(2s), after(1s), 0.1);
}

TEST(MeterCheck, CountsABillOnceForAllLevels) {
  TestBroker t;
  const TenantId user = *t.broker.tenant_for({TenantKind::User, "user-7", 7}, {}, t.now);
  const auto run = [&](const std::string& name, TenantId parent) {
    return *t.broker.begin_run({TenantKind::Run, name, 7}, {}, t.now, wire::Backend::Default, false,
                               parent);
  };
  const TenantId outer = run("outer", user);
  const auto work = [&](ClientId client, Duration used) {
    t.want(client);
    const std::uint64_t grant = t.granted(client);
    ASSERT_GT(grant, 0u);
    t.now += used;
    t.release(client, grant, used);
  };
  work(t.join(user), 10ms);
  work(t.join(run("inner", outer)), 20ms);
  work(t.join(t.tenant("beside")), 30ms);
  EXPECT_EQ(t.billed(user), 30ms) << "its own and that of its parts";
  EXPECT_EQ(t.billed(outer), 20ms);
  EXPECT_EQ(billed_on(t.broker.core().snapshot(), GpuId{0}), 60ms);
}

TEST(Overhead, AClaimDoesNotHideWhatOthersHave) {
  TestBroker t;
  core::Limits limits;
  limits.memory = gib(2);
  const TenantId tenant = t.tenant("a", limits);
  auto hello = TestBroker::hello();
  hello.allocated = static_cast<std::uint64_t>(gib(12).count);
  hello.pinned = hello.resident = hello.allocated;
  t.join(tenant, hello);
  EXPECT_EQ(resident_on(t.broker, GpuId{0}), gib(2)) << "what its limit allows";
  hello.allocated = hello.resident = std::uint64_t{200} << 40;
  t.join(tenant, hello);
  EXPECT_EQ(resident_on(t.broker, GpuId{0}), gib(2));
  hello.pinned = hello.allocated;
  EXPECT_FALSE(t.try_join(tenant, hello)) << "no GPU has so much";
  EXPECT_TRUE(t.ask(t.join(t.tenant("b")), gib(1)));
  EXPECT_EQ(resident_on(t.broker, GpuId{0}), gib(3));
}

}  // namespace
}  // namespace nvshare::daemon
