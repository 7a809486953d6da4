#include "softgpu/api/copy_task.h"
#include "softgpu/api/graph_nodes.h"
#include "softgpu/api/kernel_task.h"

// Reading and changing the parameters of nodes, in graphs and in executable ones.
namespace nvshare::softgpu {
namespace {

CUresult with_context(Call& call) {
  if (call.context() == CUDA_SUCCESS) return CUDA_SUCCESS;
  return call.ready();
}

// Replaces a node's task by one of the same kind made from new parameters.
template <typename T>
CUresult set_node(CUgraphNode node, const CUgraphNodeParams& params) {
  Call call;
  SOFTGPU_TRY(with_context(call));
  Node* found = nullptr;
  T* task = nullptr;
  SOFTGPU_TRY(find_node(call, node, found, task));
  Task made;
  SOFTGPU_TRY(task_of(call, params, made));
  found->task = std::move(made);
  return CUDA_SUCCESS;
}

template <typename T>
CUresult set_exec_node(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams& params) {
  Call call;
  SOFTGPU_TRY(with_context(call));
  T* task = nullptr;
  SOFTGPU_TRY(find_exec_node(call, exec, node, task));
  Task made;
  SOFTGPU_TRY(task_of(call, params, made));
  *task = std::move(std::get<T>(made));
  return CUDA_SUCCESS;
}

CUgraphNodeParams kernel_params(const CUDA_KERNEL_NODE_PARAMS& kernel) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel = kernel;
  return params;
}
CUgraphNodeParams copy_params(const CUDA_MEMCPY3D& copy) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  params.memcpy.copyParams = copy;
  return params;
}
CUgraphNodeParams memset_params(const CUDA_MEMSET_NODE_PARAMS& set) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset = {set.dst, set.pitch, set.value, set.elementSize, set.width, set.height, nullptr};
  return params;
}
CUgraphNodeParams host_params(const CUDA_HOST_NODE_PARAMS& host) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_HOST;
  params.host = host;
  return params;
}
CUgraphNodeParams memop_params(const CUDA_BATCH_MEM_OP_NODE_PARAMS& operations) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  params.memOp = operations;
  return params;
}
CUgraphNodeParams record_params(CUevent event) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  params.eventRecord.event = event;
  return params;
}
CUgraphNodeParams wait_params(CUevent event) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
  params.eventWait.event = event;
  return params;
}

// Reads something of a node's task.
template <typename T, typename Out, typename Read>
CUresult get(CUgraphNode node, Out* out, Read read) {
  Call call;
  Node* found = nullptr;
  T* task = nullptr;
  SOFTGPU_TRY(find_node(call, node, found, task));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = read(*task);
  return CUDA_SUCCESS;
}

CUDA_KERNEL_NODE_PARAMS_v1 narrow(const CUDA_KERNEL_NODE_PARAMS& wide) {
  return {wide.func,      wide.gridDimX,  wide.gridDimY,       wide.gridDimZ,     wide.blockDimX,
          wide.blockDimY, wide.blockDimZ, wide.sharedMemBytes, wide.kernelParams, wide.extra};
}

}  // namespace

SOFTGPU_API(cuGraphKernelNodeGetParams_v2)(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* out) {
  return get<KernelTask>(node, out, [](KernelTask& task) { return params_of(task); });
}
SOFTGPU_API(cuGraphKernelNodeGetParams)(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* out) {
  return get<KernelTask>(node, out, [](KernelTask& task) { return narrow(params_of(task)); });
}
SOFTGPU_API(cuGraphKernelNodeSetParams_v2)
(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_node<KernelTask>(node, kernel_params(*params));
}
SOFTGPU_API(cuGraphKernelNodeSetParams)
(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_node<KernelTask>(node, kernel_params(widen(*params)));
}
SOFTGPU_API(cuGraphExecKernelNodeSetParams_v2)
(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_exec_node<KernelTask>(exec, node, kernel_params(*params));
}
SOFTGPU_API(cuGraphExecKernelNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_exec_node<KernelTask>(exec, node, kernel_params(widen(*params)));
}

SOFTGPU_API(cuGraphMemcpyNodeGetParams)(CUgraphNode node, CUDA_MEMCPY3D* out) {
  return get<CopyTask>(node, out, [](CopyTask& task) { return task.given; });
}
SOFTGPU_API(cuGraphMemcpyNodeSetParams)(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_node<CopyTask>(node, copy_params(*params));
}
SOFTGPU_API(cuGraphExecMemcpyNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params, CUcontext) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_exec_node<CopyTask>(exec, node, copy_params(*params));
}

SOFTGPU_API(cuGraphMemsetNodeGetParams)(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* out) {
  return get<MemsetTask>(node, out, [](MemsetTask& task) { return task.params; });
}
SOFTGPU_API(cuGraphMemsetNodeSetParams)
(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_node<MemsetTask>(node, memset_params(*params));
}
SOFTGPU_API(cuGraphExecMemsetNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params, CUcontext) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_exec_node<MemsetTask>(exec, node, memset_params(*params));
}

SOFTGPU_API(cuGraphHostNodeGetParams)(CUgraphNode node, CUDA_HOST_NODE_PARAMS* out) {
  return get<HostTask>(node, out, [](HostTask& task) {
    return CUDA_HOST_NODE_PARAMS{task.function, task.data};
  });
}
SOFTGPU_API(cuGraphHostNodeSetParams)(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_node<HostTask>(node, host_params(*params));
}
SOFTGPU_API(cuGraphExecHostNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_exec_node<HostTask>(exec, node, host_params(*params));
}

SOFTGPU_API(cuGraphBatchMemOpNodeGetParams)
(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* out) {
  return get<MemOpTask>(node, out, [](MemOpTask& task) {
    return CUDA_BATCH_MEM_OP_NODE_PARAMS{task.context,
                                         static_cast<unsigned>(task.operations.size()),
                                         task.operations.data(), task.flags};
  });
}
SOFTGPU_API(cuGraphBatchMemOpNodeSetParams)
(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_node<MemOpTask>(node, memop_params(*params));
}
SOFTGPU_API(cuGraphExecBatchMemOpNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_exec_node<MemOpTask>(exec, node, memop_params(*params));
}

SOFTGPU_API(cuGraphEventRecordNodeGetEvent)(CUgraphNode node, CUevent* out) {
  return get<EventRecordTask>(node, out, [](EventRecordTask& task) { return task.event->handle; });
}
SOFTGPU_API(cuGraphEventRecordNodeSetEvent)(CUgraphNode node, CUevent event) {
  return set_node<EventRecordTask>(node, record_params(event));
}
SOFTGPU_API(cuGraphExecEventRecordNodeSetEvent)
(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return set_exec_node<EventRecordTask>(exec, node, record_params(event));
}
SOFTGPU_API(cuGraphEventWaitNodeGetEvent)(CUgraphNode node, CUevent* out) {
  return get<EventWaitTask>(node, out, [](EventWaitTask& task) { return task.event->handle; });
}
SOFTGPU_API(cuGraphEventWaitNodeSetEvent)(CUgraphNode node, CUevent event) {
  return set_node<EventWaitTask>(node, wait_params(event));
}
SOFTGPU_API(cuGraphExecEventWaitNodeSetEvent)(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return set_exec_node<EventWaitTask>(exec, node, wait_params(event));
}

SOFTGPU_API(cuGraphMemAllocNodeGetParams)(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* out) {
  return get<AllocTask>(node, out, [](AllocTask& task) {
    task.params.accessDescs = task.access.data();
    return task.params;
  });
}
SOFTGPU_API(cuGraphMemFreeNodeGetParams)(CUgraphNode node, CUdeviceptr* out) {
  return get<FreeTask>(node, out, [](FreeTask& task) { return CUdeviceptr{task.address}; });
}
SOFTGPU_API(cuGraphChildGraphNodeGetGraph)(CUgraphNode node, CUgraph* out) {
  return get<ChildTask>(node, out, [](ChildTask& task) { return task.graph->handle; });
}

SOFTGPU_API(cuGraphNodeSetParams)(CUgraphNode node, CUgraphNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Call call;
  SOFTGPU_TRY(with_context(call));
  const auto found = call.rt.nodes.find(node);
  if (!found || type_of(*found) != params->type) return CUDA_ERROR_INVALID_VALUE;
  if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || params->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Task made;
  SOFTGPU_TRY(task_of(call, *params, made));
  found->task = std::move(made);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphExecNodeSetParams)
(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Call call;
  SOFTGPU_TRY(with_context(call));
  const auto found = call.rt.execs.find(exec);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  const auto twin = found->by_original.find(node);
  if (twin == found->by_original.end() || type_of(*twin->second) != params->type) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Task made;
  SOFTGPU_TRY(task_of(call, *params, made));
  twin->second->task = std::move(made);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphKernelNodeCopyAttributes)(CUgraphNode dst, CUgraphNode src) {
  Call call;
  Node* node = nullptr;
  KernelTask* to = nullptr;
  KernelTask* from = nullptr;
  SOFTGPU_TRY(find_node(call, dst, node, to));
  SOFTGPU_TRY(find_node(call, src, node, from));
  to->attributes = from->attributes;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphKernelNodeGetAttribute)
(CUgraphNode node, CUlaunchAttributeID attr, CUlaunchAttributeValue* value_out) {
  if (attr == CU_LAUNCH_ATTRIBUTE_IGNORE || attr >= CU_LAUNCH_ATTRIBUTE_MAX) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return get<KernelTask>(node, value_out, [&](KernelTask& task) {
    const auto found = task.attributes.find(attr);
    return found == task.attributes.end() ? CUlaunchAttributeValue{} : found->second;
  });
}

SOFTGPU_API(cuGraphKernelNodeSetAttribute)
(CUgraphNode node, CUlaunchAttributeID attr, const CUlaunchAttributeValue* value) {
  Call call;
  Node* found = nullptr;
  KernelTask* task = nullptr;
  SOFTGPU_TRY(find_node(call, node, found, task));
  if (value == nullptr || attr == CU_LAUNCH_ATTRIBUTE_IGNORE || attr >= CU_LAUNCH_ATTRIBUTE_MAX) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  task->attributes[attr] = *value;
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
