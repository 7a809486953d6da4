#include <algorithm>

#include "softgpu/api/api.h"
#include "softgpu/runtime/capture.h"
#include "softgpu/runtime/execute.h"

// Streams: making, asking, waiting, ordering.
namespace nvshare::softgpu {
namespace {

constexpr int kGreatestPriority = -5;

CUresult find(Call& call, CUstream handle, std::shared_ptr<Stream>& out) {
  SOFTGPU_TRY(call.context());
  return call.stream(handle, out);
}

// Waiting for, or asking after, a stream that is captured makes no sense and spoils the capture.
CUresult not_captured(Call& call, const std::shared_ptr<Stream>& stream) {
  if (stream->capture) {
    invalidate(*stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const auto context = stream->context.lock();
  if (stream->legacy && context) SOFTGPU_TRY(no_implicit_capture(*context));
  return call.no_unsafe_capture();
}

}  // namespace

SOFTGPU_API(cuStreamCreateWithPriority)(CUstream* stream, unsigned flags, int priority) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (stream == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto made = std::make_shared<Stream>();
  made->handle = reinterpret_cast<CUstream>(call.rt.new_handle());
  made->context = call.ctx;
  made->flags = flags;
  made->priority = std::clamp(priority, kGreatestPriority, 0);
  made->id = call.rt.new_id();
  call.rt.streams.add(reinterpret_cast<std::uint64_t>(made->handle), made);
  call.ctx->streams.insert(made);
  *stream = made->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuStreamCreate)(CUstream* stream, unsigned flags) {
  return impl_cuStreamCreateWithPriority(stream, flags, 0);
}

SOFTGPU_API(cuStreamDestroy_v2)(CUstream stream) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.streams.find(stream);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (const auto home = found->context.lock(); home && home->error != CUDA_SUCCESS) {
    return home->error;
  }
  if (found->capture) {
    invalidate(*found->capture);
    std::erase(found->capture->streams, found.get());
  }
  // What was put into it still runs to its end.
  call.rt.streams.remove(stream);
  if (const auto context = found->context.lock()) context->streams.erase(found);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuStreamGetPriority)(CUstream stream, int* priority) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *priority = found->priority;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuStreamGetFlags)(CUstream stream, unsigned* flags) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = found->flags;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuStreamGetId)(CUstream stream, unsigned long long* stream_id) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  if (stream_id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *stream_id = found->id;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuStreamGetDevice)(CUstream stream, CUdevice* device) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = found->context.lock()->device;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuStreamGetCtx)(CUstream stream, CUcontext* ctx) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  if (ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *ctx = found->context.lock()->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuStreamGetCtx_v2)(CUstream stream, CUcontext* ctx, CUgreenCtx* green_ctx) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  if (ctx == nullptr || green_ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *ctx = found->context.lock()->handle;
  *green_ctx = nullptr;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuStreamQuery)(CUstream stream) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  SOFTGPU_TRY(not_captured(call, found));
  call.rt.pump(call.lock);
  const auto context = found->context.lock();
  if (context->error != CUDA_SUCCESS) return context->error;
  bool done = call.rt.finished(found->last);
  if (found->legacy) done = done && implicit_deps(call.rt, *context, *found).empty();
  return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SOFTGPU_API(cuStreamSynchronize)(CUstream stream) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  SOFTGPU_TRY(not_captured(call, found));
  return finish_stream(call, found);
}

SOFTGPU_API(cuStreamWaitEvent)(CUstream stream, CUevent event, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.context());
  if ((flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found_event = call.rt.events.find(event);
  if (!found_event) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(call.stream(stream, found));
  if ((flags & CU_EVENT_WAIT_EXTERNAL) != 0) {
    if (!found->capture) return CUDA_ERROR_ILLEGAL_STATE;
    return capture_task(call, found, EventWaitTask{found_event});
  }
  return enqueue(call, found, EventWaitTask{found_event});
}

SOFTGPU_API(cuStreamAttachMemAsync)
(CUstream stream, CUdeviceptr address, size_t length, unsigned flags) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  if (found->capture) {
    invalidate(*found->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const Allocation* allocation = call.rt.addresses.find(address);
  if (allocation == nullptr || allocation->kind != MemoryKind::kManaged) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (length != 0 && length != allocation->bytes) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
      flags != CU_MEM_ATTACH_SINGLE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags == CU_MEM_ATTACH_SINGLE && found->legacy) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(call, found, EmptyTask{});
}

SOFTGPU_API(cuStreamCopyAttributes)(CUstream dst_stream, CUstream src_stream) {
  Call call;
  SOFTGPU_TRY(call.context());
  std::shared_ptr<Stream> to;
  std::shared_ptr<Stream> from;
  SOFTGPU_TRY(call.stream(dst_stream, to));
  SOFTGPU_TRY(call.stream(src_stream, from));
  to->attributes = from->attributes;
  return CUDA_SUCCESS;
}

namespace {

bool stream_attribute(CUlaunchAttributeID attribute) {
  switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      return true;
    default:
      return false;
  }
}

}  // namespace

SOFTGPU_API(cuStreamGetAttribute)
(CUstream stream, CUlaunchAttributeID attr, CUlaunchAttributeValue* value) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  if (value == nullptr || !stream_attribute(attr)) return CUDA_ERROR_INVALID_VALUE;
  const auto set = found->attributes.find(attr);
  *value = set == found->attributes.end() ? CUlaunchAttributeValue{} : set->second;
  if (set == found->attributes.end()) {
    if (attr == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) value->syncPolicy = CU_SYNC_POLICY_AUTO;
    if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = found->priority;
    if (attr == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP) value->memSyncDomainMap = {0, 1};
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuStreamSetAttribute)
(CUstream stream, CUlaunchAttributeID attr, const CUlaunchAttributeValue* param) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  if (param == nullptr || !stream_attribute(attr)) return CUDA_ERROR_INVALID_VALUE;
  found->attributes[attr] = *param;
  if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
    found->priority = std::clamp(param->priority, kGreatestPriority, 0);
  }
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
