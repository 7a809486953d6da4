#pragma once

// The core's own records. Only src/core sees them; everybody else sees snapshot.h.

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

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

// Takes a time that is earlier than the one there is, if there is one.
constexpr void bring_forward(std::optional<Time>& next, Time time) {
  if (!next || time < *next) next = time;
}

// Nanoseconds of GPU time in proportion to a limit. At 1 % each nanosecond counts a hundred times.
// 64 bits would overflow, because a client can run for years.
__extension__ typedef __int128 VirtualTime;

struct Tenant {
  TenantId id;
  Limits limits{};
  Tenant* parent = nullptr;
  bool paused = false;
  bool is_paused = false;  // or one that it is a part of is
  bool idle = false;       // has clients, and none of them may run and has work
  int clients = 0;
  int wanting = 0;  // clients that have work, on all GPUs
  int leased = 0;   // clients with ClientLease::Held
  std::optional<SleepView> sleep{};
  Time idle_since{};
  int parts = 0;
  int depth = 1;
  std::string name{};

  // The clients of the tenant get the GPU when they have work and their memory is there.
  bool may_run() const { return !sleep && !is_paused; }
  bool is_within(const Tenant& other) const {
    return this == &other || (parent != nullptr && parent->is_within(other));
  }
};

// Where a client stands with the compute engine.
enum class Phase {
  Off,       // no work, paused, or its memory is not there
  Ready,     // could run now
  Running,   // holds a grant
  Stopping,  // was told to drop and has not answered yet
  Overdue,   // has not answered in time: no client waits for it any more, and it still pays
};

struct Client;
struct Share;
struct Family;
struct MeterDomain;

// Sequence numbers come first in these orders, so that pointers never decide. The number is in the
// node, because a search would otherwise touch every client or share on its way.
using ClientOrder = std::set<std::pair<std::uint64_t, Client*>>;
using ShareOrder = std::set<std::pair<std::uint64_t, Share*>>;
// By virtual time, or by a point of a refill clock.
template <typename Of>
struct TimeOf {
  mutable Fixed at;  // written by moved() alone, which keeps the order
  std::uint64_t number;
  Of* of;

  friend auto operator<=>(const TimeOf&, const TimeOf&) = default;
};
using ShareTimes = std::set<TimeOf<Share>>;
// Clients that could run now: by what each has had of its tenant's time, then by when it asked.
using ReadyOrder = std::set<std::tuple<VirtualTime, std::uint64_t, Client*>>;

// Account of the window policies. Written by WindowEngine.
struct WindowAccount {
  Fixed used = 0;           // billed in window `window`, up to `mark`
  Fixed mark = 0;           // the engine's bill clock when `used` was brought up to date
  std::int64_t window = 0;  // the window that `used` belongs to
  bool throttled = false;
  bool indexed = false;
  Fixed exhausts_at = 0;  // on the bill clock; valid when indexed
};

// Account of the metered policy. Written by MeteredEngine. What every event looks at comes first,
// because with many tenants an event takes as long as the lines of memory that it touches.
struct MeterAccount {
  MeterDomain* domain = nullptr;  // what it competes in
  MeterDomain* inner = nullptr;   // what its parts compete in, if it has a limit and parts
  ShareTimes::iterator place;     // in the run queue; valid when runnable
  ShareTimes::iterator resumes;   // in its domain's `throttled`; valid when throttled
  VirtualTime vtime = 0;
  Duration allowance{};  // GPU time it may use now; negative is debt
  Duration at_grant{};   // the allowance when it was last granted a turn
  bool active = false;
  bool maybe_idle = false;  // is among those to be looked at
  bool throttled = false;
  bool runnable = false;  // stands in the run queue
  bool fresh = true;      // has never been active
  int parked = 0;         // clients with work whose memory is not there, also of its parts
  int level = 0;          // of the run queue; `vtime` is counted in it
  int entitled = 0;       // hundredths of a percent that it counts in its domain's load
  Fixed mark = 0;         // its domain's refill clock when `allowance` was brought up to date
  Fixed unkept_mark = 0;  // the engine's unkept() when `allowance` was brought up to date
  Time idle_since{};
  Time unlimited_since{};
  Duration unlimited_before{};  // how long it had no limit, up to `unlimited_since`
  std::size_t tier = SIZE_MAX;  // of the run queue; `vtime` is counted in it
  std::uint64_t queue = 0;      // the domain of the run queue; `vtime` is counted in it
  // The limit that went idle last, of itself or a part: by the number of its share.
  std::uint64_t last_idle = UINT64_MAX;
  VirtualTime least_had = 0;  // `had` of a client that joins the others of the tenant
  Duration at_work{};  // GPU time beyond most of its limit, lately; up to date at `at_work_at`
  Time at_work_at{};
  bool was_limited = false;  // before the change of limits that is under way
};

// The account of a part that has ended. A part that comes anew takes it over, so that ending
// forgives nothing.
inline constexpr std::size_t kMostLeft = 1000;  // accounts of ended parts, of one tenant
struct LeftAccount {
  Duration allowance{};
  int limit = 0;
  Time since{};
  WindowAccount window;
};
// The same of a part without a limit: where it stood in the run queue.
struct LeftPlace {
  VirtualTime vtime = 0;
  std::uint64_t queue = 0;
  int level = 0;
};

// A tenant on one GPU: what limits are enforced on. Where a tenant has both parts and clients, its
// clients have a share of their own beside the parts', without a limit: `own` of the tenant's.
struct alignas(64) Share {
  // Written by Gpu.
  Tenant* tenant = nullptr;
  std::uint64_t seq = 0;
  Share* parent = nullptr;    // of the tenant's parent; of `own`: the tenant's
  int limit = kNoCoreLimit;   // percent
  int priority = 0;           // the lowest on the way up, or one that was lent
  std::optional<int> lent{};  // to the tenant's own clients (PriorityLent)
  bool is_own = false;        // it is the `own` of its parent
  bool has_parts = false;     // shares of parts have it as their parent, or had

  // Written by ComputeEngine (compute_engine.cpp). The counts are with all parts.
  int wanting = 0;   // clients not Off
  int running = 0;   // Running, Stopping or Overdue
  int stopping = 0;  // Stopping or Overdue
  int overdue = 0;

  // Written by the policy's engine, WindowEngine or MeteredEngine.
  Fixed billed = 0;  // since the share exists, with all parts
  WindowAccount window;
  std::optional<Time> first_throttle;
  MeterAccount meter;

  // Written by ComputeEngine.
  ReadyOrder ready;
  ClientOrder held;  // Running, by grant

  // Written by Residency. With all parts.
  Bytes allocated{};
  // Of that: of clients that brought a limit of their own. They share the lowest.
  Bytes allocated_under_own{};

  // Written by Gpu.
  int clients = 0;

  Share();
  ~Share();
  // Made when it is first written to.
  Family& family();
  const Family& family() const;

  // Whether a client of its own, not of a part, could run now.
  bool has_ready() const { return !has_parts && wanting > running; }
  // The share of the whole tenant.
  Share& of_tenant() { return is_own ? *parent : *this; }
  const Share& of_tenant() const { return is_own ? *parent : *this; }
  // Whether the share of a whole tenant has more memory than the tenant may.
  bool over_its_memory_limit() const {
    return !is_own && tenant->limits.memory && allocated > *tenant->limits.memory;
  }
  // The same of the tenant, or of one that it is a part of.
  bool over_memory_limit() const {
    return over_its_memory_limit() || (parent != nullptr && parent->over_memory_limit());
  }
  bool is_within(const Share& other) const {
    return this == &other || (parent != nullptr && parent->is_within(other));
  }
  bool limited() const { return limit < kNoCoreLimit; }

 private:
  std::unique_ptr<Family> family_;
};

// What a share has of its parts. Most shares never had any, and an event reads less memory then.
struct Family {
  // Written by Gpu.
  std::vector<Share*> parts;   // by `seq`; with `own`
  std::unique_ptr<Share> own;  // of the tenant's clients, while it has parts
  // Written by the policy's engine.
  std::vector<LeftAccount> left;       // of parts that have ended
  std::vector<LeftPlace> left_places;  // of those without a limit
  // Of a tenant without a limit: what competes for all its parts that have no limit and the same
  // priority. So they have together what the tenant would have without parts.
  std::map<int, std::unique_ptr<Share>> bundles;
};

inline Share::Share() = default;
inline Share::~Share() = default;
inline Family& Share::family() {
  if (!family_) family_ = std::make_unique<Family>();
  return *family_;
}
inline const Family& Share::family() const {
  static const Family kNone;
  return family_ ? *family_ : kNone;
}

// The tenant whose limit binds a share, if that is not its own.
inline std::optional<TenantId> level_that_binds(const Share& binds, const Share& share) {
  if (&binds.of_tenant() == &share.of_tenant()) return std::nullopt;
  return binds.tenant->id;
}

// What of a client's memory is where. Written by Residency.
struct MemoryState {
  Bytes demand{};  // all that the client has allocated, and that the GPU can hold
  Bytes beyond{};  // more than that: it counts for limits alone
  Bytes pinned{};
  Bytes resident{};  // on the GPU now
  Bytes awaits{};    // of demand: cannot move, and is given when there is room for it
  Bytes rounding{};  // what all of it takes in whole pages beyond `demand`
  Bytes rounded{};   // the part of `rounding` for what is on the GPU or comes in
  Bytes incoming{};  // ordered in: its room is reserved
  Bytes outgoing{};  // told to send out, not reported yet
  Bytes planned{};   // to be sent out as soon as the client has stopped
  Bytes undone{};    // left undone by orders; its room is kept until the last order is over
  Bytes moved_in{};  // brought in since it was last complete, for the quantum

  // All that counts for limits.
  Bytes allocated() const { return demand + beyond; }
  bool complete() const { return resident == demand && outgoing.count == 0; }
  Bytes movable() const { return resident - pinned - outgoing; }
  // Bytes that are not on the GPU and not ordered in; and the part that an order could bring.
  Bytes need() const { return demand - resident - incoming; }
  Bytes absent() const { return need() - awaits; }
  // Room that is still to be found, in whole pages.
  Bytes need_in_pages() const { return need() + rounding - rounded; }
  // Rounding of `bytes` that can move.
  Bytes rounding_of(Bytes bytes) const {
    const Bytes all = demand - stuck();
    if (all.count <= 0 || rounding.count == 0) return {};
    const auto part = static_cast<Fixed>(std::clamp(bytes, Bytes{}, all).count);
    return {static_cast<std::int64_t>((part * rounding.count + all.count - 1) / all.count)};
  }
  // Bytes that can never leave the GPU, with those that are promised.
  Bytes stuck() const { return pinned + awaits; }
};

// The orders of a client that are not over. Written by Residency (residency_moves.cpp).
struct OrderState {
  // Bytes that are left of the orders. The client may have freed some of them, so that this can be
  // more than is incoming or outgoing.
  Bytes in{};
  Bytes out{};
  bool moved_some = false;  // since the client was last without orders
  std::optional<Time> due;  // when there must have been progress
  bool stalled = false;     // there was none; no plan counts on the client any more
  Bytes stalled_bytes{};
  Duration rest{};                  // the client's last rest, after an order that failed
  std::optional<Time> rests_until;  // nothing is ordered before
};

// A client's place in the queue for memory. Written by Residency.
struct QueueState {
  bool joined = false;
  std::int64_t key = 0;
  std::uint64_t seq = 0;
  bool admitted = false;  // was let in and is not complete yet
};

// The time for which a client keeps its room. Written by Residency.
struct QuantumState {
  Time since{};
  Time until{};
  Bytes bytes{};            // what the quantum was reckoned from
  Bytes peak{};             // the most that the client had since then
  bool kept = false;        // the client waits for its own growth, before all others
  std::optional<Time> cap;  // a quantum that begins will end no later than this
};

// A client's place in the order of eviction. Written by Residency.
struct EvictionState {
  bool listed = false;
  bool known = false;  // was listed by the last list()
  Time at{};
  Time idle_since{};
};

// A client was told to send out memory, and kept some of it.
struct Shortfall {
  Bytes away{};        // bytes that had left, when no more did
  Bytes host_ready{};  // host memory that was ready then
  Duration lasts{};
  std::optional<Time> until;  // no larger order before; none: that time is over
};

// The host memory that a client may have to leave to. Written by Residency (residency_host.cpp).
struct HostState {
  Bytes coming{};
  std::optional<Bytes> ready;       // none: as much as the client needs
  bool doubted = false;             // others have waited for `coming`, and it did not come
  std::optional<Time> waits_until;  // as first in the queue: for the host memory of others
  // Bytes that never were on the GPU. They have no contents to keep and need no place in host
  // memory. A lower bound: more of what is absent may be of that kind.
  Bytes fresh{};
  std::optional<Shortfall> shortfall;
};

// What a client adds to the sums of its GPU. Written by Residency (residency_host.cpp).
struct Counted {
  Bytes demand{};        // in whole pages
  Bytes rooted{};        // on the GPU and not pinned, and with no place to go to
  Bytes host_used{};     // places in host memory: of bytes away, and of bytes told to leave
  Bytes host_movable{};  // bytes that may have to leave to host memory
};

// A client's way to a grant and back. Written by ComputeEngine (compute_engine.cpp).
struct RunState {
  Phase phase = Phase::Off;
  std::uint64_t ready_seq = 0;
  std::uint64_t grant_seq = 0;
  Time granted_at{};
  std::optional<Duration> budget;
  Time dropped_at{};
  Time released_at{};  // when it last gave a grant back
};

// What the metered policy knows of a client, beside its tenant's MeterAccount. Written by
// MeteredEngine; the window policies do not count it.
struct MeterState {
  VirtualTime had = 0;         // GPU time beside other processes of its tenant
  Time had_since{};            // when its grant began to count in `had`
  Duration turn{};             // how long a turn was when it was granted
  Duration burst{};            // GPU time it takes from one idle gap to the next, lately
  Duration burst_so_far{};     // of the present one
  bool cut = false;            // its last turn was used up, or ended by a drop
  bool before_limits = false;  // granted without a limit, while a tenant with a limit waited
  Time read_at{};              // when the meter was last read, or the grant began
  Duration unlimited_mark{};   // of the tenant's time without a limit
  Duration reported{};         // GPU time of this grant that is billed
  Duration charged_ahead{};    // GPU time of this grant in virtual time before a reading
  std::int64_t duty_ppm = 0;   // part of its recent time in which it occupied the GPU
  Time duty_at{};
};

struct Client {
  // Written by Core and Gpu.
  ClientId id;
  GpuId gpu;
  std::uint64_t seq = 0;
  Tenant* tenant = nullptr;
  Share* share = nullptr;
  std::optional<Bytes> own_limit;  // of its memory, beside its tenant's
  bool wants_work = false;
  bool parked = false;  // has work, and its memory is not there
  ClientLease lease = ClientLease::None;

  RunState run;
  MeterState meter;
  MemoryState memory;
  EvictionState eviction;
  QueueState queue;
  HostState host;
  OrderState orders;
  QuantumState quantum;
  Counted counted;

  // GPU time that the client may have used since the last reading of its meter.
  Duration unread(Time now) const { return now - std::max(run.granted_at, meter.read_at); }
  ReadyOrder::value_type ready_key() { return {meter.had, run.ready_seq, this}; }
  // Whether the client's memory leaves to host memory that the scheduler hands out.
  bool leaves_to_host() const { return host.ready.has_value(); }
  bool may_run() const { return tenant->may_run() && lease != ClientLease::Over; }
  bool is_busy() const { return wants_work && may_run(); }
  // Work for a client with a lease comes at any moment.
  bool is_called() const { return lease == ClientLease::Held && !memory.complete(); }
  bool waits_for_memory() const { return wants_work || memory.awaits.count > 0 || is_called(); }
  // The client asks for the GPU and does not have it, or its service holds a lease.
  bool asks() const {
    const bool expects = waits_for_memory() || lease == ClientLease::Held;
    return expects && (run.phase == Phase::Off || run.phase == Phase::Ready);
  }
};

}  // namespace nvshare::core
