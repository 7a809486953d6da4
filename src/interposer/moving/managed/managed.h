#pragma once

#include "interposer/moving/swap/swap.h"

// Unified memory (backend `managed`): the driver moves pages to whoever touches them, so nothing
// here can make a program wrong, only slow or less slow. When the GPU changes hands we ask for
// whole allocations to be moved ahead of the faults. Where memory is said to be is what was ordered
// and done; single pages may be elsewhere.
//
// The contracts are those of swap.h; bytes are those that the program asked for.
namespace nvshare::interposer::moving::managed {

// --- for threads of the program; thread-safe, never called with a lock of ours held

// Whether the device of the current context, which is the gate's, can do it. Says so once to the
// user when it cannot.
bool managed_is_possible(gate::Gate& gate);

struct ManagedWish {
  uint64_t bytes = 0;
  // There is room for them now; otherwise they are absent until they are brought in.
  bool room = false;
  // The program asked for plain memory, and is not to see that it has something else.
  bool plain = false;
  unsigned flags = CU_MEM_ATTACH_GLOBAL;
};
// In the current context, which is one of the gate's device. The bytes are counted already.
CUresult managed_allocate(gate::Gate& gate, const ManagedWish& wish, CUdeviceptr* address);
Freed managed_free(CUdeviceptr address);
Range managed_range_of(CUdeviceptr address);
void managed_context_leaving(CUcontext context, bool leaving);
Freed managed_context_gone(CUcontext context);

// --- for the link's thread alone, with the gate closed and nothing of the process on the GPU

bool managed_out(gate::Gate& gate, uint64_t bytes, Progress progress, void* argument);
bool managed_in(gate::Gate& gate, uint64_t bytes, Progress progress, void* argument);
uint64_t managed_resident(gate::Gate& gate);
uint64_t managed_absent(gate::Gate& gate);

// --- the rest

void managed_reset_after_fork();

}  // namespace nvshare::interposer::moving::managed
