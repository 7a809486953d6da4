#pragma once

#include <pthread.h>

#include <cstdint>

// What all processes of one simulated machine share: plain data in one shared memory segment.
// Every change keeps to one rule, so that a process killed in the middle of one leaves something
// the others can go on with: counters only grow, an item's state is written before the counter
// that makes it visible moves, and everything derived can be computed again (repair()).
namespace nvshare::softgpu {

// Nanoseconds of CLOCK_MONOTONIC. Plain integers, because they live in shared memory.
using Nanos = std::int64_t;
inline constexpr Nanos kNever = INT64_MAX;

inline constexpr int kMaxProcesses = 64;
inline constexpr int kMaxDevices = 8;
inline constexpr int kMaxLanes = 64;
inline constexpr std::uint64_t kLaneDepth = 1024;
inline constexpr int kMaxDeps = 3;
inline constexpr int kHistoryBuckets = 128;
inline constexpr Nanos kBucketLength = 20'000'000;
inline constexpr int kMaxShared = 1024;
inline constexpr int kMaxIpcEvents = 256;

// What an item of work occupies while it runs.
enum class Work : std::uint8_t {
  kMarker,   // nothing: complete as soon as what it waits for is
  kCompute,  // the device's compute engine, in its process's slices
  kCopyIn,   // host to device, a share of the link
  kCopyOut,  // device to host, a share of the link
  kHost,     // something in its own process, which says when it is done
};
inline constexpr int kEngines = 3;  // compute, copy in, copy out: Work - 1

enum class ItemState : std::uint8_t { kWaiting, kReady, kRunning, kDone };

// "Lane `lane` has completed everything through `seq`." Packed; 0 is always true.
struct LanePoint {
  std::uint64_t packed = 0;

  static LanePoint of(int lane, std::uint64_t seq) {
    return {(static_cast<std::uint64_t>(lane) << 56) | seq};
  }
  int lane() const { return static_cast<int>(packed >> 56); }
  std::uint64_t seq() const { return packed & ((std::uint64_t{1} << 56) - 1); }
};

struct Item {
  Work work = Work::kMarker;
  ItemState state = ItemState::kWaiting;
  std::uint8_t device = 0;
  std::uint8_t dep_count = 0;
  // Compute: the part of the device it fills (0..1]; kernels of one process run side by side while
  // they fit. Copies: the most bytes per nanosecond its host memory can give.
  float width = 0;
  double remaining = 0;     // compute: nanoseconds; copies: bytes
  std::uint64_t order = 0;  // the process's own count of submissions; who is ready first by it
  Nanos started_at = 0;
  Nanos finished_at = 0;
  LanePoint deps[kMaxDeps];
};
static_assert(sizeof(Item) == 64);

// A queue of one process in which each item waits for the one before it.
struct Lane {
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;
  Item ring[kLaneDepth];

  Item& at(std::uint64_t seq) { return ring[seq % kLaneDepth]; }
  const Item& at(std::uint64_t seq) const { return ring[seq % kLaneDepth]; }
  bool pending() const { return completed < submitted; }
};

// How long a process kept a device busy in one stretch of kBucketLength.
struct BusyBucket {
  std::uint64_t stretch = 0;  // time / kBucketLength
  std::uint32_t compute = 0;  // nanoseconds
  std::uint32_t copy = 0;
};

// One process's use of one device.
struct Usage {
  std::uint64_t memory = 0;   // bytes of this process alone; shared allocations are apart
  std::uint64_t managed = 0;  // bytes of managed memory that are here and give way to others
  Nanos managed_used = 0;     // when the process last used some of it here
  std::uint64_t kernels = 0;
  std::uint64_t copied_in = 0;
  std::uint64_t copied_out = 0;
  Nanos compute_busy = 0;
  Nanos copy_busy = 0;
  std::uint32_t has_context = 0;
  std::uint64_t ready[kEngines] = {};    // lanes whose head waits for the engine
  std::uint64_t running[kEngines] = {};  // lanes whose head has it
  BusyBucket history[kHistoryBuckets];
};

struct Process {
  std::int32_t pid = 0;
  std::uint32_t generation = 0;
  char name[64] = {};
  std::uint64_t next_order = 0;
  std::uint64_t pending = 0;  // lanes with work
  bool unsettled = false;     // something changed that may make heads ready
  Usage usage[kMaxDevices];
  Lane lanes[kMaxLanes];
};

// A physical allocation that several processes may hold. It is charged once, to the holder with
// the lowest slot, and gone when the last holder is.
struct SharedAllocation {
  std::uint64_t bytes = 0;
  std::uint64_t holders = 0;
  std::uint64_t identity = 0;  // inode of the memory file
  std::uint32_t device = 0;
};

// An event other processes may wait for. `generation` counts its records; `done` the last one
// that is complete.
struct IpcEvent {
  std::uint64_t key = 0;  // 0: free
  std::uint64_t holders = 0;
  std::uint64_t recorded = 0;
  std::uint64_t done = 0;
  Nanos finished_at = 0;
};

struct DeviceConfig {
  std::uint64_t memory = 0;
  double link = 0;  // bytes per nanosecond and direction
  Nanos slice = 0;
  Nanos switch_cost = 0;
  char name[96] = {};
  std::uint8_t uuid[16] = {};
  std::uint32_t pci_bus = 0;
};

// The compute engine of one device: whose turn it is.
struct Turn {
  std::int32_t owner = -1;  // slot whose work runs or ran last
  Nanos runs_from = 0;      // the switch to it is over
  Nanos slice_end = 0;
};

struct Device {
  DeviceConfig config;
  Turn turn;
  std::uint32_t lost = 0;  // fell off: nothing on it completes any more
};

struct Card {
  std::uint64_t magic = 0;
  std::uint64_t layout = 0;
  pthread_mutex_t mutex;
  std::int32_t device_count = 0;
  Nanos clock = 0;  // everything up to here has been played
  Nanos born_at = 0;
  std::uint64_t occupied = 0;  // slots in use
  std::uint64_t next_key = 1;
  std::uint64_t reaped = 0;  // dead processes cleaned up after
  Device devices[kMaxDevices];
  SharedAllocation shared[kMaxShared];
  IpcEvent events[kMaxIpcEvents];
  Process processes[kMaxProcesses];
};

// Calls `body(index)` for each bit that is set.
template <typename Body>
void for_each_bit(std::uint64_t bits, Body body) {
  while (bits != 0) {
    const int index = __builtin_ctzll(bits);
    bits &= bits - 1;
    body(index);
  }
}

inline std::uint64_t bit(int index) {
  return std::uint64_t{1} << index;
}

}  // namespace nvshare::softgpu
