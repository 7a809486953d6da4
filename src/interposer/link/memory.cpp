// What the scheduler orders to be moved, by the link's thread.
#include "interposer/memory/memory.h"

#include <poll.h>

#include "interposer/gate/records.h"
#include "interposer/link/state.h"
#include "interposer/moving/managed/managed.h"
#include "wire/channel.h"

namespace nvshare::interposer::link {
namespace {

// What is being obeyed: one order to send out, or as many to bring in as have come. Of each,
// `bytes` is what is left of it.
struct Moving {
  Link* link;
  Order orders[kMaxOrders] = {};
  int count = 0;
  uint64_t wanted = 0;
  uint64_t moved = 0;
};

void add(Moving& moving, const Order& order) {
  moving.orders[moving.count++] = order;
  moving.wanted += order.bytes;
}

void drop_first(Order* orders, int& count) {
  --count;
  for (int i = 0; i < count; ++i) orders[i] = orders[i + 1];
}

void tell_moved(Link& link, uint64_t order, const moving::Moved& moved, bool done,
                bool no_room = false) {
  Lock lock(link.mutex);
  link.book.absent.fetch_add(moved.out - moved.in);
  if (link.phase == Phase::Unmanaged) return;
  auto message = wire::make<wire::MemoryMoved>();
  message.order = order;
  message.out = moved.out;
  message.in = moved.in;
  message.copied = moved.copied;
  message.took = moved.took;
  message.done = done;
  message.no_room = no_room;
  tell(link, message.header);
}

// What has come in goes to the orders as they came.
void tell_in(Moving& moving, moving::Moved moved) {
  while (moved.in > 0 && moving.count > 0) {
    Order& order = moving.orders[0];
    moving::Moved part = moved;
    part.in = moved.in < order.bytes ? moved.in : order.bytes;
    part.copied = moved.copied < part.in ? moved.copied : part.in;
    moved = {0, moved.in - part.in, moved.copied - part.copied, 0};
    order.bytes -= part.in;
    tell_moved(*moving.link, order.number, part, order.bytes == 0);
    if (order.bytes == 0) drop_first(moving.orders, moving.count);
  }
}

// More that is to come in, and has been ordered meanwhile, comes with the rest: one after the other
// the link would stand still between them.
uint64_t more_to_bring_in(Moving& moving) {
  Link& link = *moving.link;
  uint64_t more = 0;
  while (link.thread.order_count > 0 && !link.thread.orders[0].out && moving.count < kMaxOrders) {
    more += link.thread.orders[0].bytes;
    add(moving, link.thread.orders[0]);
    drop_first(link.thread.orders, link.thread.order_count);
  }
  return more;
}

void wait_for_message(const Link& link, uint64_t nanoseconds) {
  pollfd socket{link.connection.socket, POLLIN, 0};
  const timespec time{0, static_cast<long>(nanoseconds)};
  ppoll(&socket, 1, &time, nullptr);
}

// Others wait for the room, and the program's threads for answers of the scheduler.
bool moved_some(void* argument, moving::Moved& moved) {
  Moving& moving = *static_cast<Moving*>(argument);
  Link& link = *moving.link;
  moving.moved += moved.out + moved.in;
  if (moved.out > 0) tell_moved(link, moving.orders[0].number, moved, false);
  const bool in = moving.count == 0 || !moving.orders[0].out;
  if (moved.in > 0) tell_in(moving, moved);
  if (gate::stopped_looking()) return false;
  if (link.connection.socket < 0) return true;
  if (moved.wait > 0) wait_for_message(link, moved.wait);
  moved.wait = 0;
  if (!read_messages(link)) link.thread.lost = true;
  if (in && !link.thread.lost) moved.more = more_to_bring_in(moving);
  return !link.thread.lost;
}

using Move = bool (*)(gate::Gate&, uint64_t, moving::Progress, void*);

// There may be memory of both kinds: what the first has not moved is left to the second. Whether
// that was all of it.
bool move_both(Move first, Move second, Moving& moving) {
  gate::Gate& gate = moving.link->gate;
  const bool all = first(gate, moving.wanted, moved_some, &moving);
  if (moving.moved >= moving.wanted || moving.link->thread.lost) return all;
  return second(gate, moving.wanted - moving.moved, moved_some, &moving) && all;
}

bool obey(Moving& moving) {
  return moving.orders[0].out
             ? move_both(moving::swap::swap_out, moving::managed::managed_out, moving)
             : move_both(moving::swap::swap_in, moving::managed::managed_in, moving);
}

}  // namespace

namespace {

// Whoever holds a grant is not moved, nor is anybody at the end of the process: the order is over,
// with nothing done. Nobody takes a grant while it is obeyed.
bool begin_moving(Link& link) {
  Lock lock(link.mutex);
  const Phase phase = link.phase;
  if ((phase != Phase::Idle && phase != Phase::Asked) || gate::stopped_looking()) return false;
  link.moving = true;
  return true;
}

// A grant may have come meanwhile.
void end_moving(Link& link) {
  Lock lock(link.mutex);
  link.moving = false;
  take_offer(link);
}

}  // namespace

void take_order(Link& link, const Order& order) {
  if (link.thread.order_count == kMaxOrders) return tell_moved(link, order.number, {}, true);
  link.thread.orders[link.thread.order_count++] = order;
}

namespace {

// Where the time went, for who looks for it (NVSHARE_LOG). `drain`: how long the GPU was waited for
// before the grant went back.
void log_order(Link& link, const Order& order, uint64_t moved, uint64_t took) {
  if (!logs()) return;
  const moving::swap::SwapTimes times = moving::swap::swap_times(link.gate);
  const auto us = [](uint64_t ns) { return static_cast<unsigned long long>(ns / 1000); };
  log("swap %s order=%llu ordered=%llu bytes=%llu took=%lluus drain=%lluus hash=%llu map=%llu "
      "unmap=%llu submit=%llu copy=%llu place=%llu tell=%llu",
      order.out ? "out" : "in", static_cast<unsigned long long>(order.number),
      static_cast<unsigned long long>(order.bytes), static_cast<unsigned long long>(moved),
      us(took), us(link.thread.drained), us(times.hash), us(times.map), us(times.unmap),
      us(times.submit), us(times.copy), us(times.place), us(times.tell));
}

}  // namespace

void run_orders(Link& link) {
  while (link.thread.order_count > 0 && !link.thread.lost) {
    Moving moving{&link};
    add(moving, link.thread.orders[0]);
    drop_first(link.thread.orders, link.thread.order_count);
    const Order first = moving.orders[0];
    const bool out = first.out;
    const uint64_t begin = now_ns();
    const bool moves = begin_moving(link);
    const bool all = !moves || obey(moving);
    if (moves && out && !gate::stopped_looking()) memory::memory_trim_pools(link.device.number);
    for (int i = 0; i < moving.count; ++i) {
      tell_moved(link, moving.orders[i].number, {}, true, !all && !out);
    }
    const uint64_t took = now_ns() - begin;
    end_moving(link);
    log_order(link, first, moving.moved, took);
  }
}

namespace {

uint64_t move_alone(Link& link, uint64_t bytes, bool out) {
  Moving moving{&link};
  add(moving, {0, bytes, out});
  obey(moving);
  return moving.moved;
}

}  // namespace

bool bring_all_back(Link& link, bool gives_way) {
  if (link.book.absent.load() == 0) return true;
  const uint64_t brought = move_alone(link, ~uint64_t{0}, false);
  // What the driver did not bring now it brings when it is touched. Looked at in this order: memory
  // that is promised as absent is in the first number before it is in the second.
  const uint64_t absent = link.book.absent.load();
  if (absent <= moving::managed::managed_absent(link.gate)) return true;
  // It cannot run with a part of its memory, and another could with the room.
  const uint64_t given_up = gives_way ? ~uint64_t{0} : brought;
  if (given_up > 0) move_alone(link, given_up, true);
  return false;
}

}  // namespace nvshare::interposer::link
