#pragma once

#include "softgpu/api/api.h"

namespace nvshare::softgpu {

// What an address given as one side of a copy has to be.
enum class Expect { kHost, kDevice, kAny };

// A copy of consecutive bytes.
CUresult make_linear_copy(Call& call, std::uint64_t to, Expect to_kind, std::uint64_t from,
                          Expect from_kind, std::size_t bytes, CopyTask& task);
// A copy of a box, from and to anything.
CUresult make_box_copy(Call& call, const CUDA_MEMCPY3D& copy, CopyTask& task);
CUDA_MEMCPY3D widen(const CUDA_MEMCPY2D& copy);
CUDA_MEMCPY3D without_contexts(const CUDA_MEMCPY3D_PEER& copy);

CUresult check_memset(Call& call, const CUDA_MEMSET_NODE_PARAMS& params);

}  // namespace nvshare::softgpu
