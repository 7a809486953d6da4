// Allocation and free nodes of graphs, and stream-ordered allocation while capturing.

#include "fixtures.h"
#include "sections.h"

namespace nvshare::conformance {

using namespace cuda;

namespace {

constexpr size_t kBytes = 8 * kMiB;

CUDA_MEM_ALLOC_NODE_PARAMS allocation(size_t bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  params.poolProps.location.id = 0;
  params.bytesize = bytes;
  return params;
}

uint64_t graph_memory(const Run& run, CUgraphMem_attribute attribute) {
  uint64_t bytes = 99;
  SETUP(cuDeviceGetGraphMemAttribute, 0, attribute, &bytes);
  return bytes;
}

void print_use(const Run& run) {
  run.value("used", graph_memory(run, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
  run.value("reserved is at least what is used",
            graph_memory(run, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >=
                graph_memory(run, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
}

CUgraphNode set_behind(const Run& run, const Card& card, CUgraph graph, CUgraphNode before,
                       CUdeviceptr address) {
  CUgraphNode node = nullptr;
  CUDA_MEMSET_NODE_PARAMS set = {};
  set.dst = address;
  set.value = 5;
  set.elementSize = 4;
  set.width = 64;
  set.height = 1;
  SETUP(cuGraphAddMemsetNode, &node, graph, &before, 1, &set, card.context);
  return node;
}

void allocated_and_freed(Run& run, const Card& card) {
  const CUstream stream = new_stream(run);
  CUgraph graph = nullptr;
  CUgraph clone = nullptr;
  CUgraphExec executable = nullptr;
  CUgraphExec second = nullptr;
  CUgraphNode take = nullptr;
  CUgraphNode give = nullptr;
  CUdeviceptr got = 0;
  CUDA_MEM_ALLOC_NODE_PARAMS params = allocation(kBytes);
  CUDA_MEM_ALLOC_NODE_PARAMS asked = {};
  SETUP(cuGraphCreate, &graph, 0);
  CALL(cuGraphAddMemAllocNode, &take, graph, nullptr, 0, &params);
  run.value("has an address", params.dptr != 0);
  const CUgraphNode set = set_behind(run, card, graph, take, params.dptr);
  CALL(cuGraphAddMemFreeNode, &give, graph, &set, 1, params.dptr);
  CALL(cuGraphMemAllocNodeGetParams, take, &asked);
  run.value("bytes", asked.bytesize);
  CALL(cuGraphMemFreeNodeGetParams, give, &got);
  run.value("the same address", got == params.dptr);
  CALL(cuGraphClone, &clone, graph);
  CALL(cuGraphDestroyNode, take);
  CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  CALL(cuGraphInstantiateWithFlags, &second, graph, 0);
  print_use(run);
  CALL(cuGraphLaunch, executable, stream);
  CALL(cuGraphLaunch, executable, stream);
  CALL(cuStreamSynchronize, stream);
  print_use(run);
  run.value("high", graph_memory(run, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH));
  CALL(cuGraphExecDestroy, executable);
  CALL(cuGraphDestroy, graph);
  CALL(cuDeviceGraphMemTrim, 0);
  run.value("reserved", graph_memory(run, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT));
}

void left_allocated(Run& run, const Card& card) {
  const CUstream stream = new_stream(run);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUgraphNode take = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS params = allocation(kBytes);
  SETUP(cuGraphCreate, &graph, 0);
  SETUP(cuGraphAddMemAllocNode, &take, graph, nullptr, 0, &params);
  set_behind(run, card, graph, take, params.dptr);
  CALL(cuMemFree_v2, params.dptr);
  SETUP(cuGraphInstantiateWithFlags, &executable, graph, 0);
  CALL(cuGraphLaunch, executable, stream);
  CALL(cuGraphLaunch, executable, stream);
  CALL(cuStreamSynchronize, stream);
  print_use(run);
  run.value("filled", all_words(run, params.dptr, 5, 64));
  CALL(cuMemFreeAsync, params.dptr, stream);
  CALL(cuGraphLaunch, executable, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuMemFree_v2, params.dptr);
  CALL(cuMemFree_v2, params.dptr);
  print_use(run);
  CALL(cuGraphExecDestroy, executable);
  run.heading("freed by the next launch");
  CALL(cuGraphInstantiateWithFlags, &executable, graph,
       CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  CALL(cuGraphLaunch, executable, stream);
  CALL(cuGraphLaunch, executable, stream);
  CALL(cuStreamSynchronize, stream);
  print_use(run);
  CALL(cuMemFreeAsync, params.dptr, stream);
  CALL(cuStreamSynchronize, stream);
  print_use(run);
}

void wrong(Run& run) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphNode other = nullptr;
  uint64_t bytes = 1;
  const CUdeviceptr foreign = device_memory(run, kMiB);
  SETUP(cuGraphCreate, &graph, 0);
  CUDA_MEM_ALLOC_NODE_PARAMS params = allocation(0);
  CALL(cuGraphAddMemAllocNode, &node, graph, nullptr, 0, &params);
  params = allocation(kMiB);
  params.poolProps.location.id = 99;
  CALL_WHERE("location.id = 99", cuGraphAddMemAllocNode, &node, graph, nullptr, 0, &params);
  params = allocation(kMiB);
  params.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CALL_WHERE("handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR", cuGraphAddMemAllocNode,
             &node, graph, nullptr, 0, &params);
  params = allocation(kMiB);
  CALL(cuGraphAddMemAllocNode, &node, graph, nullptr, 0, nullptr);
  CALL(cuGraphAddMemAllocNode, &node, graph, nullptr, 0, &params);
  CALL(cuGraphAddMemFreeNode, &other, graph, nullptr, 0, 0);
  CALL(cuGraphAddMemFreeNode, &other, graph, nullptr, 0, foreign);
  CALL(cuGraphAddMemFreeNode, &other, graph, nullptr, 0, params.dptr);
  CALL(cuGraphAddMemFreeNode, &other, graph, &node, 1, params.dptr);
  CALL(cuGraphAddMemFreeNode, &other, graph, &node, 1, params.dptr);
  CALL(cuDeviceGetGraphMemAttribute, 99, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &bytes);
  CALL(cuDeviceSetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &bytes);
  CALL(cuDeviceSetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &bytes);
  bytes = 0;
  CALL(cuDeviceSetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &bytes);
  CALL(cuDeviceGraphMemTrim, 99);
}

void captured(Run& run, const Kernels& kernels) {
  const CUstream stream = new_stream(run);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUdeviceptr address = 0;
  size_t nodes = 0;
  const CUdeviceptr result = device_memory(run, kMiB);
  SETUP(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CALL(cuMemAllocAsync, &address, kBytes, stream);
  launch_fill(run, kernels, stream, address, 17, 64);
  CALL(cuMemcpyDtoDAsync_v2, result, address, 256, stream);
  CALL(cuMemFreeAsync, address, stream);
  CALL(cuStreamEndCapture, stream, &graph);
  CALL(cuGraphGetNodes, graph, nullptr, &nodes);
  run.value("nodes", nodes);
  CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
  CALL(cuGraphLaunch, executable, stream);
  CALL(cuStreamSynchronize, stream);
  run.value("filled", all_words(run, result, 17, 64));
  CALL(cuMemcpyDtoH_v2, &nodes, address, sizeof nodes);
}

}  // namespace

void graph_memory_nodes(Run& run) {
  const Card card = use_card(run);
  const Kernels kernels = load_kernels(run);
  allocated_and_freed(run, card);
  run.heading("left allocated");
  left_allocated(run, card);
  run.heading("wrong");
  wrong(run);
  run.heading("captured");
  captured(run, kernels);
}

}  // namespace nvshare::conformance
