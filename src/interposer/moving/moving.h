#pragma once

#include "interposer/catch/driver.h"
#include "interposer/gate/gate.h"

// What both ways of moving memory say of it.
namespace nvshare::interposer::moving {

// What of freed memory was where, to be told to the scheduler.
struct Freed {
  bool ours = false;  // otherwise the driver is to be asked
  // Refused as the driver does it, during a capture or in a context that is broken: nothing is
  // freed then.
  CUresult result = CUDA_SUCCESS;
  gate::Gate* gate = nullptr;
  uint64_t bytes = 0;
  uint64_t resident = 0;
  uint64_t pinned = 0;
};

// The allocation that an address lies in.
struct Range {
  bool ours = false;
  CUdeviceptr base = 0;
  uint64_t bytes = 0;
  CUcontext context = nullptr;
  gate::Gate* gate = nullptr;
  bool resident = false;  // all of it
  CUdevice device = -1;
  uint64_t id = 0;         // never the same for two allocations; 0: the driver's own is as good
  bool plain = true;       // what the program asked for; otherwise it asked for unified memory
  bool shareable = false;  // other processes can open it
};

struct Moved {
  uint64_t out = 0;
  uint64_t in = 0;
  uint64_t copied = 0;
  uint64_t took = 0;  // nanoseconds
  uint64_t more = 0;  // set by who is told: so many bytes beside those that were wanted before
  // Nothing can be moved before there is news, for so many nanoseconds. Whoever is told and waits
  // for news sets it to 0.
  uint64_t wait = 0;
};

// Told of what has moved since the last time, after every few chunks and before the next are
// chosen, with no lock held; answers whether to go on. It must not free memory or end a context:
// those wait for the move.
using Progress = bool (*)(void* argument, Moved& since_the_last);

}  // namespace nvshare::interposer::moving
