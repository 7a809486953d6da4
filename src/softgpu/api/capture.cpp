#include "softgpu/runtime/capture.h"

#include <algorithm>

#include "softgpu/api/api.h"
#include "softgpu/api/graph_nodes.h"

// Stream capture, as the caller sees it.
namespace nvshare::softgpu {
namespace {

CUresult find(Call& call, CUstream handle, std::shared_ptr<Stream>& out) {
  SOFTGPU_TRY(call.context());
  return call.stream(handle, out);
}

CUresult begin(CUstream stream, CUstreamCaptureMode mode) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  return begin_capture(call, found, mode, nullptr, {});
}

// What all versions of cuStreamGetCaptureInfo tell; null pointers are not told.
struct Info {
  CUstreamCaptureStatus* status = nullptr;
  uint64_t* id = nullptr;
  CUgraph* graph = nullptr;
  const CUgraphNode** dependencies = nullptr;
  const CUgraphEdgeData** edges = nullptr;
  size_t* count = nullptr;
};

// Asking after the legacy stream is refused while it is captured by implication, and harms nothing.
bool has_blocking_capture(const Context& context) {
  const auto captured = [](const Stream& stream) {
    return stream.capture && (stream.flags & CU_STREAM_NON_BLOCKING) == 0;
  };
  return std::any_of(context.streams.begin(), context.streams.end(),
                     [&](const auto& stream) { return captured(*stream); }) ||
         std::any_of(context.per_thread.begin(), context.per_thread.end(),
                     [&](const auto& one) { return captured(*one.second); });
}

CUresult tell(CUstream stream, const Info& info) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (info.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(call.stream(stream, found));
  if (found->legacy && has_blocking_capture(*call.ctx)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const auto& capture = found->capture;
  *info.status = capture ? capture->status : CU_STREAM_CAPTURE_STATUS_NONE;
  if (!capture || capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (info.id != nullptr) *info.id = capture->id;
  if (info.graph != nullptr) *info.graph = capture->graph->handle;
  found->reported_deps.clear();
  for (const Node* node : found->capture_deps) found->reported_deps.push_back(node->handle);
  found->reported_edges.assign(found->reported_deps.size(), {});
  if (info.dependencies != nullptr) *info.dependencies = found->reported_deps.data();
  if (info.edges != nullptr) *info.edges = found->reported_edges.data();
  if (info.count != nullptr) *info.count = found->reported_deps.size();
  return CUDA_SUCCESS;
}

}  // namespace

SOFTGPU_API(cuStreamBeginCapture)(CUstream stream) {
  return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

SOFTGPU_API(cuStreamBeginCapture_v2)(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, mode);
}

SOFTGPU_API(cuStreamBeginCaptureToGraph)
(CUstream stream, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData*,
 size_t num_dependencies, CUstreamCaptureMode mode) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  const auto into = call.rt.graphs.find(graph);
  if (!into) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Edge> deps;
  SOFTGPU_TRY(edges_of(call, *into, dependencies, num_dependencies, nullptr, deps));
  std::vector<Node*> nodes;
  for (const Edge& edge : deps) nodes.push_back(edge.from);
  return begin_capture(call, found, mode, into, std::move(nodes));
}

SOFTGPU_API(cuStreamEndCapture)(CUstream stream, CUgraph* graph) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  std::shared_ptr<Graph> made;
  if (graph != nullptr) *graph = nullptr;
  SOFTGPU_TRY(end_capture(call, found, made));
  if (graph != nullptr) *graph = made->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuStreamIsCapturing)(CUstream stream, CUstreamCaptureStatus* capture_status) {
  Info info;
  info.status = capture_status;
  return tell(stream, info);
}

SOFTGPU_API(cuStreamGetCaptureInfo)
(CUstream stream, CUstreamCaptureStatus* capture_status_out, uint64_t* id_out) {
  Info info;
  info.status = capture_status_out;
  info.id = id_out;
  return tell(stream, info);
}

SOFTGPU_API(cuStreamGetCaptureInfo_v2)
(CUstream stream, CUstreamCaptureStatus* capture_status_out, uint64_t* id_out, CUgraph* graph_out,
 const CUgraphNode** dependencies_out, size_t* num_dependencies_out) {
  return tell(stream, {capture_status_out, id_out, graph_out, dependencies_out, nullptr,
                       num_dependencies_out});
}

SOFTGPU_API(cuStreamGetCaptureInfo_v3)
(CUstream stream, CUstreamCaptureStatus* capture_status_out, uint64_t* id_out, CUgraph* graph_out,
 const CUgraphNode** dependencies_out, const CUgraphEdgeData** edge_data_out,
 size_t* num_dependencies_out) {
  return tell(stream, {capture_status_out, id_out, graph_out, dependencies_out, edge_data_out,
                       num_dependencies_out});
}

SOFTGPU_API(cuStreamUpdateCaptureDependencies_v2)
(CUstream stream, CUgraphNode* dependencies, const CUgraphEdgeData* dependency_data,
 size_t num_dependencies, unsigned flags) {
  Call call;
  std::shared_ptr<Stream> found;
  SOFTGPU_TRY(find(call, stream, found));
  if (!found->capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Edge> deps;
  SOFTGPU_TRY(edges_of(call, *found->capture->graph, dependencies, num_dependencies,
                       dependency_data, deps));
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) found->capture_deps.clear();
  for (const Edge& edge : deps) {
    auto& known = found->capture_deps;
    if (std::find(known.begin(), known.end(), edge.from) == known.end()) {
      known.push_back(edge.from);
    }
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuStreamUpdateCaptureDependencies)
(CUstream stream, CUgraphNode* dependencies, size_t num_dependencies, unsigned flags) {
  return impl_cuStreamUpdateCaptureDependencies_v2(stream, dependencies, nullptr, num_dependencies,
                                                   flags);
}

SOFTGPU_API(cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode* mode) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, this_thread().capture_mode);
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
