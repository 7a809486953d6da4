// Streams come and go, are captured, and are waited for.
#include "interposer/catch/bodies.h"
#include "interposer/gate/records.h"
#include "interposer/link/state.h"
#include "interposer/memory/driver_room.h"

namespace nvshare::interposer::gate {
namespace {

template <FunctionId id, typename... Arguments>
CUresult create(CUstream* stream, Arguments... arguments) {
  const CUresult result = memory::real_with_room<id>(stream, arguments...);
  if (result == CUDA_SUCCESS) note_stream(*stream);
  return result;
}

template <FunctionId id>
CUresult destroy(CUstream stream) {
  HoldMarkers hold;
  return hold.leaving(stream) ? real<id>(stream) : CUDA_SUCCESS;
}

template <FunctionId id, typename... Arguments>
CUresult begin_capture(Arguments... arguments) {
  HoldMarkers hold;
  const CUresult result = real<id>(arguments...);
  if (result == CUDA_SUCCESS) g_captures.fetch_add(1);
  return result;
}

// A stream that waits for an event of a capture joins it.
template <FunctionId id>
CUresult wait_for_event(CUstream stream, CUevent event, unsigned flags) {
  if (g_captures.load(std::memory_order_relaxed) == 0) return real<id>(stream, event, flags);
  HoldMarkers hold;
  return real<id>(stream, event, flags);
}

bool is_capturing(CUstream stream, bool per_thread) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (per_thread) {
    real<FunctionId::cuStreamIsCapturing_ptsz>(stream, &status);
  } else {
    real<FunctionId::cuStreamIsCapturing>(stream, &status);
  }
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

template <FunctionId id>
CUresult end_capture(CUstream stream, CUgraph* graph, bool per_thread) {
  const bool before = is_capturing(stream, per_thread);
  const CUresult result = real<id>(stream, graph);
  if (before && !is_capturing(stream, per_thread)) g_captures.fetch_sub(1);
  return result;
}

// Whether anything of what is waited for could be counted.
bool metered(const Gate* gate) {
  return gate != nullptr && gate->state.load(std::memory_order_relaxed) != kFree;
}

template <FunctionId id>
CUresult wait_for_stream(CUstream stream, bool per_thread) {
  const Gate* only = g_only_gate.load(std::memory_order_relaxed);
  if (only != nullptr && !metered(only)) return real<id>(stream);
  StreamRecord* record = nullptr;
  uint64_t submitted = 0;
  if (Slot* slot = own_slot()) record = known_record(*slot, {stream, per_thread});
  if (record != nullptr) submitted = submitted_before(*record);
  const CUresult result = real<id>(stream);
  if (result == CUDA_SUCCESS && record != nullptr) {
    const KeepErrno keep;
    note_done(*record, submitted);
    link::note_waited(*record->gate->link);
  }
  return result;
}

// All that was submitted to a context before a wait. More streams than that are left to the
// markers.
struct Before {
  static constexpr unsigned kMost = 64;
  unsigned count = 0;
  StreamRecord* records[kMost];
  uint64_t submitted[kMost];

  static void add(StreamRecord& record, void* self) {
    auto& before = *static_cast<Before*>(self);
    if (before.count == kMost || !record.busy()) return;
    before.records[before.count] = &record;
    before.submitted[before.count++] = submitted_before(record);
  }
};

template <FunctionId id, typename... Arguments>
CUresult wait_for_context(CUcontext context, Arguments... arguments) {
  const Gate* only = g_only_gate.load(std::memory_order_relaxed);
  if (only != nullptr && !metered(only)) return real<id>(arguments...);
  if (context == nullptr) real<FunctionId::cuCtxGetCurrent>(&context);
  Before before;
  for_records_of(context, Before::add, &before);
  const CUresult result = real<id>(arguments...);
  if (result != CUDA_SUCCESS || before.count == 0) return result;
  const KeepErrno keep;
  for (unsigned i = 0; i < before.count; ++i) note_done(*before.records[i], before.submitted[i]);
  link::note_waited(*before.records[0]->gate->link);
  return result;
}

}  // namespace

}  // namespace nvshare::interposer::gate

namespace nvshare::interposer::own {
using namespace gate;

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return create<FunctionId::cuStreamCreate>(stream, flags);
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return create<FunctionId::cuStreamCreateWithPriority>(stream, flags, priority);
}
CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green_ctx, unsigned flags,
                                int priority) {
  return create<FunctionId::cuGreenCtxStreamCreate>(stream, green_ctx, flags, priority);
}
CUresult cuStreamDestroy(CUstream stream) {
  return destroy<FunctionId::cuStreamDestroy>(stream);
}
CUresult cuStreamDestroy_v2(CUstream stream) {
  return destroy<FunctionId::cuStreamDestroy_v2>(stream);
}

CUresult cuStreamBeginCapture(CUstream stream) {
  return begin_capture<FunctionId::cuStreamBeginCapture>(stream);
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return begin_capture<FunctionId::cuStreamBeginCapture_ptsz>(stream);
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture<FunctionId::cuStreamBeginCapture_v2>(stream, mode);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture<FunctionId::cuStreamBeginCapture_v2_ptsz>(stream, mode);
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                     const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* dependency_data,
                                     size_t num_dependencies, CUstreamCaptureMode mode) {
  return begin_capture<FunctionId::cuStreamBeginCaptureToGraph>(
      stream, graph, dependencies, dependency_data, num_dependencies, mode);
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                          const CUgraphNode* dependencies,
                                          const CUgraphEdgeData* dependency_data,
                                          size_t num_dependencies, CUstreamCaptureMode mode) {
  return begin_capture<FunctionId::cuStreamBeginCaptureToGraph_ptsz>(
      stream, graph, dependencies, dependency_data, num_dependencies, mode);
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return wait_for_event<FunctionId::cuStreamWaitEvent>(stream, event, flags);
}
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
  return wait_for_event<FunctionId::cuStreamWaitEvent_ptsz>(stream, event, flags);
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return end_capture<FunctionId::cuStreamEndCapture>(stream, graph, false);
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return end_capture<FunctionId::cuStreamEndCapture_ptsz>(stream, graph, true);
}

CUresult cuStreamSynchronize(CUstream stream) {
  return wait_for_stream<FunctionId::cuStreamSynchronize>(stream, false);
}
CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  return wait_for_stream<FunctionId::cuStreamSynchronize_ptsz>(stream, true);
}
CUresult cuCtxSynchronize() {
  return wait_for_context<FunctionId::cuCtxSynchronize>(nullptr);
}
CUresult cuCtxSynchronize_v2(CUcontext ctx) {
  return wait_for_context<FunctionId::cuCtxSynchronize_v2>(ctx, ctx);
}

}  // namespace nvshare::interposer::own
