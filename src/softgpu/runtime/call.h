#pragma once

#include "softgpu/runtime/runtime.h"

// What every entry point begins with.
namespace nvshare::softgpu {

// Returns from the calling function unless `expression` is CUDA_SUCCESS.
#define SOFTGPU_TRY(expression)                                                         \
  do {                                                                                  \
    if (const CUresult result_ = (expression); result_ != CUDA_SUCCESS) return result_; \
  } while (false)

// The body of a function of the driver. Its declaration comes from the one table (api.h), so a
// signature that differs does not compile.
#define SOFTGPU_API(symbol) extern "C" CUresult impl_##symbol

// What the calling thread has of its own.
struct ThreadState {
  std::uint64_t id = 0;
  std::vector<CUcontext> stack;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool per_thread_default = false;  // the call came in through a _ptsz or _ptds symbol
};
ThreadState& this_thread();

// Holds the runtime's lock during a call and knows the current context.
class Call {
 public:
  Call() : rt(Runtime::instance()) {
    if (!rt.forked) lock = Lock(rt.mutex);
  }

  // CUDA_SUCCESS once cuInit has been.
  CUresult ready() const {
    if (rt.forked) return CUDA_ERROR_NOT_INITIALIZED;
    return rt.init_state;
  }
  // Finds the calling thread's context; fails without one, or with one that is broken.
  CUresult context();
  // The same, but a broken context will do.
  CUresult any_context();

  Runtime& rt;
  Lock lock;
  std::shared_ptr<Context> ctx;

  CUresult device(CUdevice device) const {
    return device >= 0 && device < rt.device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  }
  // The stream of a handle, 0 and the two special ones included.
  CUresult stream(CUstream handle, std::shared_ptr<Stream>& out);
  // Refuses what would break a capture under way, and spoils that capture (global and thread-local
  // capture do not allow calls that may wait for the device).
  CUresult no_unsafe_capture();
};

// The context behind a handle, if it lives.
std::shared_ptr<Context> find_context(Runtime& rt, CUcontext handle);

// Puts the task into the stream, or into the graph that the stream is being captured into.
CUresult enqueue(Call& call, const std::shared_ptr<Stream>& stream, Task task);
// Waits for all that was put into the stream, and tells what became of its context.
CUresult finish_stream(Call& call, const std::shared_ptr<Stream>& stream);

}  // namespace nvshare::softgpu
