#pragma once

#include "base/chunk.h"
#include "interposer/catch/current.h"
#include "interposer/guest/list.h"
#include "interposer/guest/sys.h"
#include "interposer/moving/lanes.h"
#include "interposer/moving/per_gate.h"
#include "interposer/moving/swap/arena.h"
#include "interposer/moving/swap/extents.h"
#include "interposer/moving/swap/hash.h"
#include "interposer/moving/swap/swap.h"
#include "wire/messages.h"

// What is known of memory that can move, as the files of the swap engine share it.
//
// An Allocation is what the program asked for. It lies in a Region, which has the addresses: alone,
// or, when it is small, with others. A Region's physical memory is its Chunks. Chunks move.
namespace nvshare::interposer::moving::swap {

struct Backing;
struct Region;
struct Space;

// What a chunk that is away will be when it is back.
enum class Content : uint8_t {
  kNothing,  // nobody has written to it yet
  kZeros,
  kCopied,  // what its host copy says
};

// Physical memory that the program makes itself is one chunk, however small the card.
inline constexpr uint64_t kLargestHandle = largest_chunk(~uint64_t{0});

constexpr uint64_t round_up(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

// Shares a region with others.
constexpr bool is_small(uint64_t bytes) {
  return bytes <= uint64_t{1} << 20;
}

struct Chunk {
  Region* region = nullptr;
  Chunk* sibling = nullptr;  // the next one of the region
  CUdeviceptr address = 0;
  uint64_t bytes = 0;   // of physical memory
  uint64_t asked = 0;   // of these, what the program asked for: the bytes that are counted
  uint64_t length = 0;  // of these, what is to be kept when it moves

  // How much of making it present is done. Both are false when there is no physical memory; when a
  // call of the driver failed, what is left over is seen here and undone, or used, the next time.
  CUmemGenericAllocationHandle handle = 0;
  bool mapped = false;
  bool exportable = false;  // another process can be given what it is made of
  // A thread of the program is changing it, or looking: it is not moved meanwhile.
  bool held = false;

  Where where = Where::kAway;
  Content content = Content::kNothing;
  HostCopy copy;

  Chunk* before = nullptr;  // in its list
  Chunk* after = nullptr;
};

using ChunkList = List<Chunk>;

struct Lane : ContextLane {
  bool prepared = false;  // all that follows is there, ahead of need
  CUstream copies = nullptr;
  CUevent events[2 * kBatch] = {};
  Hasher hasher;
};

struct Region {
  Space* space = nullptr;
  Lane* lane = nullptr;        // may be null, or without a context, when there is a backing
  Backing* backing = nullptr;  // the addresses are the program's (swap_backing.h)
  CUdeviceptr address = 0;     // then: where we copy it, if the program has no place for that; or 0
  uint64_t bytes = 0;
  Chunk* chunks = nullptr;
  uint32_t moving = 0;  // of the chunks: those that are leaving, coming or being exported
  bool shared = false;
  // When it is shared: it has one chunk, in which blocks are given out.
  Extents blocks;
  uint64_t used = 0;       // blocks
  Region* next = nullptr;  // in the list of shared regions, or of what is to be released
};

struct Allocation {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  Region* region = nullptr;
  Extent* block = nullptr;  // null: the region is all its own
  bool freeing = false;
  uint64_t id = 0;             // what the driver calls a buffer's: never given twice
  uint64_t secret = 0;         // in its IPC handle; 0: it has none
  Allocation* next = nullptr;  // in a list of those that are freed
  TreeNode<Allocation> by_address;
};

struct AllocationsByAddress {
  static TreeNode<Allocation>& node(Allocation& one) { return one.by_address; }
  static bool before(const Allocation& a, const Allocation& b) { return a.address < b.address; }
};

// One per gate. Lives as long as the process.
struct Space {
  gate::Gate* gate = nullptr;
  CUdevice device = -1;
  uint64_t granularity = 0;
  uint64_t chunk_limit = 0;  // known when the granularity is
  // Plain memory is made so that other processes can open it.
  std::atomic<bool> exportable{false};

  // Held by whoever moves, and by whoever must know that nothing is moving.
  Mutex moves;
  SwapTimes times;  // of the last move
  // Held while a shared region is made, so that threads do not make one each.
  Mutex growth;

  Mutex mutex;       // of what follows
  Word finished{0};  // changes when a chunk has stopped moving
  Lane lanes[kMaxLanes] GUARDED_BY(mutex);
  Tree<Allocation, AllocationsByAddress> allocations GUARDED_BY(mutex);
  ChunkList here GUARDED_BY(mutex);  // those that were brought in first, first
  ChunkList chosen GUARDED_BY(mutex);
  ChunkList away GUARDED_BY(mutex);
  uint64_t resident GUARDED_BY(mutex) = 0;
  uint64_t absent GUARDED_BY(mutex) = 0;
  uint64_t rounding GUARDED_BY(mutex) =
      0;  // what allocations take in whole pages beyond what is counted
  uint64_t last_id GUARDED_BY(mutex) = 0;
  bool left GUARDED_BY(mutex) = false;  // the process ends, and nothing counts any more
  Region* shared GUARDED_BY(mutex) = nullptr;
  Region* leftovers GUARDED_BY(mutex) =
      nullptr;  // regions of which the driver would not take everything back
  Allocation* deferred GUARDED_BY(mutex) = nullptr;  // freed, when nobody could wait for the GPU
  Pool<Chunk> chunk_pool GUARDED_BY(mutex);
  Pool<Region> region_pool GUARDED_BY(mutex);
  Pool<Allocation> allocation_pool GUARDED_BY(mutex);
  Pool<Extent> extent_pool GUARDED_BY(mutex);

  Arena arena;
};

// --- space.cpp

// The gate's; null when there is none yet.
Space* space_of(const gate::Gate& gate);
// The gate's, made when there is none; null when there is no memory.
Space* make_space(gate::Gate& gate);
extern PerGate<Space> g_spaces;
// Calls visit(space) for each, until it answers true.
template <typename Visit>
void visit_spaces(Visit visit) {
  g_spaces.visit(visit);
}

// The allocation that an address lies in; null when there is none.
Allocation* find_allocation(Space& space, CUdeviceptr address) REQUIRES(space.mutex);

// The following are called with the mutex of the chunk's space held.

// So many bytes more, or less, of the chunk are what the program asked for.
void count_asked(Chunk& chunk, uint64_t bytes);
void uncount_asked(Chunk& chunk, uint64_t bytes);
// Puts the chunk into another state, the list and the sums that go with it.
void set_where(Chunk& chunk, Where where);
// It did not leave after all: it is here, and first among those that may leave.
void put_back(Chunk& chunk);
// Whether the program's bytes in it count as resident.
inline bool is_resident(const Chunk& chunk) {
  return moving::is_resident(chunk.where);
}
// The region's chunks begin to count, and to be moved; or stop to.
void add_chunks(Region& region);
void remove_chunks(Region& region);
// Lets go of the mutex until a chunk has stopped moving.
void wait_for_change(Space& space) REQUIRES(space.mutex);
// The same for as long as a chunk of the region is moving.
void wait_until_still(Region& region);
// Whoever waits for a chunk looks again.
void wake_waiters(Space& space) REQUIRES(space.mutex);

// --- physical.cpp: what the driver is asked for. No lock is needed.

// Physical memory under the chunk's addresses. When that fails, the chunk is as it was, but for
// what the driver would not take back.
CUresult make_present(Chunk& chunk);
// What plain memory of a device is made as.
CUmemAllocationProp plain_kind(CUdevice device, bool exportable);
// No physical memory under its addresses. False when some is left.
bool make_absent(Chunk& chunk);

// --- places.cpp: the same

// The chunk's address is one where all of it can be read, and (`write`) written to.
bool open_chunk(Chunk& chunk, bool write);
// That is over. False when it is still open, which does no harm while the chunk is there.
bool close_chunk(Chunk& chunk);

// --- region.cpp

// What the driver gives memory of the device in whole multiples of.
CUresult find_granularity(Space& space, CUdevice device) EXCLUDES(space.mutex);
// Addresses for `bytes` in the current context, and chunks for them, which are away and not known
// to anybody; null when that cannot be, with the reason.
Region* make_region(Space& space, Lane& lane, uint64_t bytes, CUresult& result);
// Gives back all that the region has; what the driver does not take back is tried again later.
// Nobody else knows of it any more. Takes the space's mutex.
void release_region(Region& region);
// Tries again what could not be given back.
void release_leftovers(Space& space) EXCLUDES(space.mutex);

// --- allocate.cpp

// Where the region's blocks end, it is taken out of the list that they are given out from. With the
// space's mutex held.
void unlist_shared(Region& region);

// --- free.cpp

// What was freed when nobody could wait for the GPU, and what the driver did not take back, is
// released when it can be now.
void tidy(Space& space) EXCLUDES(space.mutex);

// --- backing.cpp

// In the child of a fork.
void forget_backings();

// --- context.cpp

// What we have in the context; made when there is nothing yet. Null when there is no place for it.
Lane* lane_of(Space& space, CUcontext context) EXCLUDES(space.mutex);
// Where the region's chunks can be moved now; null: nowhere. With the space's mutex held.
Lane* lane_for(Region& region);
// Our stream in the lane's context, which is current; null when it cannot be made.
CUstream copies_of(Lane& lane);
// The n-th of its events; null when it cannot be made.
CUevent event_of(Lane& lane, size_t n);
// All of that, and our kernel, in the lane's context, which is current, while there is memory for
// it: when something is to leave the card is full, and the driver has none for a stream. False when
// something without which nothing can be copied is missing.
bool make_ready(Lane& lane);
// As the driver's cuMemAlloc and cuMemFree are: refused, and the capture spoilt, when the thread
// may not do what could wait for the GPU.
CUresult may_wait(Lane& lane);

}  // namespace nvshare::interposer::moving::swap
