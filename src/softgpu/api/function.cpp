#include <algorithm>
#include <cstring>

#include "softgpu/api/module_loading.h"

// What can be asked and set of functions, and how many of them fit a multiprocessor.
namespace nvshare::softgpu {
namespace {

constexpr int kThreadsPerProcessor = 2048;
constexpr int kBlocksPerProcessor = 32;
constexpr int kSharedPerProcessor = 233472;
constexpr int kSharedPerBlock = 232448;
constexpr int kReservedShared = 1024;
constexpr int kProcessors = 132;

// For those functions that call a null handle a wrong value.
CUresult given_function(Call& call, CUfunction handle, std::shared_ptr<Function>& out) {
  SOFTGPU_TRY(call.context());
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return find_function(call, handle, out);
}

CUresult function_of(Call& call, CUfunction handle, std::shared_ptr<Function>& out) {
  SOFTGPU_TRY(call.context());
  return find_function(call, handle, out);
}

int active_blocks(int block_size, std::size_t shared) {
  const int threads = (block_size + 31) / 32 * 32;
  const std::size_t per_block = shared + kReservedShared;
  const int by_shared = static_cast<int>(kSharedPerProcessor / per_block);
  return std::min({kThreadsPerProcessor / threads, kBlocksPerProcessor, by_shared});
}

}  // namespace

SOFTGPU_API(cuFuncGetAttribute)
(int* value, CUfunction_attribute attrib, CUfunction function) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(function_of(call, function, found));
  if (value == nullptr || attrib >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  *value = function_attribute(*found, attrib);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuFuncSetAttribute)
(CUfunction function, CUfunction_attribute attrib, int value) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(function_of(call, function, found));
  switch (attrib) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || value > kSharedPerBlock) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      if (value < 0) return CUDA_ERROR_INVALID_VALUE;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  found->attributes[attrib] = value;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuFuncSetCacheConfig)(CUfunction function, CUfunc_cache config) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(function_of(call, function, found));
  return config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SOFTGPU_API(cuFuncSetSharedMemConfig)(CUfunction function, CUsharedconfig config) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(function_of(call, function, found));
  return config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
                                                            : CUDA_SUCCESS;
}

SOFTGPU_API(cuFuncGetModule)(CUmodule* module, CUfunction function) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(given_function(call, function, found));
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto owner = found->module.lock();
  if (!owner) return CUDA_ERROR_INVALID_HANDLE;
  *module = owner->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuFuncGetName)(const char** name, CUfunction function) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(given_function(call, function, found));
  *name = found->name.c_str();
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuFuncGetParamInfo)
(CUfunction function, size_t param_index, size_t* param_offset, size_t* param_size) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(given_function(call, function, found));
  if (param_offset == nullptr || param_index >= found->params.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *param_offset = found->offsets[param_index];
  if (param_size != nullptr) *param_size = size_of(found->params[param_index]);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuFuncIsLoaded)(CUfunctionLoadingState* state, CUfunction function) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(function_of(call, function, found));
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuFuncLoad)(CUfunction function) {
  Call call;
  std::shared_ptr<Function> found;
  return function_of(call, function, found);
}

SOFTGPU_API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
(int* num_blocks, CUfunction function, int block_size, size_t dynamic_s_mem_size, unsigned flags) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(function_of(call, function, found));
  if (num_blocks == nullptr || block_size <= 0 || flags > 1) return CUDA_ERROR_INVALID_VALUE;
  *num_blocks = block_size > 1024 || dynamic_s_mem_size > kSharedPerBlock
                    ? 0
                    : active_blocks(block_size, dynamic_s_mem_size);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuOccupancyMaxActiveBlocksPerMultiprocessor)
(int* num_blocks, CUfunction function, int block_size, size_t dynamic_s_mem_size) {
  return impl_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(num_blocks, function, block_size,
                                                                   dynamic_s_mem_size, 0);
}

SOFTGPU_API(cuOccupancyMaxPotentialBlockSizeWithFlags)
(int* min_grid_size, int* block_size, CUfunction function,
 CUoccupancyB2DSize block_size_to_dynamic_s_mem_size, size_t dynamic_s_mem_size,
 int block_size_limit, unsigned flags) {
  {
    Call call;
    std::shared_ptr<Function> found;
    SOFTGPU_TRY(function_of(call, function, found));
  }
  if (min_grid_size == nullptr || block_size == nullptr || flags > 1 || block_size_limit < 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int limit = block_size_limit == 0 ? 1024 : std::min(1024, block_size_limit);
  int best_threads = 0;
  for (int size = limit; size > 0; size = size % 32 != 0 ? size / 32 * 32 : size - 32) {
    const std::size_t shared = block_size_to_dynamic_s_mem_size != nullptr
                                   ? block_size_to_dynamic_s_mem_size(size)
                                   : dynamic_s_mem_size;
    if (shared > kSharedPerBlock) continue;
    const int blocks = active_blocks(size, shared);
    if (blocks * size <= best_threads) continue;
    best_threads = blocks * size;
    *block_size = size;
    *min_grid_size = blocks * kProcessors;
  }
  return best_threads > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SOFTGPU_API(cuOccupancyMaxPotentialBlockSize)
(int* min_grid_size, int* block_size, CUfunction function,
 CUoccupancyB2DSize block_size_to_dynamic_s_mem_size, size_t dynamic_s_mem_size,
 int block_size_limit) {
  return impl_cuOccupancyMaxPotentialBlockSizeWithFlags(min_grid_size, block_size, function,
                                                        block_size_to_dynamic_s_mem_size,
                                                        dynamic_s_mem_size, block_size_limit, 0);
}

SOFTGPU_API(cuOccupancyAvailableDynamicSMemPerBlock)
(size_t* dynamic_smem_size, CUfunction function, int num_blocks, int block_size) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(function_of(call, function, found));
  if (dynamic_smem_size == nullptr || num_blocks <= 0 || block_size <= 0 || block_size > 1024) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (num_blocks > active_blocks(block_size, 0)) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t each = static_cast<std::size_t>(kSharedPerProcessor / num_blocks);
  *dynamic_smem_size = std::min<std::size_t>(each / 128 * 128 - kReservedShared, kSharedPerBlock);
  return CUDA_SUCCESS;
}

// --- The launch interface of CUDA 3 and earlier: parameters are set one by one. ---

SOFTGPU_API(cuFuncSetBlockShape)(CUfunction function, int x, int y, int z) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(function_of(call, function, found));
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  found->block[0] = x;
  found->block[1] = y;
  found->block[2] = z;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuFuncSetSharedSize)(CUfunction function, unsigned bytes) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(function_of(call, function, found));
  found->old_shared = bytes;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuParamSetSize)(CUfunction function, unsigned numbytes) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(function_of(call, function, found));
  if (numbytes > 4096) return CUDA_ERROR_INVALID_VALUE;
  found->param_buffer.resize(numbytes);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuParamSetv)(CUfunction function, int offset, void* address, unsigned numbytes) {
  Call call;
  std::shared_ptr<Function> found;
  SOFTGPU_TRY(function_of(call, function, found));
  if (offset < 0 || address == nullptr || numbytes > 4096) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t end = static_cast<std::size_t>(offset) + numbytes;
  if (end > 4096) return CUDA_ERROR_INVALID_VALUE;
  if (found->param_buffer.size() < end) found->param_buffer.resize(end);
  std::memcpy(found->param_buffer.data() + offset, address, numbytes);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuParamSeti)(CUfunction function, int offset, unsigned value) {
  return impl_cuParamSetv(function, offset, &value, sizeof value);
}

SOFTGPU_API(cuParamSetf)(CUfunction function, int offset, float value) {
  return impl_cuParamSetv(function, offset, &value, sizeof value);
}

}  // namespace nvshare::softgpu
