// Streams: kinds, priorities, waiting, callbacks, order between them.

#include <atomic>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

void creating(Run& run) {
  CUstream stream = nullptr;
  unsigned flags = 99;
  int priority = 99;
  unsigned long long id = 0;
  CUdevice device = -1;
  CUcontext context = nullptr;
  CALL(cuStreamCreate, &stream, CU_STREAM_DEFAULT);
  CALL(cuStreamGetFlags, stream, &flags);
  run.value("flags", flags);
  CALL(cuStreamDestroy_v2, stream);
  CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  CALL(cuStreamGetFlags, stream, &flags);
  run.value("flags", flags);
  CALL(cuStreamGetPriority, stream, &priority);
  run.value("priority", priority);
  CALL(cuStreamGetId, stream, &id);
  CALL(cuStreamGetDevice, stream, &device);
  run.value("device", device);
  CALL(cuStreamGetCtx, stream, &context);
  run.value("has a context", context != nullptr);
  CALL(cuStreamGetFlags, stream, nullptr);
  CALL(cuStreamGetPriority, stream, nullptr);
  CALL(cuStreamGetCtx, stream, nullptr);
  CALL(cuStreamDestroy_v2, stream);
  CALL(cuStreamCreate, &stream, 2);
  CALL(cuStreamCreate, &stream, 0x80);
  CALL(cuStreamCreate, nullptr, 0);
  CALL(cuStreamDestroy_v2, nullptr);
  CALL(cuStreamDestroy_v2, stream_legacy());
  CALL(cuStreamDestroy_v2, stream_per_thread());
  CALL(cuStreamGetFlags, nullptr, &flags);
  run.value("flags", flags);
  CALL(cuStreamGetFlags, stream_legacy(), &flags);
  run.value("flags", flags);
  CALL(cuStreamGetFlags, stream_per_thread(), &flags);
  run.value("flags", flags);
  CALL(cuStreamGetPriority, nullptr, &priority);
  run.value("priority", priority);
}

void priorities(Run& run) {
  CUstream stream = nullptr;
  int priority = 99;
  const int wanted[] = {0, -1, -5, 1, -100, 100};
  for (const int each : wanted) {
    run.value("asked for", each);
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, each);
    CALL(cuStreamGetPriority, stream, &priority);
    run.value("priority", priority);
    SETUP(cuStreamDestroy_v2, stream);
  }
  CALL(cuStreamCreateWithPriority, &stream, 0x80, 0);
  CALL(cuStreamCreateWithPriority, nullptr, 0, 0);
}

void stream_attributes(Run& run) {
  const CUstream stream = new_stream(run);
  const CUstream other = new_stream(run);
  CUlaunchAttributeValue value = {};
  value.syncPolicy = CU_SYNC_POLICY_BLOCKING_SYNC;
  CALL(cuStreamSetAttribute, stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
  value = {};
  CALL(cuStreamGetAttribute, stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
  run.value("policy", static_cast<int>(value.syncPolicy));
  CALL(cuStreamCopyAttributes, other, stream);
  value = {};
  CALL(cuStreamGetAttribute, other, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
  run.value("policy", static_cast<int>(value.syncPolicy));
  CALL(cuStreamGetAttribute, stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value);
  run.value("priority", value.priority);
  CALL(cuStreamGetAttribute, stream, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value);
  CALL(cuStreamGetAttribute, stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, nullptr);
}

void waiting(Run& run, const Kernels& kernels) {
  const CUstream stream = new_stream(run);
  CALL(cuStreamQuery, stream);
  launch_spin(run, kernels, stream, 100);
  CALL(cuStreamQuery, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuStreamQuery, stream);
  CALL(cuStreamQuery, nullptr);
  CALL(cuStreamQuery_ptsz, nullptr);
  CALL(cuStreamQuery, stream_per_thread());
  launch_spin(run, kernels, stream, 30);
  CALL(cuStreamDestroy_v2, stream);
  CALL(cuCtxSynchronize);
}

// The legacy stream waits for blocking streams and they for it; others know nothing of it.
void order(Run& run, const Kernels& kernels) {
  const CUstream blocking = new_stream(run, CU_STREAM_DEFAULT);
  const CUstream non_blocking = new_stream(run, CU_STREAM_NON_BLOCKING);
  const CUdeviceptr address = device_memory(run, kMiB);
  run.heading("legacy work behind a busy blocking stream");
  launch_spin(run, kernels, blocking, 100);
  launch_fill(run, kernels, nullptr, address, 1, 64);
  CALL(cuStreamQuery, nullptr);
  CALL(cuStreamQuery, non_blocking);
  SETUP(cuCtxSynchronize);
  run.heading("legacy work behind a busy non-blocking stream");
  launch_spin(run, kernels, non_blocking, 100);
  launch_fill(run, kernels, nullptr, address, 1, 64);
  CALL(cuStreamSynchronize, nullptr);
  CALL(cuStreamQuery, non_blocking);
  SETUP(cuCtxSynchronize);
  run.heading("a blocking stream behind busy legacy work");
  launch_spin(run, kernels, nullptr, 100);
  launch_fill(run, kernels, blocking, address, 1, 64);
  CALL(cuStreamQuery, blocking);
  CALL(cuStreamQuery, stream_per_thread());
  launch_fill(run, kernels, stream_per_thread(), address, 1, 64);
  CALL(cuStreamQuery, stream_per_thread());
  SETUP(cuCtxSynchronize);
  run.heading("a synchronous copy waits for the legacy stream");
  uint32_t word = 0;
  launch_spin(run, kernels, nullptr, 50);
  launch_fill(run, kernels, nullptr, address, 9, 64);
  CALL(cuMemcpyDtoH_v2, &word, address, sizeof word);
  run.value("word", word);
}

struct CallbackRecord {
  std::atomic<int> calls{0};
  CUresult status = CUDA_ERROR_UNKNOWN;
  CUstream stream = nullptr;
};

void callback(CUstream stream, CUresult status, void* data) {
  auto* record = static_cast<CallbackRecord*>(data);
  record->stream = stream;
  record->status = status;
  ++record->calls;
}

void callbacks(Run& run) {
  const CUstream stream = new_stream(run);
  CallbackRecord record;
  CALL(cuStreamAddCallback, stream, callback, &record, 0);
  CALL(cuStreamSynchronize, stream);
  run.value("calls", record.calls.load());
  run.value("status", record.status);
  run.value("is the stream", record.stream == stream);
  CALL(cuStreamAddCallback, nullptr, callback, &record, 0);
  CALL(cuStreamSynchronize, nullptr);
  run.value("calls", record.calls.load());
  run.value("stream is null", record.stream == nullptr);
  CALL(cuStreamAddCallback, stream, callback, &record, 1);
  CALL(cuStreamAddCallback, stream, nullptr, &record, 0);
  CALL(cuStreamSynchronize, stream);
}

}  // namespace

void streams(Run& run) {
  use_card(run);
  const Kernels kernels = load_kernels(run);
  creating(run);
  run.heading("priorities");
  priorities(run);
  run.heading("attributes");
  stream_attributes(run);
  run.heading("waiting");
  waiting(run, kernels);
  order(run, kernels);
  run.heading("callbacks");
  callbacks(run);
}

}  // namespace nvshare::conformance
