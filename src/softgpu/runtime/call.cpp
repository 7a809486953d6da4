#include "softgpu/runtime/call.h"

#include <algorithm>
#include <atomic>

#include "softgpu/runtime/capture.h"
#include "softgpu/runtime/execute.h"
#include "softgpu/runtime/memory_ops.h"

namespace nvshare::softgpu {

ThreadState& this_thread() {
  static std::atomic<std::uint64_t> next{0};
  thread_local ThreadState state{++next, {}, CU_STREAM_CAPTURE_MODE_GLOBAL, false};
  return state;
}

std::shared_ptr<Context> find_context(Runtime& rt, CUcontext handle) {
  auto found = rt.contexts.find(handle);
  return found && !found->dead ? found : nullptr;
}

CUresult Call::any_context() {
  SOFTGPU_TRY(ready());
  const ThreadState& thread = this_thread();
  if (thread.stack.empty() || thread.stack.back() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  ctx = rt.contexts.find(thread.stack.back());
  if (!ctx || ctx->dead) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return CUDA_SUCCESS;
}

CUresult Call::context() {
  SOFTGPU_TRY(any_context());
  if (rt.lost(ctx->device) && ctx->error == CUDA_SUCCESS) {
    ctx->error = CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
  return ctx->error;
}

CUresult Call::stream(CUstream handle, std::shared_ptr<Stream>& out) {
  if (handle == nullptr) {
    handle = this_thread().per_thread_default ? stream_per_thread() : stream_legacy();
  }
  if (handle == stream_legacy()) {
    out = ctx->legacy;
    return CUDA_SUCCESS;
  }
  if (handle == stream_per_thread()) {
    std::shared_ptr<Stream>& own = ctx->per_thread[this_thread().id];
    if (!own) {
      own = std::make_shared<Stream>();
      own->handle = stream_per_thread();
      own->context = ctx;
      own->id = rt.new_id();
    }
    out = own;
    return CUDA_SUCCESS;
  }
  out = rt.streams.find(handle);
  if (!out) return CUDA_ERROR_INVALID_HANDLE;
  const auto context = out->context.lock();
  if (!context || context->dead) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return context->error;
}

CUresult Call::no_unsafe_capture() {
  const ThreadState& thread = this_thread();
  if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  bool hurt = false;
  for (const auto& weak : rt.captures) {
    const auto capture = weak.lock();
    if (!capture || capture->streams.empty()) continue;  // over
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool mine = capture->thread == thread.id;
    const bool concerns = mine || (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                   thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (!concerns) continue;
    invalidate(*capture);
    hurt = true;
  }
  return hurt ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult enqueue(Call& call, const std::shared_ptr<Stream>& stream, Task task) {
  const auto context = stream->context.lock();
  if (!context || context->dead) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (context->error != CUDA_SUCCESS) return context->error;
  if (stream->legacy) SOFTGPU_TRY(no_implicit_capture(*context));
  if (const auto* wait = std::get_if<EventWaitTask>(&task)) {
    if (stream->capture || wait->event->capture) return capture_wait(call, stream, wait->event);
  }
  if (stream->capture) return capture_task(call, stream, std::move(task));
  const int lane =
      call.rt.finished(stream->last) ? call.rt.pick_lane(stream->lane) : stream->last.lane();
  stream->lane = lane;
  auto deps = implicit_deps(call.rt, *context, *stream);
  deps.push_back(stream->last);
  stream->last = submit_task(call, context, lane, task, std::move(deps));
  return CUDA_SUCCESS;
}

CUresult finish_stream(Call& call, const std::shared_ptr<Stream>& stream) {
  const auto context = stream->context.lock();
  if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  call.rt.wait(call.lock, stream->last);
  if (stream->legacy) {
    // What the legacy stream would wait for, waiting for it waits for too.
    for (const LanePoint& point : implicit_deps(call.rt, *context, *stream)) {
      call.rt.wait(call.lock, point);
    }
  }
  trim_pools(call.rt);
  return context->error;
}

}  // namespace nvshare::softgpu
