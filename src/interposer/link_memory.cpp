// What the scheduler orders to be moved, by the link's thread.
#include "interposer/link_state.h"
#include "interposer/swap.h"
#include "wire/channel.h"

namespace nvshare::interposer {
namespace {

struct Moving {
  Link* link;
  uint64_t order;
};

void tell_moved(Link& link, uint64_t order, const SwapMoved& moved, bool done,
                bool no_room = false) {
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
  message.no_room = no_room;
  tell(link, message.header);
}

// Others wait for the room, and the program's threads for answers of the scheduler.
bool moved_some(void* argument, const SwapMoved& moved) {
  const Moving& moving = *static_cast<Moving*>(argument);
  Link& link = *moving.link;
  tell_moved(link, moving.order, moved, false);
  if (link.socket >= 0 && !pump(link)) link.lost = true;
  return !link.lost;
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
    bool all = true;
    if (phase == Phase::Idle || phase == Phase::Asked) {
      Moving moving{&link, order.number};
      all = order.out ? swap_out(link.gate, order.bytes, moved_some, &moving)
                      : swap_in(link.gate, order.bytes, moved_some, &moving);
    }
    tell_moved(link, order.number, {}, true, !all && !order.out);
  }
}

bool bring_all_back(Link& link) {
  if (link.absent.load() == 0) return true;
  Moving moving{&link, 0};
  swap_in(link.gate, ~uint64_t{0}, moved_some, &moving);
  return link.absent.load() == 0;
}

}  // namespace nvshare::interposer
