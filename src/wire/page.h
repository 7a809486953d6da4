#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

#include "wire/credit.h"

// One page per client, shared by the scheduler and the program: what changes too often for
// messages, or must be readable without asking. Each word has one writer, but for what is left of a
// credit (credit.h). The other side may scribble on all of it, so nobody keeps anything here that
// he needs himself, and everything read is checked.
namespace nvshare::wire {

inline constexpr uint32_t kPageMagic = 0x7076736e;
inline constexpr size_t kPageSize = 4096;

using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

struct Page {
  uint32_t magic;
  uint32_t version;

  // Written by the scheduler.
  struct FromScheduler {
    // The grant that holds; 0: none. Beside the Grant message, which comes later: whoever waits for
    // it is woken by the bell and takes it from here.
    Word grant;
    Word budget;            // of that grant, written before it
    Word watch;             // Watch
    Word memory_limit;      // of the tenant; 0: none
    Word tenant_allocated;  // what all processes of the tenant have allocated on this GPU
    Word core_limit;
    Word alive;  // changes every second; 0: an older scheduler, which does not say
    // What this program can have at most, beside what others can never move and as far as there is
    // host memory for what can; 0: an older scheduler.
    Word room;
    // What the tenant's processes with a limit of their own (NVSHARE_GPU_MEMORY_LIMIT) have
    // allocated on this GPU together; 0 in processes without one, and from an older scheduler.
    Word own_allocated;
  };
  alignas(256) FromScheduler scheduler;

  // Written by the program. All counts begin at 0 with the connection.
  struct FromProgram {
    Word grant;        // the one that `used` is about
    Word used;         // nanoseconds of GPU time since that grant
    Word total_used;   // since the connection
    Word submissions;  // calls that made the GPU work, while metered
    Word held;         // nanoseconds that threads waited at the gate
    Word holds;        // how often
    Word waiting;      // threads that wait at the gate now
    Word allocated;    // bytes
    // Host memory that it was given and that is not ready to be used yet; an older program does not
    // say.
    Word arena_untaken;
    // What its memory that can move takes on the GPU beyond what it has asked for, wherever it is:
    // the driver gives whole pages. With what it is about to ask for; an older program says 0.
    Word rounding;
  };
  alignas(256) FromProgram program;

  // A futex that both ring (wire::ring): threads that wait at the gate wait on it. What it counts
  // means nothing.
  alignas(256) std::atomic<uint32_t> bell;

  // For memory that can leave the GPU, and for memory that never will. All zero from an older
  // scheduler, and untouched by an older program.
  alignas(256) Credit movable_credit;
  Credit pinned_credit;
};
static_assert(sizeof(Page) <= kPageSize);

// Wakes whoever waits on the page's bell.
void ring(Page& page);

}  // namespace nvshare::wire
