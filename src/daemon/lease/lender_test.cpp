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
  std::string lease_of_another() {
    peer = HttpPeer{kOtherOwner, 1001};
    const std::string name = lease("ASR", R"(,"holdMaxMs":20000)");
    peer = HttpPeer{kOwner, 1000};
    return name;
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

// --- memory ------------------------------------------------------------------------------------

// Two services of 12 GiB on a GPU of 16: the second one's memory is away.
struct AwayWorld : LentWorld {
  AwayWorld() {
    leases.use_programs(
        {[this](const LeaseHolder& holder, GpuId gpu) { return lender.any_program(holder, gpu); },
         [this](const LeaseHolder& holder, GpuId gpu) {
           return lender.memory_is_there(holder, gpu, broker.now);
         }});
    here = client(broker.tenant("here"), kOtherOwner);
    away = client(broker.tenant("away"), kOwner);
    EXPECT_EQ(broker.ask_movable(here, gib(12)), TestBroker::Told::Available);
    EXPECT_EQ(broker.ask_movable(away, gib(12)), TestBroker::Told::Wait);
  }
  void turn() {
    leases.end_of_turn();
    while (lender.end_of_turn(leases, broker.now)) {
    }
  }
  core::ClientView view(ClientId id) { return *broker.broker.core().view(id); }
  ClientId here;
  ClientId away;
};

TEST(Lender, AnAnswerWaitsUntilTheHoldersMemoryIsThere) {
  AwayWorld w;
  ASSERT_LT(w.view(w.away).resident, gib(12));
  EXPECT_EQ(w.ask("ASR").status, 0) << "its memory is away";
  const HttpCall call = w.last;
  w.turn();
  EXPECT_EQ(w.view(w.away).state, core::ClientState::Waiting) << "it has no work, and is called";
  EXPECT_EQ(w.get("/v1/leases")["leases"][0]["state"], "PREPARING");
  EXPECT_FALSE(w.replies.contains(call));
  w.broker.broker.leave(w.here, w.broker.now);  // there is room
  for (const wire::SwapIn& in : w.broker.outbox.take<wire::SwapIn>(w.away)) {
    w.broker.moved(w.away, in.order, Bytes{}, Bytes{static_cast<std::int64_t>(in.bytes)});
  }
  ASSERT_EQ(w.view(w.away).resident, gib(12));
  w.turn();
  ASSERT_TRUE(w.replies.contains(call));
  EXPECT_EQ(w.replies[call].status, 201) << w.replies[call].body;
}

TEST(Lender, AWaitForMemoryEndsInTime) {
  AwayWorld w;
  EXPECT_EQ(w.ask("ASR", R"(,"maxWaitMs":200)").status, 0);
  const HttpCall call = w.last;
  w.turn();
  w.pass(200ms);
  w.turn();
  ASSERT_TRUE(w.replies.contains(call));
  EXPECT_EQ(LeaseWorld::of(w.replies[call])["result"], "TIMEOUT");
  EXPECT_EQ(LeaseWorld::of(w.replies[call])["reason"], "GPU_MEMORY");
}

TEST(Lender, AHolderWhoseMemoryIsThereDoesNotWait) {
  AwayWorld w;
  w.peer = HttpPeer{kOtherOwner, 1000};
  EXPECT_EQ(w.ask("ASR").status, 201);
}

// A class that does not wait: its memory comes although it was refused.
TEST(Lender, MemoryOfARefusedRequestComesForAWhile) {
  AwayWorld w;
  w.usage(10);
  EXPECT_EQ(w.ask("SEMANTIC_REPAIR").status, 0);
  const HttpCall call = w.last;
  w.pass(0ms);
  w.turn();
  ASSERT_TRUE(w.replies.contains(call));
  EXPECT_EQ(LeaseWorld::of(w.replies[call])["reason"], "GPU_MEMORY");
  EXPECT_EQ(w.view(w.away).state, core::ClientState::Waiting);
  w.broker.now += Leases::kCalledFor;
  w.leases.look();
  w.turn();
  EXPECT_EQ(w.view(w.away).state, core::ClientState::Idle);
}

TEST(Lender, APausedHolderKeepsNoSlotWhileItsMemoryIsAway) {
  AwayWorld w;
  const TenantId paused = w.broker.broker.clients().at(w.away).tenant;
  ASSERT_TRUE(w.broker.broker.set_paused(paused, true, w.broker.now));
  EXPECT_EQ(w.ask("ASR").status, 201) << "no wait would bring its memory";
}

// --- leases that were held for too long -------------------------------------------------------

struct OverdueWorld : LentWorld {
  OverdueWorld() {
    program = client(broker.tenant("service"), kOwner);
    late = lease("ASR", R"(,"holdMaxMs":100)");
    turn();
    broker.want(program);
    EXPECT_EQ(broker.outbox.take<wire::Grant>(program).size(), 1u);
  }
  void turn() {
    while (lender.end_of_turn(leases, broker.now)) {
    }
  }
  bool stopped() { return !broker.outbox.take<wire::Drop>(program).empty(); }
  std::string why() { return *broker.broker.core().explain(program, broker.now); }
  ClientId program;
  std::string late;
};

TEST(Lender, TheHolderOfAnOverdueLeaseStopsInTheSameTurn) {
  OverdueWorld w;
  w.lease_of_another();
  w.turn();
  EXPECT_FALSE(w.stopped());
  w.pass(100ms);
  w.turn();
  EXPECT_TRUE(w.stopped());
}

TEST(Lender, TheHolderOfAnOverdueLeaseGoesOnWhereNobodyElseAsks) {
  OverdueWorld w;
  w.pass(100ms);
  w.turn();
  EXPECT_FALSE(w.stopped());
  const std::string other = w.lease_of_another();
  w.turn();
  EXPECT_TRUE(w.stopped()) << "somebody has asked";
  w.broker.release(w.program, 1, 1ms, true);
  EXPECT_NE(w.why().find("its lease is over"), std::string::npos) << w.why();
  w.peer = HttpPeer{kOtherOwner, 1001};
  EXPECT_EQ(w.call("DELETE", "/v1/leases/" + other).status, 204);
  w.turn();
  EXPECT_EQ(w.broker.outbox.take<wire::Grant>(w.program).size(), 1u);
}

TEST(Lender, ALeaseThatIsGivenBackLateOpensTheGate) {
  OverdueWorld w;
  w.lease_of_another();
  w.pass(100ms);
  w.turn();
  w.broker.release(w.program, 1, 1ms, true);
  EXPECT_EQ(w.call("GET", "/v1/leases/" + w.late).status, 410);
  w.turn();
  EXPECT_TRUE(w.broker.outbox.take<wire::Grant>(w.program).empty()) << "it was only told";
  EXPECT_EQ(w.call("DELETE", "/v1/leases/" + w.late).status, 410);
  w.turn();
  EXPECT_EQ(w.broker.outbox.take<wire::Grant>(w.program).size(), 1u);
}

// A user's shell starts another user's program: the user cannot stop it by a lease.
TEST(Lender, AnOverdueLeaseStopsNoProgramOfAnotherUser) {
  LentWorld w(false);
  const ClientId other = w.broker.join(w.broker.tenant("other"), TestBroker::hello(), {kChild, 0});
  w.lease("ASR", R"(,"holdMaxMs":100,"withChildren":true)");
  w.lease_of_another();
  w.broker.want(other);
  w.pass(100ms);
  while (w.lender.end_of_turn(w.leases, w.broker.now)) {
  }
  EXPECT_EQ(w.leases.overdue().size(), 1u);
  EXPECT_TRUE(w.broker.outbox.take<wire::Drop>(other).empty());
}

TEST(Lender, ANewLeaseOpensTheGate) {
  OverdueWorld w;
  w.lease_of_another();
  w.pass(100ms);
  w.turn();
  EXPECT_TRUE(w.stopped());
  w.broker.release(w.program, 1, 1ms, true);
  const std::string next = w.lease("NMT");
  w.turn();
  EXPECT_EQ(w.broker.outbox.take<wire::Grant>(w.program).size(), 1u);
  w.call("DELETE", "/v1/leases/" + next);
  w.turn();
  EXPECT_FALSE(w.stopped()) << "the late one is forgotten";
}

TEST(Lender, AnOverdueHolderThatEndsIsForgotten) {
  OverdueWorld w;
  w.pass(100ms);
  EXPECT_EQ(w.leases.overdue().size(), 1u);
  w.picture.process(kOwner, 1, "/", Picture::kStarted + 1);  // another process has its number
  w.leases.look();
  EXPECT_TRUE(w.leases.overdue().empty());
}

TEST(Lender, AChildOfAnOverdueHolderThatEndsRunsOn) {
  LentWorld w;
  const ClientId child = w.client(w.broker.tenant("service"), kChild);
  w.lease("ASR", R"(,"holdMaxMs":100,"withChildren":true)");
  w.lease_of_another();
  w.pass(100ms);
  w.priority({});
  w.broker.want(child);
  EXPECT_TRUE(w.broker.outbox.take<wire::Grant>(child).empty());
  w.picture.process(kOwner, 1, "/", Picture::kStarted + 1);
  w.leases.look();
  w.priority({});
  EXPECT_EQ(w.broker.outbox.take<wire::Grant>(child).size(), 1u);
}

TEST(Lender, WithoutSchedulingNoGateIsClosed) {
  OverdueWorld w;
  w.lease_of_another();
  w.pass(100ms);
  w.turn();
  EXPECT_TRUE(w.stopped());
  w.broker.release(w.program, 1, 1ms, true);
  ASSERT_TRUE(w.broker.broker.set_scheduling(false, w.broker.now));
  w.turn();
  EXPECT_EQ(w.broker.outbox.take<wire::Grant>(w.program).size(), 1u);
}

}  // namespace
}  // namespace nvshare::daemon
