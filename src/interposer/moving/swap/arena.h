#pragma once

#include "interposer/moving/swap/extents.h"
#include "interposer/moving/swap/hash.h"
#include "interposer/moving/swap/swap.h"
#include "wire/messages.h"

// Host memory that chunks are copied to. It comes from the scheduler, in segments.
namespace nvshare::interposer::moving::swap {

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
inline constexpr uint64_t kSlabBytes = wire::kSlabBytes;

struct Slab;

// Host memory that other programs of the same user have mapped, too (passing.cpp). Slabs of it
// change hands: of what is not ours now, nothing is read or written.
struct SharedSegment {
  uint64_t connection = 0;  // on which the scheduler named it
  uint64_t id = 0;
  uint64_t bytes = 0;
  uint64_t owned = 0;                  // a bit for each slab
  uint64_t pending = 0;                // being mapped
  bool arriving = true;                // the thread that maps it has not let go of it yet
  uint64_t closing = 0;                // to be unmapped
  bool forgotten = false;              // the connection is gone: nobody is told any more
  Slab* slabs[wire::kMostSlabs] = {};  // null: not mapped, or not pinned yet
  SharedSegment* next = nullptr;
};

struct Slab {
  char* memory = nullptr;  // null: it has been given back, and is only a place for another
  uint64_t bytes = 0;
  CUcontext pinned_in = nullptr;    // null: it is not pinned
  SharedSegment* shared = nullptr;  // null: it is ours alone
  uint32_t index = 0;               // of the shared segment
  Slab* next = nullptr;
};

// Whether chunks may be copied to it. With the arena's mutex held.
inline bool is_owned(const Slab& slab) {
  return slab.shared == nullptr || (slab.shared->owned >> slab.index & 1) != 0;
}

// Host memory that the scheduler has given and that is not in use yet.
struct Segment {
  int descriptor = -1;
  uint64_t bytes = 0;
  SwapTellMissing tell_missing = nullptr;
  SharedSegment* shared = nullptr;
  Segment* next = nullptr;
};

struct Arena {
  // Held while memory is being pinned or unpinned.
  Mutex pinning;

  Mutex mutex;                              // of what follows
  Slab* slabs GUARDED_BY(mutex) = nullptr;  // never fewer
  uint64_t bytes GUARDED_BY(mutex) = 0;     // of all that are ours
  SharedSegment* shared GUARDED_BY(mutex) = nullptr;
  SwapTellSlabs tell_slabs GUARDED_BY(mutex) = nullptr;
  // If it is known how much is enough: of what is beyond that, what holds nothing goes back.
  bool enough_known GUARDED_BY(mutex) = false;
  uint64_t enough GUARDED_BY(mutex) = 0;
  bool returning GUARDED_BY(mutex) = false;  // a thread does that
  SwapTellReturned tell_returned GUARDED_BY(mutex) = nullptr;
  uint64_t untaken GUARDED_BY(mutex) = 0;  // of what was given, what cannot be used yet
  SwapTellUntaken tell_untaken GUARDED_BY(mutex) = nullptr;
  Word pending{0};  // segments that are on their way
  Segment* incoming GUARDED_BY(mutex) = nullptr;
  bool taking GUARDED_BY(mutex) = false;  // there is a thread that takes them in
  std::atomic<bool> hurry{false};         // somebody waits for them
  Word preparing{0};                      // threads that do what is done ahead of need
  Extents extents GUARDED_BY(mutex);
  Pool<Extent> extent_pool GUARDED_BY(mutex);
  Pool<Slab> slab_pool GUARDED_BY(mutex);
  Pool<SharedSegment> shared_pool GUARDED_BY(mutex);
};

// Room for `bytes` of a copy, which has none; false when there is not so much free.
bool arena_take(Arena& arena, uint64_t bytes, HostCopy& copy);
// Gives back all of a copy.
void arena_give(Arena& arena, HostCopy& copy);
// How much is free.
uint64_t arena_free(Arena& arena);
// In the child of a fork, which has what was on its way to its parent: closes it.
void arena_close_incoming(const Arena& arena) REQUIRES(arena.mutex);

// A segment is on its way in: a thread of ours takes it.
void arena_add_segment(Space& space, Segment& segment);
// Says once that host memory is missing.
void arena_warn_missing();
// Of what was given to us, so much more cannot be used yet, and so much less.
void arena_note_untaken(Space& space, uint64_t more, uint64_t less);

// --- return.cpp

// Whether there is host memory here, ours or not.
bool arena_has_any(Arena& arena);
// Whether a thread must be started for what is too much or closing: nobody else does it then.
bool arena_returns(Arena& arena) REQUIRES(arena.mutex);
void arena_start_returning(Space& space);
// Whether the slab is ours, can go, and leaves enough.
bool arena_can_spare(const Arena& arena, const Slab& slab) REQUIRES(arena.mutex);
// With `pinning` held. False when it is still pinned.
bool unpin_slab(const Slab& slab);
// A part of a segment, which is not pinned, is not ours any more: the pages go now, although others
// of the same segment stay. False when they do not.
bool unmap_slab(char* memory, uint64_t bytes);

// --- passing.cpp

// What becomes of the n-th slab of a segment that is being mapped. Before: whether it is wanted.
bool shared_is_wanted(Arena& arena, SharedSegment& segment, size_t n);
// After, with the slab or, when that could not be, without. Answers whether it is ours.
bool shared_is_mapped(Arena& arena, SharedSegment& segment, size_t n, Slab* slab);
// All slabs have been looked at; or the segment could not be mapped at all.
void shared_is_taken(Space& space, SharedSegment& segment, bool mapped_any);
// Passes slabs on that hold nothing and are too much. Answers whether there were any.
bool pass_slabs(Space& space);
// Unmaps a slab that is closing. Answers whether there was one.
bool close_slab(Space& space);
bool has_closing(const Arena& arena) REQUIRES(arena.mutex);
// Nobody reads or writes it (`hide`), or somebody may. With the arena's mutex held.
void hide_slab(const Slab& slab, bool hide);

// --- pin.cpp

// Has what takes long done ahead of need, by a thread of ours, when there is host memory: what is
// not pinned is, when there is a context to do it in, and all contexts get what moving takes.
void arena_prepare_later(Space& space);
// Pins it in one of the program's contexts, if there is any.
void arena_pin(Space& space, Slab& slab);
// What is pinned in the context is not any more: because it is `gone`, or because it is about to
// go.
void arena_unpin(Arena& arena, CUcontext context, bool gone);

}  // namespace nvshare::interposer::moving::swap
