#include <algorithm>

#include "softgpu/api/api.h"
#include "softgpu/runtime/capture.h"
#include "softgpu/runtime/memory_ops.h"

// Contexts and the thread's stack of them.
namespace nvshare::softgpu {
namespace {

bool good_flags(unsigned flags) {
  const unsigned schedule = flags & CU_CTX_SCHED_MASK;
  return (flags & ~unsigned{CU_CTX_FLAGS_MASK}) == 0 &&
         (schedule == 0 || schedule == 1 || schedule == 2 || schedule == 4);
}

CUresult create(CUcontext* ctx, unsigned flags, CUdevice device, unsigned api_version) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (ctx == nullptr || !good_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  SOFTGPU_TRY(call.device(device));
  std::shared_ptr<Context> made;
  SOFTGPU_TRY(open_context(call, device, flags, made));
  made->api_version = api_version;
  this_thread().stack.push_back(made->handle);
  *ctx = made->handle;
  return CUDA_SUCCESS;
}

// A context by handle; the current one for null where that is allowed.
CUresult named_or_current(Call& call, CUcontext handle) {
  if (handle == nullptr) return call.any_context();
  SOFTGPU_TRY(call.ready());
  call.ctx = call.rt.contexts.find(handle);
  if (!call.ctx) return CUDA_ERROR_INVALID_CONTEXT;
  return call.ctx->dead ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult synchronize(Call& call) {
  if (call.ctx->error != CUDA_SUCCESS) return call.ctx->error;
  SOFTGPU_TRY(call.no_unsafe_capture());
  // Whatever its mode, a capture in this context is work that never comes.
  bool hurt = false;
  for (const auto& stream : call.ctx->streams) {
    if (!stream->capture) continue;
    invalidate(*stream->capture);
    hurt = true;
  }
  if (hurt) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  call.rt.wait_all(call.lock, call.ctx.get());
  trim_pools(call.rt);
  return call.ctx->error;
}

std::size_t default_limit(CUlimit limit) {
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      return 1024;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      return 8650752;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      return 8388608;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
      return 2;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
      return 2048;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
      return 64;
    default:
      return 0;
  }
}

bool known_limit(CUlimit limit) {
  return limit <= CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
}

}  // namespace

SOFTGPU_API(cuCtxCreate)(CUcontext* ctx, unsigned flags, CUdevice device) {
  return create(ctx, flags, device, 3010);
}

SOFTGPU_API(cuCtxCreate_v2)(CUcontext* ctx, unsigned flags, CUdevice device) {
  return create(ctx, flags, device, 3020);
}

SOFTGPU_API(cuCtxCreate_v3)
(CUcontext* ctx, CUexecAffinityParam* params_array, int num_params, unsigned flags,
 CUdevice device) {
  if (num_params < 0 || (num_params > 0 && params_array == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (num_params > 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create(ctx, flags, device, 3020);
}

SOFTGPU_API(cuCtxCreate_v4)
(CUcontext* ctx, CUctxCreateParams* ctx_create_params, unsigned flags, CUdevice device) {
  if (ctx_create_params != nullptr) {
    if (ctx_create_params->cigParams != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    if (ctx_create_params->numExecAffinityParams != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  }
  return create(ctx, flags, device, 3020);
}

SOFTGPU_API(cuCtxDestroy_v2)(CUcontext ctx) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.contexts.find(ctx);
  if (!found || found->dead) return CUDA_ERROR_INVALID_CONTEXT;
  if (found->primary) return CUDA_ERROR_INVALID_CONTEXT;
  close_context(call, found);
  auto& stack = this_thread().stack;
  if (!stack.empty() && stack.back() == ctx) stack.pop_back();
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxPushCurrent_v2)(CUcontext ctx) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!call.rt.contexts.find(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
  this_thread().stack.push_back(ctx);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxPopCurrent_v2)(CUcontext* ctx) {
  Call call;
  SOFTGPU_TRY(call.ready());
  auto& stack = this_thread().stack;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (ctx != nullptr) *ctx = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxSetCurrent)(CUcontext ctx) {
  Call call;
  SOFTGPU_TRY(call.ready());
  auto& stack = this_thread().stack;
  if (ctx == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  // One that is gone can be made current; it is good for nothing.
  if (!call.rt.contexts.find(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty()) stack.push_back(nullptr);
  stack.back() = ctx;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxGetCurrent)(CUcontext* ctx) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto& stack = this_thread().stack;
  *ctx = stack.empty() ? nullptr : stack.back();
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxGetDevice)(CUdevice* device) {
  Call call;
  SOFTGPU_TRY(call.any_context());
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = call.ctx->device;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxGetDevice_v2)(CUdevice* device, CUcontext ctx) {
  Call call;
  SOFTGPU_TRY(named_or_current(call, ctx));
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = call.ctx->device;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxGetFlags)(unsigned* flags) {
  Call call;
  SOFTGPU_TRY(call.any_context());
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = call.ctx->flags | CU_CTX_MAP_HOST;  // mapping is always possible
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxSetFlags)(unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.any_context());
  if (!good_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  call.ctx->flags = flags;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxGetId)(CUcontext ctx, unsigned long long* ctx_id) {
  Call call;
  SOFTGPU_TRY(named_or_current(call, ctx));
  if (ctx_id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *ctx_id = call.ctx->id;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxGetApiVersion)(CUcontext ctx, unsigned* version) {
  Call call;
  SOFTGPU_TRY(named_or_current(call, ctx));
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = call.ctx->api_version;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxSynchronize)() {
  Call call;
  SOFTGPU_TRY(call.any_context());
  return synchronize(call);
}

SOFTGPU_API(cuCtxSynchronize_v2)(CUcontext ctx) {
  Call call;
  SOFTGPU_TRY(named_or_current(call, ctx));
  return synchronize(call);
}

SOFTGPU_API(cuCtxSetLimit)(CUlimit limit, size_t value) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (!known_limit(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  SOFTGPU_TRY(call.no_unsafe_capture());
  call.ctx->limits[limit] = value;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxGetLimit)(size_t* pvalue, CUlimit limit) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (pvalue == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (!known_limit(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  const auto found = call.ctx->limits.find(limit);
  *pvalue = found == call.ctx->limits.end() ? default_limit(limit) : found->second;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxGetCacheConfig)(CUfunc_cache* pconfig) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (pconfig == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pconfig = call.ctx->cache;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxSetCacheConfig)(CUfunc_cache config) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (config > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
  call.ctx->cache = config;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxGetSharedMemConfig)(CUsharedconfig* config) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = call.ctx->shared_config;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxSetSharedMemConfig)(CUsharedconfig config) {
  Call call;
  SOFTGPU_TRY(call.context());
  // Banks are four bytes wide on every device since 2014; asking for others is accepted and futile.
  if (config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxGetStreamPriorityRange)(int* least_priority, int* greatest_priority) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (least_priority != nullptr) *least_priority = 0;
  if (greatest_priority != nullptr) *greatest_priority = -5;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxResetPersistingL2Cache)() {
  Call call;
  return call.context();
}

SOFTGPU_API(cuCtxGetExecAffinity)(CUexecAffinityParam* exec_affinity, CUexecAffinityType type) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (exec_affinity == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  exec_affinity->type = type;
  exec_affinity->param.smCount.val = 132;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxAttach)(CUcontext* ctx, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.any_context());
  if (ctx == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  ++call.ctx->attached;
  *ctx = call.ctx->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxDetach)(CUcontext ctx) {
  {
    Call call;
    SOFTGPU_TRY(call.ready());
    const auto found = find_context(call.rt, ctx);
    if (!found) return CUDA_ERROR_INVALID_CONTEXT;
    if (--found->attached > 0) return CUDA_SUCCESS;
  }
  return impl_cuCtxDestroy_v2(ctx);
}

SOFTGPU_API(cuCtxEnablePeerAccess)(CUcontext peer_context, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto peer = find_context(call.rt, peer_context);
  if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
  if (peer->device == call.ctx->device) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  if (!call.ctx->peers.insert(peer_context).second) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuCtxDisablePeerAccess)(CUcontext peer_context) {
  Call call;
  SOFTGPU_TRY(call.context());
  const auto peer = find_context(call.rt, peer_context);
  if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
  if (call.ctx->peers.erase(peer_context) == 0) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
