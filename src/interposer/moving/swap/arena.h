#pragma once

#include "interposer/moving/swap/extents.h"
#include "interposer/moving/swap/hash.h"
#include "interposer/moving/swap/swap.h"

// Host memory that chunks are copied to. It comes from the scheduler, in segments.
namespace nvshare::interposer {

struct Space;

// The host's copy of a chunk, in as many pieces as there had to be.
struct HostCopy {
  Extent* pieces = nullptr;
  uint64_t bytes = 0;
  bool valid = false;     // what the chunk had when it was last moved
  bool in_doubt = false;  // the driver may still write to it: nobody else gets it
  bool hashed = false;
  Fingerprint fingerprint;
};

// So much of a segment is pinned, and given back, together, and no piece crosses its end: the
// driver does not like copies that do. While it pins, nothing of the process gets to the GPU (at 18
// GiB/s; 47 of huge pages), so it is no more than what a program that has a kernel or two in its
// queues does not notice; and no less than what copies at full speed.
inline constexpr uint64_t kSlabBytes = uint64_t{16} << 20;

struct Slab {
  char* memory = nullptr;  // null: it has been given back, and is only a place for another
  uint64_t bytes = 0;
  CUcontext pinned_in = nullptr;  // null: it is not pinned
  Slab* next = nullptr;
};

// Host memory that the scheduler has given and that is not in use yet.
struct Segment {
  int descriptor = -1;
  uint64_t bytes = 0;
  SwapTellMissing tell_missing = nullptr;
  Segment* next = nullptr;
};

struct Arena {
  // Held while memory is being pinned or unpinned.
  Mutex pinning;

  Mutex mutex;            // of what follows
  Slab* slabs = nullptr;  // never fewer
  uint64_t bytes = 0;     // of all of them
  // If it is known how much is enough: of what is beyond that, what holds nothing goes back.
  bool enough_known = false;
  uint64_t enough = 0;
  bool returning = false;  // a thread does that
  SwapTellReturned tell_returned = nullptr;
  uint64_t untaken = 0;  // of what was given, what cannot be used yet
  SwapTellUntaken tell_untaken = nullptr;
  Word pending{0};  // segments that are on their way
  Segment* incoming = nullptr;
  bool taking = false;             // there is a thread that takes them in
  std::atomic<bool> hurry{false};  // somebody waits for them
  Word preparing{0};               // threads that do what is done ahead of need
  Extents extents;
  Pool<Extent> extent_pool;
  Pool<Slab> slab_pool;
};

// Room for `bytes` of a copy, which has none; false when there is not so much free.
bool arena_take(Arena& arena, uint64_t bytes, HostCopy& copy);
// Gives back all of a copy.
void arena_give(Arena& arena, HostCopy& copy);
// How much is free.
uint64_t arena_free(Arena& arena);
// In the child of a fork, which has what was on its way to its parent: closes it.
void arena_close_incoming(const Arena& arena);
// Waits a little for more of a segment that is on its way.
void arena_wait(Arena& arena);

// --- return.cpp

// Host memory that was given to us, as far as it is there.
bool arena_has_any(Arena& arena);
// A part of a segment, which is not pinned, is not ours any more: the pages go now, although others
// of the same segment stay. False when they do not.
bool unmap_slab(char* memory, uint64_t bytes);

// --- pin.cpp

// Has what takes long done ahead of need, by a thread of ours, when there is host memory: what is
// not pinned is, when there is a context to do it in, and all contexts get what moving takes.
void arena_prepare_later(Space& space);
// Pins it in one of the program's contexts, if there is any.
void arena_pin(Space& space, Slab& slab);
// What is pinned in the context is not any more: because it is `gone`, or because it is about to
// go.
void arena_unpin(Arena& arena, CUcontext context, bool gone);

}  // namespace nvshare::interposer
