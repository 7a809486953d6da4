#pragma once

#include "interposer/catch/driver.h"
#include "interposer/gate/gate.h"

namespace nvshare::interposer::memory {

// Where memory of the pool counts; null when it is not on a device.
gate::Gate* gate_of_pool(CUmemoryPool pool);

}  // namespace nvshare::interposer::memory
