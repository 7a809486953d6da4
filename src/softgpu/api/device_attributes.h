#pragma once

#include <optional>

#include "cuda/types.h"

namespace nvshare::softgpu {

// What the simulated device says of itself (a device of compute capability 9.0); nothing for a
// number that is no attribute.
std::optional<int> device_attribute(cuda::CUdevice_attribute attribute, int device);

}  // namespace nvshare::softgpu
