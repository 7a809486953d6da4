// Memory that can leave the GPU, between programs and the core.

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

using Told = TestBroker::Told;

struct Swapping : TwoThatDoNotFit {
  const ClientRecord& record(ClientId id) const { return t.broker.clients().at(id); }
  core::ClientView view(ClientId id) const { return *t.broker.core().view(id); }
  // The second comes in, in the place of the first.
  void rotate() {
    const auto ahead = only<wire::SwapIn>(two);
    t.moved(two, ahead.order, {}, Bytes{static_cast<std::int64_t>(ahead.bytes)});
    t.pass(2s);
    t.release(one, grant, 2s, true);
    const auto out = only<wire::SwapOut>(one);
    t.moved(one, out.order, Bytes{static_cast<std::int64_t>(out.bytes)}, {});
    const auto in = only<wire::SwapIn>(two);
    t.moved(two, in.order, {}, Bytes{static_cast<std::int64_t>(in.bytes)});
  }
};

TEST_F(Swapping, RotationByOrders) {
  EXPECT_NE(grant, 0u);
  EXPECT_EQ(t.granted(two), 0u) << "not before its memory is there";
  EXPECT_EQ(view(two).resident, Bytes{0});
  rotate();
  EXPECT_NE(t.granted(two), 0u);
  EXPECT_EQ(view(two).resident, gib(10));
  EXPECT_EQ(view(one).resident, safe() - gib(10));
  EXPECT_EQ(record(one).moves.out, gib(20) - safe());
  EXPECT_EQ(t.broker.gpus().at(GpuId{0}).moves.in, gib(10));
  EXPECT_TRUE(t.outbox.disconnected.empty());
}

TEST_F(Swapping, OrdersAreNumberedUpwards) {
  const auto first = t.outbox.take<wire::SwapIn>(two).at(0).order;
  t.pass(2s);
  t.release(one, grant, 2s, true);
  EXPECT_GT(only<wire::SwapOut>(one).order, first);
}

TEST_F(Swapping, AChunkMoreGoesOutAndIsCounted) {
  t.pass(2s);
  t.release(one, grant, 2s, true);
  const auto out = only<wire::SwapOut>(one);
  t.moved(one, out.order, Bytes{static_cast<std::int64_t>(out.bytes)} + mib(100), {});
  EXPECT_EQ(view(one).resident, safe() - gib(10) - mib(100));
  EXPECT_FALSE(t.gone(one));
}

TEST_F(Swapping, AnOrderThatFailsIsTriedAgainLater) {
  t.pass(2s);
  t.release(one, grant, 2s, true);
  t.moved(one, only<wire::SwapOut>(one).order, {}, {});
  EXPECT_TRUE(t.outbox.take<wire::SwapOut>(one).empty());
  t.pass(2s);
  EXPECT_FALSE(t.gone(one));
  EXPECT_NE(t.granted(one), 0u) << "it has all its memory and runs on meanwhile";
}

TEST_F(Swapping, WhoIsKilledInAMoveFreesEverything) {
  t.pass(2s);
  t.release(one, grant, 2s, true);
  t.moved(one, only<wire::SwapOut>(one).order, gib(1), {}, false);
  t.broker.leave(one, t.now);
  for (const auto& in : t.outbox.take<wire::SwapIn>(two)) {
    t.moved(two, in.order, {}, Bytes{static_cast<std::int64_t>(in.bytes)});
  }
  EXPECT_NE(t.granted(two), 0u);
}

TEST_F(Swapping, WhatIsBroughtInMustHaveBeenOrdered) {
  const auto ahead = only<wire::SwapIn>(two);
  t.moved(two, ahead.order, {}, Bytes{static_cast<std::int64_t>(ahead.bytes) + 1});
  EXPECT_TRUE(t.gone(two));
  t.moved(one, 0, {}, Bytes{1});
  EXPECT_TRUE(t.gone(one));
}

TEST_F(Swapping, AnUnknownOrderOrTooMuchIsAnError) {
  t.moved(two, 4711, {}, {});
  EXPECT_TRUE(t.gone(two));
  auto message = wire::make<wire::MemoryMoved>();
  message.out = UINT64_MAX;
  t.say(one, message);
  EXPECT_TRUE(t.gone(one));
}

// The driver did not have the room after all: it is absent, and comes in later.
TEST_F(Swapping, WhatWentOutOfItsOwnAccordIsBroughtInLater) {
  t.moved(one, 0, gib(10), {});
  EXPECT_EQ(t.outbox.take<wire::Drop>(one).size(), 1u);
  t.release(one, grant, 1ms, true);
  EXPECT_EQ(view(one).resident, Bytes{0});
  EXPECT_FALSE(t.gone(one));
}

TEST_F(Swapping, FreedMemoryIsCountedWhereItWas) {
  t.free(one, gib(4), gib(4));
  EXPECT_EQ(view(one).resident, gib(6));
  EXPECT_EQ(view(one).allocated, gib(6));
  t.free(two, gib(10), {});
  EXPECT_EQ(view(two).allocated, Bytes{0});
  EXPECT_NE(t.granted(two), 0u) << "nothing is missing any more";
  t.free(one, gib(1), gib(1) + Bytes{1});
  EXPECT_TRUE(t.gone(one));
}

// A thread frees what has just come in before the link's thread has said that it has.
TEST_F(Swapping, MessagesThatCrossEachOtherAddUp) {
  const auto ahead = only<wire::SwapIn>(two);
  const Bytes came{static_cast<std::int64_t>(ahead.bytes)};
  t.free(two, gib(1), gib(1));
  EXPECT_FALSE(t.gone(two));
  t.moved(two, ahead.order, {}, came);
  EXPECT_FALSE(t.gone(two));
  EXPECT_EQ(view(two).allocated, gib(9));
  EXPECT_EQ(view(two).resident, came - gib(1));
}

// Nothing is left of an order that is over, whatever was freed while it lasted.
TEST_F(Swapping, WhatWasFreedBeforeItWasReportedDoesNotStayInTheBooks) {
  const auto ahead = only<wire::SwapIn>(two);
  const Bytes came{static_cast<std::int64_t>(ahead.bytes)};
  t.free(two, gib(1), gib(1));
  t.moved(two, ahead.order, {}, came);
  const auto again = only<wire::SwapIn>(two);
  EXPECT_EQ(view(two).incoming, gib(1)) << "of the second order";
  t.moved(two, again.order, {}, gib(1));
  EXPECT_EQ(view(two).incoming, Bytes{});
  t.pass(2s);
  t.release(one, grant, 2s, true);
  const auto out = only<wire::SwapOut>(one);
  t.free(one, gib(1), gib(1));
  t.moved(one, out.order, Bytes{static_cast<std::int64_t>(out.bytes)} - gib(1), {});
  EXPECT_EQ(view(one).outgoing, Bytes{});
  for (const auto& in : t.outbox.take<wire::SwapIn>(two)) {
    t.moved(two, in.order, {}, Bytes{static_cast<std::int64_t>(in.bytes)});
  }
  EXPECT_NE(t.granted(two), 0u);
}

TEST_F(Swapping, AGrowthThatDoesNotFitStopsItsOwnClient) {
  EXPECT_EQ(t.ask_movable(one, gib(1)), Told::Wait);
  EXPECT_EQ(t.outbox.take<wire::Drop>(one).size(), 1u);
  EXPECT_EQ(record(one).memory.allocated(), gib(11));
  EXPECT_EQ(record(one).memory.resident(), gib(10));
}

TEST_F(Swapping, MemoryThatCannotMoveIsGivenNowOrNever) {
  EXPECT_FALSE(t.ask(one, gib(5)));
  const ClientId three = t.join(t.tenant("c"));
  EXPECT_FALSE(t.ask(three, gib(5))) << "the others could not come back beside it";
}

// --- memory that cannot move, and waits for room

// Two clients of 7 GiB on a GPU that can safely hold 14.4; the second is idle.
struct PinnedWaits : testing::Test {
  PinnedWaits() : one(t.join(t.tenant("a"))), two(t.join(t.tenant("b"))) {
    EXPECT_EQ(t.ask_movable(one, gib(7)), Told::Available);
    EXPECT_EQ(t.ask_movable(two, gib(7)), Told::Available);
    t.want(one);
    grant = t.granted(one);
  }
  Bytes safe() const { return *t.broker.core().safe_limit(GpuId{0}); }
  const ClientRecord& record(ClientId id) const { return t.broker.clients().at(id); }
  // The second does what it is told.
  void make_room() {
    t.pass(20s);
    for (const auto& out : t.outbox.take<wire::SwapOut>(two)) {
      t.moved(two, out.order, Bytes{static_cast<std::int64_t>(out.bytes)}, {});
    }
  }
  TestBroker t{quick()};
  ClientId one;
  ClientId two;
  std::uint64_t grant = 0;
};

TEST_F(PinnedWaits, TheAnswerComesWhenThereIsRoom) {
  EXPECT_EQ(t.ask_pinned(one, gib(2)), Told::Wait);
  const std::uint64_t request = t.next_request;
  EXPECT_EQ(record(one).memory.allocated(), gib(9)) << "it counts from now on";
  EXPECT_EQ(t.page(one).tenant_allocated, static_cast<std::uint64_t>(gib(9).count));
  EXPECT_EQ(record(one).memory.pinned(), Bytes{});
  t.release(one, grant, 1ms, false);
  EXPECT_TRUE(t.outbox.take<wire::MemoryAvailable>(one).empty());
  make_room();
  const auto given = t.outbox.take<wire::MemoryAvailable>(one);
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0].request, request);
  EXPECT_EQ(record(one).memory.pinned(), gib(2));
  EXPECT_EQ(record(one).memory.resident(), gib(9));
  t.free(one, gib(2), gib(2), gib(2));
  EXPECT_EQ(t.broker.core().view(one)->allocated, gib(7));
  EXPECT_TRUE(t.outbox.disconnected.empty());
}

TEST_F(PinnedWaits, WhatEachCanHaveIsInItsPage) {
  const auto bytes = [](Bytes b) { return static_cast<std::uint64_t>(b.count); };
  EXPECT_EQ(t.page(one).room, bytes(safe())) << "all of the other's memory can move";
  EXPECT_EQ(t.ask_pinned(one, gib(2)), Told::Wait);
  EXPECT_EQ(t.page(one).room, bytes(safe()));
  EXPECT_EQ(t.page(two).room, bytes(safe() - gib(2))) << "promised";
  t.release(one, grant, 1ms, false);
  make_room();
  EXPECT_EQ(t.page(one).room, bytes(safe()));
  EXPECT_EQ(t.page(two).room, bytes(safe() - gib(2)));
  const ClientId three = t.join(t.tenant("c"));
  EXPECT_EQ(t.page(three).room, bytes(safe() - gib(2)));
  EXPECT_EQ(t.page(one).room, bytes(safe()));
  t.broker.gpu_measured(GpuId{0}, {}, {}, Overhead{gib(4), 3}, t.now);
  EXPECT_EQ(t.page(one).room, bytes(gib(12)));
  t.broker.leave(one, t.now);
  EXPECT_EQ(t.page(two).room, bytes(gib(12)));
}

TEST_F(PinnedWaits, SeveralThreadsAreAnsweredEach) {
  EXPECT_EQ(t.ask_pinned(one, gib(1)), Told::Wait);
  EXPECT_EQ(t.ask_pinned(one, mib(1)), Told::Wait) << "would fit, and comes behind";
  t.release(one, grant, 1ms, false);
  make_room();
  EXPECT_EQ(t.outbox.take<wire::MemoryAvailable>(one).size(), 2u);
  EXPECT_EQ(record(one).memory.pinned(), gib(1) + mib(1));
}

TEST(BrokerHello, NothingIsSaidToAClientBeforeItIsWelcome) {
  TestBroker t;
  auto hello = TestBroker::hello();
  hello.allocated = hello.resident =
      hello.gpu_memory / 4 * 3;  // as a scheduler before this one left it
  t.want(t.join(t.tenant("b"), hello));
  wire::Page page{};
  std::size_t told = 1;
  const auto greet = [&](const wire::Welcome& welcome) {
    told = t.outbox.sent[ClientId{welcome.client}].size();
  };
  const auto welcome = t.broker.hello(hello, {4711, 1000}, t.tenant("a"), page, t.now, greet);
  ASSERT_TRUE(welcome) << welcome.error().message;
  EXPECT_EQ(told, 0u);
  EXPECT_EQ(t.outbox.take<wire::SwapOut>(ClientId{welcome->client}).size(), 1u) << "but then";
}

TEST_F(PinnedWaits, AnOlderLibraryIsAnsweredAtOnce) {
  auto hello = TestBroker::hello();
  hello.minor = 0;
  const ClientId old = t.join(t.tenant("c"), hello);
  EXPECT_EQ(t.ask_pinned(old, gib(2)), Told::Refused);
  EXPECT_EQ(t.ask_pinned(old, mib(16)), Told::Available);
}

TEST_F(PinnedWaits, WithoutHostMemoryThereIsNothingToWaitFor) {
  t.arena.limit = mib(1);
  EXPECT_EQ(t.ask_pinned(one, gib(2)), Told::Refused);
  EXPECT_EQ(t.ask_pinned(one, mib(1)), Told::Available);
}

TEST_F(PinnedWaits, WhatCanFitNoLongerIsRefusedAfterAll) {
  EXPECT_EQ(t.ask_pinned(one, gib(5)), Told::Wait);
  t.release(one, grant, 1ms, false);
  t.broker.gpu_measured(GpuId{0}, {}, {}, Overhead{gib(6), 2}, t.now);
  const auto no = t.outbox.take<wire::MemoryRefused>(one);
  ASSERT_EQ(no.size(), 1u);
  EXPECT_EQ(no[0].request, t.next_request);
  EXPECT_EQ(record(one).memory.allocated(), gib(7));
  EXPECT_EQ(t.page(one).tenant_allocated, static_cast<std::uint64_t>(gib(7).count));
  EXPECT_EQ(t.broker.core().view(one)->allocated, gib(7));
}

TEST_F(PinnedWaits, WhatIsWaitedForCannotBeFreed) {
  EXPECT_EQ(t.ask_pinned(one, gib(2)), Told::Wait);
  t.free(one, gib(7), gib(7));
  EXPECT_FALSE(t.gone(one));
  t.free(one, Bytes{1});
  EXPECT_TRUE(t.gone(one));
}

TEST_F(PinnedWaits, WhoIsKilledWaitingLeavesNothingBehind) {
  EXPECT_EQ(t.ask_pinned(one, gib(2)), Told::Wait);
  t.broker.leave(one, t.now);
  EXPECT_EQ(t.ask_pinned(two, safe() - gib(7)), Told::Available);
}

TEST_F(Swapping, LargerThanTheGpuIsRefused) {
  EXPECT_EQ(t.ask_movable(one, gib(5)), Told::Refused);
  EXPECT_EQ(t.allowed, static_cast<std::uint64_t>((safe() - gib(10)).count));
  EXPECT_NE(t.lines.find("the GPU can give at most"), std::string::npos);
}

// Memory of one that has not come back yet is measured as overhead, and found in the way; both are
// over when it comes.
TEST(BrokerOverhead, WhatALateOneBringsIsNotFoundInTheWayAnyMore) {
  TestBroker t;
  const ClientId a = t.join(t.tenant("a"));
  t.now += 10s;
  const auto safe = [&] { return t.broker.core().safe_limit(GpuId{0}).value(); };
  t.broker.gpu_measured(GpuId{0}, {}, {}, Overhead{gib(10), 1}, t.now);
  auto short_of = wire::make<wire::MemoryMoved>();
  short_of.done = short_of.no_room = 1;
  t.say(a, short_of);
  const Bytes found = gib(16) - safe();
  EXPECT_GT(found, gib(10));
  t.now += 1s;
  auto late = TestBroker::hello();
  late.allocated = late.resident = static_cast<std::uint64_t>(gib(8).count);
  t.join(t.tenant("b"), late);
  EXPECT_EQ(safe(), gib(16) - (found - gib(8)));
  t.now += 1s;
  t.broker.gpu_measured(GpuId{0}, {}, {}, Overhead{gib(1), 2}, t.now);
  EXPECT_EQ(safe(), gib(16) - (found - gib(8))) << "what was found beside it counts for a while";
  t.now += 60s;
  t.broker.gpu_measured(GpuId{0}, {}, {}, Overhead{gib(1), 2}, t.now);
  EXPECT_EQ(safe(), gib(15));
}

// A framework tries again and again; a person wants to know once.
TEST(Shortage, IsToldToTheRunOnceForEachLimit) {
  TestBroker t;
  const TenantId tenant = t.tenant("train", {.memory = gib(4)});
  const ClientId client = t.join(tenant);
  const auto& told = t.outbox.shortages[tenant];
  ASSERT_TRUE(t.ask(client, gib(3)));
  EXPECT_TRUE(told.empty());
  EXPECT_FALSE(t.ask(client, mib(1536)));
  EXPECT_FALSE(t.ask(client, gib(2)));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].asked, static_cast<std::uint64_t>(mib(1536).count));
  EXPECT_EQ(told[0].used, static_cast<std::uint64_t>(gib(3).count));
  EXPECT_EQ(told[0].limit, static_cast<std::uint64_t>(gib(4).count));
  EXPECT_EQ(told[0].gpu, static_cast<std::uint64_t>(gib(16).count));
  EXPECT_STREQ(told[0].reason, "1.5GiB asked for, and 1GiB left under the memory limit");
  ASSERT_TRUE(t.broker.set_limits(tenant, {.core_percent = 50, .memory = gib(4)}, t.now));
  EXPECT_FALSE(t.ask(client, gib(2)));
  EXPECT_EQ(told.size(), 1u) << "another limit has changed";
  ASSERT_TRUE(t.broker.set_limits(tenant, {.memory = mib(4608)}, t.now));
  EXPECT_FALSE(t.ask(client, gib(2)));
  EXPECT_FALSE(t.ask(client, UINT64_MAX));
  EXPECT_EQ(told.size(), 2u);
  ASSERT_TRUE(t.broker.set_limits(tenant, {}, t.now));
  EXPECT_FALSE(t.ask(client, UINT64_MAX));
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[2].limit, 0u);
  EXPECT_STREQ(told[2].reason, "more than any GPU has");
}

TEST(Shortage, TheLimitOfAProcessIsNamed) {
  TestBroker t;
  const TenantId tenant = t.tenant("train", {.memory = gib(4)});
  auto hello = TestBroker::hello();
  hello.memory_limit = static_cast<std::uint64_t>(gib(1).count);
  const ClientId client = t.join(tenant, hello);
  EXPECT_EQ(t.ask_movable(client, gib(5)), TestBroker::Told::Refused);
  EXPECT_EQ(t.allowed, hello.memory_limit);
  ASSERT_EQ(t.outbox.shortages[tenant].size(), 1u);
  EXPECT_EQ(t.outbox.shortages[tenant][0].limit, 0u) << "another limit than the tenant's";
  EXPECT_STREQ(t.outbox.shortages[tenant][0].reason,
               "5GiB asked for, and 1GiB left under NVSHARE_GPU_MEMORY_LIMIT");
  EXPECT_EQ(t.ask_movable(client, gib(1) - mib(1)), TestBroker::Told::Available);
  EXPECT_LE(t.broker.clients().at(client).memory.credit_left(), mib(1)) << "no credit above it";
  EXPECT_EQ(t.broker.clients().at(client).refusals.count, 1u);
}

TEST(Shortage, TheLimitOfALevelAboveIsNamed) {
  TestBroker t;
  const core::Limits limits{.memory = gib(4)};
  const TenantId user = *t.broker.tenant_for({TenantKind::User, "user-1000", 1000}, limits, t.now);
  const auto run = [&](const char* name, const core::Limits& own) {
    return *t.broker.begin_run({TenantKind::Run, name, 1000}, own, t.now, wire::Backend::Default,
                               false, user);
  };
  const TenantId one = run("one", {});
  const TenantId two = run("two", {.memory = gib(2)});
  ASSERT_TRUE(t.ask(t.join(one), gib(3)));
  const ClientId client = t.join(two);
  EXPECT_FALSE(t.ask(client, mib(1536)));
  const auto& told = t.outbox.shortages[two];
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].limit, 0u) << "an older run would propose to raise its own";
  EXPECT_STREQ(told[0].level, "user-1000");
  EXPECT_EQ(told[0].level_used, static_cast<std::uint64_t>(gib(3).count));
  EXPECT_EQ(told[0].level_limit, static_cast<std::uint64_t>(gib(4).count));
  ASSERT_TRUE(t.broker.set_limits(user, {.memory = gib(8)}, t.now));
  EXPECT_FALSE(t.ask(client, gib(3)));
  ASSERT_EQ(told.size(), 2u);
  EXPECT_STREQ(told[1].level, "") << "its own limit is tighter now";
  EXPECT_EQ(told[1].limit, static_cast<std::uint64_t>(gib(2).count));
  EXPECT_EQ(told[1].level_limit, 0u);
}

TEST(OwnLimit, ProcessesOfATenantSeeWhatTheyHaveOfItTogether) {
  TestBroker t;
  const TenantId tenant = t.tenant("train", {});
  auto hello = TestBroker::hello();
  const ClientId without = t.join(tenant, hello);
  hello.memory_limit = static_cast<std::uint64_t>(gib(4).count);
  const ClientId one = t.join(tenant, hello);
  const ClientId two = t.join(tenant, hello);
  const ClientId other = t.join(t.tenant("other", {}), hello);
  ASSERT_TRUE(t.ask(without, gib(1)));
  ASSERT_TRUE(t.ask(one, gib(1)));
  ASSERT_TRUE(t.ask(two, gib(2)));
  ASSERT_TRUE(t.ask(other, gib(3)));
  EXPECT_EQ(t.page(one).own_allocated, static_cast<std::uint64_t>(gib(3).count));
  EXPECT_EQ(t.page(two).own_allocated, static_cast<std::uint64_t>(gib(3).count));
  EXPECT_EQ(t.page(without).own_allocated, 0u);
  EXPECT_EQ(t.page(other).own_allocated, static_cast<std::uint64_t>(gib(3).count));
  t.broker.leave(two, t.now);
  EXPECT_EQ(t.page(one).own_allocated, static_cast<std::uint64_t>(gib(1).count));
}

TEST(SwappingBackend, NativeMemoryIsPinnedWhateverTheProgramSays) {
  TestBroker t;
  const auto tenant =
      t.broker.begin_run({TenantKind::Run, "a", 0}, {}, t.now, wire::Backend::Native);
  const auto welcome = t.try_join(*tenant, TestBroker::hello());
  EXPECT_EQ(welcome->backend, wire::Backend::Native);
  const ClientId client{welcome->client};
  EXPECT_EQ(t.ask_movable(client, gib(1)), Told::Available);
  EXPECT_EQ(t.broker.core().view(client)->pinned, gib(1));
  t.broker.set_backend(wire::Backend::Managed);
  EXPECT_EQ(t.try_join(t.tenant("b"), TestBroker::hello())->backend, wire::Backend::Managed);
}

TEST(SwappingBackend, WhatCouldMoveCanBePinned) {
  TestBroker t;
  const ClientId client = t.join(t.tenant("a"));
  EXPECT_EQ(t.ask_movable(client, gib(3)), Told::Available);
  auto pinned = wire::make<wire::MemoryPinned>();
  pinned.bytes = static_cast<std::uint64_t>(gib(1).count);
  t.say(client, pinned);
  EXPECT_EQ(t.broker.core().view(client)->pinned, gib(1));
  EXPECT_EQ(t.broker.core().view(client)->allocated, gib(3));
  auto freed = wire::make<wire::MemoryFreed>();
  freed.bytes = freed.resident = freed.pinned = pinned.bytes;
  t.say(client, freed);
  EXPECT_EQ(t.broker.core().view(client)->pinned, Bytes{});
  EXPECT_EQ(t.broker.core().view(client)->allocated, gib(2));
  EXPECT_FALSE(t.outbox.disconnected.contains(client));
  pinned.bytes = static_cast<std::uint64_t>(gib(2).count) + 1;
  t.say(client, pinned);
  EXPECT_TRUE(t.outbox.disconnected.contains(client));
}

TEST(SwappingHello, WhatAReturningClientHasIsBookedWhereItIs) {
  TestBroker t;
  auto hello = TestBroker::hello();
  hello.allocated = static_cast<std::uint64_t>(gib(8).count);
  hello.resident = static_cast<std::uint64_t>(gib(3).count);
  hello.pinned = static_cast<std::uint64_t>(gib(1).count);
  const ClientId client = t.join(t.tenant("a"), hello);
  const auto view = t.broker.core().view(client);
  EXPECT_EQ(view->allocated, gib(8));
  EXPECT_EQ(view->resident, gib(3));
  EXPECT_EQ(view->pinned, gib(1));
  t.want(client);
  const auto in = t.outbox.take<wire::SwapIn>(client);
  ASSERT_EQ(in.size(), 1u);
  EXPECT_EQ(in[0].bytes, static_cast<std::uint64_t>(gib(5).count));
  hello.pinned = hello.resident + 1;
  EXPECT_FALSE(t.try_join(t.tenant("b"), hello));
}

}  // namespace
}  // namespace nvshare::daemon
