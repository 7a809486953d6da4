#include "core/residency.h"

#include <algorithm>

namespace nvshare::core {
namespace {

constexpr Bytes kNothing{0};

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
  return std::min(promised_limit(), total_ - (overhead_ ? overhead_->found : kNothing));
}

Bytes Residency::promised_limit() const {
  if (overhead_) return promised_limit_with(*overhead_, measured_processes_);
  return std::max(kNothing, total_ - estimated_overhead());
}

// A measurement does not contain the overhead of processes that have come since.
Bytes Residency::promised_limit_with(const OverheadMeasured& what, int measured_processes) const {
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

// The part of the rounding for memory that is on the GPU or comes in.
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

// Takes the client out of the orders of eviction. list() puts it back where it belongs now.
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
  if (!client.is_busy() && client.lease != ClientLease::Held) {
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
  set_allocated(client, kNothing, kNothing);
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

// Waiting counts as priority: one step for each `ageing`. So the order of two clients never changes
// while both wait, and the queue can be kept sorted.
std::int64_t Residency::queue_key(const Client& client, Time now) const {
  const Duration head_start = client.share->priority * config_.ageing;
  return (now.time_since_epoch() - head_start).count();
}

// A client that waits already keeps the better one of its two places: before its service had the
// lease, and with the priority that the lease lends.
void Residency::lease_changed(Client& client, Time now) {
  unlist(client);
  if (client.queue.joined) {
    queue_.erase(key_of(client));
    client.queue.key = std::min(client.queue.key, queue_key(client, now));
    queue_.insert(key_of(client));
  }
  stale_ = true;
  list(client);
}

void Residency::enqueue(Client& client, Time now, Decisions& out) {
  if (client.queue.joined) return;
  unlist(client);
  // A client that was let in and did not get all of its memory keeps its place.
  if (!std::exchange(client.queue.admitted, false)) client.queue.key = queue_key(client, now);
  // A client that its own growth stopped keeps the rest of its quantum. Waiting does not prolong
  // the quantum, because a client that grows again and again would keep others away for ever. A
  // client that has not run since its quantum began has no claim on being next.
  const bool ran = client.run.grant_seq > 0 && client.run.released_at >= client.quantum.since;
  client.quantum.kept = ran && client.memory.incoming == kNothing &&
                        client.memory.resident > kNothing && now < client.quantum.until;
  // Of two clients at the same moment the first to come is first. So a client that was moved out
  // for another stands behind it.
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

// Enters the client's numbers as they are now. Memory with an order may have been freed instead.
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
  bool at_once = growth > kNothing && !to.may_wait;  // there is room: the core has checked it
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

// The client's memory was on the GPU before the client was known. A measurement from that time
// counts the memory as overhead, with the context of the process. A measurement from before, or
// from while the client was connected, does not. So the processes' reserve stays as a lower bound:
// without it a client that comes back would leave less overhead than contexts take. The percentage
// stays out of the bound, because on a large card it is many times what contexts take.
void Residency::count_as_overhead_no_more(const Client& client, Bytes found) {
  const Bytes brought = found - client.memory.resident;
  if (!overhead_ || brought <= kNothing) return;
  const Bytes measured = overhead_->overhead;
  overhead_->overhead = std::max(std::min(measured, reserve_of_processes()), measured - brought);
  overhead_->found = std::max(kNothing, overhead_->found - brought);
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

// A tenant above its memory limit keeps its room for the shortest quantum, in which it can still
// get work done.
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

// Quanta from before the first move rest on a guess. The first move shows what a move takes.
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
  // A client that filled a gap keeps its room only until the first of the queue comes in.
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
    // The client may have less host memory than when it was told to stop.
    const Bytes bytes = std::min(std::exchange(client.memory.planned, kNothing), leaveable(client));
    recount(client);
    // The client that needed the room may have left meanwhile.
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

}  // namespace nvshare::core
