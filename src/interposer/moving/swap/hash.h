#pragma once

#include "interposer/catch/driver.h"

// Fingerprints of memory on the GPU, computed there: what has not changed since it was last copied
// to the host need not be copied again, nor what is all zeros.
namespace nvshare::interposer::moving::swap {

// How many chunks are looked at together.
inline constexpr size_t kBatch = 16;

struct Fingerprint {
  uint64_t first = 0;
  uint64_t second = 0;
  uint64_t any = 0;  // 0: every byte is 0

  bool operator==(const Fingerprint&) const = default;
};

struct HashTask {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;  // a multiple of 16
};

// What a context needs for it.
struct Hasher {
  int tries = 0;  // to load it; after a few it is left alone
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr results = 0;
  CUstream stream = nullptr;
  bool busy = false;  // it may still be at work
  uint64_t numbers[kBatch][4] = {};
};

// Loads what it needs into the current context, which takes a while the first time. Done when it is
// needed, unless it was before; false when it cannot be.
bool load_fingerprint(Hasher& hasher);

// Of at most kBatch stretches, in the current context, and waits for it. False when there are no
// results. When the hasher is busy afterwards, nothing may be unmapped: it may be looking at it.
bool fingerprint(Hasher& hasher, const HashTask* tasks, size_t count, Fingerprint* results);

}  // namespace nvshare::interposer::moving::swap
