// Orders to move memory, and what becomes of them.

#include <algorithm>

#include "core/residency.h"

namespace nvshare::core {
namespace {

constexpr Bytes kWorthMeasuring = mib(16);
constexpr Bytes kFastestGuess = gib(25);  // in a second
constexpr Duration kLinkMemory = 1s;      // of copying
constexpr Duration kLongEnough = 1ms;     // likewise, to know anything
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
  client.outgoing += bytes;
  client.told_out += bytes;
  leaving_ += bytes;
  recount(client);
  stale_ = true;
  watch(client, now);
  out.push_back({SendOut{client.id, bytes}, why});
}

void Residency::bring_in(Client& client, Bytes bytes, const Reason& why, Time now, Decisions& out) {
  set_incoming(client, client.incoming + bytes);
  client.told_in += bytes;
  watch(client, now);
  out.push_back({BringIn{client.id, bytes}, why});
}

// --- what is reported --------------------------------------------------------------------------

// Bytes and time are added up before they are divided: of copies that are under way at the same
// time the first to arrive takes all of the time and the next none, and even the first may be too
// small to count. What was not copied says nothing of the link, but while nothing is known of it,
// more than a careful guess does.
void Residency::measure_link(Bytes moved, Bytes spared, Duration took) {
  const Bytes copied = moved - std::min(spared, moved);
  const bool counts = copied >= kWorthMeasuring && copied >= spared;
  if (took == Duration::zero()) took = link_skipped_;
  link_skipped_ = counts ? Duration::zero() : took;
  if (moved < kWorthMeasuring || (!counts && took == Duration::zero())) return;
  const bool first = !link_is_known();
  if (counts) {
    // What was before counts the less the more time is added, and as much when none is.
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
  const Bytes out_by = std::max(kNothing, client.resident - how.resident);
  const Bytes in_by = std::max(kNothing, how.resident - client.resident);
  measure_link(std::max(out_by, in_by), how.spared, how.took);
  trust_again(client);
  const Bytes not_out = client.outgoing - out_by;
  const Bytes not_in = std::max(kNothing, client.incoming - in_by);
  add_fresh(client, kNothing - std::min(in_by, how.fresh));
  set_resident(client, how.resident);
  set_incoming(client, not_in);
  client.moved_in = std::max(kNothing, client.moved_in + in_by - out_by);
  recount(client);
  client.moved_some |= out_by > kNothing || in_by > kNothing;
  set_left(client, how.out_left, how.in_left);
  // What has been freed meanwhile is neither.
  const Bytes kept = std::min(how.kept, std::max(kNothing, not_out - client.outgoing));
  const Bytes missing = std::min(how.missing, not_in - client.incoming);
  // An order of which nothing was done is not repeated at once, nor one to make room that was not
  // obeyed: they would not be obeyed now either. That whole chunks come in leaves some of an order
  // undone and is no failure.
  const bool failed = kept > kNothing || (missing > kNothing && !client.moved_some);
  if (failed) rest(client, now);
  if (kept > kNothing) {
    note_shortfall(client, now);
  } else if (client.shortfall && out_by > kNothing && client.outgoing == kNothing &&
             client.absent() > client.shortfall->away) {
    forget_shortfall(client);  // it has done more than it could
  }
  const bool left = missing > kNothing || client.undone > kNothing;
  const bool kept_room = client.admitted && client.incoming > kNothing;
  set_undone(client, kept_room ? client.undone + missing : kNothing);
  if (client.outgoing == kNothing && client.incoming == kNothing) {
    if (!failed && client.moved_some) client.rest = Duration::zero();
    if (left && !failed) bring_rest(client, now, out);
    client.moved_some = false;
  }
  watch(client, now);
  if (in_by > kNothing && client.complete()) {
    complete(client, now, out);
  } else {
    if (client.complete()) {  // it has kept what it was to send out
      client.moved_in = kNothing;
      recount(client);
      dequeue(client);
    }
    list(client);
  }
}

// So much is left of its orders, and no more of it moves than there is to move.
void Residency::set_left(Client& client, Bytes out, Bytes in) {
  client.told_out = out;
  client.told_in = in;
  const Bytes could_leave = std::max(kNothing, client.resident - client.pinned);
  const Bytes outgoing = std::min({client.outgoing, out, could_leave});
  const Bytes planned = std::min(client.planned, could_leave - outgoing);
  const Bytes left_less = client.outgoing - outgoing + client.planned - planned;
  stale_ |= left_less > kNothing;
  leaving_ -= left_less;
  client.outgoing = outgoing;
  client.planned = planned;
  recount(client);
  set_incoming(client, std::min({client.incoming, in, client.incoming + client.absent()}));
}

// It was let in by several orders, each of which has left less than a chunk: one for all of that.
void Residency::bring_rest(Client& client, Time now, Decisions& out) {
  const Bytes need = client.absent();
  if (!client.admitted || client.queued || need <= kNothing) return;
  if (client.need_in_pages() > free()) return;
  bring_in(client, need, {.why = Why::NextInLine, .bytes = need}, now, out);
}

void Residency::rest(Client& client, Time now) {
  rise(client);
  client.rest = std::clamp(client.rest * 2, kFirstRest, kLongestRest);
  client.rests_until = now + client.rest;
  resting_.emplace(*client.rests_until, client.seq, &client);
  client.known_evictable = false;
  stale_ = true;
}

void Residency::rise(Client& client) {
  if (!client.rests_until) return;
  resting_.erase({*client.rests_until, client.seq, &client});
  client.rests_until.reset();
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

// Progress puts the deadline off; a move that is done needs none.
void Residency::watch(Client& client, Time now) {
  unwatch(client);
  if (client.stalled || (client.outgoing == kNothing && client.incoming == kNothing)) return;
  const Bytes bytes = std::max(client.outgoing, client.incoming);
  client.move_due = now + config_.drop_timeout + 4 * move_time(bytes);
  moving_.emplace(*client.move_due, client.seq, &client);
}

void Residency::unwatch(Client& client) {
  if (!client.move_due) return;
  moving_.erase({*client.move_due, client.seq, &client});
  client.move_due.reset();
}

void Residency::trust_again(Client& client) {
  if (!client.stalled) return;
  client.stalled = false;
  stalled_ -= client.stalled_bytes;
  leaving_ += client.outgoing;
  recount(client);
}

// A client that was told to move memory and does not is not waited for: room is looked for
// elsewhere, and what it holds or was promised counts as what cannot move.
void Residency::look_for_stalled(Time now, Decisions& out) {
  while (!moving_.empty() && std::get<0>(*moving_.begin()) <= now) {
    Client& client = *std::get<2>(*moving_.begin());
    unwatch(client);
    unlist(client);
    client.known_evictable = false;
    client.stalled = true;
    set_undone(client, kNothing);
    client.stalled_bytes = client.resident - client.pinned + client.incoming;
    stalled_ += client.stalled_bytes;
    recount(client);
    leaving_ -= client.outgoing;
    stale_ = true;
    out.push_back({Overdue{client.id, config_.end_overdue},
                   {.why = Why::MoveIgnored, .bytes = std::max(client.outgoing, client.incoming)}});
  }
}

}  // namespace nvshare::core
