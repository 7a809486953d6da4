#pragma once

#include <atomic>

#include "interposer/catch/driver.h"
#include "interposer/gate/gate.h"
#include "interposer/moving/swap/swap.h"
#include "wire/messages.h"
#include "wire/page.h"

// A device's connection to the scheduler, and the thread that serves it.
namespace nvshare::interposer::link {

// The gate of the current context's device, connected to the scheduler (or known to have none). The
// first call for a device connects; null without a current context or in the child of a fork.
gate::Gate* gate_of_current_device();
// The same for a device by number.
gate::Gate* gate_of_device(CUdevice device);
// The gate of a device, if it is used already; asking does not make it so.
gate::Gate* gate_in_use(const CUuuid& device);

// A context is made. The driver may have registered its end with the first one, and ours must come
// before that: the driver is still used there.
void end_before_driver();

bool uuid_of(CUdevice device, CUuuid& uuid);
bool is_same(const CUuuid& one, const CUuuid& other);

// Waits while a scheduler is there and does not take the program. False when it still does not: the
// process ends, or waiting is of no use (Absence::RefusedForGood).
bool wait_while_refused(const gate::Gate& gate);

// The same before a context is made. Three cases are errors: waiting is of no use, a signal handler
// of the program has run meanwhile, or the process's own limit is not understood.
inline constexpr CUresult kNotWelcome = CUDA_ERROR_SYSTEM_NOT_READY;
inline constexpr CUresult kBadLimit = CUDA_ERROR_OUT_OF_MEMORY;
CUresult wait_for_welcome(const gate::Gate& gate);

// Asks the scheduler whether this device's tenant may allocate `bytes` more, which can leave the
// GPU (`movable`) or never will, and waits for the answer; far from any limit there is credit, and
// nothing to ask. Unless refused they are counted from now on. A program that the scheduler does
// not take waits here. Without a scheduler only the
// process's own limit (NVSHARE_GPU_MEMORY_LIMIT) counts, and the process tests it. Thread-safe;
// never called with a lock of ours held.
enum class Given {
  Refused,
  Room,    // there is room for them now
  Absent,  // there is none: the grant has been given back, and the next comes when there is
};
Given memory_request(gate::Gate& gate, uint64_t bytes, bool movable);

// All that the gate's device has.
uint64_t memory_of_device(const gate::Gate& gate);

// The driver has no memory for bytes that were given with room: they are absent from now on, and no
// grant is held when this returns. False without a scheduler, which could make room.
bool memory_found_no_room(gate::Gate& gate, uint64_t bytes);

// Whether there is a scheduler; one that has just gone, or does not take the program, is waited
// for: it alone can make room.
bool wait_for_scheduler(const gate::Gate& gate);

// For an allocation: whether it is to be tried once more when the driver had no memory for it.
// Without a scheduler nobody makes room, and a program would die of that; but one that was there is
// most probably about to come back, and then it is asked.
class Again {
 public:
  explicit Again(gate::Gate* gate);
  // Waits a moment before it says yes.
  bool after(CUresult result);
  // The scheduler, or a limit, has said no: so it stays.
  CUresult refused() {
    gate_ = nullptr;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }

 private:
  gate::Gate* gate_;
  uint64_t connection_;
  uint64_t since_ = 0;
};

// `allocate(again)` asks for the memory, calls the driver, and gives back what it did not get.
template <typename Allocate>
CUresult allocate_with_scheduler(gate::Gate* gate, const Allocate& allocate) {
  Again again(gate);
  CUresult result;
  do {
    result = allocate(again);
  } while (again.after(result));
  return result;
}

// The driver has no memory where by the scheduler's books there is some: it is told so. False
// without a scheduler.
bool memory_is_short(gate::Gate& gate);

// They are not there any more (freed, or the driver refused them): all of them, those on the GPU,
// and of those the ones that could never leave it.
struct Gone {
  uint64_t bytes = 0;
  uint64_t resident = 0;
  uint64_t pinned = 0;
};
void memory_freed(gate::Gate& gate, const Gone& gone);
inline void pinned_memory_freed(gate::Gate& gate, uint64_t bytes) {
  memory_freed(gate, {bytes, bytes, bytes});
}

// What the memory that can be swapped takes beyond what is counted, in whole pages. Told before the
// memory is asked for.
void memory_rounding(gate::Gate& gate, uint64_t bytes);

// So many that could leave the GPU, and are on it, never will again.
void memory_pinned(gate::Gate& gate, uint64_t bytes);

// So much host memory has been given and is not ready yet.
void arena_untaken(gate::Gate& gate, uint64_t bytes);
// So much host memory has been given back.
void arena_returned(gate::Gate& gate, uint64_t bytes);
// So much that was given, and counted, is not there.
void arena_missing(gate::Gate& gate, uint64_t bytes);
// As SwapTellSlabs.
void arena_slabs(gate::Gate& gate, moving::swap::SlabNews news,
                 const moving::swap::SwapSlabs& which);

// What becomes of plain allocations.
wire::Backend memory_backend(const gate::Gate& gate);

// What the tenant may have (the least of its limit and the process's own; 0: no limit), and what
// of it is in use: so much that the limit which is nearest leaves the rest.
struct MemoryView {
  uint64_t limit = 0;
  uint64_t allocated = 0;
  // Where memory can be made free: what of the GPU is left for this process, limits aside.
  bool has_room = false;
  uint64_t room_left = 0;
};
MemoryView memory_view(gate::Gate& gate);

// The process's own limit on a device that has so much memory (NVSHARE_GPU_MEMORY_LIMIT); 0: none.
// Of a value that is not understood: so little that nothing fits.
uint64_t own_limit(uint64_t device_memory);
bool own_limit_is_understood();

}  // namespace nvshare::interposer::link
