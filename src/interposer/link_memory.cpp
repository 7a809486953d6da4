// What the scheduler orders to be moved, by the link's thread.
#include "interposer/link_state.h"
#include "interposer/managed.h"
#include "wire/channel.h"

namespace nvshare::interposer {
namespace {

struct Moving {
  Link* link;
  uint64_t order;
  uint64_t moved = 0;
};

void tell_moved(Link& link, uint64_t order, const SwapMoved& moved, bool done) {
  Lock lock(link.mutex);
  link.absent.fetch_add(moved.out - moved.in);
  if (link.phase == Phase::Unmanaged) return;
  auto message = wire::make<wire::MemoryMoved>();
  message.order = order;
  message.out = moved.out;
  message.in = moved.in;
  message.copied = moved.copied;
  message.took = moved.took;
  message.done = done;
  tell(link, message.header);
}

// Others wait for the room, and the program's threads for answers of the scheduler.
bool moved_some(void* argument, const SwapMoved& moved) {
  Moving& moving = *static_cast<Moving*>(argument);
  Link& link = *moving.link;
  moving.moved += moved.out + moved.in;
  tell_moved(link, moving.order, moved, false);
  if (link.socket >= 0 && !pump(link)) link.lost = true;
  return !link.lost;
}

using Move = bool (*)(Gate&, uint64_t, SwapProgress, void*);

// There may be memory of both kinds: what the first has not moved is left to the second. Whether
// that was all of it.
bool move_both(Move first, Move second, Moving& moving, uint64_t bytes) {
  Gate& gate = moving.link->gate;
  const bool all = first(gate, bytes, moved_some, &moving);
  if (moving.moved >= bytes || moving.link->lost) return all;
  return second(gate, bytes - moving.moved, moved_some, &moving) && all;
}

bool obey(Moving& moving, const Order& order) {
  return order.out ? move_both(swap_out, managed_out, moving, order.bytes)
                   : move_both(swap_in, managed_in, moving, order.bytes);
}

}  // namespace

void take_order(Link& link, const Order& order) {
  if (link.order_count == kMaxOrders) return tell_moved(link, order.number, {}, true);
  link.orders[link.order_count++] = order;
}

void run_orders(Link& link) {
  while (link.order_count > 0 && !link.lost) {
    const Order order = link.orders[0];
    --link.order_count;
    for (int i = 0; i < link.order_count; ++i) link.orders[i] = link.orders[i + 1];
    const Phase phase = link.phase;
    // Whoever holds a grant is not moved: the order is over, with nothing done.
    if (phase == Phase::Idle || phase == Phase::Asked) {
      Moving moving{&link, order.number};
      if (!obey(moving, order)) {
        log("order %llu to move memory was done in part", (unsigned long long)order.number);
      }
    }
    tell_moved(link, order.number, {}, true);
  }
}

bool bring_all_back(Link& link) {
  if (link.absent.load() == 0) return true;
  Moving moving{&link, 0};
  move_both(swap_in, managed_in, moving, ~uint64_t{0});
  // What the driver did not bring now it brings when it is touched. Looked at in this order: memory
  // that is promised as absent is in the first number before it is in the second.
  const uint64_t absent = link.absent.load();
  return absent <= managed_absent(link.gate);
}

}  // namespace nvshare::interposer
