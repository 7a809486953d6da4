#pragma once

// The core's own records. Only src/core sees them; everybody else sees snapshot.h.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/units.h"
#include "core/event.h"
#include "core/ids.h"
#include "core/snapshot.h"

namespace nvshare::core {

// Parts of a nanosecond, so that time divided among n clients adds up again.
__extension__ typedef __int128 Fixed;
inline constexpr int kFixedBits = 20;
constexpr Fixed to_fixed(Duration d) {
  return static_cast<Fixed>(d.count()) << kFixedBits;
}
constexpr Duration from_fixed(Fixed f) {
  return Duration{static_cast<Duration::rep>(f >> kFixedBits)};
}
// The first whole nanosecond at which `f` has passed.
constexpr Duration from_fixed_up(Fixed f) {
  return from_fixed(f + ((static_cast<Fixed>(1) << kFixedBits) - 1));
}

// Nanoseconds of GPU time in proportion to a limit: at 1 % a hundred for each that was used, so
// more than 64 bits hold when that were years.
__extension__ typedef __int128 VirtualTime;

struct Tenant {
  TenantId id;
  std::string name;
  Limits limits;
  bool paused = false;
  std::optional<SleepView> sleep{};
  int clients = 0;
  int wanting = 0;    // clients that have work, on all GPUs
  bool idle = false;  // has clients, and none of them may run and has work
  Time idle_since{};

  // Its clients get the GPU when they have work and their memory is there.
  bool may_run() const { return !paused && !sleep; }
};

// Where a client stands with the compute engine.
enum class Phase {
  Off,       // no work, paused, or its memory is not there
  Ready,     // could run now
  Running,   // holds a grant
  Stopping,  // was told to drop and has not answered yet
  Overdue,   // has not answered in time; nobody waits for it any more, it still pays
};

struct Client;
struct Share;

// Order by a sequence number first, so that pointers never decide. The number is in the node: what
// it belongs to is not touched on the way.
using ClientOrder = std::set<std::pair<std::uint64_t, Client*>>;
using ShareOrder = std::set<std::pair<std::uint64_t, Share*>>;
// Who could run now: by what it has had of its tenant's time, then by when it asked.
using ReadyOrder = std::set<std::tuple<VirtualTime, std::uint64_t, Client*>>;

// Account of the window policies.
struct WindowAccount {
  Fixed used = 0;           // billed in window `window`, up to `mark`
  Fixed mark = 0;           // the engine's bill clock when `used` was brought up to date
  std::int64_t window = 0;  // the window that `used` belongs to
  bool throttled = false;
  bool indexed = false;
  Fixed exhausts_at = 0;  // on the bill clock; valid when indexed
};

// Account of the metered policy.
struct MeterAccount {
  Duration allowance{};   // GPU time it may use now; negative is debt
  Duration at_grant{};    // the allowance when it was last granted a turn
  Fixed mark = 0;         // the engine's refill clock when `allowance` was brought up to date
  Fixed unkept_mark = 0;  // of what was earned on that clock and is not kept, likewise
  Time idle_since{};
  bool active = false;
  bool fresh = true;  // has never been active
  bool throttled = false;
  Fixed resumes_at = 0;         // on the refill clock; valid when throttled
  Duration unlimited_before{};  // how long it had no limit, up to `unlimited_since`
  Time unlimited_since{};
  Duration at_work{};  // beyond most of its limit, lately; up to date at `at_work_at`
  Time at_work_at{};
  VirtualTime vtime = 0;
  bool runnable = false;        // stands in the run queue
  int level = 0;                // of the run queue, in which `vtime` is counted
  std::size_t tier = SIZE_MAX;  // likewise
  VirtualTime least_had = 0;    // where a process stands that joins the others of the tenant
};

// A tenant on one GPU: what limits are enforced on.
struct Share {
  Tenant* tenant = nullptr;
  std::uint64_t seq = 0;
  Bytes allocated{};
  int clients = 0;
  int wanting = 0;   // clients not Off
  int running = 0;   // Running, Stopping or Overdue
  int stopping = 0;  // Stopping or Overdue
  int overdue = 0;
  int parked = 0;  // clients with work whose memory is not there
  ReadyOrder ready;
  ClientOrder held;  // Running, by grant
  std::optional<Time> first_throttle;
  Fixed billed = 0;  // since the share exists
  WindowAccount window;
  MeterAccount meter;

  bool over_memory_limit() const {
    return tenant->limits.memory && allocated > *tenant->limits.memory;
  }
  int limit() const { return tenant->limits.core_percent; }
  bool limited() const { return limit() < kNoCoreLimit; }
};

// A client was told to send out memory, and kept some of it.
struct Shortfall {
  Bytes away{};        // so much had left, and no more did
  Bytes host_ready{};  // then
  Duration lasts{};
  std::optional<Time> until;  // more is not tried before; none: that was long enough ago
};

// What a client adds to the sums of its GPU.
struct Counted {
  Bytes demand{};        // in whole pages
  Bytes rooted{};        // on the GPU and not pinned, and with no place to go to
  Bytes host_used{};     // places in host memory: of what is away, and of what was told to leave
  Bytes host_movable{};  // what may have to leave to host memory
};

struct Client {
  ClientId id;
  GpuId gpu;
  std::uint64_t seq = 0;
  Tenant* tenant = nullptr;
  Share* share = nullptr;

  bool wants_work = false;
  Time wants_since{};

  // Memory. On the GPU now: resident. Reserved for what comes in: incoming. demand = allocated.
  Bytes demand;
  Bytes beyond{};  // more than the GPU can hold: counts for limits alone
  std::optional<Bytes> own_limit;
  Bytes pinned{};
  Bytes resident{};
  Bytes awaits{};  // of demand: cannot move, and is given when there is room for it
  Bytes
      rounding{};   // what its memory takes in whole pages beyond `demand`, when all of it is there
  Bytes rounded{};  // of that, for what is on the GPU or comes in
  // Of what is not on the GPU: was never there, so it has no bytes to keep and needs no place in
  // host memory. At least so much is known to be of that kind.
  Bytes fresh{};
  Bytes incoming;
  Bytes outgoing;  // told to send out, not reported yet
  // What is left of the orders that are not over. More than is incoming or outgoing when what was
  // to move has been freed since.
  Bytes told_in{};
  Bytes told_out{};
  Bytes planned;   // to be sent out as soon as it has stopped
  Bytes moved_in;  // brought in since it was last complete, for the quantum
  bool parked = false;
  bool queued = false;
  std::int64_t queue_key = 0;
  std::uint64_t queue_seq = 0;
  std::optional<Time> move_due;  // when a move it was told to make must have made progress
  bool stalled = false;          // it has not; nobody counts on it any more
  Bytes stalled_bytes{};
  bool moved_some = false;          // since it was last without orders
  Bytes undone{};                   // of orders that are over; its room is kept until the last is
  bool admitted = false;            // was let in and is not complete yet
  Duration rest{};                  // how long it rests when it cannot move what it was told to
  std::optional<Time> rests_until;  // nothing is ordered before
  bool known_evictable = false;     // was, the last time anybody looked
  bool evictable = false;           // stands in the order of eviction
  Time evictable_at{};
  Time protected_since{};
  Bytes quantum_bytes{};  // what its quantum was reckoned from
  Bytes quantum_peak{};   // the most that it had since its quantum began
  Time protected_until{};
  bool keeps_quantum = false;  // waits for its own growth, before all others: its quantum goes on
  std::optional<Time> protect_cap;  // a quantum that begins will end no later than this
  Time idle_since{};
  // Of the host memory that it may have to leave to.
  Bytes host_coming{};
  std::optional<Bytes> host_ready;  // none: as much as it needs
  bool host_doubted = false;        // it has been waited for, and did not come
  std::optional<Time> host_until;   // as first in the queue it waits no longer for that of others
  std::optional<Shortfall> shortfall;
  // The client's part of the sums of its GPU (Residency::recount).
  Counted counted;

  // Compute.
  Phase phase = Phase::Off;
  std::uint64_t ready_seq = 0;
  VirtualTime had = 0;  // beside other processes of its tenant; the window policies do not count it
  Time had_since{};     // from when on what it holds is counted
  std::uint64_t grant_seq = 0;
  Time granted_at{};
  Duration turn{};          // how long a turn was then
  Duration burst{};         // GPU time it takes from one idle gap to the next, lately
  Duration burst_so_far{};  // of the present one
  Time released_at{};       // when it last gave a grant back
  bool cut = false;         // it had used up what it was granted, or was told to stop
  Duration gaps{};          // in its last turn, when it had nothing on the GPU
  Time dropped_at{};
  bool before_limits = false;  // has none, and was granted while somebody that has one waited
  std::optional<Duration> budget;
  Time read_at{};             // when the meter was last read, or the grant began
  Duration unlimited_mark{};  // of the tenant's time without a limit
  Duration reported{};        // of this grant, already billed
  Duration charged_ahead{};   // of this grant, in the tenant's virtual time before it was reported
  std::int64_t duty_ppm = 0;  // part of its recent time in which it occupied the GPU
  Time duty_at{};

  // What it may have used that its meter has not told yet.
  Duration unread(Time now) const { return now - std::max(granted_at, read_at); }
  ReadyOrder::value_type ready_key() { return {had, ready_seq, this}; }
  // All that counts for limits.
  Bytes allocated() const { return demand + beyond; }
  bool complete() const { return resident == demand && outgoing.count == 0; }
  Bytes movable() const { return resident - pinned - outgoing; }
  // Whether what leaves goes to host memory of ours, of which there is only so much.
  bool leaves_to_host() const { return host_ready.has_value(); }
  // What it lacks and nobody has brought on the way; and what of that an order could bring.
  Bytes need() const { return demand - resident - incoming; }
  Bytes absent() const { return need() - awaits; }
  // What of its memory in whole pages is still to find room.
  Bytes need_in_pages() const { return need() + rounding - rounded; }
  // What `bytes` of what can move take beyond themselves.
  Bytes rounding_of(Bytes bytes) const {
    const Bytes all = demand - stuck();
    if (all.count <= 0 || rounding.count == 0) return {};
    const auto part = static_cast<Fixed>(std::clamp(bytes, Bytes{}, all).count);
    return {static_cast<std::int64_t>((part * rounding.count + all.count - 1) / all.count)};
  }
  // What can never leave the GPU, with what is promised.
  Bytes stuck() const { return pinned + awaits; }
  bool is_busy() const { return wants_work && tenant->may_run(); }
  bool waits_for_memory() const { return wants_work || awaits.count > 0; }
  // It asks for the GPU and does not have it.
  bool asks() const { return waits_for_memory() && (phase == Phase::Off || phase == Phase::Ready); }
};

}  // namespace nvshare::core
