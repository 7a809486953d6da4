#pragma once

#include "cuda/types.h"

namespace nvshare::interposer::memory {

// The bytes of an array's elements, without what the hardware adds to lay them out; kMostBytes
// (memory_count.h) when that cannot be. 0 for shapes that no driver accepts, and for arrays whose
// memory is mapped to them later (sparse and deferred ones), which have none of their own.
uint64_t array_bytes(const cuda::CUDA_ARRAY3D_DESCRIPTOR& shape);

// The same for all levels of a mipmap; there are never more levels than the shape can be halved.
uint64_t mipmap_bytes(const cuda::CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels);

}  // namespace nvshare::interposer::memory
