#pragma once

// A broker with a hand on its clock, and what it has told its clients, for tests.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/broker/broker.h"

namespace nvshare::daemon {

inline constexpr Uuid kTestGpu{1, 2, 3};

// Keeps what was sent, each packet as it is.
class FakeOutbox final : public Outbox {
 public:
  void send(ClientId client, const wire::Header& message) override {
    const auto* bytes = reinterpret_cast<const char*>(&message);
    sent[client].emplace_back(bytes, bytes + message.size);
  }
  void hand_over(ClientId client, const wire::Header& message, int descriptor) override {
    send(client, message);
    handed_over[client].push_back(descriptor);
  }
  void tell_run(TenantId tenant, const wire::Header& message) override {
    const auto* shortage = wire::as<wire::Shortage>(wire::look_at(&message, message.size));
    ASSERT_NE(shortage, nullptr) << "runs hear of nothing else";
    shortages[tenant].push_back(*shortage);
  }
  void disconnect(ClientId client, std::string_view why) override {
    disconnected[client] = std::string(why);
  }
  void end(ClientId client) override { ended.insert(client); }

  // The messages of one type to one client, taken out.
  template <typename Message>
  std::vector<Message> take(ClientId client) {
    std::vector<Message> found;
    std::erase_if(sent[client], [&](const std::vector<char>& packet) {
      const auto* header = wire::look_at(packet.data(), packet.size());
      EXPECT_NE(header, nullptr) << "a packet that is none";
      const auto* message = wire::as<Message>(header);
      if (message != nullptr) found.push_back(*message);
      return message != nullptr;
    });
    return found;
  }

  std::map<ClientId, std::vector<std::vector<char>>> sent;
  std::map<ClientId, std::vector<int>> handed_over;
  std::map<TenantId, std::vector<wire::Shortage>> shortages;
  std::map<ClientId, std::string> disconnected;
  std::set<ClientId> ended;
};

// Host memory that is there at once, or when the test says so (Places::arena_ready).
class FakeArena final : public HostArena {
 public:
  explicit FakeArena(std::function<void(ClientId, Bytes)> hand_over)
      : hand_over_(std::move(hand_over)) {}
  Bytes most() const override { return limit; }
  std::string_view limited_by() const override { return "arena_limit"; }
  void make(ClientId client, Bytes bytes) override {
    asked[client] += bytes;
    if (!by_hand) hand_over_(client, bytes);
  }

  const std::map<int, Bytes>& held() const override { return held_by; }

  void share(SegmentId) override {}
  UniqueFd reopen(SegmentId) override { return UniqueFd(dup(2)); }
  void release(SegmentId segment, Slabs slabs) override { released[segment] |= slabs; }
  bool lives(int pid) override { return alive.contains(pid); }
  Slabs let_go(SegmentId segment) override { return gone_from[segment]; }

  std::map<SegmentId, Slabs> released;
  std::map<SegmentId, Slabs> gone_from;
  std::set<int> alive;
  std::map<int, Bytes> held_by;
  bool by_hand = false;
  Bytes limit = gib(1024);
  std::map<ClientId, Bytes> asked;

 private:
  std::function<void(ClientId, Bytes)> hand_over_;
};

// Programs take turns of a second with their memory.
inline core::Config quick() {
  core::Config config;
  config.quantum_mode = core::QuantumMode::Fixed;
  config.quantum_fixed = 1s;
  return config;
}

struct TestBroker {
  explicit TestBroker(const core::Config& config = {}, Bytes memory = gib(16),
                      Time start = Time{1s})
      : now(start),
        log(Level::Info, [this](std::string_view line) { lines += line; }),
        broker(config, now, outbox, log) {
    EXPECT_TRUE(broker.add_gpu(kTestGpu, "Test GPU", memory, now));
    broker.places().set_arena(arena);
  }

  TenantId tenant(const std::string& name, core::Limits limits = {}) {
    const auto id = broker.begin_run({TenantKind::Run, name, 1000}, limits, now);
    EXPECT_TRUE(id) << id.error().message;
    return *id;
  }
  static wire::Hello hello() {
    auto message = wire::make<wire::Hello>();
    message.magic = wire::kMagic;
    message.major = wire::kMajor;
    message.minor = wire::kMinor;
    std::memcpy(message.gpu, kTestGpu.data(), kTestGpu.size());
    message.gpu_memory = static_cast<std::uint64_t>(gib(16).count);
    wire::put_text(message.program, sizeof message.program, "python");
    return message;
  }
  Result<wire::Welcome> try_join(TenantId of, const wire::Hello& message,
                                 const Peer& peer = {4711, 1000}) {
    pages.push_back(std::make_unique<wire::Page>());
    return broker.hello(message, peer, of, *pages.back(), now);
  }
  ClientId join(TenantId of, const wire::Hello& message = hello(),
                const Peer& peer = {4711, 1000}) {
    const auto welcome = try_join(of, message, peer);
    EXPECT_TRUE(welcome) << welcome.error().message;
    page_of[ClientId{welcome->client}] = pages.back().get();
    return ClientId{welcome->client};
  }

  template <typename Message>
  void say(ClientId client, Message message) {
    broker.packet(client, &message.header, now);
  }
  void want(ClientId client) { say(client, wire::make<wire::RequestGrant>()); }
  void release(ClientId client, std::uint64_t grant, Duration used, bool more = false) {
    auto message = wire::make<wire::Released>();
    message.grant = grant;
    message.used = static_cast<std::uint64_t>(used.count());
    message.more_work = more ? 1 : 0;
    say(client, message);
  }
  // What it was told: true when it may.
  bool ask(ClientId client, Bytes bytes) {
    return ask(client, static_cast<std::uint64_t>(bytes.count));
  }
  bool ask(ClientId client, std::uint64_t bytes) {
    auto message = wire::make<wire::MemoryRequest>();
    message.request = ++next_request;
    message.bytes = bytes;
    say(client, message);
    const auto yes = outbox.take<wire::MemoryAvailable>(client);
    const auto no = outbox.take<wire::MemoryRefused>(client);
    EXPECT_EQ(yes.size() + no.size(), 1u) << "every request has one answer";
    EXPECT_EQ(yes.empty() ? no.at(0).request : yes.at(0).request, next_request);
    allowed = no.empty() ? 0 : no.at(0).allowed;
    return !yes.empty();
  }
  // What it was told of memory that can move.
  enum class Told { Available, Wait, Refused };
  Told ask_movable(ClientId client, Bytes bytes) { return ask(client, bytes, true); }
  Told ask_pinned(ClientId client, Bytes bytes) { return ask(client, bytes, false); }
  Told ask(ClientId client, Bytes bytes, bool movable) {
    auto message = wire::make<wire::MemoryRequest>();
    message.request = ++next_request;
    message.bytes = static_cast<std::uint64_t>(bytes.count);
    message.movable = movable ? 1 : 0;
    say(client, message);
    const auto yes = outbox.take<wire::MemoryAvailable>(client);
    const auto later = outbox.take<wire::MemoryWait>(client);
    const auto no = outbox.take<wire::MemoryRefused>(client);
    EXPECT_EQ(yes.size() + later.size() + no.size(), 1u) << "every request has one answer";
    allowed = no.empty() ? 0 : no.at(0).allowed;
    return !yes.empty() ? Told::Available : later.empty() ? Told::Refused : Told::Wait;
  }
  // It has moved that much, for its order.
  void moved(ClientId client, std::uint64_t order, Bytes out, Bytes in, bool done = true) {
    auto message = wire::make<wire::MemoryMoved>();
    message.order = order;
    message.out = static_cast<std::uint64_t>(out.count);
    message.in = static_cast<std::uint64_t>(in.count);
    message.copied = message.out + message.in;
    message.took = 1'000'000;
    message.done = done ? 1 : 0;
    say(client, message);
  }
  void free(ClientId client, Bytes bytes, Bytes resident = {}, Bytes pinned = {}) {
    auto message = wire::make<wire::MemoryFreed>();
    message.bytes = static_cast<std::uint64_t>(bytes.count);
    message.resident = static_cast<std::uint64_t>(resident.count);
    message.pinned = static_cast<std::uint64_t>(pinned.count);
    say(client, message);
  }
  // The grant it has just been given; 0 when none.
  std::uint64_t granted(ClientId client) {
    const auto grants = outbox.take<wire::Grant>(client);
    return grants.empty() ? 0 : grants.back().grant;
  }
  void pass(Duration duration) {
    const Time until = now + duration;
    while (broker.next_wakeup() && *broker.next_wakeup() <= until) {
      now = std::max(now, *broker.next_wakeup());
      broker.tick(now);
    }
    now = until;
  }
  // What the client's meter says.
  void meter(ClientId client, std::uint64_t grant, Duration used) {
    page_of.at(client)->program.grant = grant;
    page_of.at(client)->program.used = static_cast<std::uint64_t>(used.count());
  }
  const wire::Page::FromScheduler& page(ClientId client) { return page_of.at(client)->scheduler; }
  bool gone(ClientId client) const { return outbox.disconnected.contains(client); }
  Duration billed(TenantId of) const {
    for (const core::ShareView& share : broker.core().snapshot().shares) {
      if (share.tenant == of) return share.billed;
    }
    return {};
  }

  Time now;
  std::string lines;
  FakeOutbox outbox;
  // As if it had been given a while ago.
  FakeArena arena{[this](ClientId id, Bytes bytes) {
    for (; bytes > Bytes{}; bytes -= std::min(bytes, gib(1))) {
      broker.places().ready(id, 7, std::min(bytes, gib(1)), now - Places::kNoticed, ++segments);
    }
  }};
  SegmentId segments = 0;  // that were made; clients without a home share none
  Log log;
  Broker broker;
  std::vector<std::unique_ptr<wire::Page>> pages;
  std::map<ClientId, wire::Page*> page_of;
  std::uint64_t next_request = 0;
  std::uint64_t allowed = 0;  // in the last refusal
};

// Two clients of 10 GiB on a GPU that can safely hold 14.4.
struct TwoThatDoNotFit : testing::Test {
  explicit TwoThatDoNotFit(bool arena_by_hand = false)
      : one(t.join(t.tenant("a"))), two(t.join(t.tenant("b"))) {
    t.arena.by_hand = arena_by_hand;
    EXPECT_EQ(t.ask_movable(one, gib(10)), TestBroker::Told::Available);
    t.want(one);
    grant = t.granted(one);
    EXPECT_EQ(t.ask_movable(two, gib(10)), TestBroker::Told::Wait);
    t.want(two);
  }
  Bytes safe() const { return *t.broker.core().safe_limit(GpuId{0}); }
  template <typename Message>
  Message only(ClientId id) {
    const auto all = t.outbox.take<Message>(id);
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? Message{} : all[0];
  }

  TestBroker t{quick()};
  ClientId one;
  ClientId two;
  std::uint64_t grant = 0;  // the first's
};

}  // namespace nvshare::daemon
