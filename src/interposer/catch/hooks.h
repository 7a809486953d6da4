#pragma once

#include "cuda/table.h"

namespace nvshare::interposer::catching {

// The function that programs get instead of the driver's.
void* hook(cuda::FunctionId id);

}  // namespace nvshare::interposer::catching
