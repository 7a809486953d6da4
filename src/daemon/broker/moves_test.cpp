// Clients that move their memory as they are told, in odd pieces, and meanwhile free and allocate:
// what they say of it crosses on the way.

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include "daemon/broker/testing.h"

namespace nvshare::daemon {
namespace {

using Told = TestBroker::Told;

struct Order {
  std::uint64_t number = 0;
  bool out = false;
  Bytes left{};
};

// What a client really has.
struct Process {
  Bytes here{};
  Bytes away{};
  std::deque<Order> orders;
  bool asked = false;
  std::uint64_t grant = 0;
};

class MovingWorld {
 public:
  explicit MovingWorld(unsigned seed) : random_(seed) {
    for (const char* name : {"a", "b", "c"}) processes_[t.join(t.tenant(name))] = {};
  }

  void play(int steps) {
    for (int i = 0; i < steps && t.outbox.disconnected.empty(); ++i) one_thing();
  }
  // Everybody does all it was told, and then nothing is left in the books.
  void finish() {
    for (int i = 0; i < 1000 && orders_open() && t.outbox.disconnected.empty(); ++i) {
      for (auto& [id, process] : processes_) {
        if (!process.orders.empty()) follow(id, process, true);
      }
    }
    EXPECT_FALSE(orders_open());
    for (const auto& [id, why] : t.outbox.disconnected) ADD_FAILURE() << id.value << ": " << why;
  }
  void check() {
    for (const auto& [id, process] : processes_) {
      const ClientRecord& record = t.broker.clients().at(id);
      const auto view = *t.broker.core().view(id);
      Bytes in{};
      Bytes out{};
      for (const core::MoveOrder& order : record.memory.orders())
        (order.out ? out : in) += order.left;
      EXPECT_LE(view.incoming, in);
      EXPECT_LE(view.outgoing, out);
      EXPECT_EQ(view.allocated, process.here + process.away);
      EXPECT_EQ(view.resident, process.here);
    }
  }

 private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_()) % n; }
  Bytes some(Bytes most) {
    return below(4) == 0 ? most : Bytes{most.count / 8 * static_cast<std::int64_t>(below(9))};
  }
  bool orders_open() const {
    return std::ranges::any_of(processes_, [](const auto& p) { return !p.second.orders.empty(); });
  }

  void one_thing() {
    auto& [id, process] = *std::next(processes_.begin(), below(3));
    switch (below(8)) {
      case 0:
        allocate(id, process);
        break;
      case 1:
        free(id, process);
        break;
      case 2:
        t.pass(1ms * below(3000));
        break;
      case 3:
        work(id, process);
        break;
      default:
        if (!process.orders.empty()) follow(id, process, below(2) == 0);
    }
    take_messages();
    check();
  }
  void allocate(ClientId id, Process& process) {
    const Bytes bytes = mib(64) * (1 + below(64));
    const Told told = t.ask_movable(id, bytes);
    if (told == Told::Refused) return;
    (told == Told::Available ? process.here : process.away) += bytes;
  }
  void free(ClientId id, Process& process) {
    const Bytes here = some(process.here);
    const Bytes away = some(process.away);
    process.here -= here;
    process.away -= away;
    t.free(id, here + away, here);
  }
  void work(ClientId id, Process& process) {
    if (process.grant != 0) {
      process.asked = below(2) == 0;
      t.release(id, std::exchange(process.grant, 0), 1ms, process.asked);
    } else if (!process.asked) {
      process.asked = true;
      t.want(id);
    }
  }
  // Moves some, or all that is left; frees some of it before it says so.
  void follow(ClientId id, Process& process, bool over) {
    Order& order = process.orders.front();
    Bytes& from = order.out ? process.here : process.away;
    Bytes& to = order.out ? process.away : process.here;
    Bytes bytes = std::min(order.left, from);
    if (!over) bytes = some(bytes);
    if (order.out && over) bytes = std::min(bytes + mib(32) * below(8), from);  // a whole chunk
    from -= bytes;
    to += bytes;
    const Bytes freed = below(2) == 0 ? some(bytes) : Bytes{};
    to -= freed;
    order.left = std::max(Bytes{}, order.left - bytes);
    const Order said = order;
    if (over) process.orders.pop_front();
    if (freed.count > 0) t.free(id, freed, said.out ? Bytes{} : freed);
    t.moved(id, said.number, said.out ? bytes : Bytes{}, said.out ? Bytes{} : bytes, over);
    take_messages();
  }
  void take_messages() {
    for (auto& [id, process] : processes_) {
      // In the order in which they were given.
      std::map<std::uint64_t, Order> orders;
      const auto add = [&](bool out, const auto& messages) {
        for (const auto& one : messages) {
          orders[one.order] = {one.order, out, Bytes{static_cast<std::int64_t>(one.bytes)}};
        }
      };
      add(true, t.outbox.take<wire::SwapOut>(id));
      add(false, t.outbox.take<wire::SwapIn>(id));
      for (const auto& [number, order] : orders) process.orders.push_back(order);
      if (const std::uint64_t grant = t.granted(id); grant != 0) process.grant = grant;
      for (const auto& drop : t.outbox.take<wire::Drop>(id)) {
        if (drop.grant != process.grant) continue;
        process.asked = true;
        t.release(id, std::exchange(process.grant, 0), 1ms, true);
        return take_messages();
      }
    }
  }

  TestBroker t;
  std::mt19937 random_;
  std::map<ClientId, Process> processes_;
};

TEST(BrokerMoves, NothingIsLeftInTheBooksWhenNoOrderIsOpen) {
  for (unsigned seed = 1; seed <= 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    MovingWorld world(seed);
    for (int i = 0; i < 5; ++i) {
      world.play(100);
      world.finish();
      world.check();
    }
  }
}

}  // namespace
}  // namespace nvshare::daemon
