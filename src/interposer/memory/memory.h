#pragma once

#include "interposer/catch/driver.h"

// What the program has allocated on its devices, on every road, and the limit on it:
// docs/memory.md. The bodies of the driver functions concerned are in this folder (own_memory.def
// lists them).
namespace nvshare::interposer::memory {

// Taken before the driver is asked to end a context: what is recorded later is not that context's,
// even if the next one has the same handle.
uint64_t memory_mark();
// The driver has ended a context: what was allocated in it before the mark is gone.
void memory_context_gone(CUcontext context, uint64_t before);
// A context was detached from: whether that was its end, as no attachment is left.
bool memory_last_attachment(CUcontext context);

// Others need the room: what pools on the device keep and nobody uses goes back to it. It is
// counted nowhere, so nobody is told. Not while the program captures.
void memory_trim_pools(CUdevice device);

// In the child of a fork, which has no driver and so no device memory: forgets everything.
void memory_reset_after_fork();

}  // namespace nvshare::interposer::memory
