#include <algorithm>
#include <map>

#include "softgpu/api/api.h"
#include "softgpu/api/graph_nodes.h"
#include "softgpu/runtime/capture.h"
#include "softgpu/runtime/graph.h"

// Executable graphs: making, launching, updating.
namespace nvshare::softgpu {
namespace {

constexpr unsigned long long kKnownFlags =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

bool owns_memory(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    return std::holds_alternative<AllocTask>(node->task);
  });
}

CUresult instantiate(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  Call call;
  SOFTGPU_TRY(call.context());
  if (exec == nullptr || (flags & ~kKnownFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto source = call.rt.graphs.find(graph);
  if (!source) return CUDA_ERROR_INVALID_VALUE;
  if (source->nodes.size() > 0 && in_topological_order(*source).empty()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SOFTGPU_TRY(call.no_unsafe_capture());
  if (owns_memory(*source)) {
    // Memory nodes have one address each: one executable graph at a time.
    for (const auto& [handle, other] : call.rt.execs.all()) {
      if (other->source.lock() == source) return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  auto made = std::make_shared<GraphExec>();
  made->handle = reinterpret_cast<CUgraphExec>(call.rt.new_handle());
  made->graph = clone_graph(call.rt, source);
  made->source = source;
  made->flags = flags;
  made->context = call.ctx;
  for (const auto& node : made->graph->nodes)
    made->by_original[node->original->handle] = node.get();
  call.rt.execs.add(reinterpret_cast<std::uint64_t>(made->handle), made);
  *exec = made->handle;
  return CUDA_SUCCESS;
}

CUresult find(Call& call, CUgraphExec handle, std::shared_ptr<GraphExec>& out) {
  SOFTGPU_TRY(call.ready());
  out = call.rt.execs.find(handle);
  return out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Position of each node in its graph, so that shapes can be compared.
std::map<const Node*, std::size_t> positions(const Graph& graph) {
  std::map<const Node*, std::size_t> found;
  for (const auto& node : graph.nodes) found.emplace(node.get(), found.size());
  return found;
}

struct Update {
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  const Node* node = nullptr;
};

// Whether a graph has the shape and the kinds of nodes that the executable one was made from.
Update compare(const Graph& old_graph, const Graph& new_graph) {
  if (old_graph.nodes.size() != new_graph.nodes.size()) {
    return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr};
  }
  const auto old_at = positions(old_graph);
  const auto new_at = positions(new_graph);
  auto old_node = old_graph.nodes.begin();
  for (const auto& node : new_graph.nodes) {
    const Node& before = **old_node++;
    if (before.task.index() != node->task.index()) {
      return {CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, node.get()};
    }
    if (before.deps.size() != node->deps.size()) {
      return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node.get()};
    }
    for (std::size_t i = 0; i < node->deps.size(); ++i) {
      if (old_at.at(before.deps[i].from) != new_at.at(node->deps[i].from)) {
        return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node.get()};
      }
    }
    if (std::holds_alternative<AllocTask>(node->task) ||
        std::holds_alternative<FreeTask>(node->task)) {
      return {CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, node.get()};
    }
    if (const auto* child = std::get_if<ChildTask>(&node->task)) {
      const Update inner = compare(*std::get<ChildTask>(before.task).graph, *child->graph);
      if (inner.result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return inner;
    }
  }
  return {};
}

void take_over(Graph& to, const Graph& from) {
  auto target = to.nodes.begin();
  for (const auto& node : from.nodes) {
    Node& one = **target++;
    if (const auto* child = std::get_if<ChildTask>(&node->task)) {
      take_over(*std::get<ChildTask>(one.task).graph, *child->graph);
    } else {
      one.task = node->task;
    }
  }
}

}  // namespace

SOFTGPU_API(cuGraphInstantiateWithFlags)
(CUgraphExec* graph_exec, CUgraph graph, unsigned long long flags) {
  return instantiate(graph_exec, graph, flags);
}

SOFTGPU_API(cuGraphInstantiateWithParams)
(CUgraphExec* graph_exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* instantiate_params) {
  if (instantiate_params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  instantiate_params->hErrNode_out = nullptr;
  const CUresult result = instantiate(graph_exec, graph, instantiate_params->flags);
  instantiate_params->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

SOFTGPU_API(cuGraphInstantiate_v2)
(CUgraphExec* graph_exec, CUgraph graph, CUgraphNode* error_node, char* log_buffer,
 size_t buffer_size) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log_buffer != nullptr && buffer_size > 0) log_buffer[0] = 0;
  return instantiate(graph_exec, graph, 0);
}

SOFTGPU_API(cuGraphInstantiate)
(CUgraphExec* graph_exec, CUgraph graph, CUgraphNode* error_node, char* log_buffer,
 size_t buffer_size) {
  return impl_cuGraphInstantiate_v2(graph_exec, graph, error_node, log_buffer, buffer_size);
}

SOFTGPU_API(cuGraphExecGetFlags)(CUgraphExec graph_exec, uint64_t* flags) {
  Call call;
  std::shared_ptr<GraphExec> found;
  SOFTGPU_TRY(find(call, graph_exec, found));
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = found->flags;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphExecDestroy)(CUgraphExec graph_exec) {
  Call call;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.no_unsafe_capture());
  std::shared_ptr<GraphExec> found;
  SOFTGPU_TRY(find(call, graph_exec, found));
  call.rt.execs.remove(graph_exec);
  for (const std::uint64_t base : found->allocated) {
    const Allocation* allocation = call.rt.addresses.find(base);
    if (allocation == nullptr) continue;
    call.rt.graph_memory[0] -= std::min(call.rt.graph_memory[0], allocation->piece.bytes);
  }
  const auto objects = found->graph->user_objects;
  drop_graph(call.rt, *found->graph);
  for (const auto& [object, count] : objects) {
    release_user_object(call.rt, object, count, call.lock);
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphLaunch)(CUgraphExec graph, CUstream stream) {
  Call call;
  SOFTGPU_TRY(call.context());
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  std::shared_ptr<GraphExec> found;
  if (const CUresult result = find(call, graph, found); result != CUDA_SUCCESS) {
    if (!target->capture) return result;
    invalidate(*target->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (target->legacy) SOFTGPU_TRY(no_implicit_capture(*call.ctx));
  if (target->capture) {
    auto child = clone_graph(call.rt, found->graph);
    child->child = true;
    return capture_task(call, target, ChildTask{std::move(child)});
  }
  return launch_graph(call, found, target);
}

SOFTGPU_API(cuGraphUpload)(CUgraphExec graph, CUstream stream) {
  Call call;
  SOFTGPU_TRY(call.context());
  std::shared_ptr<GraphExec> found;
  SOFTGPU_TRY(find(call, graph, found));
  std::shared_ptr<Stream> target;
  SOFTGPU_TRY(call.stream(stream, target));
  return enqueue(call, target, EmptyTask{});
}

SOFTGPU_API(cuGraphExecUpdate_v2)
(CUgraphExec graph_exec, CUgraph graph, CUgraphExecUpdateResultInfo* result_info) {
  Call call;
  std::shared_ptr<GraphExec> found;
  SOFTGPU_TRY(find(call, graph_exec, found));
  const auto source = call.rt.graphs.find(graph);
  if (!source) return CUDA_ERROR_INVALID_VALUE;
  const Update update = compare(*found->graph, *source);
  if (result_info != nullptr)
    *result_info = {update.result, update.node == nullptr ? nullptr : update.node->handle, nullptr};
  if (update.result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  take_over(*found->graph, *source);
  auto node = found->graph->nodes.begin();
  for (const auto& original : source->nodes) found->by_original[original->handle] = (node++)->get();
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphExecUpdate)
(CUgraphExec graph_exec, CUgraph graph, CUgraphNode* error_node_out,
 CUgraphExecUpdateResult* update_result_out) {
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = impl_cuGraphExecUpdate_v2(graph_exec, graph, &info);
  if (error_node_out != nullptr) *error_node_out = info.errorNode;
  // The older form has no word for a topology that differs as a whole.
  if (info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED && info.errorNode == nullptr) {
    info.result = CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
  }
  if (update_result_out != nullptr) *update_result_out = info.result;
  return result;
}

SOFTGPU_API(cuGraphExecChildGraphNodeSetParams)
(CUgraphExec graph_exec, CUgraphNode node, CUgraph child_graph) {
  Call call;
  ChildTask* task = nullptr;
  SOFTGPU_TRY(find_exec_node(call, graph_exec, node, task));
  const auto child = call.rt.graphs.find(child_graph);
  if (!child) return CUDA_ERROR_INVALID_VALUE;
  if (compare(*task->graph, *child).result != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  take_over(*task->graph, *child);
  return CUDA_SUCCESS;
}

namespace {

CUresult find_switchable(Call& call, CUgraphExec exec, CUgraphNode handle, Node*& node) {
  std::shared_ptr<GraphExec> found;
  SOFTGPU_TRY(find(call, exec, found));
  const auto twin = found->by_original.find(handle);
  if (twin == found->by_original.end()) return CUDA_ERROR_INVALID_VALUE;
  node = twin->second;
  const auto type = type_of(*node);
  const bool switchable = type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
                          type == CU_GRAPH_NODE_TYPE_MEMSET;
  return switchable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

SOFTGPU_API(cuGraphNodeSetEnabled)
(CUgraphExec graph_exec, CUgraphNode node, unsigned is_enabled) {
  Call call;
  Node* found = nullptr;
  SOFTGPU_TRY(find_switchable(call, graph_exec, node, found));
  found->enabled = is_enabled != 0;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphNodeGetEnabled)
(CUgraphExec graph_exec, CUgraphNode node, unsigned* is_enabled) {
  Call call;
  Node* found = nullptr;
  SOFTGPU_TRY(find_switchable(call, graph_exec, node, found));
  if (is_enabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *is_enabled = found->enabled ? 1 : 0;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGraphMemTrim)(CUdevice device) {
  Call call;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.device(device));
  call.rt.graph_memory[2] = call.rt.graph_memory[0];
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceGetGraphMemAttribute)
(CUdevice device, CUgraphMem_attribute attr, void* value) {
  Call call;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.device(device));
  if (value == nullptr || attr > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *static_cast<std::uint64_t*>(value) = call.rt.graph_memory[attr];
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuDeviceSetGraphMemAttribute)
(CUdevice device, CUgraphMem_attribute attr, void* value) {
  Call call;
  SOFTGPU_TRY(call.ready());
  SOFTGPU_TRY(call.device(device));
  const bool high =
      attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
  // A high-water mark can be set back, to zero and thereby to the present.
  if (value == nullptr || !high || *static_cast<std::uint64_t*>(value) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  call.rt.graph_memory[attr] = call.rt.graph_memory[attr - 1];
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
