#pragma once

#include "interposer/moving/swap/state.h"
#include "interposer/moving/swap/virtual.h"

// What is known of memory that the program made itself, as the files of the swap engine share it.
//
// A Backing is what a handle stands for. It has a Region of one chunk, without addresses of its
// own, and Places, where the program has mapped it. The region is in no context, and uses any.
namespace nvshare::interposer::moving::swap {

// What may be done in a place, and by whom.
struct Right {
  CUmemAccessDesc is{};
  Right* next = nullptr;
};

struct Place {
  Backing* backing = nullptr;
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the physical memory
  bool there = false;   // the driver has it
  Right* rights = nullptr;
  Place* next = nullptr;  // of the same memory
  TreeNode<Place> by_address;
};

struct Backing {
  Region* region = nullptr;
  CUmemAllocationProp kind{};
  CUmemGenericAllocationHandle number = 0;  // the program's handle
  uint64_t references = 0;                  // of that
  Place* places = nullptr;
  Backing* next = nullptr;  // in a list of those that are held, or gone
  TreeNode<Backing> by_number;
};

struct Reserved {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  TreeNode<Reserved> by_address;
};

struct BackingsByNumber {
  static TreeNode<Backing>& node(Backing& one) { return one.by_number; }
  static bool before(const Backing& a, const Backing& b) { return a.number < b.number; }
};
template <typename T>
struct ByAddress {
  static TreeNode<T>& node(T& one) { return one.by_address; }
  static bool before(const T& a, const T& b) { return a.address < b.address; }
};

// Of the whole process: a range of addresses may have memory of several devices.
struct Maps {
  // Held during a whole call of the program, the driver's part too: such calls come one after the
  // other. Who moves memory never takes it.
  Mutex mutex;
  uint64_t last_number GUARDED_BY(mutex) = 0;
  Tree<Backing, BackingsByNumber> backings GUARDED_BY(mutex);
  Tree<Place, ByAddress<Place>> places GUARDED_BY(mutex);
  Tree<Reserved, ByAddress<Reserved>> reserved GUARDED_BY(mutex);
  Pool<Backing> backing_pool GUARDED_BY(mutex);
  Pool<Place> place_pool GUARDED_BY(mutex);
  Pool<Right> right_pool GUARDED_BY(mutex);
  Pool<Reserved> reserved_pool GUARDED_BY(mutex);
};
extern Maps g_maps;
// Whether there is any place. While there is none, nobody need look.
extern std::atomic<uint64_t> g_place_count;

// --- places.cpp: the driver's part. For whoever may touch the chunk.

// Physical memory that is there is mapped wherever the program has mapped it.
CUresult map_places(Backing& backing);
// It is mapped nowhere, but perhaps by us. False when some is left.
bool unmap_places(Backing& backing);

// --- backing.cpp

// The one that a handle of the program's stands for; null when it stands for nothing.
Backing* find_backing(CUmemGenericAllocationHandle handle) REQUIRES(g_maps.mutex);
// The first place that has an address in the range; null when none has.
Place* first_place(CUdeviceptr address, uint64_t bytes) REQUIRES(g_maps.mutex);
Place* place_after(const Place& place, CUdeviceptr end) REQUIRES(g_maps.mutex);

// It does not move until it is let go; waits for a move that is going on.
void hold(Chunk& chunk);
void let_go(Chunk& chunk);

// Those that are held, all together.
class Holds {
 public:
  Holds() = default;
  ~Holds();
  Holds(const Holds&) = delete;
  Holds& operator=(const Holds&) = delete;
  void add(Backing& backing);
  // They are let go; those that nobody has any more go into the list.
  void end(Backing*& gone);

 private:
  Backing* first_ = nullptr;
};

inline Chunk& chunk_of(const Backing& backing) {
  return *backing.region->chunks;
}
// With the chunk held: whether the driver has it.
inline bool is_here(const Backing& backing) {
  return is_resident(chunk_of(backing));
}

// The place is no more; the driver does not have it, or it is of no concern.
void drop_place(Place& place) REQUIRES(g_maps.mutex);
// What is neither mapped nor has a handle goes into the list.
void collect_if_unused(Backing& backing, Backing*& gone) REQUIRES(g_maps.mutex);
// Releases what is in it.
void release_gone(Backing* gone, SwapTellFreed tell) EXCLUDES(g_maps.mutex);

}  // namespace nvshare::interposer::moving::swap
