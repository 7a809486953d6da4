#include <cstring>

#include "softgpu/api/kernel_task.h"
#include "softgpu/api/module_loading.h"
#include "softgpu/runtime/memory_ops.h"

// Launches, by every way in.
namespace nvshare::softgpu {
namespace {

constexpr double kMostThreads = 1024;
constexpr unsigned kMaxBlock[3] = {1024, 1024, 64};
constexpr unsigned kMaxGrid[3] = {2147483647, 65535, 65535};
constexpr unsigned kCooperativeBlocks = 132 * 32;

bool good_shape(const LaunchShape& shape, const Function& function) {
  double threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (shape.grid[i] == 0 || shape.block[i] == 0) return false;
    if (shape.grid[i] > kMaxGrid[i] || shape.block[i] > kMaxBlock[i]) return false;
    threads *= shape.block[i];
  }
  const int most_shared =
      function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  return threads <= kMostThreads && shape.shared <= static_cast<unsigned>(most_shared);
}

// The buffer that `extra` describes.
bool copy_extra(void** extra, std::vector<unsigned char>& params) {
  const void* buffer = nullptr;
  const std::size_t* size = nullptr;
  for (int i = 0; extra[i] != launch_param_end(); i += 2) {
    if (extra[i] == launch_param_buffer_pointer()) {
      buffer = extra[i + 1];
    } else if (extra[i] == launch_param_buffer_size()) {
      size = static_cast<const std::size_t*>(extra[i + 1]);
    } else {
      return false;
    }
  }
  if (size == nullptr || (buffer == nullptr && *size > 0)) return false;
  if (*size < params.size()) return false;
  std::memcpy(params.data(), buffer, params.size());
  return true;
}

CUresult launch(CUfunction function, const LaunchShape& shape, CUstream stream, void** params,
                void** extra, bool cooperative,
                std::map<CUlaunchAttributeID, CUlaunchAttributeValue> attributes = {}) {
  Call call;
  SOFTGPU_TRY(call.context());
  KernelTask task;
  SOFTGPU_TRY(make_kernel_task(call, function, shape, params, extra, task));
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  const auto home = task.function->module.lock();
  if (!home || home->context.lock() != target->context.lock()) return CUDA_ERROR_INVALID_HANDLE;
  const double blocks = static_cast<double>(shape.grid[0]) * shape.grid[1] * shape.grid[2];
  if (cooperative && blocks > kCooperativeBlocks) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  task.attributes = std::move(attributes);
  return enqueue(call, target, std::move(task));
}

CUresult launch_old(CUfunction function, int width, int height, CUstream stream) {
  LaunchShape shape{};
  std::vector<unsigned char> buffer;
  {
    Call call;
    SOFTGPU_TRY(call.context());
    std::shared_ptr<Function> found;
    SOFTGPU_TRY(find_function(call, function, found));
    if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
    shape = {{static_cast<unsigned>(width), static_cast<unsigned>(height), 1},
             {static_cast<unsigned>(found->block[0]), static_cast<unsigned>(found->block[1]),
              static_cast<unsigned>(found->block[2])},
             found->old_shared};
    buffer = found->param_buffer;
  }
  std::size_t size = buffer.size();
  void* extra[] = {launch_param_buffer_pointer(), buffer.data(), launch_param_buffer_size(), &size,
                   launch_param_end()};
  return launch(function, shape, stream, nullptr, extra, false);
}

}  // namespace

CUresult make_kernel_task(Call& call, const void* function, const LaunchShape& shape, void** params,
                          void** extra, KernelTask& task) {
  SOFTGPU_TRY(find_function(call, function, task.function));
  if (const auto home = task.function->module.lock()) SOFTGPU_TRY(load_code(call, *home));
  if (params != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!good_shape(shape, *task.function)) return CUDA_ERROR_INVALID_VALUE;
  std::copy_n(shape.grid, 3, task.grid);
  std::copy_n(shape.block, 3, task.block);
  task.shared = shape.shared;
  task.params.assign(task.function->param_bytes, 0);
  if (task.function->params.empty()) return CUDA_SUCCESS;
  if (extra != nullptr) {
    return copy_extra(extra, task.params) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < task.function->params.size(); ++i) {
    const std::size_t size = size_of(task.function->params[i]);
    if (!safe_read(task.params.data() + task.function->offsets[i], params[i], size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult make_kernel_task(Call& call, const CUDA_KERNEL_NODE_PARAMS& params, KernelTask& task) {
  const void* function = params.func != nullptr ? static_cast<const void*>(params.func)
                                                : static_cast<const void*>(params.kern);
  const LaunchShape shape{{params.gridDimX, params.gridDimY, params.gridDimZ},
                          {params.blockDimX, params.blockDimY, params.blockDimZ},
                          params.sharedMemBytes};
  task.kernel = params.func != nullptr ? nullptr : params.kern;
  return make_kernel_task(call, function, shape, params.kernelParams, params.extra, task);
}

CUDA_KERNEL_NODE_PARAMS widen(const CUDA_KERNEL_NODE_PARAMS_v1& params) {
  CUDA_KERNEL_NODE_PARAMS wide{};
  wide.func = params.func;
  wide.gridDimX = params.gridDimX;
  wide.gridDimY = params.gridDimY;
  wide.gridDimZ = params.gridDimZ;
  wide.blockDimX = params.blockDimX;
  wide.blockDimY = params.blockDimY;
  wide.blockDimZ = params.blockDimZ;
  wide.sharedMemBytes = params.sharedMemBytes;
  wide.kernelParams = params.kernelParams;
  wide.extra = params.extra;
  return wide;
}

SOFTGPU_API(cuLaunchKernel)
(CUfunction function, unsigned grid_dim_x, unsigned grid_dim_y, unsigned grid_dim_z,
 unsigned block_dim_x, unsigned block_dim_y, unsigned block_dim_z, unsigned shared_mem_bytes,
 CUstream stream, void** kernel_params, void** extra) {
  return launch(function,
                {{grid_dim_x, grid_dim_y, grid_dim_z},
                 {block_dim_x, block_dim_y, block_dim_z},
                 shared_mem_bytes},
                stream, kernel_params, extra, false);
}

SOFTGPU_API(cuLaunchKernelEx)
(const CUlaunchConfig* config, CUfunction function, void** kernel_params, void** extra) {
  if (config == nullptr || (config->numAttrs > 0 && config->attrs == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool cooperative = false;
  std::map<CUlaunchAttributeID, CUlaunchAttributeValue> attributes;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id >= CU_LAUNCH_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = attribute.value.cooperative;
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_IGNORE) attributes[attribute.id] = attribute.value;
  }
  const auto cluster = attributes.find(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  if (cluster != attributes.end()) {
    const auto& size = cluster->second.clusterDim;
    if (size.x == 0 || size.y == 0 || size.z == 0 || config->gridDimX % size.x != 0 ||
        config->gridDimY % size.y != 0 || config->gridDimZ % size.z != 0) {
      return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    }
    if (size.x * size.y * size.z > 8) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
  return launch(function,
                {{config->gridDimX, config->gridDimY, config->gridDimZ},
                 {config->blockDimX, config->blockDimY, config->blockDimZ},
                 config->sharedMemBytes},
                config->hStream, kernel_params, extra, cooperative, std::move(attributes));
}

SOFTGPU_API(cuLaunchCooperativeKernel)
(CUfunction function, unsigned grid_dim_x, unsigned grid_dim_y, unsigned grid_dim_z,
 unsigned block_dim_x, unsigned block_dim_y, unsigned block_dim_z, unsigned shared_mem_bytes,
 CUstream stream, void** kernel_params) {
  return launch(function,
                {{grid_dim_x, grid_dim_y, grid_dim_z},
                 {block_dim_x, block_dim_y, block_dim_z},
                 shared_mem_bytes},
                stream, kernel_params, nullptr, true);
}

SOFTGPU_API(cuLaunchHostFunc)(CUstream stream, CUhostFn fn, void* user_data) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.context());
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  return enqueue(call, target, HostTask{fn, user_data, nullptr, stream});
}

SOFTGPU_API(cuStreamAddCallback)
(CUstream stream, CUstreamCallback callback, void* user_data, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  if (target->capture) {
    target->capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return enqueue(call, target, HostTask{nullptr, user_data, callback, stream});
}

SOFTGPU_API(cuLaunch)(CUfunction function) {
  return launch_old(function, 1, 1, nullptr);
}

SOFTGPU_API(cuLaunchGrid)(CUfunction function, int grid_width, int grid_height) {
  return launch_old(function, grid_width, grid_height, nullptr);
}

SOFTGPU_API(cuLaunchGridAsync)
(CUfunction function, int grid_width, int grid_height, CUstream stream) {
  return launch_old(function, grid_width, grid_height, stream);
}

}  // namespace nvshare::softgpu
