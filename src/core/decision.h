#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "base/units.h"
#include "core/ids.h"
#include "core/reason.h"

namespace nvshare::core {

// What the core tells the outside world to do.

struct Place {
  ClientId client;
  GpuId gpu;
};
// LOCK_OK: run. With a budget, the client releases by itself once its work has occupied the GPU
// that long; without, it runs until it is told to drop or has nothing more to do.
struct Grant {
  ClientId client;
  std::optional<Duration> budget;
};
// DROP_LOCK: stop launching, let what is in flight finish, answer with Released.
struct Drop {
  ClientId client;
};
// PREPARE_SWAP_OUT: move this much of the client's memory to the host. It does not run meanwhile.
struct SendOut {
  ClientId client;
  Bytes bytes{};
};
// Move this much of the client's memory back to the GPU.
struct BringIn {
  ClientId client;
  Bytes bytes{};
};
// WAIT_FOR_MEM: this much of what the client has allocated is not on the GPU yet.
struct WaitForMemory {
  ClientId client;
  Bytes missing{};
};
// MEM_AVAILABLE: all that the client has allocated has its place on the GPU.
struct MemoryAvailable {
  ClientId client;
};
// Memory that cannot move and may wait for room: all that the client waits for is on the GPU, and
// its own.
struct MemoryGiven {
  ClientId client;
  Bytes bytes{};
};
// The same: less room is left than there was when it was promised, and the client will not get it.
// It counts no longer.
struct MemoryWithdrawn {
  ClientId client;
  Bytes bytes{};
};
// The allocation is refused (out of memory); what was allocated before stays as it is.
struct MemoryRefused {
  ClientId client;
  Bytes asked{};
  Bytes allowed{};
};
// The client has not answered a drop in time; `end`: configured to be ended for it.
struct Overdue {
  ClientId client;
  bool end = false;
};
// The client's tenant has fallen asleep, or is awake again: its memory needs a place on the host,
// or no longer.
struct Sleeps {
  ClientId client;
  bool asleep = true;
};
// Please read the client's meter and answer with Usage.
struct ReadMeter {
  ClientId client;
};

using Action =
    std::variant<Place, Grant, Drop, SendOut, BringIn, WaitForMemory, MemoryAvailable, MemoryGiven,
                 MemoryWithdrawn, MemoryRefused, Overdue, Sleeps, ReadMeter>;

struct Decision {
  Action action;
  Reason reason;
};
using Decisions = std::vector<Decision>;

}  // namespace nvshare::core
