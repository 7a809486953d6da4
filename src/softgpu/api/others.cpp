#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "softgpu/api/api.h"
#include "softgpu/runtime/memory_ops.h"

// Green contexts, checkpoint states and other rarely used things.
namespace nvshare::softgpu {
namespace {

constexpr unsigned kProcessors = 132;

bool process_exists(int pid) {
  return pid > 0 && (::kill(pid, 0) == 0 || errno == EPERM);
}

CUdevResource all_processors() {
  CUdevResource resource{};
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm = {kProcessors, 8, 8};
  return resource;
}

}  // namespace

SOFTGPU_API(cuCheckpointProcessGetState)(int pid, CUprocessState* state) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!process_exists(pid)) return CUDA_ERROR_OPERATING_SYSTEM;
  *state = CU_PROCESS_STATE_RUNNING;
  return CUDA_SUCCESS;
}

// Saving and restoring are not simulated; that a process does not exist is told first.
SOFTGPU_API(cuCheckpointProcessGetRestoreThreadId)(int pid, int* tid) {
  if (tid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return process_exists(pid) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OPERATING_SYSTEM;
}
SOFTGPU_API(cuCheckpointProcessLock)(int pid, CUcheckpointLockArgs*) {
  return process_exists(pid) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OPERATING_SYSTEM;
}
SOFTGPU_API(cuCheckpointProcessUnlock)(int pid, CUcheckpointUnlockArgs*) {
  return process_exists(pid) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OPERATING_SYSTEM;
}

// Descriptors of device memory for other drivers: there are none to hand them to.
SOFTGPU_API(cuMemGetHandleForAddressRange)
(void* handle, CUdeviceptr address, size_t size, CUmemRangeHandleType handle_type,
 unsigned long long) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (handle == nullptr || size == 0 || handle_type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
      !call.rt.addresses.covers(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

SOFTGPU_API(cuImportExternalMemory)
(CUexternalMemory* ext_mem_out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (ext_mem_out == nullptr || description == nullptr || description->size == 0 ||
      description->type < CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD ||
      description->type > CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

SOFTGPU_API(cuDestroyExternalMemory)(CUexternalMemory) {
  Call call;
  SOFTGPU_TRY(call.context());
  return CUDA_ERROR_INVALID_VALUE;  // none can have been imported
}

SOFTGPU_API(cuFlushGPUDirectRDMAWrites)
(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX) return CUDA_ERROR_INVALID_VALUE;
  if (scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER &&
      scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetDevResource)
(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  Call call;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.device(device));
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *resource = all_processors();
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxGetDevResource)
(CUcontext ctx, CUdevResource* resource, CUdevResourceType type) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (!find_context(call.rt, ctx)) return CUDA_ERROR_INVALID_CONTEXT;
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *resource = all_processors();
  return CUDA_SUCCESS;
}

// A green context here is a context with all of the device: how much of it work fills is not
// limited by resources. The description is a handle that says no more than that it was given.
SOFTGPU_API(cuDevResourceGenerateDesc)
(CUdevResourceDesc* desc, CUdevResource* resources, unsigned nb_resources) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (desc == nullptr || resources == nullptr || nb_resources == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned i = 0; i < nb_resources; ++i) {
    if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  }
  const std::uint64_t handle = call.rt.new_handle();
  call.rt.resource_descriptions.insert(handle);
  *desc = reinterpret_cast<CUdevResourceDesc>(handle);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGreenCtxCreate)
(CUgreenCtx* ctx, CUdevResourceDesc desc, CUdevice device, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (ctx == nullptr ||
      call.rt.resource_descriptions.count(reinterpret_cast<std::uint64_t>(desc)) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SOFTGPU_TRY(call.device(device));
  if (flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> made;
  SOFTGPU_TRY(open_context(call, device, 0, made));
  *ctx = reinterpret_cast<CUgreenCtx>(made->handle);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGreenCtxDestroy)(CUgreenCtx ctx) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = find_context(call.rt, reinterpret_cast<CUcontext>(ctx));
  if (!found) return CUDA_ERROR_INVALID_CONTEXT;
  close_context(call, found);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxFromGreenCtx)(CUcontext* context, CUgreenCtx ctx) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!find_context(call.rt, reinterpret_cast<CUcontext>(ctx))) return CUDA_ERROR_INVALID_CONTEXT;
  *context = reinterpret_cast<CUcontext>(ctx);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGreenCtxStreamCreate)
(CUstream* stream, CUgreenCtx green_ctx, unsigned flags, int priority) {
  {
    Call call;
    SOFTGPU_TRY(call.ready());
    if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    if (!find_context(call.rt, reinterpret_cast<CUcontext>(green_ctx))) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
  }
  auto& stack = this_thread().stack;
  stack.push_back(reinterpret_cast<CUcontext>(green_ctx));
  const CUresult result = impl_cuStreamCreateWithPriority(stream, flags, priority);
  stack.pop_back();
  return result;
}

}  // namespace nvshare::softgpu
