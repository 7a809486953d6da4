#pragma once

#include "cuda/types.h"

namespace nvshare::softgpu {

// What a result means, in words; null for a number that is no result.
const char* error_text(cuda::CUresult result);

}  // namespace nvshare::softgpu
