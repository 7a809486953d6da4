// Graphs built by hand: nodes, edges, making them executable, launching.

#include <atomic>

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

constexpr unsigned kWords = 256;

CUDA_KERNEL_NODE_PARAMS fill_node(const Kernels& kernels, FillParams& params) {
  CUDA_KERNEL_NODE_PARAMS node = {};
  node.func = kernels.fill32;
  node.gridDimX = node.gridDimY = node.gridDimZ = 1;
  node.blockDimX = 64;
  node.blockDimY = node.blockDimZ = 1;
  node.kernelParams = params.pointers;
  return node;
}

CUDA_MEMSET_NODE_PARAMS memset_node(CUdeviceptr dst, unsigned value, size_t words) {
  CUDA_MEMSET_NODE_PARAMS node = {};
  node.dst = dst;
  node.value = value;
  node.elementSize = 4;
  node.width = words;
  node.height = 1;
  return node;
}

CUDA_MEMCPY3D copy_node(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = src;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = dst;
  copy.WidthInBytes = bytes;
  copy.Height = 1;
  copy.Depth = 1;
  return copy;
}

void count_call(void* count) {
  ++*static_cast<std::atomic<int>*>(count);
}

void launch_and_wait(const Run& run, CUgraph graph) {
  CUgraphExec executable = nullptr;
  const CUstream stream = new_stream(run);
  CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  CALL(cuGraphLaunch, executable, stream);
  CALL(cuStreamSynchronize, stream);
  SETUP(cuGraphExecDestroy, executable);
}

void every_node(Run& run, const Card& card, const Kernels& kernels) {
  const CUdeviceptr a = device_memory(run, kMiB);
  const CUdeviceptr b = device_memory(run, kMiB);
  CUgraph graph = nullptr;
  CUgraph inner = nullptr;
  CUgraphNode set = nullptr;
  CUgraphNode kernel = nullptr;
  CUgraphNode copy = nullptr;
  CUgraphNode host = nullptr;
  CUgraphNode empty = nullptr;
  CUgraphNode child = nullptr;
  CUgraphNode record = nullptr;
  CUgraphNode wait = nullptr;
  std::atomic<int> calls{0};
  FillParams params(a, 7, kWords / 2);
  const CUDA_MEMSET_NODE_PARAMS memset_params = memset_node(a, 3, kWords);
  const CUDA_KERNEL_NODE_PARAMS kernel_params = fill_node(kernels, params);
  const CUDA_MEMCPY3D copy_params = copy_node(b, a, kWords * 4);
  const CUDA_HOST_NODE_PARAMS host_params = {count_call, &calls};
  const CUevent event = new_event(run);
  CALL(cuGraphCreate, &graph, 0);
  CALL(cuGraphAddMemsetNode, &set, graph, nullptr, 0, &memset_params, card.context);
  CALL(cuGraphAddKernelNode_v2, &kernel, graph, &set, 1, &kernel_params);
  CALL(cuGraphAddMemcpyNode, &copy, graph, &kernel, 1, &copy_params, card.context);
  CALL(cuGraphAddHostNode, &host, graph, &copy, 1, &host_params);
  CALL(cuGraphAddEmptyNode, &empty, graph, &host, 1);
  CALL(cuGraphAddEventRecordNode, &record, graph, &empty, 1, event);
  CALL(cuGraphAddEventWaitNode, &wait, graph, &record, 1, event);
  SETUP(cuGraphCreate, &inner, 0);
  SETUP(cuGraphAddHostNode, &host, inner, nullptr, 0, &host_params);
  CALL(cuGraphAddChildGraphNode, &child, graph, &wait, 1, inner);
  launch_and_wait(run, graph);
  run.value("calls", calls.load());
  run.value("first half filled by the kernel", all_words(run, b, 7, kWords / 2));
  run.value("second half set", all_words(run, b + kWords * 2, 3, kWords / 2));
  CALL(cuEventQuery, event);
  CALL(cuGraphDestroy, graph);
  CALL(cuGraphDestroy, inner);
}

void looking(Run& run, const Card& card) {
  const CUdeviceptr a = device_memory(run, kMiB);
  CUgraph graph = nullptr;
  CUgraph clone = nullptr;
  CUgraphNode first = nullptr;
  CUgraphNode second = nullptr;
  CUgraphNode found = nullptr;
  CUgraphNode nodes[4] = {};
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  size_t count = 4;
  const CUDA_MEMSET_NODE_PARAMS params = memset_node(a, 3, kWords);
  CUDA_MEMSET_NODE_PARAMS got = {};
  SETUP(cuGraphCreate, &graph, 0);
  SETUP(cuGraphAddMemsetNode, &first, graph, nullptr, 0, &params, card.context);
  SETUP(cuGraphAddEmptyNode, &second, graph, nullptr, 0);
  CALL(cuGraphGetNodes, graph, nodes, &count);
  run.value("nodes", count);
  CALL(cuGraphGetRootNodes, graph, nullptr, &count);
  run.value("roots", count);
  CALL(cuGraphAddDependencies, graph, &first, &second, 1);
  CALL(cuGraphAddDependencies, graph, &first, &second, 1);
  CALL(cuGraphAddDependencies, graph, &second, &first, 1);
  CALL(cuGraphAddDependencies, graph, &first, &first, 1);
  CALL(cuGraphGetRootNodes, graph, nullptr, &count);
  run.value("roots", count);
  CALL(cuGraphNodeGetDependencies, second, nullptr, &count);
  run.value("dependencies", count);
  CALL(cuGraphNodeGetDependentNodes, first, nodes, &count);
  run.value("dependents", count);
  CALL(cuGraphNodeGetType, first, &type);
  run.value("type", static_cast<int>(type));
  CALL(cuGraphMemsetNodeGetParams, first, &got);
  run.value("value", got.value);
  CALL(cuGraphKernelNodeGetParams_v2, first, nullptr);
  CALL(cuGraphClone, &clone, graph);
  CALL(cuGraphNodeFindInClone, &found, first, clone);
  run.value("another node", found != first && found != nullptr);
  CALL(cuGraphNodeFindInClone, &found, first, graph);
  CALL(cuGraphRemoveDependencies, graph, &first, &second, 1);
  CALL(cuGraphRemoveDependencies, graph, &first, &second, 1);
  CALL(cuGraphDestroyNode, first);
  CALL(cuGraphGetNodes, graph, nullptr, &count);
  run.value("nodes", count);
  CALL(cuGraphDestroy, clone);
  CALL(cuGraphDestroy, graph);
}

void wrong(Run& run, const Card& card, const Kernels& kernels) {
  const CUdeviceptr a = device_memory(run, kMiB);
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec executable = nullptr;
  const CUstream stream = new_stream(run);
  FillParams params(a, 1, 16);
  CUDA_KERNEL_NODE_PARAMS kernel = fill_node(kernels, params);
  CUDA_MEMSET_NODE_PARAMS set = memset_node(a, 3, kWords);
  CUDA_MEMCPY3D copy = copy_node(a, a + 4096, 64);
  CALL(cuGraphCreate, nullptr, 0);
  CALL(cuGraphCreate, &graph, 1);
  CALL(cuGraphCreate, &graph, 0);
  CALL(cuGraphAddEmptyNode, nullptr, graph, nullptr, 0);
  CALL(cuGraphAddEmptyNode, &node, nullptr, nullptr, 0);
  CALL(cuGraphAddEmptyNode, &node, graph, nullptr, 1);
  kernel.gridDimX = 0;
  CALL_WHERE("gridDimX = 0", cuGraphAddKernelNode_v2, &node, graph, nullptr, 0, &kernel);
  kernel.gridDimX = 1;
  kernel.func = nullptr;
  CALL_WHERE("func = nullptr", cuGraphAddKernelNode_v2, &node, graph, nullptr, 0, &kernel);
  CALL(cuGraphAddKernelNode_v2, &node, graph, nullptr, 0, nullptr);
  set.elementSize = 3;
  CALL_WHERE("elementSize = 3", cuGraphAddMemsetNode, &node, graph, nullptr, 0, &set, card.context);
  set = memset_node(0, 3, kWords);
  CALL_WHERE("dst = 0", cuGraphAddMemsetNode, &node, graph, nullptr, 0, &set, card.context);
  set = memset_node(a, 3, 0);
  CALL_WHERE("width = 0", cuGraphAddMemsetNode, &node, graph, nullptr, 0, &set, card.context);
  set = memset_node(a, 3, kWords);
  CALL(cuGraphAddMemsetNode, &node, graph, nullptr, 0, &set, nullptr);
  copy.srcMemoryType = static_cast<CUmemorytype>(9);
  CALL_WHERE("srcMemoryType = 9", cuGraphAddMemcpyNode, &node, graph, nullptr, 0, &copy,
             card.context);
  CALL(cuGraphInstantiateWithFlags, &executable, nullptr, 0);
  CALL(cuGraphInstantiateWithFlags, nullptr, graph, 0);
  CALL(cuGraphInstantiateWithFlags, &executable, graph, 0x8000);
  CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  CALL(cuGraphLaunch, nullptr, stream);
  CALL(cuGraphLaunch, executable, stream);
  CALL(cuGraphLaunch, executable, nullptr);
  CALL(cuGraphLaunch_ptsz, executable, nullptr);
  CALL(cuGraphUpload, executable, stream);
  CALL(cuCtxSynchronize);
  CALL(cuGraphExecDestroy, executable);
  CALL(cuGraphExecDestroy, nullptr);
  CALL(cuGraphDestroy, graph);
  CALL(cuGraphDestroy, nullptr);
}

void every_way_to_instantiate(Run& run, const Card& card) {
  const CUdeviceptr a = device_memory(run, kMiB);
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphNode error_node = nullptr;
  CUgraphExec executable = nullptr;
  char log[64] = {};
  uint64_t flags = 99;
  CUDA_GRAPH_INSTANTIATE_PARAMS params = {};
  const CUDA_MEMSET_NODE_PARAMS set = memset_node(a, 3, kWords);
  SETUP(cuGraphCreate, &graph, 0);
  SETUP(cuGraphAddMemsetNode, &node, graph, nullptr, 0, &set, card.context);
  CALL(cuGraphInstantiate, &executable, graph, &error_node, log, sizeof log);
  CALL(cuGraphExecDestroy, executable);
  CALL(cuGraphInstantiate_v2, &executable, graph, &error_node, log, sizeof log);
  CALL(cuGraphExecDestroy, executable);
  CALL(cuGraphInstantiateWithFlags, &executable, graph,
       CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  CALL(cuGraphExecGetFlags, executable, &flags);
  run.value("flags", flags);
  CALL(cuGraphExecDestroy, executable);
  params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  params.hUploadStream = new_stream(run);
  CALL(cuGraphInstantiateWithParams, &executable, graph, &params);
  run.value("result", static_cast<int>(params.result_out));
  CALL(cuGraphLaunch, executable, params.hUploadStream);
  CALL(cuGraphLaunch, executable, params.hUploadStream);
  CALL(cuStreamSynchronize, params.hUploadStream);
  CALL(cuGraphExecDestroy, executable);
  CALL(cuGraphInstantiateWithParams, &executable, graph, nullptr);
  CALL(cuGraphDestroy, graph);
}

void by_the_general_call(Run& run, const Kernels& kernels) {
  const CUdeviceptr a = device_memory(run, kMiB);
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphNode second = nullptr;
  CUgraphNode third = nullptr;
  FillParams fill_params(a, 21, kWords);
  CUgraphNodeParams params = {};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel = fill_node(kernels, fill_params);
  SETUP(cuGraphCreate, &graph, 0);
  CALL(cuGraphAddNode_v2, &node, graph, nullptr, nullptr, 0, &params);
  CALL(cuGraphAddNode, &second, graph, &node, 1, &params);
  launch_and_wait(run, graph);
  run.value("filled", all_words(run, a, 21, kWords));
  params = {};
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset.dst = a;
  params.memset.value = 22;
  params.memset.elementSize = 4;
  params.memset.width = kWords;
  params.memset.height = 1;
  CALL_WHERE("type = CU_GRAPH_NODE_TYPE_MEMSET", cuGraphAddNode_v2, &third, graph, &second, nullptr,
             1, &params);
  launch_and_wait(run, graph);
  run.value("filled", all_words(run, a, 22, kWords));
  params.type = static_cast<CUgraphNodeType>(99);
  CALL_WHERE("type = 99", cuGraphAddNode_v2, &node, graph, nullptr, nullptr, 0, &params);
  CALL(cuGraphAddNode_v2, &node, graph, nullptr, nullptr, 0, nullptr);
}

}  // namespace

void graphs(Run& run) {
  const Card card = use_card(run);
  const Kernels kernels = load_kernels(run);
  every_node(run, card, kernels);
  run.heading("looking at a graph");
  looking(run, card);
  run.heading("every way to instantiate");
  every_way_to_instantiate(run, card);
  run.heading("by the general call");
  by_the_general_call(run, kernels);
  run.heading("wrong");
  wrong(run, card, kernels);
}

namespace {

// A graph of one memset and, behind it, one kernel.
struct TwoNodes {
  CUgraph graph = nullptr;
  CUgraphNode set = nullptr;
  CUgraphNode kernel = nullptr;
};

TwoNodes two_nodes(const Run& run, const Card& card, const Kernels& kernels, CUdeviceptr a,
                   unsigned set_value, unsigned fill_value) {
  TwoNodes made;
  FillParams params(a, fill_value, kWords / 2);
  const CUDA_MEMSET_NODE_PARAMS set = memset_node(a, set_value, kWords);
  const CUDA_KERNEL_NODE_PARAMS kernel = fill_node(kernels, params);
  SETUP(cuGraphCreate, &made.graph, 0);
  SETUP(cuGraphAddMemsetNode, &made.set, made.graph, nullptr, 0, &set, card.context);
  SETUP(cuGraphAddKernelNode_v2, &made.kernel, made.graph, &made.set, 1, &kernel);
  return made;
}

void print_halves(const Run& run, CUdeviceptr a) {
  run.value("first half", words_at(run, a, 1)[0]);
  run.value("second half", words_at(run, a + kWords * 2, 1)[0]);
}

void whole_updates(Run& run, const Card& card, const Kernels& kernels) {
  const CUdeviceptr a = device_memory(run, kMiB);
  const CUstream stream = new_stream(run);
  CUgraphExec executable = nullptr;
  CUgraphNode extra = nullptr;
  CUgraphNode error_node = nullptr;
  CUgraphExecUpdateResultInfo info = {};
  auto result = CU_GRAPH_EXEC_UPDATE_ERROR;
  const TwoNodes before = two_nodes(run, card, kernels, a, 1, 2);
  const TwoNodes after = two_nodes(run, card, kernels, a, 3, 4);
  const TwoNodes larger = two_nodes(run, card, kernels, a, 5, 6);
  SETUP(cuGraphAddEmptyNode, &extra, larger.graph, &larger.kernel, 1);
  CALL(cuGraphInstantiateWithFlags, &executable, before.graph, 0);
  SETUP(cuGraphLaunch, executable, stream);
  SETUP(cuStreamSynchronize, stream);
  print_halves(run, a);
  CALL(cuGraphExecUpdate_v2, executable, after.graph, &info);
  run.value("result", static_cast<int>(info.result));
  SETUP(cuGraphLaunch, executable, stream);
  SETUP(cuStreamSynchronize, stream);
  print_halves(run, a);
  CALL(cuGraphExecUpdate_v2, executable, larger.graph, &info);
  run.value("result", static_cast<int>(info.result));
  run.value("error node given", info.errorNode != nullptr);
  CALL(cuGraphExecUpdate, executable, larger.graph, &error_node, &result);
  run.value("result", static_cast<int>(result));
  CALL(cuGraphExecUpdate, executable, before.graph, &error_node, &result);
  run.value("result", static_cast<int>(result));
  CALL(cuGraphExecUpdate_v2, executable, before.graph, nullptr);
  CALL(cuGraphExecUpdate_v2, executable, nullptr, &info);
  SETUP(cuGraphLaunch, executable, stream);
  SETUP(cuStreamSynchronize, stream);
  print_halves(run, a);
}

void single_updates(Run& run, const Card& card, const Kernels& kernels) {
  const CUdeviceptr a = device_memory(run, kMiB);
  const CUstream stream = new_stream(run);
  CUgraphExec executable = nullptr;
  unsigned enabled = 99;
  const TwoNodes nodes = two_nodes(run, card, kernels, a, 1, 2);
  SETUP(cuGraphInstantiateWithFlags, &executable, nodes.graph, 0);
  FillParams params(a, 8, kWords / 2);
  CUDA_KERNEL_NODE_PARAMS kernel = fill_node(kernels, params);
  CUDA_MEMSET_NODE_PARAMS set = memset_node(a, 7, kWords);
  CALL(cuGraphExecKernelNodeSetParams_v2, executable, nodes.kernel, &kernel);
  CALL(cuGraphExecMemsetNodeSetParams, executable, nodes.set, &set, card.context);
  SETUP(cuGraphLaunch, executable, stream);
  SETUP(cuStreamSynchronize, stream);
  print_halves(run, a);
  CALL(cuGraphNodeSetEnabled, executable, nodes.kernel, 0);
  CALL(cuGraphNodeGetEnabled, executable, nodes.kernel, &enabled);
  run.value("enabled", enabled);
  SETUP(cuGraphLaunch, executable, stream);
  SETUP(cuStreamSynchronize, stream);
  print_halves(run, a);
  kernel.func = kernels.noop;
  kernel.kernelParams = nullptr;
  CALL_WHERE("func = noop", cuGraphExecKernelNodeSetParams_v2, executable, nodes.kernel, &kernel);
  CALL(cuGraphExecKernelNodeSetParams_v2, executable, nodes.set, &kernel);
  CALL(cuGraphExecMemsetNodeSetParams, executable, nodes.kernel, &set, card.context);
  set.elementSize = 1;
  CALL_WHERE("elementSize = 1", cuGraphExecMemsetNodeSetParams, executable, nodes.set, &set,
             card.context);
  set = memset_node(a, 9, kWords);
  CALL(cuGraphMemsetNodeSetParams, nodes.set, &set);
  SETUP(cuGraphLaunch, executable, stream);
  SETUP(cuStreamSynchronize, stream);
  run.heading("setting a node of the graph does not touch what was made of it");
  print_halves(run, a);
}

}  // namespace

void graph_updates(Run& run) {
  const Card card = use_card(run);
  const Kernels kernels = load_kernels(run);
  whole_updates(run, card, kernels);
  run.heading("single nodes");
  single_updates(run, card, kernels);
}

}  // namespace nvshare::conformance
