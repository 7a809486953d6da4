#include "daemon/lease/lender.h"

#include <gtest/gtest.h>

#include "daemon/lease/testing.h"

namespace nvshare::daemon {
namespace {

constexpr int kChild = 50'000'011;

struct LentWorld : LeaseWorld {
  explicit LentWorld(bool is_private = true) : lender(broker.broker, processes, is_private) {
    leases.on_change([this] { lender.leases_changed(); });
    picture.process(kChild, kOwner, "/");
  }
  ClientId client(TenantId tenant, int pid) {
    return broker.join(tenant, TestBroker::hello(), {pid, 1000});
  }
  // The priority with which the tenant's work waits, after the turn.
  int priority(TenantId tenant) {
    while (lender.end_of_turn(leases, broker.now)) {
    }
    for (const core::ShareView& share : broker.broker.core().snapshot().shares) {
      if (share.tenant == tenant) return share.priority;
    }
    return -100;
  }
  Lender lender;
};

TEST(Lender, TheHoldersTenantHasThePriorityOfTheClassWhileTheLeaseLasts) {
  LentWorld w;
  const TenantId service = w.broker.tenant("service");
  const TenantId batch = w.broker.tenant("batch");
  w.client(service, kOwner);
  w.client(batch, kOtherOwner);
  EXPECT_EQ(w.priority(service), 0);
  const std::string asr = w.lease("ASR");
  EXPECT_EQ(w.priority(service), 8);
  EXPECT_EQ(w.priority(batch), 0);
  EXPECT_EQ(w.broker.broker.tenants().at(service).lent.at(GpuId{0}), 8);
  const std::string nmt = w.lease("NMT");
  w.call("DELETE", "/v1/leases/" + asr);
  EXPECT_EQ(w.priority(service), 6) << "the highest of those that are left";
  w.call("DELETE", "/v1/leases/" + nmt);
  EXPECT_EQ(w.priority(service), 0);
}

TEST(Lender, AnOverdueLeaseLendsNothing) {
  LentWorld w;
  const TenantId service = w.broker.tenant("service");
  w.client(service, kOwner);
  w.lease("ASR", R"(,"holdMaxMs":100)");
  EXPECT_EQ(w.priority(service), 8);
  w.pass(100ms);
  EXPECT_EQ(w.priority(service), 0);
}

// A shell that owns a lease may have started batch work as well.
TEST(Lender, AProcessBelowTheOwnerHasNothingByItself) {
  LentWorld w;
  const TenantId batch = w.broker.tenant("batch");
  w.client(batch, kChild);
  w.lease("ASR");
  EXPECT_EQ(w.priority(batch), 0);
}

// `nvshare lease run` owns the lease, and its program uses the GPU.
TEST(Lender, AProcessBelowTheOwnerHasItWhereTheLeaseIsForThem) {
  LentWorld w;
  const TenantId service = w.broker.tenant("service");
  w.lease("ASR", R"(,"withChildren":true)");
  w.client(service, kChild);
  EXPECT_EQ(w.priority(service), 8) << "it came after the lease";
}

TEST(Lender, ARequestThatWaitsLendsNothing) {
  LentWorld w;
  w.settings.arbiter.slots = 1;
  w.leases.set_config(w.settings.arbiter);
  const TenantId service = w.broker.tenant("service");
  w.client(service, kOwner);
  const std::string other = w.lease("NMT", R"(,"ownerPid":null)");
  EXPECT_EQ(w.ask("ASR").status, 0);
  EXPECT_EQ(w.priority(service), 0);
  w.call("DELETE", "/v1/leases/" + other);
  EXPECT_EQ(w.priority(service), 8);
}

// A number of a process that is no longer there may be another process's.
TEST(Lender, AnotherProcessWithTheNumberOfAParentIsNotTheOwner) {
  LentWorld w;
  const TenantId batch = w.broker.tenant("batch");
  w.client(batch, kChild);
  const std::string first = w.lease("ASR", R"(,"withChildren":true)");
  EXPECT_EQ(w.priority(batch), 8);
  w.call("DELETE", "/v1/leases/" + first);
  w.picture.process(kOwner, 1, "/", Picture::kStarted + 1);
  w.lease("ASR", R"(,"withChildren":true)");
  EXPECT_EQ(w.priority(batch), 0);
}

TEST(Lender, UsersDoNotGoBeforeOneAnotherUnlessTheyMay) {
  LentWorld w(false);
  auto& broker = w.broker.broker;
  core::Limits limits;
  const TenantId user =
      *broker.tenant_for({TenantKind::User, "user-1000", 1000}, limits, w.broker.now);
  limits.priority = -5;
  const auto run = broker.begin_run({TenantKind::Run, "low", 1000}, limits, w.broker.now,
                                    wire::Backend::Default, false, user);
  ASSERT_TRUE(run);
  w.client(*run, kOwner);
  const std::string name = w.lease("ASR");
  EXPECT_EQ(w.priority(*run), 0) << "as high as its user may";
  limits.priority = 4;
  ASSERT_TRUE(broker.set_limits(user, limits, w.broker.now));
  w.call("DELETE", "/v1/leases/" + name);
  w.lease("ASR");
  EXPECT_EQ(w.priority(*run), 4);
}

TEST(Lender, RootsServicesGoAsTheirClassSays) {
  LentWorld w(false);
  const TenantId root =
      *w.broker.broker.tenant_for({TenantKind::User, "user-0", 0}, {}, w.broker.now);
  w.client(root, kOwner);
  w.lease("ASR");
  EXPECT_EQ(w.priority(root), 8);
}

TEST(Lender, ManyProgramsAreLookedAtInSeveralTurns) {
  LentWorld w;
  const TenantId service = w.broker.tenant("service");
  for (int i = 0; i < 3 * Lender::kLooksPerTurn; ++i)
    w.client(w.broker.tenant("t" + std::to_string(i)), 1);
  w.client(service, kOwner);
  w.lease("ASR");
  int turns = 1;
  while (w.lender.end_of_turn(w.leases, w.broker.now)) ++turns;
  EXPECT_GE(turns, 3);
  EXPECT_EQ(w.priority(service), 8);
}

TEST(Lender, ATenantThatEndsIsForgotten) {
  LentWorld w;
  const TenantId service = w.broker.tenant("service");
  const ClientId client = w.client(service, kOwner);
  w.lease("ASR");
  EXPECT_EQ(w.priority(service), 8);
  w.broker.broker.leave(client, w.broker.now);
  w.broker.broker.end_run(service, w.broker.now);
  EXPECT_EQ(w.priority(service), -100);
}

}  // namespace
}  // namespace nvshare::daemon
