#pragma once

#include "softgpu/api/api.h"

namespace nvshare::softgpu {

struct LaunchShape {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
};

// Checks a launch and takes a copy of its parameters, from `params` or from `extra`.
CUresult make_kernel_task(Call& call, const void* function, const LaunchShape& shape, void** params,
                          void** extra, KernelTask& task);
// The same from the parameters of a graph's node.
CUresult make_kernel_task(Call& call, const CUDA_KERNEL_NODE_PARAMS& params, KernelTask& task);
CUDA_KERNEL_NODE_PARAMS widen(const CUDA_KERNEL_NODE_PARAMS_v1& params);

}  // namespace nvshare::softgpu
