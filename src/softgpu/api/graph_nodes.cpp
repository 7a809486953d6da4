#include "softgpu/api/graph_nodes.h"

#include <algorithm>

#include "softgpu/api/copy_task.h"
#include "softgpu/api/kernel_task.h"
#include "softgpu/api/stream_memory.h"
#include "softgpu/runtime/graph.h"
#include "softgpu/runtime/memory_ops.h"

// Nodes of graphs: adding, reading and changing each kind.
namespace nvshare::softgpu {

CUresult edges_of(Call& call, const Graph& graph, const CUgraphNode* nodes, size_t count,
                  const CUgraphEdgeData* data, std::vector<Edge>& out) {
  if (count > 0 && nodes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const auto node = call.rt.nodes.find(nodes[i]);
    if (!node || node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
    const bool twice = std::any_of(out.begin(), out.end(),
                                   [&](const Edge& edge) { return edge.from == node.get(); });
    if (twice) return CUDA_ERROR_INVALID_VALUE;
    out.push_back({node.get(), data == nullptr ? CUgraphEdgeData{} : data[i]});
  }
  return CUDA_SUCCESS;
}

CUgraphNodeType type_of(const Node& node) {
  static constexpr CUgraphNodeType kTypes[] = {
      CU_GRAPH_NODE_TYPE_KERNEL,       CU_GRAPH_NODE_TYPE_MEMCPY,
      CU_GRAPH_NODE_TYPE_MEMSET,       CU_GRAPH_NODE_TYPE_HOST,
      CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
      CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
      CU_GRAPH_NODE_TYPE_MEM_FREE,     CU_GRAPH_NODE_TYPE_GRAPH,
      CU_GRAPH_NODE_TYPE_EMPTY,        CU_GRAPH_NODE_TYPE_EMPTY};
  static_assert(std::size(kTypes) == std::variant_size_v<Task>);
  return kTypes[node.task.index()];
}

CUDA_KERNEL_NODE_PARAMS params_of(KernelTask& task) {
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = task.kernel == nullptr ? task.function->handle : nullptr;
  params.kern = task.kernel;
  params.gridDimX = task.grid[0];
  params.gridDimY = task.grid[1];
  params.gridDimZ = task.grid[2];
  params.blockDimX = task.block[0];
  params.blockDimY = task.block[1];
  params.blockDimZ = task.block[2];
  params.sharedMemBytes = task.shared;
  task.param_pointers.clear();
  for (const std::size_t offset : task.function->offsets) {
    task.param_pointers.push_back(task.params.data() + offset);
  }
  params.kernelParams = task.param_pointers.data();
  return params;
}

namespace {

CUresult memop_task(Call& call, const CUDA_BATCH_MEM_OP_NODE_PARAMS& params, MemOpTask& task) {
  if (params.count == 0 || params.count > 256 || params.paramArray == nullptr ||
      params.flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SOFTGPU_TRY(check_memory_ops(call, params.paramArray, params.count));
  task.operations.assign(params.paramArray, params.paramArray + params.count);
  task.flags = params.flags;
  task.context = params.ctx;
  return CUDA_SUCCESS;
}

CUresult alloc_task(Call& call, const CUDA_MEM_ALLOC_NODE_PARAMS& params, AllocTask& task) {
  Runtime& rt = call.rt;
  const auto& location = params.poolProps.location;
  if (params.bytesize == 0 || params.poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      location.type != CU_MEM_LOCATION_TYPE_DEVICE || call.device(location.id) != CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (params.bytesize > rt.device_config(location.id).memory) return CUDA_ERROR_OUT_OF_MEMORY;
  // Memory of graphs cannot be handed to other processes.
  if (params.poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  SOFTGPU_TRY(new_graph_piece(rt, params.bytesize, location.id, task.piece));
  if (params.accessDescs != nullptr) {
    task.access.assign(params.accessDescs, params.accessDescs + params.accessDescCount);
  }
  task.params = params;
  task.params.dptr = task.piece->piece.address;
  return CUDA_SUCCESS;
}

bool is_graph_memory(Runtime& rt, std::uint64_t address) {
  const auto found = rt.addresses.allocations.find(address);
  return found != rt.addresses.allocations.end() && found->second.graph;
}

CUresult event_of(Call& call, CUevent handle, std::shared_ptr<Event>& event) {
  event = call.rt.events.find(handle);
  return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult task_of(Call& call, const CUgraphNodeParams& params, Task& task) {
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return make_kernel_task(call, params.kernel, task.emplace<KernelTask>());
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return make_box_copy(call, params.memcpy.copyParams, task.emplace<CopyTask>());
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto& set = params.memset;
      auto& made = task.emplace<MemsetTask>();
      made.params = {set.dst, set.pitch, set.value, set.elementSize, set.width, set.height};
      if (set.width == 0 || set.height == 0) return CUDA_ERROR_INVALID_VALUE;
      return check_memset(call, made.params);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      if (params.host.fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
      task = HostTask{params.host.fn, params.host.userData, nullptr, nullptr};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH: {
      const auto child = call.rt.graphs.find(params.graph.graph);
      if (!child) return CUDA_ERROR_INVALID_VALUE;
      task = ChildTask{clone_graph(call.rt, child)};
      std::get<ChildTask>(task).graph->child = true;
      return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_EMPTY:
      task = EmptyTask{};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return event_of(call, params.eventWait.event, task.emplace<EventWaitTask>().event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return event_of(call, params.eventRecord.event, task.emplace<EventRecordTask>().event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return alloc_task(call, params.alloc, task.emplace<AllocTask>());
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      if (!is_graph_memory(call.rt, params.free.dptr)) return CUDA_ERROR_INVALID_VALUE;
      task = FreeTask{params.free.dptr};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return memop_task(call, params.memOp, task.emplace<MemOpTask>());
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

namespace {

// Whether the graph frees the address already.
bool frees(const Graph& graph, std::uint64_t address) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const auto& node) {
    const auto* task = std::get_if<FreeTask>(&node->task);
    return task != nullptr && task->address == address;
  });
}

CUresult add(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
             const CUgraphEdgeData* data, CUgraphNodeParams& params) {
  Call call;
  // Most nodes can be added without a context; kernels of libraries need one.
  if (call.context() != CUDA_SUCCESS) SOFTGPU_TRY(call.ready());
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.rt.graphs.find(graph);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Edge> deps;
  SOFTGPU_TRY(edges_of(call, *found, dependencies, count, data, deps));
  Task task;
  SOFTGPU_TRY(task_of(call, params, task));
  if (const auto* freed = std::get_if<FreeTask>(&task)) {
    if (frees(*found, freed->address)) return CUDA_ERROR_INVALID_VALUE;
  }
  if (const auto* made = std::get_if<AllocTask>(&task)) params.alloc.dptr = made->params.dptr;
  *out = add_node(call.rt, *found, std::move(task), std::move(deps))->handle;
  return CUDA_SUCCESS;
}

CUgraphNodeParams of_type(CUgraphNodeType type) {
  CUgraphNodeParams params{};
  params.type = type;
  return params;
}

}  // namespace

SOFTGPU_API(cuGraphAddNode_v2)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies,
 const CUgraphEdgeData* dependency_data, size_t num_dependencies, CUgraphNodeParams* node_params) {
  if (node_params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(graph_node, graph, dependencies, num_dependencies, dependency_data, *node_params);
}

SOFTGPU_API(cuGraphAddNode)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies,
 CUgraphNodeParams* node_params) {
  if (node_params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(graph_node, graph, dependencies, num_dependencies, nullptr, *node_params);
}

SOFTGPU_API(cuGraphAddKernelNode_v2)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies,
 const CUDA_KERNEL_NODE_PARAMS* node_params) {
  if (node_params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto params = of_type(CU_GRAPH_NODE_TYPE_KERNEL);
  params.kernel = *node_params;
  return add(graph_node, graph, dependencies, num_dependencies, nullptr, params);
}

SOFTGPU_API(cuGraphAddKernelNode)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies,
 const CUDA_KERNEL_NODE_PARAMS_v1* node_params) {
  if (node_params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto wide = widen(*node_params);
  return impl_cuGraphAddKernelNode_v2(graph_node, graph, dependencies, num_dependencies, &wide);
}

SOFTGPU_API(cuGraphAddMemcpyNode)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies,
 const CUDA_MEMCPY3D* copy_params, CUcontext ctx) {
  if (copy_params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto params = of_type(CU_GRAPH_NODE_TYPE_MEMCPY);
  params.memcpy.copyParams = *copy_params;
  params.memcpy.copyCtx = ctx;
  return add(graph_node, graph, dependencies, num_dependencies, nullptr, params);
}

SOFTGPU_API(cuGraphAddMemsetNode)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies,
 const CUDA_MEMSET_NODE_PARAMS* set, CUcontext ctx) {
  if (set == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto params = of_type(CU_GRAPH_NODE_TYPE_MEMSET);
  params.memset = {set->dst,   set->pitch,  set->value, set->elementSize,
                   set->width, set->height, ctx};
  return add(graph_node, graph, dependencies, num_dependencies, nullptr, params);
}

SOFTGPU_API(cuGraphAddHostNode)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies,
 const CUDA_HOST_NODE_PARAMS* node_params) {
  if (node_params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto params = of_type(CU_GRAPH_NODE_TYPE_HOST);
  params.host = *node_params;
  return add(graph_node, graph, dependencies, num_dependencies, nullptr, params);
}

SOFTGPU_API(cuGraphAddChildGraphNode)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies,
 CUgraph child_graph) {
  auto params = of_type(CU_GRAPH_NODE_TYPE_GRAPH);
  params.graph.graph = child_graph;
  return add(graph_node, graph, dependencies, num_dependencies, nullptr, params);
}

SOFTGPU_API(cuGraphAddEmptyNode)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies) {
  auto params = of_type(CU_GRAPH_NODE_TYPE_EMPTY);
  return add(graph_node, graph, dependencies, num_dependencies, nullptr, params);
}

SOFTGPU_API(cuGraphAddEventRecordNode)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies,
 CUevent event) {
  auto params = of_type(CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  params.eventRecord.event = event;
  return add(graph_node, graph, dependencies, num_dependencies, nullptr, params);
}

SOFTGPU_API(cuGraphAddEventWaitNode)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies,
 CUevent event) {
  auto params = of_type(CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  params.eventWait.event = event;
  return add(graph_node, graph, dependencies, num_dependencies, nullptr, params);
}

SOFTGPU_API(cuGraphAddBatchMemOpNode)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies,
 const CUDA_BATCH_MEM_OP_NODE_PARAMS* node_params) {
  if (node_params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto params = of_type(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  params.memOp = *node_params;
  return add(graph_node, graph, dependencies, num_dependencies, nullptr, params);
}

SOFTGPU_API(cuGraphAddMemAllocNode)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies,
 CUDA_MEM_ALLOC_NODE_PARAMS* node_params) {
  if (node_params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto params = of_type(CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  params.alloc = *node_params;
  SOFTGPU_TRY(add(graph_node, graph, dependencies, num_dependencies, nullptr, params));
  node_params->dptr = params.alloc.dptr;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphAddMemFreeNode)
(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies, size_t num_dependencies,
 CUdeviceptr address) {
  auto params = of_type(CU_GRAPH_NODE_TYPE_MEM_FREE);
  params.free.dptr = address;
  return add(graph_node, graph, dependencies, num_dependencies, nullptr, params);
}

}  // namespace nvshare::softgpu
