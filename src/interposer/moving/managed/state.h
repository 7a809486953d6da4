#pragma once

#include "base/chunk.h"
#include "interposer/catch/current.h"
#include "interposer/guest/list.h"
#include "interposer/guest/pool.h"
#include "interposer/guest/sys.h"
#include "interposer/guest/tree.h"
#include "interposer/moving/lanes.h"
#include "interposer/moving/managed/managed.h"
#include "interposer/moving/per_gate.h"

// What is known of unified memory, as the files of this backend share it. An Allocation is what the
// program asked for; it moves in Pieces.
namespace nvshare::interposer::moving::managed {

struct Allocation;

struct Piece {
  Allocation* allocation = nullptr;
  Piece* sibling = nullptr;  // the next one of the allocation
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  Where where = Where::kAway;
  Piece* before = nullptr;  // in its list
  Piece* after = nullptr;
};

struct Lane : ContextLane {
  CUstream stream = nullptr;
};

struct Allocation {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  Lane* lane = nullptr;
  Piece* pieces = nullptr;
  uint32_t moving = 0;   // of the pieces: those that are leaving or coming
  bool plain = false;    // what the program asked for
  bool freeing = false;  // by the driver, at this moment: in no tree, and nothing of it is moved
  uint64_t serial = 0;   // never given twice
  Allocation* next = nullptr;
  TreeNode<Allocation> by_address;
};

// The driver may give out an address again that we have not heard the end of: the later one counts.
struct ByAddress {
  static TreeNode<Allocation>& node(Allocation& one) { return one.by_address; }
  static bool before(const Allocation& a, const Allocation& b) {
    return a.address != b.address ? a.address < b.address : a.serial < b.serial;
  }
};

// What moves as one, and is told as one.
inline constexpr uint64_t kLargestPiece = largest_chunk(~uint64_t{0});

// One per gate.
struct Space {
  gate::Gate* gate = nullptr;
  std::atomic<CUdevice> device{-1};  // always the same, once it is known
  Word possible{0};                  // 0: not known yet; otherwise one of kPossible, kImpossible

  // Held by whoever moves, and by whoever must know that nothing is moving.
  Mutex moves;
  // Held while a stream is made.
  Mutex making;

  Mutex mutex;       // of what follows
  Word finished{0};  // changes when a piece has stopped moving
  Lane lanes[kMaxLanes] GUARDED_BY(mutex);
  Tree<Allocation, ByAddress> allocations GUARDED_BY(mutex);
  List<Piece> here GUARDED_BY(mutex);  // those that came first, first
  List<Piece> away GUARDED_BY(mutex);
  uint64_t resident GUARDED_BY(mutex) = 0;
  uint64_t absent GUARDED_BY(mutex) = 0;
  uint64_t last_serial GUARDED_BY(mutex) = 0;
  Pool<Piece> piece_pool GUARDED_BY(mutex);
  Pool<Allocation> allocation_pool GUARDED_BY(mutex);
};
inline constexpr uint32_t kPossible = 1;
inline constexpr uint32_t kImpossible = 2;

extern PerGate<Space> g_spaces;

// --- space.cpp

// A record of so many bytes, with its pieces, which nobody knows of yet; null when there is no
// memory. Ends with give_record().
Allocation* take_record(Space& space, uint64_t bytes) REQUIRES(space.mutex);
void give_record(Space& space, Allocation* allocation) REQUIRES(space.mutex);
// It begins to count and to be moved, all of it here or away; or stops to.
void add(Space& space, Allocation& allocation, CUdeviceptr address, Where where)
    REQUIRES(space.mutex);
void remove(Space& space, Allocation& allocation) REQUIRES(space.mutex);
// Puts the piece into another state, and last into the list of it.
void set_where(Space& space, Piece& piece, Where where) REQUIRES(space.mutex);
// It did not move after all: it is what it was before, and first in its list.
void put_back(Space& space, Piece& piece) REQUIRES(space.mutex);
inline bool is_resident(const Piece& piece) {
  return moving::is_resident(piece.where);
}
// How much of it is on the GPU.
uint64_t resident_bytes(const Allocation& allocation);

// --- context.cpp

// What we have in the context; made when there is nothing yet. Null when there is no place for it.
Lane* lane_of(Space& space, CUcontext context) EXCLUDES(space.mutex);
// Our stream in the lane's context, which is current; null when it cannot be made. Any thread's.
CUstream stream_of(Space& space, Lane& lane);

}  // namespace nvshare::interposer::moving::managed
