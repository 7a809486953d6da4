// Capturing streams: what becomes of calls while it goes on, in each of the modes.

#include <thread>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

const char* status_name(CUstreamCaptureStatus status) {
  switch (status) {
    case CU_STREAM_CAPTURE_STATUS_NONE:
      return "none";
    case CU_STREAM_CAPTURE_STATUS_ACTIVE:
      return "active";
    case CU_STREAM_CAPTURE_STATUS_INVALIDATED:
      return "invalidated";
  }
  return "something else";
}

void print_status(const Run& run, CUstream stream) {
  auto status = static_cast<CUstreamCaptureStatus>(99);
  const CUresult result = QUIET(cuStreamIsCapturing, stream, &status);
  run.value("capturing", result == CUDA_SUCCESS ? status_name(status) : text_of(result).c_str());
}

// Ends a capture that the section is done with, whatever became of it.
void end_and_forget(const Run& run, CUstream stream) {
  CUgraph graph = nullptr;
  QUIET(cuStreamEndCapture, stream, &graph);
  if (graph != nullptr) SETUP(cuGraphDestroy, graph);
}

void beginning_and_ending(Run& run, const Kernels& kernels) {
  const CUstream stream = new_stream(run);
  const CUdeviceptr address = device_memory(run, kMiB);
  CUgraph graph = nullptr;
  size_t nodes = 99;
  const auto no_such_mode = static_cast<CUstreamCaptureMode>(9);
  print_status(run, stream);
  CALL(cuStreamEndCapture, stream, &graph);
  CALL(cuStreamBeginCapture_v2, stream, no_such_mode);
  CALL(cuStreamBeginCapture_v2, nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CALL(cuStreamBeginCapture_v2, stream_legacy(), CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  print_status(run, stream);
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  print_status(run, stream);
  launch_fill(run, kernels, stream, address, 1, 64);
  CALL(cuMemsetD32Async, address, 2, 16, stream);
  CALL(cuStreamEndCapture, stream, &graph);
  run.value("there is a graph", graph != nullptr);
  CALL(cuGraphGetNodes, graph, nullptr, &nodes);
  run.value("nodes", nodes);
  CALL(cuGraphDestroy, graph);
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CALL(cuStreamEndCapture, stream, nullptr);
  print_status(run, stream);
  end_and_forget(run, stream);
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CALL(cuStreamEndCapture, stream, &graph);
  CALL(cuGraphGetNodes, graph, nullptr, &nodes);
  run.value("nodes of an empty capture", nodes);
  CALL(cuStreamBeginCapture, stream);
  CALL(cuStreamEndCapture, stream, &graph);
  CALL(cuStreamBeginCapture_v2_ptsz, nullptr, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuStreamEndCapture_ptsz, nullptr, &graph);
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CALL(cuStreamDestroy_v2, stream);
}

// The result of the capture is work that has not been done; done when the graph is launched.
void result(Run& run, const Kernels& kernels) {
  const CUstream stream = new_stream(run);
  const CUdeviceptr address = device_memory(run, kMiB);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  fill(run, address, 0, 64);
  SETUP(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  launch_fill(run, kernels, stream, address, 7, 64);
  CALL(cuStreamEndCapture, stream, &graph);
  run.value("nothing was done", all_words(run, address, 0, 64));
  CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  CALL(cuGraphLaunch, executable, stream);
  CALL(cuStreamSynchronize, stream);
  run.value("done", all_words(run, address, 7, 64));
  CALL(cuGraphExecDestroy, executable);
  CALL(cuGraphDestroy, graph);
}

void questions(Run& run) {
  const CUstream stream = new_stream(run);
  auto status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  uint64_t id = 0;
  uint64_t same_id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* dependencies = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 99;
  CALL(cuStreamGetCaptureInfo_v2, stream, &status, &id, &graph, &dependencies, &count);
  run.value("status", status_name(status));
  SETUP(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuStreamGetCaptureInfo, stream, &status, &id);
  run.value("status", status_name(status));
  CALL(cuStreamGetCaptureInfo_v2, stream, &status, &same_id, &graph, &dependencies, &count);
  run.value("the same id", id == same_id);
  run.value("there is a graph", graph != nullptr);
  run.value("dependencies", count);
  SETUP(cuMemsetD32Async, device_memory(run, 4096), 1, 1, stream);
  CALL(cuStreamGetCaptureInfo_v3, stream, &status, nullptr, &graph, &dependencies, &edges, &count);
  run.value("dependencies", count);
  CALL(cuStreamGetCaptureInfo_v2, stream, nullptr, &id, &graph, &dependencies, &count);
  CALL(cuStreamIsCapturing, stream, nullptr);
  CALL(cuStreamIsCapturing, nullptr, &status);
  CALL(cuStreamUpdateCaptureDependencies, stream, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
  CALL(cuStreamGetCaptureInfo_v2, stream, &status, nullptr, nullptr, nullptr, &count);
  CALL(cuStreamGetCaptureInfo_v2, stream, &status, nullptr, nullptr, &dependencies, &count);
  run.value("dependencies", count);
  end_and_forget(run, stream);
  CALL(cuStreamUpdateCaptureDependencies, stream, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
}

void refused_on_the_stream(Run& run) {
  const CUstream stream = new_stream(run);
  CUgraph graph = nullptr;
  const CUdeviceptr address = device_memory(run, kMiB);
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuStreamSynchronize, stream);
  print_status(run, stream);
  CALL(cuMemsetD32Async, address, 1, 16, stream);
  CALL(cuStreamEndCapture, stream, &graph);
  run.value("graph is null", graph == nullptr);
  print_status(run, stream);
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuStreamQuery, stream);
  print_status(run, stream);
  CALL(cuStreamEndCapture, stream, &graph);
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuCtxSynchronize);
  print_status(run, stream);
  CALL(cuStreamEndCapture, stream, &graph);
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuStreamGetFlags, stream, nullptr);
  CALL(cuStreamAttachMemAsync, stream, address, 0, CU_MEM_ATTACH_SINGLE);
  CALL(
      cuStreamAddCallback, stream, [](CUstream, CUresult, void*) {}, nullptr, 0);
  print_status(run, stream);
  end_and_forget(run, stream);
}

void events_of_a_capture(Run& run) {
  const CUstream stream = new_stream(run);
  const CUstream other = new_stream(run);
  const CUevent event = new_event(run);
  const CUevent outside = new_event(run);
  float milliseconds = 0;
  CUgraph graph = nullptr;
  SETUP(cuEventRecord, outside, other);
  SETUP(cuEventSynchronize, outside);
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuEventRecord, event, stream);
  CALL(cuEventQuery, event);
  print_status(run, stream);
  CALL(cuEventSynchronize, event);
  print_status(run, stream);
  CALL(cuEventElapsedTime_v2, &milliseconds, event, event);
  CALL(cuEventQuery, outside);
  CALL(cuStreamWaitEvent, stream, outside, 0);
  print_status(run, stream);
  end_and_forget(run, stream);
  run.heading("waiting for what lies outside of the capture");
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuStreamWaitEvent, stream, outside, 0);
  print_status(run, stream);
  CALL(cuStreamEndCapture, stream, &graph);
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuStreamWaitEvent, stream, outside, CU_EVENT_WAIT_EXTERNAL);
  CALL(cuEventRecordWithFlags, outside, stream, CU_EVENT_RECORD_EXTERNAL);
  CALL(cuStreamEndCapture, stream, &graph);
  size_t nodes = 0;
  CALL(cuGraphGetNodes, graph, nullptr, &nodes);
  run.value("nodes", nodes);
  run.heading("an event of a capture, after it");
  CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuEventRecord, event, stream);
  CALL(cuStreamEndCapture, stream, &graph);
  CALL(cuEventQuery, event);
  CALL(cuStreamWaitEvent, other, event, 0);
  CALL(cuStreamSynchronize, other);
  CALL(cuEventRecord, event, other);
  CALL(cuEventSynchronize, event);
}

void forks_and_joins(Run& run) {
  const CUstream origin = new_stream(run);
  const CUstream branch = new_stream(run);
  const CUevent fork = new_event(run, CU_EVENT_DISABLE_TIMING);
  const CUevent join = new_event(run, CU_EVENT_DISABLE_TIMING);
  const CUdeviceptr address = device_memory(run, kMiB);
  CUgraph graph = nullptr;
  size_t nodes = 0;
  size_t edges = 0;
  CALL(cuStreamBeginCapture_v2, origin, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CALL(cuMemsetD32Async, address, 1, 16, origin);
  CALL(cuEventRecord, fork, origin);
  CALL(cuStreamWaitEvent, branch, fork, 0);
  print_status(run, branch);
  CALL(cuMemsetD32Async, address + 4096, 1, 16, branch);
  CALL(cuMemsetD32Async, address + 8192, 1, 16, origin);
  CALL(cuStreamEndCapture, branch, &graph);
  print_status(run, origin);
  CALL(cuEventRecord, join, branch);
  CALL(cuStreamWaitEvent, origin, join, 0);
  CALL(cuMemsetD32Async, address, 2, 16, origin);
  CALL(cuStreamEndCapture, origin, &graph);
  print_status(run, branch);
  CALL(cuGraphGetNodes, graph, nullptr, &nodes);
  CALL(cuGraphGetEdges, graph, nullptr, nullptr, &edges);
  run.value("nodes", nodes);
  run.value("edges", edges);
  run.heading("not joined");
  CALL(cuStreamBeginCapture_v2, origin, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CALL(cuEventRecord, fork, origin);
  CALL(cuStreamWaitEvent, branch, fork, 0);
  CALL(cuMemsetD32Async, address, 1, 16, branch);
  CALL(cuStreamEndCapture, origin, &graph);
  print_status(run, origin);
  print_status(run, branch);
  run.heading("two captures that meet");
  CALL(cuStreamBeginCapture_v2, origin, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuStreamBeginCapture_v2, branch, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuEventRecord, fork, origin);
  CALL(cuStreamWaitEvent, branch, fork, 0);
  print_status(run, origin);
  print_status(run, branch);
  CALL(cuStreamEndCapture, origin, &graph);
  CALL(cuStreamEndCapture, branch, &graph);
}

void legacy_stream(Run& run) {
  const CUstream blocking = new_stream(run, CU_STREAM_DEFAULT);
  const CUstream free_stream = new_stream(run, CU_STREAM_NON_BLOCKING);
  const CUdeviceptr address = device_memory(run, kMiB);
  uint32_t word = 0;
  CUgraph graph = nullptr;
  run.heading("the legacy stream, while a blocking stream is captured");
  CALL(cuStreamBeginCapture_v2, blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuMemsetD32Async, address, 1, 16, nullptr);
  print_status(run, blocking);
  CALL(cuStreamEndCapture, blocking, &graph);
  CALL(cuStreamBeginCapture_v2, blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuStreamSynchronize, nullptr);
  print_status(run, blocking);
  end_and_forget(run, blocking);
  CALL(cuStreamBeginCapture_v2, blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuMemcpyDtoH_v2, &word, address, sizeof word);
  print_status(run, blocking);
  end_and_forget(run, blocking);
  CALL(cuStreamBeginCapture_v2, blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuStreamIsCapturing, nullptr, reinterpret_cast<CUstreamCaptureStatus*>(&word));
  print_status(run, blocking);
  end_and_forget(run, blocking);
  run.heading("the legacy stream, while a non-blocking stream is captured");
  CALL(cuStreamBeginCapture_v2, free_stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuMemsetD32Async, address, 1, 16, nullptr);
  CALL(cuStreamSynchronize, nullptr);
  CALL(cuMemcpyDtoH_v2, &word, address, sizeof word);
  print_status(run, free_stream);
  CALL(cuStreamEndCapture, free_stream, &graph);
}

// Calls that are not on the stream at all, and are refused or not as the mode has it.
void calls_beside(Run& run, CUstreamCaptureMode mode) {
  const CUstream stream = new_stream(run);
  const CUstream other = new_stream(run);
  const CUevent event = new_event(run);
  SETUP(cuEventRecord, event, other);
  SETUP(cuEventSynchronize, event);
  CUdeviceptr address = 0;
  void* host = nullptr;
  uint32_t word = 0;
  CUevent made = nullptr;
  CUstream made_stream = nullptr;
  size_t bytes = 0;
  SETUP(cuStreamBeginCapture_v2, stream, mode);
  CALL(cuMemGetInfo_v2, &bytes, &bytes);
  CALL(cuStreamCreate, &made_stream, CU_STREAM_NON_BLOCKING);
  CALL(cuEventCreate, &made, 0);
  CALL(cuStreamQuery, other);
  print_status(run, stream);
  CALL(cuStreamSynchronize, other);
  CALL(cuEventQuery, event);
  CALL(cuEventSynchronize, event);
  print_status(run, stream);
  end_and_forget(run, stream);
  SETUP(cuStreamBeginCapture_v2, stream, mode);
  CALL(cuMemAlloc_v2, &address, kMiB);
  print_status(run, stream);
  CALL(cuMemFree_v2, address);
  end_and_forget(run, stream);
  SETUP(cuStreamBeginCapture_v2, stream, mode);
  CALL(cuMemHostAlloc, &host, 4096, 0);
  print_status(run, stream);
  end_and_forget(run, stream);
  const CUdeviceptr device = device_memory(run, kMiB);
  SETUP(cuStreamBeginCapture_v2, stream, mode);
  CALL(cuMemcpyDtoH_v2, &word, device, sizeof word);
  print_status(run, stream);
  end_and_forget(run, stream);
  SETUP(cuStreamBeginCapture_v2, stream, mode);
  CALL(cuCtxSynchronize);
  print_status(run, stream);
  end_and_forget(run, stream);
}

void other_threads(Run& run, CUcontext context, CUstreamCaptureMode mode) {
  const CUstream stream = new_stream(run);
  CUgraph graph = nullptr;
  CUdeviceptr address = 0;
  SETUP(cuStreamBeginCapture_v2, stream, mode);
  std::thread([&] {
    SETUP(cuCtxSetCurrent, context);
    CALL(cuMemAlloc_v2, &address, kMiB);
    print_status(run, stream);
  }).join();
  end_and_forget(run, stream);
  SETUP(cuStreamBeginCapture_v2, stream, mode);
  std::thread([&] {
    SETUP(cuCtxSetCurrent, context);
    CALL(cuStreamEndCapture, stream, &graph);
  }).join();
  print_status(run, stream);
  CALL(cuStreamEndCapture, stream, &graph);
}

void exchanged_mode(Run& run) {
  const CUstream stream = new_stream(run);
  CUdeviceptr address = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  SETUP(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CALL(cuThreadExchangeStreamCaptureMode, &mode);
  run.value("mode before", static_cast<int>(mode));
  CALL(cuMemAlloc_v2, &address, kMiB);
  print_status(run, stream);
  CALL(cuThreadExchangeStreamCaptureMode, &mode);
  run.value("mode before", static_cast<int>(mode));
  CALL(cuThreadExchangeStreamCaptureMode, nullptr);
  mode = static_cast<CUstreamCaptureMode>(9);
  CALL(cuThreadExchangeStreamCaptureMode, &mode);
  end_and_forget(run, stream);
}

void into_a_graph(Run& run) {
  const CUstream stream = new_stream(run);
  const CUdeviceptr address = device_memory(run, kMiB);
  CUgraph graph = nullptr;
  CUgraph same = nullptr;
  CUgraphNode empty = nullptr;
  size_t nodes = 0;
  SETUP(cuGraphCreate, &graph, 0);
  SETUP(cuGraphAddEmptyNode, &empty, graph, nullptr, 0);
  CALL(cuStreamBeginCaptureToGraph, stream, graph, &empty, nullptr, 1,
       CU_STREAM_CAPTURE_MODE_RELAXED);
  CALL(cuMemsetD32Async, address, 1, 16, stream);
  CALL(cuStreamEndCapture, stream, &same);
  run.value("the same graph", same == graph);
  CALL(cuGraphGetNodes, graph, nullptr, &nodes);
  run.value("nodes", nodes);
  CALL(cuStreamBeginCaptureToGraph, stream, nullptr, nullptr, nullptr, 0,
       CU_STREAM_CAPTURE_MODE_RELAXED);
}

}  // namespace

void capture(Run& run) {
  use_card(run);
  const Kernels kernels = load_kernels(run);
  beginning_and_ending(run, kernels);
  run.heading("the result");
  result(run, kernels);
  run.heading("questions");
  questions(run);
  run.heading("refused on the stream");
  refused_on_the_stream(run);
  run.heading("into a graph");
  into_a_graph(run);
}

void capture_streams(Run& run) {
  use_card(run);
  run.heading("events of a capture");
  events_of_a_capture(run);
  run.heading("forks and joins");
  forks_and_joins(run);
  legacy_stream(run);
}

void capture_modes(Run& run) {
  const Card card = use_card(run);
  load_kernels(run);
  run.heading("calls beside a capture in global mode");
  calls_beside(run, CU_STREAM_CAPTURE_MODE_GLOBAL);
  run.heading("calls beside a capture in thread-local mode");
  calls_beside(run, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  run.heading("calls beside a capture in relaxed mode");
  calls_beside(run, CU_STREAM_CAPTURE_MODE_RELAXED);
  run.heading("another thread, global mode");
  other_threads(run, card.context, CU_STREAM_CAPTURE_MODE_GLOBAL);
  run.heading("another thread, thread-local mode");
  other_threads(run, card.context, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  run.heading("another thread, relaxed mode");
  other_threads(run, card.context, CU_STREAM_CAPTURE_MODE_RELAXED);
  run.heading("exchanged mode");
  exchanged_mode(run);
}

}  // namespace nvshare::conformance
