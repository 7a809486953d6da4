#pragma once

#include "interposer/link/link.h"

namespace nvshare::interposer::link {

// What memory_view() tells, for a device that this process need not use: without a link the
// scheduler is asked, and the process does not become a client of it. `device_memory` is what the
// device has, for a limit in percent. Costs a message now and then, and a second at the most.
MemoryView look_at_memory(const CUuuid& device, uint64_t device_memory);
// The same for a device as the driver numbers it.
MemoryView look_at_memory(CUdevice device);

void forget_looks_after_fork();

}  // namespace nvshare::interposer::link
