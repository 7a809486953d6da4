// The real scheduler brings programs together that share memory.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "harness.h"
#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

constexpr std::uint8_t kName = 7;
constexpr wire::IpcMemory kMemory{0x7000, 99};

// An owner whose name the scheduler has read: both messages are on one connection, and the second
// has an answer.
bool become_owner(TestProgram& program, std::uint8_t name = kName) {
  return program.hello() && program.ipc_exports(name) && program.ask_memory(1).has_value();
}

// What arrives at the other end of a pair.
std::optional<std::uint32_t> hear_piece(int socket) {
  alignas(8) char buffer[wire::kMaxMessage];
  const int length = wire::receive(socket, buffer, true);
  if (length <= 0) return std::nullopt;
  const auto* piece =
      wire::as<wire::IpcPiece>(wire::look_at(buffer, static_cast<std::size_t>(length)));
  return piece == nullptr ? std::nullopt : std::optional(piece->index);
}

bool say_piece(int socket, std::uint32_t index) {
  auto piece = wire::make<wire::IpcPiece>();
  piece.index = index;
  return wire::send(socket, &piece.header, false) == 0;
}

TEST(Ipc, AnOwnerAndAnAskerGetTheTwoEndsOfAPair) {
  SchedulerProcess scheduler;
  TestProgram owner(scheduler);
  TestProgram asker(scheduler);
  ASSERT_TRUE(become_owner(owner));
  const auto peer = asker.ipc_open(kName, kMemory);
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->result, wire::IpcResult::Found);
  const auto wanted = owner.hear<wire::IpcWanted>();
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->memory.address, kMemory.address);
  EXPECT_EQ(wanted->memory.secret, kMemory.secret);
  ASSERT_TRUE(say_piece(owner.ipc(), 5));
  EXPECT_EQ(hear_piece(asker.ipc()), 5u);
  EXPECT_TRUE(asker.closed()) << "an asker is no client";
  EXPECT_EQ(scheduler.clients(), 1);
}

TEST(Ipc, ThePairOutlivesTheScheduler) {
  SchedulerProcess scheduler;
  TestProgram owner(scheduler);
  TestProgram asker(scheduler);
  ASSERT_TRUE(become_owner(owner));
  ASSERT_TRUE(asker.ipc_open(kName, kMemory));
  ASSERT_TRUE(owner.hear<wire::IpcWanted>());
  scheduler.signal(SIGKILL);
  scheduler.wait();
  ASSERT_TRUE(say_piece(owner.ipc(), 6));
  EXPECT_EQ(hear_piece(asker.ipc()), 6u);
}

TEST(Ipc, ANameThatNobodyHasIsUnknown) {
  SchedulerProcess scheduler;
  TestProgram owner(scheduler);
  ASSERT_TRUE(become_owner(owner));
  TestProgram early(scheduler);
  const auto first = early.ipc_open(kName + 1, kMemory);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->result, wire::IpcResult::Unknown);
  EXPECT_EQ(first->again, 1u) << "programs may still come back to a scheduler that has just begun";
  std::this_thread::sleep_for(std::chrono::milliseconds(5100));
  TestProgram late(scheduler);
  const auto second = late.ipc_open(kName + 1, kMemory);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->result, wire::IpcResult::Unknown);
  EXPECT_EQ(second->again, 0u);
}

TEST(Ipc, AnOwnerThatIsGoneIsUnknown) {
  SchedulerProcess scheduler;
  TestProgram owner(scheduler);
  ASSERT_TRUE(become_owner(owner));
  owner.close();
  ASSERT_TRUE(eventually([&] { return scheduler.clients() == 0; }));
  TestProgram asker(scheduler);
  const auto peer = asker.ipc_open(kName, kMemory);
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->result, wire::IpcResult::Unknown);
}

// A name is in every handle, so another user may have seen it: it neither finds the owner nor takes
// its place.
TEST(Ipc, AnotherUserIsNeitherServedNorFound) {
  if (getuid() != 0) GTEST_SKIP() << "only root can become another user";
  SchedulerProcess scheduler;
  TestProgram owner(scheduler);
  ASSERT_TRUE(become_owner(owner));
  ASSERT_EQ(chmod(scheduler.folder().c_str(), 0711), 0);
  constexpr uid_t kOther = 65534;
  TestProgram thief(scheduler, kOther);
  const auto peer = thief.ipc_open(kName, kMemory);
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->result, wire::IpcResult::Unknown);
  EXPECT_LT(thief.ipc(), 0);
  owner.close();
  ASSERT_TRUE(eventually([&] { return scheduler.clients() == 0; }));
  TestProgram forger(scheduler, kOther);
  ASSERT_TRUE(become_owner(forger));
  TestProgram again(scheduler);
  ASSERT_TRUE(become_owner(again));
  TestProgram asker(scheduler);
  ASSERT_TRUE(asker.ipc_open(kName, kMemory));
  EXPECT_TRUE(again.hear<wire::IpcWanted>());
  EXPECT_FALSE(forger.hear<wire::IpcWanted>(std::chrono::milliseconds(100)));
}

// An owner that does not read is asked no more, and stays connected: its queue is for grants.
TEST(Ipc, AFloodOfRequestsDoesNotDisconnectTheOwner) {
  SchedulerProcess scheduler;
  TestProgram owner(scheduler);
  ASSERT_TRUE(become_owner(owner));
  const std::size_t before = scheduler.descriptors();
  int busy = 0;
  for (int i = 0; i < 500; ++i) {
    TestProgram asker(scheduler);
    const auto peer = asker.ipc_open(kName, kMemory);
    ASSERT_TRUE(peer) << i;
    busy += peer->result == wire::IpcResult::Busy ? 1 : 0;
  }
  EXPECT_GT(busy, 0);
  EXPECT_LT(busy, 500);
  ASSERT_TRUE(owner.want());
  EXPECT_TRUE(owner.hear<wire::Grant>());
  EXPECT_EQ(scheduler.clients(), 1);
  EXPECT_TRUE(eventually([&] { return scheduler.descriptors() <= before; }))
      << scheduler.descriptors() << " after " << before;
}

TEST(Ipc, AClientThatSpeaksOutOfTurnIsDisconnected) {
  SchedulerProcess scheduler;
  TestProgram client(scheduler);
  ASSERT_TRUE(client.hello());
  auto open = wire::make<wire::IpcOpen>();
  open.magic = wire::kMagic;
  open.major = wire::kMajor;
  ASSERT_TRUE(client.say(open));
  EXPECT_TRUE(client.closed());
  TestProgram stranger(scheduler);
  ASSERT_TRUE(stranger.ipc_exports(kName)) << "before any hello";
  EXPECT_TRUE(stranger.closed());
}

}  // namespace
}  // namespace nvshare::daemon
