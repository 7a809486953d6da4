#pragma once

// What the program has allocated on its devices, on every road, and the limit on it: docs/memory.md.
// The bodies of the driver functions concerned are in memory_*.cpp (own_memory.def lists them).
namespace nvshare::interposer {

// In the child of a fork, which has no driver and so no device memory: forgets everything.
void memory_reset_after_fork();

}  // namespace nvshare::interposer
