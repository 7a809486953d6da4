#pragma once

#include "softgpu/api/api.h"

namespace nvshare::softgpu {

// Whether the operations are such as a stream can do.
CUresult check_memory_ops(Call& call, const CUstreamBatchMemOpParams* params, unsigned count);

}  // namespace nvshare::softgpu
