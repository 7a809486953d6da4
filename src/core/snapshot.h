#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "core/event.h"
#include "core/ids.h"

namespace nvshare::core {

enum class ClientState { Idle, Waiting, Running, Stopping, Overdue };
std::string_view name_of(ClientState state);

struct ClientView {
  ClientId id;
  TenantId tenant;
  GpuId gpu;
  ClientState state = ClientState::Idle;
  Bytes allocated{};
  Bytes resident{};
  Bytes pinned{};
  Bytes awaits{};                      // cannot move, and waits for room
  Bytes incoming{};                    // told to come in, and not there yet
  Bytes outgoing{};                    // told to leave, and still there
  Bytes leaveable{};                   // could be told to leave beside that: has a place to go to
  std::optional<Time> first_throttle;  // of its tenant on this GPU
  Bytes rounded{};  // what is there and comes in takes beyond that, in whole pages
};

// A tenant on one GPU, with all its parts. What a part is billed is in its parent's bill as well.
struct ShareView {
  TenantId tenant;
  GpuId gpu;
  bool is_part = false;
  int priority = 0;  // with which its work waits: its own, or a lower one around it
  Duration billed{};
  // GPU time used beyond its limit when it last had work, if it is idle. It is paid off at its
  // limit.
  Duration debt{};
};

// What a client is to have of the host's memory.
struct HostNeed {
  Bytes now{};    // for what is away, and for what it was told to send out
  Bytes ahead{};  // so that it can make room for others at once; never less than `now`
};

// How much more memory a client could have, by each bound alone. Below 0: it has too much.
struct MemoryRoom {
  Bytes limit{};                    // under the limit that leaves least
  std::optional<TenantId> level{};  // the tenant whose limit that is
  bool own_limit = false;           // that is the client's own, not its tenant's
  Bytes gpu{};                      // beside what can never leave the GPU, in whole pages
  Bytes easily{};                   // on the GPU, before host memory is made ahead of need
  Bytes host{};  // that can move: what must leave then has a place in host memory
};

struct GpuView {
  GpuId id;
  Bytes total{};
  Bytes safe_limit{};
  Bytes resident{};    // with what is on its way in
  Bytes shortage{};    // allocated beyond the safe limit
  Bytes host_claim{};  // of the host's memory: needed for that, or used
  Bytes host_used{};   // of the host's memory: places of what is away, or may leave by an order
  int clients = 0;
  int running = 0;
  int waiting_for_memory = 0;
};

struct SleepView {
  bool hold = false;  // its own work does not wake it
  Time since{};
};

struct TenantView {
  TenantId id;
  std::string name;
  Limits limits;
  bool paused = false;
  std::optional<SleepView> sleep{};
  std::optional<TenantId> parent{};
};

// All that people and tests look at, taken at once.
struct Snapshot {
  std::vector<GpuView> gpus;
  std::vector<TenantView> tenants;
  std::vector<ShareView> shares;
  std::vector<ClientView> clients;
};

}  // namespace nvshare::core
