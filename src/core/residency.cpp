#include "core/residency.h"

#include <algorithm>

namespace nvshare::core {
namespace {

constexpr int kGapSearch = 8;    // how far behind the first one looks for who fits a gap
constexpr int kRoomSearch = 64;  // among how many one looks for who may want its room back
constexpr Bytes kNothing{0};
constexpr int kWorthComingBack = 4;  // times as long as its memory takes to leave

}  // namespace

Residency::Residency(const Config& config, Bytes total, HostPool& host)
    : config_(config), total_(total), host_(host) {
  host_.join(*this);
}

Duration switch_quantum(Bytes bytes, Bytes per_second, const Config& config) {
  if (config.quantum_mode == QuantumMode::Fixed) return config.quantum_fixed;
  const double seconds = static_cast<double>(bytes.count) / static_cast<double>(per_second.count);
  const double quantum = std::min(seconds * config.quantum_multiplier, 1e9);
  return std::clamp(Duration{static_cast<Duration::rep>(quantum * 1e9)}, config.quantum_min,
                    config.quantum_max);
}

Bytes Residency::safe_limit() const {
  if (overhead_) return safe_limit_with(*overhead_, measured_processes_);
  return std::max(kNothing, total_ - estimated_overhead());
}

// What processes take for themselves that have come since is not in a measurement.
Bytes Residency::safe_limit_with(const OverheadMeasured& what, int measured_processes) const {
  Bytes taken = what.overhead + config_.reserve_per_process * (processes_ - measured_processes);
  if (what.at_most) taken = std::min(taken, estimated_overhead());
  return std::max(kNothing, total_ - taken);
}

Bytes Residency::reserve_of_processes() const {
  return config_.reserve_base + config_.reserve_per_process * processes_;
}

Bytes Residency::estimated_overhead() const {
  const Bytes percent{total_.count / 100 * config_.reserve_percent};
  return std::max(percent, reserve_of_processes());
}

Duration Residency::move_time(Bytes bytes) const {
  const double seconds =
      static_cast<double>(bytes.count) / static_cast<double>(link_per_second().count);
  return Duration{static_cast<Duration::rep>(std::min(seconds, 1e6) * 1e9)};
}

// --- the books ---------------------------------------------------------------------------------

void Residency::set_resident(Client& client, Bytes resident) {
  stale_ |= resident != client.memory.resident;
  resident_ += resident - client.memory.resident;
  client.memory.resident = resident;
  count_rounded(client);
  recount(client);
}

void Residency::set_incoming(Client& client, Bytes incoming) {
  stale_ |= incoming != client.memory.incoming;
  incoming_ += incoming - client.memory.incoming;
  client.memory.incoming = incoming;
  count_rounded(client);
  recount(client);
}

// Of what it takes in whole pages, the part for what is there and comes in.
void Residency::count_rounded(Client& client) {
  const Bytes rounded = client.memory.rounding_of(client.memory.resident + client.memory.incoming -
                                                  client.memory.pinned);
  stale_ |= rounded != client.memory.rounded;
  rounded_ += rounded - client.memory.rounded;
  client.memory.rounded = rounded;
}

void Residency::set_rounding(Client& client, Bytes bytes) {
  stale_ |= bytes != client.memory.rounding;
  client.memory.rounding = bytes;
  count_rounded(client);
  recount(client);
}

void Residency::set_undone(Client& client, Bytes undone) {
  stale_ |= undone != client.memory.undone;
  undone_ += undone - client.memory.undone;
  client.memory.undone = undone;
}

// Takes the client out of both orders of eviction; list() puts it back where it belongs now.
void Residency::unlist(Client& client) {
  if (!client.eviction.listed) return;
  client.eviction.listed = false;
  queued_resident_.erase(key_of(client));
  evictable_.erase({client.eviction.at, client.seq, &client});
  sleepers_.erase({client.seq, &client});
}

void Residency::list(Client& client) {
  unlist(client);
  const bool known = std::exchange(client.eviction.known, false);
  if (leaveable(client) <= kNothing || client.memory.planned > kNothing) return;
  if (!client.queue.joined && client.memory.incoming > kNothing)
    return;  // on its way in: not touched
  if (client.run.phase == Phase::Overdue || client.run.phase == Phase::Stopping ||
      client.orders.stalled)
    return;
  if (client.orders.rests_until) return;
  if (client.tenant->sleep) return list_sleeper(client);
  client.eviction.listed = true;
  if (client.queue.joined) {
    queued_resident_.insert(key_of(client));
    stale_ = true;
    return;
  }
  const Time before = client.eviction.at;
  client.eviction.at = client.quantum.until;
  if (!client.is_busy()) {
    const Duration patience =
        client.memory.complete() ? move_time(client.memory.demand) : Duration::zero();
    client.eviction.at = std::min(client.eviction.at, client.eviction.idle_since + patience);
  }
  stale_ |= !known || client.eviction.at < before || client.host.coming > kNothing;
  client.eviction.known = true;
  evictable_.emplace(client.eviction.at, client.seq, &client);
}

void Residency::leave(Client& client) {
  unlist(client);
  dequeue(client);
  trust_again(client);
  leaving_ -= client.memory.outgoing + client.memory.planned;
  unwatch(client);
  rise(client);
  forget_shortfall(client);
  woken_.erase({client.seq, &client});
  pinned_ -= client.memory.stuck();
  stale_ = true;
  set_resident(client, kNothing);
  set_incoming(client, kNothing);
  set_undone(client, kNothing);
  set_rounding(client, kNothing);
  count(client, {});
  set_allocated(client, kNothing);
  std::erase(changed_, &client);
  --processes_;
  measured_processes_ = std::min(measured_processes_, processes_);
}

void Residency::dequeue(Client& client) {
  if (!client.queue.joined) return;
  unlist(client);
  queue_.erase(key_of(client));
  client.queue.joined = false;
  stop_waiting_for_host(client);
  stale_ = true;
}

// Waiting counts as priority: one step for each `ageing`, so the order of two clients never changes
// while both wait, and can be kept.
void Residency::enqueue(Client& client, Time now, Decisions& out) {
  if (client.queue.joined) return;
  unlist(client);
  const std::int64_t head_start = client.tenant->limits.priority * config_.ageing.count();
  // Who was let in and did not get all of its memory has not lost its place.
  if (!std::exchange(client.queue.admitted, false)) {
    client.queue.key = now.time_since_epoch().count() - head_start;
  }
  // It was running and its own growth stopped it: the rest of its quantum is still its own, and not
  // longer for that it waits, or who grows again and again would keep others away for ever. Who has
  // not run since its quantum began has no claim on being next, and a whole one before it.
  const bool ran = client.run.grant_seq > 0 && client.run.released_at >= client.quantum.since;
  client.quantum.kept = ran && client.memory.incoming == kNothing &&
                        client.memory.resident > kNothing && now < client.quantum.until;
  // Of two at the same moment the one that came first: who was just moved out for another stands
  // behind it.
  client.queue.seq = next_queue_seq_++;
  client.queue.joined = true;
  stale_ = true;
  queue_.insert(key_of(client));
  list(client);
  out.push_back({WaitForMemory{client.id, client.memory.demand - client.memory.resident},
                 {.why = Why::WaitsForMemory,
                  .bytes = client.memory.demand - client.memory.resident,
                  .free = std::max(kNothing, free())}});
}

// --- what clients report -----------------------------------------------------------------------

// The numbers as they are now. What was to leave or to come may have been freed instead.
void Residency::enter(Client& client, Bytes allocated, Bytes pinned, Bytes resident, Time now) {
  unlist(client);
  pinned_ += pinned - client.memory.pinned;
  stale_ |= pinned != client.memory.pinned || allocated != client.memory.demand;
  client.memory.pinned = pinned;
  client.memory.demand = allocated;
  client.quantum.peak = std::max(client.quantum.peak, allocated);
  set_resident(client, resident);
  trust_again(client);
  set_left(client, client.orders.out, client.orders.in);
  recount(client);
  const Bytes undone = std::min(client.memory.undone, client.memory.absent());
  set_undone(client, client.memory.incoming > kNothing ? undone : kNothing);
  watch(client, now);
}

void Residency::change(Client& client, const MemoryChanged& to, Time now, Decisions& out) {
  const bool was_complete = client.memory.complete();
  const Bytes growth = std::max(kNothing, to.allocated - client.memory.demand);
  const bool waits = to.pins && to.may_wait && growth > kNothing;
  bool at_once = growth > kNothing && !to.may_wait;  // there is room: that was checked
  if (waits) {
    client.memory.awaits += growth;
    pinned_ += growth;
  }
  enter(client, to.allocated, to.pinned - (waits ? growth : kNothing),
        to.resident + (at_once ? growth : kNothing), now);
  if (waits && client.memory.awaits == growth && growth <= free()) {
    give(client, now, out);
    at_once = true;
  }
  const Bytes in_pages = client.memory.need_in_pages();
  const bool fits =
      !waits && was_complete && client.memory.planned == kNothing && in_pages <= free();
  if (at_once || (growth > kNothing && fits)) {
    if (!at_once) set_resident(client, client.memory.resident + growth);
    if (client.memory.complete()) {
      out.push_back({MemoryAvailable{client.id}, {.why = Why::Fits, .bytes = growth}});
    }
    if (client.quantum.until <= now && client.memory.resident == growth) {  // its first memory
      protect(client, client.memory.demand, now);
    }
  } else if (growth > kNothing) {
    if (!waits) add_fresh(client, growth);
    recount(client);
    out.push_back({WaitForMemory{client.id, client.memory.demand - client.memory.resident},
                   {.why = Why::Grew, .bytes = client.memory.demand - client.memory.resident}});
  }
  list(client);
  const bool waited = client.queue.joined || !was_complete;
  if (waited && client.memory.complete()) complete(client, now, out);
}

// The memory was on the GPU before anybody knew whose it is: where the overhead had been measured
// by then, the memory is in that, and with it what the process takes for itself. A measurement from
// before, or from while the client was connected, does not have it. So the processes' reserve
// stays; without that bound a client that comes back would leave less overhead than contexts take.
// The percentage stays out of the bound: on a large card it is many times what contexts take.
void Residency::count_as_overhead_no_more(const Client& client, Bytes found) {
  const Bytes brought = found - client.memory.resident;
  if (!overhead_ || brought <= kNothing) return;
  const Bytes measured = overhead_->overhead;
  overhead_->overhead = std::max(std::min(measured, reserve_of_processes()), measured - brought);
  const bool first = client.memory.demand == kNothing;
  measured_processes_ = std::min(measured_processes_ + (first ? 1 : 0), processes_);
  stale_ = true;
}

void Residency::found(Client& client, const MemoryFound& what, Time now, Decisions& out) {
  const bool was_complete = client.memory.complete();
  if (what.from_before) count_as_overhead_no_more(client, what.resident);
  enter(client, what.allocated, what.pinned, what.resident, now);
  if (client.memory.complete() && client.quantum.until <= now)
    protect(client, client.memory.demand, now);
  list(client);
  if ((client.queue.joined || !was_complete) && client.memory.complete())
    complete(client, now, out);
}

// Who has more than it may is not protected for longer than it must be to get anything done.
void Residency::limit_changed(Client& client, Time now) {
  if (!client.share->over_memory_limit()) return;
  end_quantum(client, now);
  list(client);
}

Duration Residency::quantum_of(const Client& client) const {
  const Duration quantum = switch_quantum(client.quantum.bytes, link_per_second(), config_);
  return client.share->over_memory_limit() ? std::min(quantum, config_.quantum_min) : quantum;
}

void Residency::protect(Client& client, Bytes bytes, Time now) {
  client.quantum.since = now;
  client.quantum.bytes = bytes;
  client.quantum.peak = client.memory.demand;
  client.quantum.until = now + quantum_of(client);
}

void Residency::end_quantum(Client& client, Time now) {
  client.quantum.until = std::min(client.quantum.until, now);
  if (!client.quantum.kept) return;
  unlist(client);
  if (client.queue.joined) queue_.erase(key_of(client));
  client.quantum.kept = false;
  if (client.queue.joined) queue_.insert(key_of(client));
  stale_ = true;
}

// Quanta that were given before the first move rest on a guess; now it is known what a move takes.
void Residency::replace_guessed_quanta() {
  const auto listed = evictable_;
  for (const auto& [at, seq, client] : listed) {
    client->quantum.until =
        std::min(client->quantum.until, client->quantum.since + quantum_of(*client));
    list(*client);
  }
}

void Residency::complete(Client& client, Time now, Decisions& out) {
  dequeue(client);
  // Room that it got in a gap is its own only until the one it passed comes in.
  const Bytes bytes =
      client.memory.moved_in > kNothing ? client.memory.moved_in : client.memory.demand;
  if (!client.quantum.kept) protect(client, bytes, now);
  client.quantum.kept = false;
  if (client.quantum.cap)
    client.quantum.until = std::min(client.quantum.until, *client.quantum.cap);
  client.quantum.cap.reset();
  client.memory.moved_in = kNothing;
  recount(client);
  client.queue.admitted = false;
  set_undone(client, kNothing);
  list(client);
  changed_.push_back(&client);
  out.push_back({MemoryAvailable{client.id}, {.why = Why::Fits, .bytes = client.memory.demand}});
}

void Residency::update(Client& client, Time now, Decisions& out) {
  unlist(client);
  const bool stopped = client.run.phase == Phase::Off || client.run.phase == Phase::Ready;
  if (stopped && client.memory.planned > kNothing) {
    leaving_ -= client.memory.planned;
    // It may have less to leave to than when it was told to stop.
    const Bytes bytes = std::min(std::exchange(client.memory.planned, kNothing), leaveable(client));
    recount(client);
    // Who it was to make room for may have left meanwhile.
    if (bytes > kNothing && (!queue_.empty() || over() > kNothing)) {
      send_out(client, bytes, {.why = Why::Rotation, .bytes = bytes}, now, out);
    }
  }
  list(client);
}

void Residency::give_up_on(Client& client) {
  leaving_ -= client.memory.planned;
  client.memory.planned = kNothing;
  recount(client);
  unlist(client);
  client.eviction.known = false;
  stale_ = true;
}

// --- decisions ---------------------------------------------------------------------------------

// What it waits for and cannot move is the client's now. Whoever asked for it will want to use it.
void Residency::give(Client& client, Time now, Decisions& out) {
  const Bytes bytes = std::exchange(client.memory.awaits, kNothing);
  client.memory.pinned += bytes;
  set_resident(client, client.memory.resident + bytes);
  idles(client, now);
  out.push_back({MemoryGiven{client.id, bytes}, {.why = Why::Fits, .bytes = bytes}});
}

// There is less room than there was when it was promised: it is refused after all, as it would be
// now.
void Residency::withdraw(Client& client, Time now, Decisions& out) {
  const Bytes most = std::max(kNothing, room_for(client));
  const Bytes bytes = std::exchange(client.memory.awaits, kNothing);
  out.push_back({MemoryWithdrawn{client.id, bytes},
                 {.why = Why::MemoryCannotFit, .bytes = client.memory.demand, .free = most}});
  pinned_ -= bytes;
  set_allocated(client, client.memory.demand - bytes);
  client.memory.demand -= bytes;
  recount(client);
  stale_ = true;
  if (client.memory.complete()) return complete(client, now, out);
  if (!client.wants_work) dequeue(client);
  changed_.push_back(&client);
}

void Residency::admit(Client& client, Time protect_until, Why why, Time now, Decisions& out) {
  dequeue(client);
  unlist(client);
  client.queue.admitted = true;
  client.quantum.cap = protect_until;
  if (client.memory.awaits > kNothing) give(client, now, out);
  const Bytes absent = client.memory.absent();
  if (absent > kNothing) bring_in(client, absent, {.why = why, .bytes = absent}, now, out);
}

// In the order in which they will be needed last. `head` is not among them.
Residency::Victims Residency::find_victims(const Client* head, Bytes deficit) const {
  Victims found;
  Bytes places = host_places();
  const auto add = [&](Client* client) {
    const Bytes gives = leaveable(*client);
    const Bytes at_once = client->leaves_to_host() ? std::min(gives, places) : gives;
    if (client->leaves_to_host()) places -= at_once;
    found.clients.push_back(client);
    found.enough += gives + client->memory.rounding_of(gives);
    found.now += at_once + client->memory.rounding_of(at_once);
  };
  for (auto it = queued_resident_.rbegin(); it != queued_resident_.rend(); ++it) {
    if (found.enough >= deficit) return found;
    Client* client = std::get<2>(*it);
    if (client != head) add(client);
  }
  for (const auto& [at, seq, client] : evictable_) {
    if (found.enough >= deficit) return found;
    if (client == head) continue;
    add(client);
    found.due = std::max(found.due, at);
  }
  return found;
}

void Residency::take(const Victims& victims, Bytes deficit, Why why, Time now, Decisions& out,
                     std::vector<Client*>& stop) {
  for (Client* client : victims.clients) {
    if (deficit <= kNothing) break;
    Bytes bytes = std::min(leaveable(*client), deficit);
    if (client->leaves_to_host()) bytes = std::min(bytes, host_places());
    if (bytes <= kNothing) continue;
    deficit -= bytes + client->memory.rounding_of(bytes);
    unlist(*client);
    // Nobody's turn has come where only the room is less: who runs comes back for the rest of its
    // own, if that is worth the way out and back.
    const bool over = client->quantum.until - now < kWorthComingBack * move_time(bytes);
    if (why != Why::ReserveGrew || over) end_quantum(*client, now);
    if (client->run.phase == Phase::Off) {
      send_out(*client, bytes, {.why = why, .bytes = bytes}, now, out);
      list(*client);
      continue;
    }
    client->memory.planned = bytes;
    leaving_ += bytes;
    recount(*client);
    stop.push_back(client);
  }
}

// More processes or a measured overhead can leave less room than is in use. Who alone has more than
// there is would never come back: it keeps what it has.
void Residency::relieve_pressure(Time now, Decisions& out, std::vector<Client*>& stop) {
  const Bytes too_much = over();
  if (too_much <= kNothing) return;
  const Victims victims = find_victims(nullptr, too_much);
  if (victims.clients.size() == 1 && victims.clients[0]->memory.resident == resident_ + incoming_)
    return;
  take(victims, too_much, Why::ReserveGrew, now, out, stop);
}

// Who frees memory in its quantum may want it again at once, step after step; what had come in
// there meanwhile would have to leave each time.
Bytes Residency::given_back_for_now(Time now) const {
  Bytes sum{};
  int looked_at = 0;
  for (auto it = evictable_.rbegin(); it != evictable_.rend() && looked_at < kRoomSearch; ++it) {
    const auto& [at, seq, client] = *it;
    if (at <= now) break;
    sum += client->quantum.peak - client->memory.demand;
    ++looked_at;
  }
  return sum;
}

// While the first in the queue waits for room: who fits into what is free may run until then, and
// the rest of the free room takes in what it can of the first one's memory ahead of its turn. What
// came in ahead goes back when somebody can run in its place: it was not touched yet, so that is
// cheap.
void Residency::fill_gaps(Client& head, Time now, Decisions& out) {
  if (leaving_ == kNothing && rotation_at_) {
    int looked_at = 0;
    for (auto it = std::next(queue_.begin()); it != queue_.end() && looked_at < kGapSearch;) {
      Client& client = *std::get<2>(*it++);
      ++looked_at;
      if (&client == &head) continue;
      const Bytes need = client.memory.need_in_pages();
      if (client.memory.outgoing > kNothing || client.orders.rests_until || !can_ever_fit(client))
        continue;
      if (need > free()) {
        const bool moves = head.memory.incoming > kNothing || head.orders.rests_until;
        const Bytes could = std::min({head.memory.moved_in, leaveable(head), host_places()});
        const Bytes ahead = moves ? kNothing : could;
        if (need > free() + ahead) continue;
        unlist(head);
        send_out(head, need - free(), {.why = Why::FillsGap, .bytes = need - free()}, now, out);
        list(head);
        return;
      }
      admit(client, *rotation_at_, Why::Fits, now, out);
      if (client.memory.complete()) complete(client, now, out);
    }
  }
  const Bytes absent = head.memory.absent();
  const Bytes room = free() - given_back_for_now(now);
  const bool all = head.memory.need_in_pages() - head.memory.awaits <= room;
  const Bytes ahead = all ? absent : std::min(absent, room - head.memory.rounding_of(room));
  // Less than a chunk does not move unless it is all that is missing.
  const bool moves = ahead > kNothing && (ahead == absent || ahead >= chunk());
  if (moves && head.memory.outgoing == kNothing && !head.orders.rests_until) {
    unlist(head);
    bring_in(head, ahead, {.why = Why::NextInLine, .bytes = ahead}, now, out);
    list(head);
  }
}

void Residency::plan(Time now, Decisions& out, std::vector<Client*>& stop) {
  look_for_stalled(now, out);
  wake_the_rested(now);
  doubt_shortfalls(now);
  // What was found last time still holds unless something has changed or is due.
  if (!stale_ && (!rotation_at_ || now < *rotation_at_)) return;
  stale_ = false;
  rotation_at_.reset();
  waits_for_host_ = false;
  waits_for_places_ = false;
  send_sleepers_out(now, out);
  relieve_pressure(now, out, stop);
  for (auto it = queue_.begin(); it != queue_.end();) {
    Client& head = *std::get<2>(*it++);
    if (head.memory.awaits > kNothing && head.memory.demand > room_for(head))
      withdraw(head, now, out);
    if (!head.queue.joined) continue;
    waits_for_places_ |= !can_fit(head);
    if (!can_fit(head) || head.orders.rests_until) continue;  // says so when asked; blocks nobody
    if (head.memory.outgoing > kNothing) break;               // still being moved out
    const Bytes need = head.memory.need_in_pages();
    if (need <= free()) {
      admit(head, Time::max(), Why::Fits, now, out);
      if (head.memory.complete()) complete(head, now, out);
      continue;
    }
    // Less than nothing is free where somebody alone has more than there is.
    const Bytes deficit = need - free() - leaving_;
    if (deficit > kNothing) {
      const Victims victims = find_victims(&head, deficit);
      if (victims.enough < deficit) {
        // Somebody is still stopping or moving; what they report brings us back here.
      } else if (victims.due <= now) {
        rotation_at_ = wait_for_host(head, victims, deficit, now);
        waits_for_host_ = rotation_at_.has_value();
        // Where host memory is full chunks leave and come in lockstep: what comes in for the first
        // one gives its place to the next that leaves.
        if (!rotation_at_) take(victims, deficit, Why::Rotation, now, out, stop);
        waits_for_places_ |= victims.now < deficit;
      } else {
        rotation_at_ = victims.due;
      }
    }
    fill_gaps(head, now, out);
    break;
  }
  bring_woken_back(now, out);
}

std::optional<Time> Residency::next_wakeup() const {
  std::optional<Time> next = rotation_at_;
  for (const auto* waiting : {&moving_, &resting_, &short_}) {
    if (waiting->empty()) continue;
    const Time due = std::get<0>(*waiting->begin());
    next = next ? std::min(*next, due) : due;
  }
  return next;
}

Reason Residency::explain(const Client& client, Time now) const {
  const Bytes missing = client.memory.demand - client.memory.resident;
  if (!can_ever_fit(client)) {
    return {.why = Why::MemoryCannotFit,
            .bytes = client.memory.demand,
            .free = std::max(kNothing, safe_limit() - stuck_beside(client))};
  }
  if (!can_fit(client)) {
    const Bytes most = safe_limit() - stuck_beside(client) - rooted_beside(client);
    return {.why = Why::OthersCannotLeave,
            .bytes = client.memory.demand,
            .free = std::max(kNothing, most)};
  }
  if (client.orders.rests_until) {
    return {.why = Why::MoveFailed,
            .wait = std::max(Duration::zero(), *client.orders.rests_until - now),
            .bytes = missing};
  }
  if (!client.queue.joined) return {.why = Why::MemoryComing, .bytes = missing};
  if (!rotation_at_) {
    return {.why = leaving_ + incoming_ > kNothing ? Why::RoomIsMade : Why::WaitsForHolders,
            .bytes = missing,
            .free = std::max(kNothing, free())};
  }
  return {.why = waits_for_host_ ? Why::WaitsForHostMemory : Why::WaitsForMemory,
          .wait = std::max(Duration::zero(), *rotation_at_ - now),
          .bytes = missing,
          .free = std::max(kNothing, free())};
}

}  // namespace nvshare::core
