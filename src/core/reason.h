#pragma once

#include <optional>
#include <string>

#include "base/units.h"
#include "core/ids.h"

namespace nvshare::core {

using nvshare::to_text;

enum class Why {
  // Why a client is what it is.
  NoWork,
  Running,
  RunningAlone,
  Stopping,
  Paused,
  Asleep,              // since `used`; its own work wakes it
  HeldAsleep,          // since `used`; only a person wakes it
  LeaseOver,           // its service was to give its lease back
  WaitsForTurn,        // others are running; `count` wait before it
  BudgetSpent,         // `used` of `quota`; again in `wait`
  OverLimit,           // `used` more than its `count` percent; again in `wait`
  TenantOverdue,       // another process of the tenant ignores a drop
  Overdue,             // it ignores a drop itself, since `used`
  WaitsForMemory,      // `bytes` missing, `free` free; the switch is due in `wait`
  WaitsForHostMemory,  // the same, until what others leave to has been made, `wait` at most
  RoomIsMade,          // `bytes` missing; others are moving out
  WaitsForHolders,     // `bytes` missing; who holds it is stopping or does not answer
  MemoryComing,        // `bytes` on their way
  MemoryCannotFit,     // `bytes` wanted, at most `free` can be made free
  OthersCannotLeave,   // the same, for others have no host memory to leave to
  MoveFailed,          // `bytes` could not be moved; tried again in `wait`
  SchedulingOff,
  // What is so beside that.
  OverMemoryLimit,         // its tenant has `bytes`, and may have `free`
  OverMemoryLimitMovable,  // the same, and its memory can move
  // Why something was decided.
  HasBudget,
  TurnOver,
  GivesWay,
  Rotation,          // memory is needed by a waiting client
  LimitExceeded,     // `bytes` asked, `free` left under the tenant's limit
  OwnLimitExceeded,  // the same, under the client's own
  LargerThanGpu,     // `bytes` asked, `free` is the most the GPU can give
  LargerInPages,     // the same in the pages that the driver takes; as asked for it would fit
  NoRoom,            // `bytes` asked, `free` free now, and it cannot wait
  NoHostMemory,      // `bytes` of host memory needed for the shortage then, `free` possible
  RoomPromised,      // `bytes` asked for good, and beside what others were promised `free` is left
  Fits,
  NextInLine,
  FillsGap,
  Grew,         // the client's own allocation no longer fits
  ReserveGrew,  // more processes, less room
  DropIgnored,
  MoveIgnored,  // `bytes` it was told to move
  // Why something is on its GPU.
  Asked,
  KeptGpu,  // it was there before the scheduler was started again
  OnlyGpu,  // there was no other to choose
  IdleGpu,
  LeastLoaded,  // `count` programs are there
  HasRoom,      // `bytes` fit (0: not known), `free` free; GPUs with less work have no room
  MostFree,     // `bytes` fit nowhere (0: not known), `free` free
  // Why else something was decided.
  SampleDue,
  ModeChanged,
  LimitsChanged,
  PutToSleep,
  IdleTooLong,  // without work for `quota`
  Woken,
  WokenByWork,
};

// Why, with the numbers that make it checkable. Text is made only when a person asks.
struct Reason {
  Why why = Why::NoWork;
  Duration used{};
  Duration quota{};
  Duration wait{};
  Bytes bytes{};
  Bytes free{};
  int count = 0;
  // The tenant that the limit is of, where the client's own tenant is a part of it.
  std::optional<TenantId> level{};
};

// One sentence without a full stop: "quota spent: 412.0ms of 400.0ms in this window; again in
// 188.0ms".
std::string to_text(const Reason& reason);

}  // namespace nvshare::core
