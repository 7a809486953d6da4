#pragma once

#include "softgpu/api/api.h"

namespace nvshare::softgpu {

// Nodes of `graph` that something depends on. A node that is null, of another graph or given twice:
// CUDA_ERROR_INVALID_VALUE.
CUresult edges_of(Call& call, const Graph& graph, const CUgraphNode* nodes, size_t count,
                  const CUgraphEdgeData* data, std::vector<Edge>& out);

// A node by handle, with a task of the kind T.
template <typename T>
CUresult find_node(Call& call, CUgraphNode handle, Node*& node, T*& task) {
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.nodes.find(handle);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  node = found.get();
  task = std::get_if<T>(&node->task);
  return task == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// The node of an executable graph that was made from `handle`.
template <typename T>
CUresult find_exec_node(Call& call, CUgraphExec exec, CUgraphNode handle, T*& task) {
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.execs.find(exec);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  const auto twin = found->by_original.find(handle);
  if (twin == found->by_original.end()) return CUDA_ERROR_INVALID_VALUE;
  task = std::get_if<T>(&twin->second->task);
  return task == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// Makes the task of a node from its parameters. The context is the call's, if it has one.
CUresult task_of(Call& call, const CUgraphNodeParams& params, Task& task);
CUgraphNodeType type_of(const Node& node);

CUDA_KERNEL_NODE_PARAMS params_of(KernelTask& task);

}  // namespace nvshare::softgpu
