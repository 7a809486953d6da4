#include <cstring>

#include "softgpu/api/api.h"
#include "softgpu/runtime/capture.h"
#include "softgpu/runtime/memory_ops.h"

// Events, and events shared between processes.
namespace nvshare::softgpu {
namespace {

CUresult find(Call& call, CUevent handle, std::shared_ptr<Event>& out) {
  SOFTGPU_TRY(call.ready());
  out = call.rt.events.find(handle);
  if (!out) return CUDA_ERROR_INVALID_HANDLE;
  const auto context = out->context.lock();
  if (!context || context->dead) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return context->error;
}

bool foreign_done(Runtime& rt, const Event& event) {
  Segment::Lock card_lock(*rt.segment);
  const IpcEvent& shared = rt.segment->card().events[event.ipc];
  return shared.done >= shared.recorded;
}

bool is_done(Runtime& rt, const Event& event) {
  return event.imported ? foreign_done(rt, event) : rt.finished(event.point);
}

// An event that marks a point of a capture is nothing to wait for.
CUresult not_captured(Call& call, const Event& event) {
  if (event.capture) {
    const bool live = event.capture->status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (!live) return CUDA_ERROR_INVALID_VALUE;
    invalidate(*event.capture);
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  return call.no_unsafe_capture();
}

struct IpcEventName {
  std::uint64_t magic;
  std::uint64_t key;
  std::int32_t index;
};
constexpr std::uint64_t kIpcEventMagic = 0x544e455645475453;

}  // namespace

SOFTGPU_API(cuEventCreate)(CUevent* event, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.context());
  constexpr unsigned kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (event == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto made = std::make_shared<Event>();
  made->handle = reinterpret_cast<CUevent>(call.rt.new_handle());
  made->context = call.ctx;
  made->flags = flags;
  call.rt.events.add(reinterpret_cast<std::uint64_t>(made->handle), made);
  *event = made->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuEventRecordWithFlags)(CUevent event, CUstream stream, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.context());
  if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Event> found;
  SOFTGPU_TRY(find(call, event, found));
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  if (found->context.lock() != target->context.lock()) return CUDA_ERROR_INVALID_HANDLE;
  if (!target->capture && (flags & CU_EVENT_RECORD_EXTERNAL) != 0) return CUDA_ERROR_ILLEGAL_STATE;
  if (target->capture && (flags & CU_EVENT_RECORD_EXTERNAL) == 0) {
    if (target->capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    capture_record(target, found);
    return CUDA_SUCCESS;
  }
  return enqueue(call, target, EventRecordTask{found});
}

SOFTGPU_API(cuEventRecord)(CUevent event, CUstream stream) {
  return impl_cuEventRecordWithFlags(event, stream, 0);
}

SOFTGPU_API(cuEventQuery)(CUevent event) {
  Call call;
  std::shared_ptr<Event> found;
  SOFTGPU_TRY(find(call, event, found));
  SOFTGPU_TRY(not_captured(call, *found));
  call.rt.pump(call.lock);
  const auto context = found->context.lock();
  if (context->error != CUDA_SUCCESS) return context->error;
  return is_done(call.rt, *found) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SOFTGPU_API(cuEventSynchronize)(CUevent event) {
  Call call;
  std::shared_ptr<Event> found;
  SOFTGPU_TRY(find(call, event, found));
  SOFTGPU_TRY(not_captured(call, *found));
  if (found->imported) {
    while (!foreign_done(call.rt, *found)) {
      call.lock.unlock();
      const timespec pause{0, 100'000};
      nanosleep(&pause, nullptr);
      call.lock.lock();
    }
  } else {
    call.rt.wait(call.lock, found->point);
  }
  trim_pools(call.rt);
  const auto context = found->context.lock();
  return context ? context->error : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

SOFTGPU_API(cuEventDestroy_v2)(CUevent event) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.events.find(event);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (found->ipc >= 0) {
    Segment::Lock card_lock(*call.rt.segment);
    IpcEvent& shared = call.rt.segment->card().events[found->ipc];
    shared.holders &= ~bit(call.rt.segment->slot());
    if (shared.holders == 0) shared.key = 0;
  }
  call.rt.events.remove(event);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuEventElapsedTime_v2)(float* milliseconds, CUevent start, CUevent end) {
  Call call;
  SOFTGPU_TRY(call.ready());
  std::shared_ptr<Event> first;
  std::shared_ptr<Event> second;
  SOFTGPU_TRY(find(call, start, first));
  SOFTGPU_TRY(find(call, end, second));
  for (const auto& one : {first, second}) {
    if (one->capture) return CUDA_ERROR_INVALID_VALUE;
    if ((one->flags & CU_EVENT_DISABLE_TIMING) != 0 || !one->recorded || milliseconds == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
  }
  call.rt.pump(call.lock);
  if (!is_done(call.rt, *first) || !is_done(call.rt, *second)) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(static_cast<double>(second->time - first->time) / 1e6);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuIpcGetEventHandle)(CUipcEventHandle* handle, CUevent event) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (handle == nullptr || event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Event> found;
  SOFTGPU_TRY(find(call, event, found));
  if ((found->flags & CU_EVENT_INTERPROCESS) == 0 || found->imported) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  Segment::Lock card_lock(*call.rt.segment);
  Card& card = call.rt.segment->card();
  for (int i = 0; i < kMaxIpcEvents && found->ipc < 0; ++i) {
    IpcEvent& shared = card.events[i];
    if (shared.key != 0) continue;
    shared = IpcEvent{};
    shared.key = card.next_key++;
    shared.holders = bit(call.rt.segment->slot());
    shared.recorded = found->records - found->finished;  // those under way
    found->ipc = i;
  }
  if (found->ipc < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const IpcEventName name{kIpcEventMagic, card.events[found->ipc].key, found->ipc};
  *handle = CUipcEventHandle{};
  std::memcpy(handle->reserved, &name, sizeof name);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuIpcOpenEventHandle)(CUevent* event, CUipcEventHandle handle) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  IpcEventName name{};
  std::memcpy(&name, handle.reserved, sizeof name);
  if (name.magic != kIpcEventMagic || name.index < 0 || name.index >= kMaxIpcEvents) {
    return CUDA_ERROR_MAP_FAILED;
  }
  {
    Segment::Lock card_lock(*call.rt.segment);
    IpcEvent& shared = call.rt.segment->card().events[name.index];
    if (shared.key != name.key || shared.key == 0) return CUDA_ERROR_INVALID_HANDLE;
    if ((shared.holders & bit(call.rt.segment->slot())) != 0) return CUDA_ERROR_INVALID_CONTEXT;
    shared.holders |= bit(call.rt.segment->slot());
  }
  auto made = std::make_shared<Event>();
  made->handle = reinterpret_cast<CUevent>(call.rt.new_handle());
  made->context = call.ctx;
  made->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  made->ipc = name.index;
  made->imported = true;
  made->recorded = true;
  call.rt.events.add(reinterpret_cast<std::uint64_t>(made->handle), made);
  *event = made->handle;
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
