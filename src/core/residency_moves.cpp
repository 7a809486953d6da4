// Orders to move memory, and what becomes of them.

#include <algorithm>

#include "core/residency.h"

namespace nvshare::core {
namespace {

constexpr Bytes kWorthMeasuring = mib(16);
constexpr Bytes kFastestGuess = gib(25);  // in a second
constexpr Duration kLinkMemory = 1s;      // of copying, that the speed rests on
constexpr Duration kLongEnough = 1ms;     // of copying, until the speed is known
constexpr Duration kFirstRest = 100ms;
constexpr Duration kLongestRest = 1s;
constexpr Bytes kNothing{0};

double seconds(Duration time) {
  return std::chrono::duration<double>(time).count();
}

Bytes speed(double bytes, double in_seconds) {
  return Bytes{static_cast<std::int64_t>(std::clamp(bytes / in_seconds, 1e6, 1e15))};
}

}  // namespace

// --- what is ordered ---------------------------------------------------------------------------

void Residency::send_out(Client& client, Bytes bytes, const Reason& why, Time now, Decisions& out) {
  client.memory.outgoing += bytes;
  client.orders.out += bytes;
  leaving_ += bytes;
  recount(client);
  stale_ = true;
  watch(client, now);
  out.push_back({SendOut{client.id, bytes}, why});
}

void Residency::bring_in(Client& client, Bytes bytes, const Reason& why, Time now, Decisions& out) {
  set_incoming(client, client.memory.incoming + bytes);
  client.orders.in += bytes;
  watch(client, now);
  out.push_back({BringIn{client.id, bytes}, why});
}

// --- what is reported --------------------------------------------------------------------------

// Bytes and time are added up before they are divided. Of copies at the same time the first report
// has all of the time and the next none, and the first may be too small to count. Moves without a
// copy say nothing of the link. But until the first copy they say more than a careful guess.
void Residency::measure_link(Bytes moved, Bytes spared, Duration took) {
  const Bytes copied = moved - std::min(spared, moved);
  const bool counts = copied >= kWorthMeasuring && copied >= spared;
  if (took == Duration::zero()) took = link_skipped_;
  link_skipped_ = counts ? Duration::zero() : took;
  if (moved < kWorthMeasuring || (!counts && took == Duration::zero())) return;
  const bool first = !link_is_known();
  if (counts) {
    // Earlier copies count less with each second that is added.
    const double kept = seconds(kLinkMemory) / (seconds(kLinkMemory) + seconds(took));
    link_bytes_ = link_bytes_ * kept + static_cast<double>(copied.count);
    link_seconds_ = link_seconds_ * kept + seconds(took);
  } else if (first) {
    link_guess_ = std::min(kFastestGuess, speed(static_cast<double>(moved.count), seconds(took)));
  }
  if (first) replace_guessed_quanta();
}

bool Residency::link_is_known() const {
  return link_seconds_ >= seconds(kLongEnough);
}

Bytes Residency::link_per_second() const {
  if (link_is_known()) return speed(link_bytes_, link_seconds_);
  return std::max(link_guess_, config_.link_per_second);
}

void Residency::moved(Client& client, const MemoryMoved& how, Time now, Decisions& out) {
  unlist(client);
  const Bytes out_by = std::max(kNothing, client.memory.resident - how.resident);
  const Bytes in_by = std::max(kNothing, how.resident - client.memory.resident);
  measure_link(std::max(out_by, in_by), how.spared, how.took);
  trust_again(client);
  const Bytes not_out = client.memory.outgoing - out_by;
  const Bytes not_in = std::max(kNothing, client.memory.incoming - in_by);
  add_fresh(client, kNothing - std::min(in_by, how.fresh));
  set_resident(client, how.resident);
  set_incoming(client, not_in);
  client.memory.moved_in = std::max(kNothing, client.memory.moved_in + in_by - out_by);
  recount(client);
  client.orders.moved_some |= out_by > kNothing || in_by > kNothing;
  set_left(client, how.out_left, how.in_left);
  // Memory that the client has freed meanwhile is neither kept nor missing.
  const Bytes kept = std::min(how.kept, std::max(kNothing, not_out - client.memory.outgoing));
  const Bytes missing = std::min(how.missing, not_in - client.memory.incoming);
  // An order of which nothing was done is not repeated at once, because it would fail again. The
  // same holds for an order to make room that kept some. Whole chunks come in: an order of which a
  // part of a chunk is left has not failed.
  const bool failed = kept > kNothing || (missing > kNothing && !client.orders.moved_some);
  if (failed) rest(client, now);
  if (kept > kNothing) {
    note_shortfall(client, now);
  } else if (client.host.shortfall && out_by > kNothing && client.memory.outgoing == kNothing &&
             client.memory.absent() > client.host.shortfall->away) {
    forget_shortfall(client);  // more has left than before
  }
  const bool left = missing > kNothing || client.memory.undone > kNothing;
  const bool kept_room = client.queue.admitted && client.memory.incoming > kNothing;
  set_undone(client, kept_room ? client.memory.undone + missing : kNothing);
  if (client.memory.outgoing == kNothing && client.memory.incoming == kNothing) {
    if (!failed && client.orders.moved_some) client.orders.rest = Duration::zero();
    if (left && !failed) bring_rest(client, now, out);
    client.orders.moved_some = false;
  }
  watch(client, now);
  if (in_by > kNothing && client.memory.complete()) {
    complete(client, now, out);
  } else {
    if (client.memory.complete()) {  // it kept the memory that it was to send out
      client.memory.moved_in = kNothing;
      recount(client);
      dequeue(client);
    }
    list(client);
  }
}

// Enters what is left of the orders. No more moves than there is to move.
void Residency::set_left(Client& client, Bytes out, Bytes in) {
  client.orders.out = out;
  client.orders.in = in;
  const Bytes could_leave = std::max(kNothing, client.memory.resident - client.memory.pinned);
  const Bytes outgoing = std::min({client.memory.outgoing, out, could_leave});
  const Bytes planned = std::min(client.memory.planned, could_leave - outgoing);
  const Bytes left_less = client.memory.outgoing - outgoing + client.memory.planned - planned;
  stale_ |= left_less > kNothing;
  leaving_ -= left_less;
  client.memory.outgoing = outgoing;
  client.memory.planned = planned;
  recount(client);
  set_incoming(client, std::min({client.memory.incoming, in,
                                 client.memory.incoming + client.memory.absent()}));
}

// Several orders let the client in, and each left less than a chunk. One order brings all of these.
void Residency::bring_rest(Client& client, Time now, Decisions& out) {
  const Bytes need = client.memory.absent();
  if (!client.queue.admitted || client.queue.joined || need <= kNothing) return;
  if (client.memory.need_in_pages() > free()) return;
  bring_in(client, need, {.why = Why::NextInLine, .bytes = need}, now, out);
}

void Residency::rest(Client& client, Time now) {
  rise(client);
  client.orders.rest = std::clamp(client.orders.rest * 2, kFirstRest, kLongestRest);
  client.orders.rests_until = now + client.orders.rest;
  resting_.emplace(*client.orders.rests_until, client.seq, &client);
  client.eviction.known = false;
  stale_ = true;
}

void Residency::rise(Client& client) {
  if (!client.orders.rests_until) return;
  resting_.erase({*client.orders.rests_until, client.seq, &client});
  client.orders.rests_until.reset();
}

void Residency::wake_the_rested(Time now) {
  while (!resting_.empty() && std::get<0>(*resting_.begin()) <= now) {
    Client& client = *std::get<2>(*resting_.begin());
    rise(client);
    list(client);
    stale_ = true;
  }
}

// --- orders that are not followed --------------------------------------------------------------

// Progress puts the deadline off. A client without orders has none.
void Residency::watch(Client& client, Time now) {
  unwatch(client);
  if (client.orders.stalled ||
      (client.memory.outgoing == kNothing && client.memory.incoming == kNothing))
    return;
  const Bytes bytes = std::max(client.memory.outgoing, client.memory.incoming);
  client.orders.due = now + config_.drop_timeout + 4 * move_time(bytes);
  moving_.emplace(*client.orders.due, client.seq, &client);
}

void Residency::unwatch(Client& client) {
  if (!client.orders.due) return;
  moving_.erase({*client.orders.due, client.seq, &client});
  client.orders.due.reset();
}

void Residency::trust_again(Client& client) {
  if (!client.orders.stalled) return;
  client.orders.stalled = false;
  stalled_ -= client.orders.stalled_bytes;
  leaving_ += client.memory.outgoing;
  recount(client);
}

// A client that does not follow its orders is not waited for. The plan looks for room elsewhere.
// The memory that the client holds or was promised counts as memory that cannot move.
void Residency::look_for_stalled(Time now, Decisions& out) {
  while (!moving_.empty() && std::get<0>(*moving_.begin()) <= now) {
    Client& client = *std::get<2>(*moving_.begin());
    unwatch(client);
    unlist(client);
    client.eviction.known = false;
    client.orders.stalled = true;
    set_undone(client, kNothing);
    client.orders.stalled_bytes =
        client.memory.resident - client.memory.pinned + client.memory.incoming;
    stalled_ += client.orders.stalled_bytes;
    recount(client);
    leaving_ -= client.memory.outgoing;
    stale_ = true;
    out.push_back({Overdue{client.id, config_.end_overdue},
                   {.why = Why::MoveIgnored,
                    .bytes = std::max(client.memory.outgoing, client.memory.incoming)}});
  }
}

}  // namespace nvshare::core
