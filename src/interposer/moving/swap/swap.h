#pragma once

#include "interposer/moving/moving.h"

// Memory that can leave the GPU (backend `swap`): every allocation has an address that never
// changes, over chunks of physical memory that are there or not. Out: copied to the host arena,
// unmapped, released. In: created, mapped, copied back.
//
// Bytes here are those that the program asked for: what limits, the scheduler and people count.
// What chunks are rounded up to is between us and the driver.
namespace nvshare::interposer::moving::swap {

// --- for threads of the program; thread-safe, never called with a lock of ours held

// `bytes` in the current context, which is one of the gate's device. They are counted already.
// With `room` they get physical memory now; without, they are absent until bring_in(): nobody may
// touch them before.
CUresult swap_allocate(gate::Gate& gate, uint64_t bytes, bool room, CUdeviceptr* address);

// Frees what begins at `address`. As the driver's cuMemFree it waits for the GPU when the memory is
// there; memory that is absent is simply forgotten.
Freed swap_free(CUdeviceptr address);

Range swap_range_of(CUdeviceptr address);

// The program has made a context on the gate's device. What is not in any context can be moved in
// it.
void swap_context_made(gate::Gate& gate, CUcontext context);
// The driver is about to end a context, or (not `leaving`) has refused to: nothing is moved or
// pinned in it meanwhile. Waits for a move that is going on.
void swap_context_leaving(CUcontext context, bool leaving);
// The driver has ended a context, and what was allocated in it goes with it. Called afterwards;
// one answer for each gate concerned, until one says it is not `ours`.
Freed swap_context_gone(CUcontext context);

// --- for the link's thread alone, with the gate closed and nothing of the process on the GPU

// Where the time of the last move went, in nanoseconds: what the thread that moves waited for or
// did. The rest is ours.
struct SwapTimes {
  uint64_t hash = 0;    // fingerprints, of which it waits for each batch
  uint64_t map = 0;     // physical memory is created, mapped and opened
  uint64_t unmap = 0;   // and given back
  uint64_t submit = 0;  // copies are handed to the driver
  uint64_t copy = 0;    // waiting for their end
  uint64_t place = 0;   // looking for host memory and waiting for it, with what is told meanwhile
  uint64_t tell = 0;    // progress
};
SwapTimes swap_times(gate::Gate& gate);

// Moves at least `bytes` out, in whole chunks, or all there is. False when something could not be
// moved (it is as it was then) or the move was stopped.
bool swap_out(gate::Gate& gate, uint64_t bytes, Progress progress, void* argument);
// Moves at most `bytes` in, in whole chunks; all that is missing when that is no more than `bytes`.
bool swap_in(gate::Gate& gate, uint64_t bytes, Progress progress, void* argument);
// How much of what is allocated is on the GPU, and how much is not. What is freed or has been moved
// is counted here at once, and told (Freed, Progress) a moment later.
uint64_t swap_resident(gate::Gate& gate);
uint64_t swap_absent(gate::Gate& gate);
// Whether anything at all is allocated, there or not. For any thread.
bool swap_has_any(gate::Gate& gate);

// What the program has takes whole pages of the device (2 MiB): how much that is, wherever it is,
// with another allocation of so many bytes. Small ones share some, and are taken for what they are.
uint64_t swap_in_pages(gate::Gate& gate, uint64_t bytes);
// Of that, what is beyond what was asked for.
uint64_t swap_rounding(gate::Gate& gate, uint64_t bytes);

// Told how much host memory has been given and cannot be used yet. A lock of the engine is held.
using SwapTellUntaken = void (*)(gate::Gate& gate, uint64_t bytes);
// Told of host memory that was given and cannot be used, ever; no lock of the engine is held.
using SwapTellMissing = void (*)(gate::Gate& gate, uint64_t bytes);
// Host memory to swap out to. Mapped, touched and pinned by a thread of its own, ahead of need;
// takes the descriptor.
void swap_add_arena(gate::Gate& gate, int descriptor, uint64_t bytes, SwapTellUntaken tell,
                    SwapTellMissing tell_missing);

// Told of host memory that is given back; no lock of the engine is held.
using SwapTellReturned = void (*)(gate::Gate& gate, uint64_t bytes);
// So much of the host memory is enough from now on (~0: all of it is needed). What there is beyond,
// and holds nothing that is away, is given back by a thread of its own, and told.
void swap_arena_need(gate::Gate& gate, uint64_t enough, SwapTellReturned tell);

// Host memory that several programs of a user have mapped and pinned: a slab is a bit.
struct SwapSlabs {
  uint64_t connection = 0;  // on which the segment was named
  uint64_t segment = 0;
  uint64_t slabs = 0;
  uint64_t bytes = 0;  // of the slabs
};
enum class SlabNews {
  kTaken,    // mapped
  kPassed,   // not needed any more
  kMissing,  // ours, and could not be mapped
  kClosed,   // unmapped
};
// Told of these; no lock of the engine is held.
using SwapTellSlabs = void (*)(gate::Gate& gate, SlabNews news, const SwapSlabs& which);
// As swap_add_arena(); of the slabs that are `there`, `owned` are ours now.
struct SwapSharedSegment {
  uint64_t connection = 0;
  uint64_t id = 0;
  uint64_t bytes = 0;
  uint64_t owned = 0;
  uint64_t there = 0;
};
void swap_add_shared(gate::Gate& gate, int descriptor, const SwapSharedSegment& segment,
                     SwapTellUntaken tell_untaken, SwapTellMissing tell_missing,
                     SwapTellSlabs tell);
// These slabs are ours from now on. Answers how many bytes; what could not be mapped is told.
uint64_t swap_slabs_given(gate::Gate& gate, uint64_t connection, uint64_t segment, uint64_t slabs);
// These are to be unmapped. None of them is ours.
void swap_slabs_close(gate::Gate& gate, uint64_t connection, uint64_t segment, uint64_t slabs);
// The scheduler that named segments is gone. What is ours stays so, and the rest is unmapped.
void swap_forget_shared(gate::Gate& gate);
// The bytes of slabs of a segment of so many.
uint64_t swap_slab_bytes(uint64_t segment_bytes, uint64_t slabs);

// --- the rest

// Whether the kernel takes long to end this process: it has pinned host memory.
bool swap_is_slow_to_end(gate::Gate& gate);
// At the end of the process: gives the physical memory of all that could move back to the driver,
// once the GPU is done with it and `begin` agrees. From then on it is only there to be freed.
// Answers what does not count any more.
Freed swap_leave(gate::Gate& gate, bool (*begin)(void* argument), void* argument);

// In the child of a fork, which has no driver: forgets everything.
void swap_reset_after_fork();

}  // namespace nvshare::interposer::moving::swap
