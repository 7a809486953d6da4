#include "softgpu/runtime/capture.h"

#include <algorithm>

#include "softgpu/runtime/graph.h"

namespace nvshare::softgpu {
namespace {

bool active(const std::shared_ptr<Capture>& capture) {
  return capture && capture->status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

void add_unique(std::vector<Node*>& nodes, const std::vector<Node*>& more) {
  for (Node* node : more) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  }
}

// All nodes that `nodes` wait for, themselves included.
std::set<const Node*> with_ancestors(const std::vector<Node*>& nodes) {
  std::set<const Node*> seen;
  std::vector<const Node*> open(nodes.begin(), nodes.end());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    for (const Edge& edge : node->deps) open.push_back(edge.from);
  }
  return seen;
}

void leave(Capture& capture) {
  for (Stream* stream : capture.streams) {
    stream->capture = nullptr;
    stream->capture_deps.clear();
  }
  capture.streams.clear();
}

}  // namespace

void invalidate(Capture& capture) {
  capture.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

CUresult no_implicit_capture(Context& context) {
  bool hurt = false;
  const auto look = [&](Stream& stream) {
    if (!stream.capture || (stream.flags & CU_STREAM_NON_BLOCKING) != 0) return;
    invalidate(*stream.capture);
    hurt = true;
  };
  for (const auto& stream : context.streams) look(*stream);
  for (const auto& [thread, stream] : context.per_thread) look(*stream);
  return hurt ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult capture_task(Call& call, const std::shared_ptr<Stream>& stream, Task task) {
  if (!active(stream->capture)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<Edge> deps;
  for (Node* node : stream->capture_deps) deps.push_back({node, {}});
  Node* node = add_node(call.rt, *stream->capture->graph, std::move(task), std::move(deps));
  stream->capture_deps = {node};
  return CUDA_SUCCESS;
}

void capture_record(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event) {
  event->capture = stream->capture;
  event->capture_deps = stream->capture_deps;
  event->recorded = true;
}

CUresult capture_wait(Call&, const std::shared_ptr<Stream>& stream,
                      const std::shared_ptr<Event>& event) {
  if (stream->capture && !active(stream->capture)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!event->capture) {
    invalidate(*stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (event->capture->streams.empty())
    return CUDA_ERROR_INVALID_VALUE;  // of a capture that is over
  if (!active(event->capture)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->capture && stream->capture != event->capture) {
    invalidate(*stream->capture);
    invalidate(*event->capture);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (!stream->capture) {
    if (stream->legacy) {
      invalidate(*event->capture);
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    stream->capture = event->capture;
    stream->capture->streams.push_back(stream.get());
  }
  add_unique(stream->capture_deps, event->capture_deps);
  return CUDA_SUCCESS;
}

CUresult begin_capture(Call& call, const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode,
                       std::shared_ptr<Graph> into, std::vector<Node*> deps) {
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->id = call.rt.new_id();
  capture->thread = this_thread().id;
  capture->origin = stream.get();
  capture->streams = {stream.get()};
  capture->to_graph = into != nullptr;
  capture->graph = into ? std::move(into) : new_graph(call.rt, stream->context.lock());
  stream->capture = capture;
  stream->capture_deps = std::move(deps);
  std::erase_if(call.rt.captures, [](const auto& weak) { return weak.expired(); });
  call.rt.captures.push_back(capture);
  return CUDA_SUCCESS;
}

CUresult end_capture(Call& call, const std::shared_ptr<Stream>& stream,
                     std::shared_ptr<Graph>& graph) {
  const auto capture = stream->capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != this_thread().id) {
    invalidate(*capture);
    if (!capture->to_graph) drop_graph(call.rt, *capture->graph);
    leave(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  if (capture->origin != stream.get()) {
    invalidate(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  CUresult result = CUDA_SUCCESS;
  if (!active(capture)) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else {
    const auto joined = with_ancestors(stream->capture_deps);
    for (const Stream* other : capture->streams) {
      for (const Node* node : other->capture_deps) {
        if (joined.count(node) == 0) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
      }
    }
  }
  if (result == CUDA_SUCCESS) {
    graph = capture->graph;
  } else {
    capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    if (!capture->to_graph) drop_graph(call.rt, *capture->graph);
  }
  leave(*capture);
  // Events that mark points of a capture that is over mark nothing any more.
  capture->status = result == CUDA_SUCCESS ? CU_STREAM_CAPTURE_STATUS_NONE : capture->status;
  return result;
}

}  // namespace nvshare::softgpu
