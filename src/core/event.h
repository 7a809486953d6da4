#pragma once

#include <optional>
#include <string>
#include <variant>

#include "base/units.h"
#include "core/config.h"
#include "core/ids.h"

namespace nvshare::core {

inline constexpr int kNoCoreLimit = 100;
inline constexpr int kLowestPriority = -10;
inline constexpr int kHighestPriority = 10;
inline constexpr int kPriorities = kHighestPriority - kLowestPriority + 1;
// Tenants in one another, at most: a pod, its container, a run, and runs inside that.
inline constexpr int kDeepestTenant = 8;

struct Limits {
  int core_percent = kNoCoreLimit;  // 1..100; 100 = no limit, best effort
  std::optional<Bytes> memory;      // none: the whole GPU
  int priority = 0;                 // kLowestPriority..kHighestPriority

  friend bool operator==(const Limits&, const Limits&) = default;
};

// What the outside world tells the core. Each is a fact that has happened at the time handed in.

struct GpuAdded {
  GpuId gpu;
  Bytes total{};
};
// The clients on it are forgotten as well.
struct GpuRemoved {
  GpuId gpu;
};
// What contexts, libraries and programs outside our control really hold on the GPU; replaces the
// estimated reserve.
struct OverheadMeasured {
  GpuId gpu;
  Bytes overhead{};
  std::optional<int> processes{};  // that were there then; none: all that are now
  // Some of it may be memory of clients that are not back yet, after the scheduler was away: no
  // more than the estimated reserve counts.
  bool at_most = false;
  // Bytes in the way of a client that found no room lately: a guess. Clients move in less memory
  // because of it. The core refuses no memory for it, because the next measurement replaces it.
  Bytes found{};
};
// Whether work of several clients can be on the GPU at the same time, as under MPS. Otherwise the
// hardware lets them take turns of its own.
struct OverlapSeen {
  GpuId gpu;
  bool possible = false;
};
// A tenant with a `parent` is a part of it. Whatever the limits of parts are, all of them together
// stay within the parent's. Priorities of parts are no higher than the parent's.
struct TenantAdded {
  TenantId tenant;
  std::string name;
  Limits limits;
  std::optional<TenantId> parent{};
};
// It has neither clients nor parts.
struct TenantRemoved {
  TenantId tenant;
};
struct LimitsChanged {
  TenantId tenant;
  Limits limits;
};
// While a service of the tenant holds a lease on the GPU, the tenant goes before others there: as
// if its priority, and that of each tenant around it, were no lower than this. Its parts stay as
// they are. None: its limits alone say again.
struct PriorityLent {
  TenantId tenant;
  GpuId gpu;
  std::optional<int> priority{};
};
// What a client has to do with leases on its GPU.
enum class ClientLease {
  None,
  Held,  // its service holds one: its memory comes in before it has work
  Over,  // its service was to give one back and did not: it may not run
};
struct ClientLeased {
  ClientId client;
  ClientLease lease = ClientLease::None;
};
struct TenantPaused {
  TenantId tenant;
  bool paused = true;
};
// While a tenant sleeps its memory leaves the GPU, whether anybody needs the room or not, and its
// clients do not run. The first client that asks for the GPU or for more memory wakes the tenant;
// with `hold` only this event does.
struct TenantSleeps {
  TenantId tenant;
  bool asleep = true;
  bool hold = false;
};
struct ClientAdded {
  ClientId client;
  TenantId tenant;
  std::optional<GpuId> gpu;             // none: the core places it
  std::optional<Bytes> memory_limit{};  // of this client alone, beside its tenant's
};
struct ClientGone {
  ClientId client;
};
// REQ_LOCK: the client has work for the GPU and holds no grant.
struct WorkRequested {
  ClientId client;
};
// LOCK_RELEASED: everything the client had in flight is done. `used` is the GPU time its work
// occupied since the grant, `gaps` the time in between in which it had nothing there; `more_work`:
// it wants the GPU again.
struct Released {
  ClientId client;
  Duration used{};
  bool more_work = false;
  Duration gaps{};
};
// The meter's reading so far for a client that runs: GPU time since the grant.
struct Usage {
  ClientId client;
  Duration used{};
};
// MEM_UPDATE: what the client has allocated now, how much of it can never leave the GPU, and how
// much is on the GPU. Growth is asked for by a larger `allocated` with the old `resident`. What
// `may_wait` is promised when it can ever fit, and otherwise refused; what may not is refused when
// there is no room now. Growth that can never leave the GPU (`pinned` has it already) and may wait
// (`pins`) is the client's when MemoryGiven says so. What the client has `beyond` the GPU counts
// for limits alone, beside `allocated`.
struct MemoryChanged {
  ClientId client;
  Bytes allocated{};
  Bytes pinned{};
  Bytes resident{};
  bool may_wait = true;
  bool pins = false;
  Bytes beyond{};
};
// What a client has, and nobody gave it: counted as it is, whatever the limits and the room.
// `from_before`: the memory was there before the client was known, so it was measured as overhead.
struct MemoryFound {
  ClientId client;
  Bytes allocated{};
  Bytes pinned{};
  Bytes resident{};
  bool from_before = true;
  Bytes beyond{};
};
// Progress of a SendOut or BringIn: how much is on the GPU now, and how long moving it took. Whole
// chunks move, so more may have gone out than was ordered, also without any order. What was to move
// may have been freed instead, so what is still to come of orders is told and not reckoned.
struct MemoryMoved {
  ClientId client;
  Bytes resident{};
  Duration took{};
  Bytes kept{};      // of what was to be sent out: it will not be
  Bytes missing{};   // of what was to be brought in: it will not be
  Bytes out_left{};  // of all SendOuts that are not over
  Bytes in_left{};   // of all BringIns that are not over
  Bytes spared{};    // of what was moved: it did not have to be copied
  Bytes fresh{};     // of what came in: it had no place in host memory
};
// How much host memory clients of all GPUs can leave to. Before this is said, and where it is
// unknown (none), each client leaves to what it has itself.
struct HostMeasured {
  std::optional<Bytes> most{};
};
// The driver gives whole pages. A client's movable memory takes `bytes` more room on the GPU than
// the program asked for. Limits are in bytes as asked for; room is what the driver takes.
struct MemoryRounded {
  ClientId client;
  Bytes bytes{};
};
// Of the host memory that the client's memory may have to leave to, so much is still being made,
// and so much is ready. Without a HostMeasured, no more than both together can leave.
struct HostMemoryComing {
  ClientId client;
  Bytes bytes{};
  std::optional<Bytes> ready{};  // none: as much as it needs, as before anything is told
};
// SCHED_ON, SCHED_OFF: while off, everyone whose memory is on the GPU runs at once and nothing is
// billed. Memory still takes turns: what is not there cannot run.
struct SchedulingSwitched {
  bool on = true;
};
// SET_TQ and the like. The policy cannot change while the core lives.
struct ConfigChanged {
  Config config;
};
// Time has passed; due at Core::next_wakeup().
struct Tick {};

using Event = std::variant<GpuAdded, GpuRemoved, OverheadMeasured, OverlapSeen, TenantAdded,
                           TenantRemoved, LimitsChanged, PriorityLent, ClientLeased, TenantPaused,
                           TenantSleeps, ClientAdded, ClientGone, WorkRequested, Released, Usage,
                           MemoryChanged, MemoryFound, MemoryMoved, MemoryRounded, HostMeasured,
                           HostMemoryComing, SchedulingSwitched, ConfigChanged, Tick>;

}  // namespace nvshare::core
