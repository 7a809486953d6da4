// What programs allocate and free without a word, and that no limit is any softer for it.

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

using Told = TestBroker::Told;

std::uint64_t count(Bytes bytes) {
  return static_cast<std::uint64_t>(bytes.count);
}

core::Limits up_to(Bytes memory) {
  core::Limits limits;
  limits.memory = memory;
  return limits;
}

struct Lending : testing::Test {
  wire::Credit& credit(ClientId id) { return t.page_of.at(id)->movable_credit; }
  wire::Credit& pinned_credit(ClientId id) { return t.page_of.at(id)->pinned_credit; }
  // As the library does it.
  bool take(ClientId id, Bytes bytes) { return wire::take(credit(id), count(bytes)); }
  bool give(ClientId id, Bytes bytes) { return wire::give(credit(id), count(bytes)); }
  const ClientRecord& record(ClientId id) const { return t.broker.clients().at(id); }
  core::ClientView view(ClientId id) const { return *t.broker.core().view(id); }
  Bytes safe() const { return *t.broker.core().safe_limit(GpuId{0}); }
  // How much that was.
  Bytes take_all(ClientId id) {
    const std::uint64_t left = credit(id).bytes.load();
    EXPECT_TRUE(wire::take(credit(id), left));
    return Bytes{static_cast<std::int64_t>(left)};
  }
  Bytes settled(ClientId id) {
    t.broker.settle(t.now);
    return record(id).memory.allocated();
  }

  TestBroker t;  // 16 GiB, of which 14.4 are safe
};

TEST_F(Lending, WhoHasAskedOnceNeedNotAskAgain) {
  const ClientId one = t.join(t.tenant("a"));
  EXPECT_FALSE(take(one, mib(2))) << "nothing before it asks";
  EXPECT_EQ(t.ask_movable(one, mib(2)), Told::Available);
  EXPECT_EQ(settled(one), mib(2)) << "credit is nothing that it has";
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(take(one, mib(2)));
    ASSERT_TRUE(give(one, mib(2)));
  }
  EXPECT_TRUE(take(one, mib(100)));
  EXPECT_EQ(record(one).memory.allocated(), mib(2));
  EXPECT_EQ(settled(one), mib(102));
  EXPECT_EQ(view(one).allocated, mib(102));
  EXPECT_EQ(view(one).resident, mib(102));
  EXPECT_EQ(view(one).pinned, Bytes{});
  EXPECT_TRUE(give(one, mib(102))) << "what it asked for as well";
  EXPECT_EQ(settled(one), Bytes{});
  EXPECT_EQ(view(one).resident, Bytes{});
  EXPECT_EQ(record(one).messages, 1u);
}

TEST_F(Lending, MemoryThatCannotMoveHasItsOwn) {
  const ClientId one = t.join(t.tenant("a"));
  EXPECT_TRUE(t.ask(one, mib(2)));
  EXPECT_FALSE(take(one, mib(2)));
  EXPECT_TRUE(wire::take(pinned_credit(one), count(mib(3))));
  EXPECT_EQ(settled(one), mib(5));
  EXPECT_EQ(view(one).pinned, mib(5));
  EXPECT_TRUE(wire::give(pinned_credit(one), count(mib(5))));
  EXPECT_EQ(settled(one), Bytes{});
  EXPECT_EQ(view(one).pinned, Bytes{});
}

TEST_F(Lending, NativeMemoryHasOnlyThat) {
  t.broker.set_backend(wire::Backend::Native);
  const ClientId one = t.join(t.tenant("a"));
  EXPECT_EQ(t.ask_movable(one, mib(2)), Told::Available);
  EXPECT_EQ(credit(one).cap.load(), 0u);
  EXPECT_TRUE(wire::take(pinned_credit(one), count(mib(2))));
}

// Growing and shrinking by gigabytes takes a message for each few hundred megabytes.
TEST_F(Lending, AMessageForManyAllocationsAndForManyFrees) {
  const ClientId one = t.join(t.tenant("a"));
  int asked = 0;
  for (int i = 0; i < 2048; ++i) {
    if (take(one, mib(4))) continue;
    ASSERT_EQ(t.ask_movable(one, mib(4)), Told::Available);
    ++asked;
  }
  EXPECT_EQ(settled(one), gib(8));
  EXPECT_LE(asked, 33);
  int told = 0;
  for (int i = 0; i < 2048; ++i) {
    if (give(one, mib(4))) continue;
    t.free(one, mib(4), mib(4));
    ++told;
  }
  EXPECT_EQ(settled(one), Bytes{});
  EXPECT_LE(told, 33);
  EXPECT_TRUE(t.outbox.disconnected.empty());
}

TEST_F(Lending, TheTenantsLimitIsExact) {
  const ClientId one = t.join(t.tenant("a", up_to(mib(100))));
  EXPECT_EQ(t.ask_movable(one, mib(30)), Told::Available);
  EXPECT_EQ(take_all(one), mib(70)) << "no more than there is within the limit";
  EXPECT_EQ(t.ask_movable(one, Bytes{1}), Told::Refused);
  EXPECT_TRUE(give(one, mib(70)));
  EXPECT_EQ(t.ask_movable(one, mib(70) + Bytes{1}), Told::Refused);
  EXPECT_EQ(t.allowed, count(mib(70))) << "what it has not used is not in the way";
  EXPECT_EQ(t.ask_movable(one, mib(70)), Told::Available);
  EXPECT_EQ(t.ask_movable(one, Bytes{1}), Told::Refused);
  EXPECT_EQ(settled(one), mib(100));
}

TEST_F(Lending, ASecondProcessOfTheTenantHasAllThatTheFirstDoesNotUse) {
  const TenantId tenant = t.tenant("a", up_to(mib(200)));
  const ClientId one = t.join(tenant);
  EXPECT_EQ(t.ask_movable(one, mib(10)), Told::Available);
  EXPECT_TRUE(take(one, mib(5)));
  const ClientId two = t.join(tenant);
  EXPECT_FALSE(take(one, mib(1))) << "with two of them each asks";
  EXPECT_FALSE(give(one, mib(1)));
  EXPECT_EQ(t.page(two).tenant_allocated.load(), count(mib(15)));
  EXPECT_EQ(t.ask_movable(two, mib(185) + Bytes{1}), Told::Refused);
  EXPECT_EQ(t.ask_movable(two, mib(185)), Told::Available);
  EXPECT_EQ(t.ask_movable(one, Bytes{1}), Told::Refused);
  EXPECT_FALSE(take(two, Bytes{1}));
  // And when it has left, as before.
  t.broker.leave(two, t.now);
  EXPECT_EQ(t.ask_movable(one, mib(1)), Told::Available);
  EXPECT_TRUE(take(one, mib(1)));
}

TEST_F(Lending, ALimitThatIsLoweredBindsAtOnce) {
  const TenantId tenant = t.tenant("a");
  const ClientId one = t.join(tenant);
  EXPECT_EQ(t.ask_movable(one, mib(10)), Told::Available);
  EXPECT_TRUE(take(one, mib(10)));
  ASSERT_TRUE(t.broker.set_limits(tenant, up_to(mib(25)), t.now));
  EXPECT_FALSE(take(one, mib(1)));
  EXPECT_EQ(t.ask_movable(one, mib(5) + Bytes{1}), Told::Refused);
  EXPECT_EQ(t.ask_movable(one, mib(4)), Told::Available);
  EXPECT_EQ(take_all(one), mib(1));
  ASSERT_TRUE(t.broker.set_limits(tenant, up_to(mib(5)), t.now));
  EXPECT_FALSE(give(one, mib(1))) << "it tells";
  t.free(one, mib(1), mib(1));
  EXPECT_FALSE(take(one, mib(1))) << "and has no credit above its limit";
  EXPECT_EQ(settled(one), mib(24));
}

TEST_F(Lending, OthersHaveAllOfTheGpuThatIsNotUsed) {
  const ClientId one = t.join(t.tenant("a"));
  const ClientId two = t.join(t.tenant("b"));
  EXPECT_EQ(t.ask_movable(one, gib(1)), Told::Available);
  EXPECT_TRUE(take(one, mib(24)));
  EXPECT_EQ(t.ask_movable(two, safe() - gib(1) - mib(24)), Told::Available) << "there is room";
  EXPECT_FALSE(take(one, mib(1))) << "the GPU is full";
  EXPECT_FALSE(take(two, mib(1)));
  EXPECT_EQ(view(one).resident + view(two).resident, safe());
  EXPECT_TRUE(t.arena.asked.contains(one)) << "and it is prepared for that";
}

TEST_F(Lending, PinnedMemoryIsNotRefusedForIt) {
  const ClientId one = t.join(t.tenant("a"));
  const ClientId two = t.join(t.tenant("b"));
  EXPECT_EQ(t.ask_movable(one, gib(1)), Told::Available);
  EXPECT_TRUE(t.ask(two, safe() - gib(1)));
  EXPECT_FALSE(t.ask(two, Bytes{1}));
}

TEST_F(Lending, WhoIsAloneHasItUntilTheGpuIsFull) {
  const ClientId one = t.join(t.tenant("a"));
  EXPECT_EQ(t.ask_movable(one, safe() - mib(10)), Told::Available);
  EXPECT_EQ(take_all(one), mib(5)) << "which takes up to twice as much, in pages";
  EXPECT_EQ(t.ask_movable(one, mib(5)), Told::Available);
  EXPECT_EQ(t.ask_movable(one, Bytes{1}), Told::Refused);
  EXPECT_TRUE(give(one, mib(10)));
  EXPECT_EQ(t.ask_movable(one, mib(10)), Told::Available);
  EXPECT_EQ(settled(one), safe());
  EXPECT_EQ(view(one).resident, safe());
}

TEST_F(Lending, ThereIsNoneWhereItIsFull) {
  const ClientId one = t.join(t.tenant("a"));
  t.join(t.tenant("b"));
  const Bytes easily = core::fits_easily(safe());
  EXPECT_EQ(t.ask_movable(one, easily - mib(10)), Told::Available);
  EXPECT_EQ(take_all(one), mib(5));
  EXPECT_EQ(t.ask_movable(one, mib(5)), Told::Available);
  EXPECT_EQ(t.ask_movable(one, Bytes{1}), Told::Available);
  EXPECT_FALSE(take(one, Bytes{1}));
  EXPECT_EQ(credit(one).cap.load(), 0u);
}

TEST_F(Lending, LessRoomThanWasThoughtTakesItAway) {
  const ClientId one = t.join(t.tenant("a"));
  EXPECT_EQ(t.ask_movable(one, gib(1)), Told::Available);
  t.broker.gpu_measured(GpuId{0}, {}, {}, Overhead{gib(1), 1}, t.now);
  EXPECT_TRUE(take(one, mib(1))) << "more room than was thought does not";
  t.broker.gpu_measured(GpuId{0}, {}, {}, Overhead{gib(15), 1}, t.now);
  EXPECT_FALSE(take(one, mib(1)));
  EXPECT_EQ(settled(one), gib(1) + mib(1));
}

TEST_F(Lending, WhoFoundNoRoomAsksAgain) {
  const ClientId one = t.join(t.tenant("a"));
  const ClientId two = t.join(t.tenant("b"));
  EXPECT_EQ(t.ask_movable(one, gib(1)), Told::Available);
  EXPECT_EQ(t.ask_movable(two, gib(1)), Told::Available);
  EXPECT_TRUE(take(one, mib(2)));
  auto message = wire::make<wire::MemoryMoved>();
  message.out = count(mib(2));
  message.done = message.no_room = 1;
  t.say(one, message);
  EXPECT_FALSE(t.gone(one));
  EXPECT_EQ(record(one).memory.allocated(), gib(1) + mib(2));
  EXPECT_FALSE(take(one, mib(2)));
  EXPECT_FALSE(take(two, mib(2))) << "nobody knows how much room there is";
}

TEST_F(Lending, WhatComesBackIsCountedWithoutCredit) {
  const ClientId one = t.join(t.tenant("a", up_to(mib(100))));
  EXPECT_EQ(t.ask_movable(one, mib(30)), Told::Available);
  t.broker.leave(one, t.now);
  auto hello = TestBroker::hello();
  hello.allocated = hello.resident = count(mib(40));
  const ClientId again = t.join(t.tenant("b", up_to(mib(100))), hello);
  EXPECT_EQ(settled(again), mib(40));
  EXPECT_FALSE(take(again, mib(1)));
}

TEST_F(Lending, FreedIsWhatWasAllocatedAndNotTheCredit) {
  const ClientId one = t.join(t.tenant("a"));
  EXPECT_EQ(t.ask_movable(one, mib(2)), Told::Available);
  t.free(one, mib(2) + Bytes{1}, mib(2) + Bytes{1});
  EXPECT_TRUE(t.gone(one));
}

// A free that met a revocation and had not looked yet: what it left is found later.
TEST_F(Lending, WhatIsFreedTooLateIsFound) {
  const TenantId tenant = t.tenant("a", up_to(mib(100)));
  const ClientId one = t.join(tenant);
  EXPECT_EQ(t.ask_movable(one, mib(50)), Told::Available);
  ASSERT_TRUE(t.broker.set_limits(tenant, up_to(mib(60)), t.now));
  credit(one).bytes += count(mib(20));
  EXPECT_EQ(settled(one), mib(30));
  EXPECT_FALSE(take(one, mib(20))) << "so the program need not tell";
  EXPECT_EQ(t.ask_movable(one, mib(30)), Told::Available);
}

// The page is the program's to write, but whatever it writes it only says something about itself.
TEST_F(Lending, ScribblingMakesNothing) {
  const TenantId tenant = t.tenant("a", up_to(mib(300)));
  const ClientId one = t.join(tenant);
  EXPECT_EQ(t.ask_movable(one, mib(100)), Told::Available);
  const Bytes all = mib(100) + Bytes{static_cast<std::int64_t>(credit(one).bytes.load())};
  EXPECT_LE(all, mib(300));
  std::minstd_rand dice(7);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t said = dice() % 3 == 0 ? ~std::uint64_t{dice()} : dice() % count(mib(400));
    credit(one).bytes = said;
    credit(one).cap = said;
    const Bytes has = settled(one);
    ASSERT_GE(has, Bytes{});
    ASSERT_LE(has, all);
    ASSERT_EQ(has + record(one).memory.credit_left(), all);
    ASSERT_EQ(view(one).allocated, has);
    ASSERT_EQ(view(one).resident, has);
  }
  credit(one).bytes = 0;
  EXPECT_EQ(settled(one), all);
  EXPECT_EQ(t.lines.find("credit_not_booked"), std::string::npos);
}

// A program with its own idea of what it has, beside a scheduler that takes the credit away again
// and again: at the end both say the same.
TEST_F(Lending, BothSayTheSameAfterARace) {
  constexpr int kRounds = 8'000;
  const TenantId tenant = t.tenant("a", up_to(gib(8)));
  const ClientId one = t.join(tenant);
  std::mutex socket;
  std::vector<wire::MemoryFreed> freed;  // said, and not heard yet
  std::vector<Bytes> asked;              // the same
  std::atomic<bool> answered{false};
  std::atomic<bool> done{false};
  Bytes has{};
  std::thread program([&] {
    std::minstd_rand dice(3);
    for (int i = 0; i < kRounds; ++i) {
      const Bytes bytes{static_cast<std::int64_t>(dice() % count(mib(8)))};
      if (has < bytes || (dice() % 2 == 0 && has < gib(7))) {
        has += bytes;
        if (take(one, bytes)) continue;
        answered = false;
        {
          const std::lock_guard hold(socket);
          asked.push_back(bytes);
        }
        while (!answered.load()) std::this_thread::yield();
      } else {
        has -= bytes;
        if (give(one, bytes)) continue;
        auto message = wire::make<wire::MemoryFreed>();
        message.bytes = message.resident = count(bytes);
        const std::lock_guard hold(socket);
        freed.push_back(message);
      }
    }
    done = true;
  });
  const auto hear = [&] {
    std::vector<wire::MemoryFreed> frees;
    std::vector<Bytes> questions;
    {
      const std::lock_guard hold(socket);
      frees.swap(freed);
      questions.swap(asked);
    }
    for (const wire::MemoryFreed& message : frees) t.say(one, message);
    for (const Bytes bytes : questions) {
      ASSERT_EQ(t.ask_movable(one, bytes), Told::Available);
      answered = true;
    }
  };
  for (int i = 0; !done.load(); ++i) {
    hear();
    if (i % 3 == 0) {
      EXPECT_TRUE(t.broker.set_limits(tenant, up_to(gib(8)), t.now));
    } else if (i % 3 == 1) {
      t.broker.settle(t.now);
    }
  }
  program.join();
  hear();
  EXPECT_EQ(settled(one), has);
  EXPECT_EQ(view(one).allocated, has);
  EXPECT_EQ(view(one).resident, has);
  EXPECT_FALSE(t.gone(one));
  EXPECT_EQ(t.lines.find("credit_not_booked"), std::string::npos);
}

// The driver gives whole pages: room is counted in those, and limits are not.
TEST_F(Lending, WhatAllocationsTakeInPagesIsCounted) {
  const ClientId one = t.join(t.tenant("a", up_to(mib(21))));
  const auto rounding = [&](Bytes bytes) { t.page_of.at(one)->program.rounding = count(bytes); };
  rounding(mib(1));
  EXPECT_EQ(t.ask_movable(one, mib(7)), Told::Available);
  rounding(mib(2));
  EXPECT_TRUE(take(one, mib(7)));
  rounding(mib(3));
  EXPECT_EQ(t.ask_movable(one, mib(7)), Told::Available) << "the limit is in bytes as asked for";
  EXPECT_EQ(settled(one), mib(21));
  EXPECT_EQ(view(one).resident, mib(21));
  EXPECT_EQ(view(one).rounded, mib(3));
  EXPECT_EQ(t.ask_movable(one, Bytes{1}), Told::Refused);
  rounding(gib(900));
  t.broker.settle(t.now);
  EXPECT_EQ(view(one).rounded, mib(21)) << "no more than as much again";
}

}  // namespace
}  // namespace nvshare::daemon
