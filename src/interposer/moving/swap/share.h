#pragma once

#include "interposer/moving/swap/virtual.h"

// Plain memory that other processes open (CUDA IPC). The memory stays on the GPU from then on,
// because the other process uses it without our gate. Its physical memory is exported anew for each
// process that asks.
namespace nvshare::interposer::moving::swap {

// What an IPC handle says of an allocation.
struct SwapShare {
  CUdeviceptr base = 0;
  uint64_t bytes = 0;
  uint64_t secret = 0;
};

// Pins the allocation that the address lies in. `secret` (not 0) is its secret from now on, unless
// it has one already: all handles of one allocation are equal. Small allocations share a chunk, and
// are pinned together. For threads of the program, with no lock of ours held.
SwapPinned swap_share(CUdeviceptr address, uint64_t secret, SwapShare* share);

// One chunk of an allocation that is shared.
struct SwapPiece {
  int descriptor = -1;  // the caller's to close; -1: there is no such chunk, or no descriptor
  uint64_t bytes = 0;   // of the chunk
  uint32_t count = 0;   // of chunks
  uint64_t offset = 0;  // of the allocation in the first chunk
  uint64_t length = 0;  // of the allocation
  CUdevice device = -1;
};

// For any thread, with no lock of ours held. Nothing without the right secret.
SwapPiece swap_export(CUdeviceptr base, uint64_t secret, uint32_t index);

}  // namespace nvshare::interposer::moving::swap
