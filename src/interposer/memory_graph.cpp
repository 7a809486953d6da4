#include "interposer/bodies.h"
#include "interposer/memory_count.h"

// Memory of graphs. The driver takes it when an executable graph is first launched or uploaded, and
// the executable graph keeps it until it is destroyed, whether or not its nodes free it. So an
// executable graph counts, from its making to its end, the sum of its allocation nodes: never less
// than the driver takes for it, as the driver may let nodes share memory that are not in use at the
// same time.
namespace nvshare::interposer {
namespace {

constexpr int kMostDevices = 64;

struct GraphMemory {
  uint64_t bytes[kMostDevices];
};

// A list of graphs or nodes in mapped memory.
template <typename Handle>
class List {
 public:
  explicit List(size_t capacity)
      : capacity_(capacity < kFewest ? kFewest : capacity),
        items_(static_cast<Handle*>(map_memory(capacity_ * sizeof(Handle)))) {}
  ~List() {
    if (items_ != nullptr) unmap_memory(items_, capacity_ * sizeof(Handle));
  }
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  bool there() const { return items_ != nullptr; }
  Handle* items() { return items_; }

  bool add(Handle item) {
    if (count_ == capacity_ && !grow()) return false;
    items_[count_++] = item;
    return true;
  }
  bool take(Handle& item) {
    if (count_ == 0) return false;
    item = items_[--count_];
    return true;
  }

 private:
  static constexpr size_t kFewest = 512;

  bool grow() {
    auto* items = static_cast<Handle*>(map_memory(2 * capacity_ * sizeof(Handle)));
    if (items == nullptr) return false;
    for (size_t i = 0; i < count_; ++i) items[i] = items_[i];
    unmap_memory(items_, capacity_ * sizeof(Handle));
    items_ = items;
    capacity_ *= 2;
    return true;
  }

  size_t capacity_;
  size_t count_ = 0;
  Handle* items_;
};

void add_node(CUgraphNode node, GraphMemory& memory) {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  if (real<FunctionId::cuGraphMemAllocNodeGetParams>(node, &params) != CUDA_SUCCESS) return;
  const CUmemLocation& location = params.poolProps.location;
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return;
  if (location.id < 0 || location.id >= kMostDevices) return;
  memory.bytes[location.id] = sum(memory.bytes[location.id], params.bytesize);
}

// Adds the nodes of one graph, and puts the graphs inside it on the list. False without memory of
// the host's to look at it.
bool add_graph(CUgraph graph, GraphMemory& memory, List<CUgraph>& inside) {
  size_t count = 0;
  if (real<FunctionId::cuGraphGetNodes>(graph, nullptr, &count) != CUDA_SUCCESS) return true;
  List<CUgraphNode> nodes(count);
  if (!nodes.there()) return false;
  if (real<FunctionId::cuGraphGetNodes>(graph, nodes.items(), &count) != CUDA_SUCCESS) return true;
  for (size_t i = 0; i < count; ++i) {
    const CUgraphNode node = nodes.items()[i];
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    CUgraph child = nullptr;
    if (real<FunctionId::cuGraphNodeGetType>(node, &type) != CUDA_SUCCESS) continue;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) add_node(node, memory);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
        real<FunctionId::cuGraphChildGraphNodeGetGraph>(node, &child) == CUDA_SUCCESS &&
        !inside.add(child)) {
      return false;
    }
  }
  return true;
}

bool add_up(CUgraph graph, GraphMemory& memory) {
  List<CUgraph> graphs(0);
  if (!graphs.there() || !graphs.add(graph)) return false;
  CUgraph next = nullptr;
  while (graphs.take(next)) {
    if (!add_graph(next, memory, graphs)) return false;
  }
  return true;
}

Key key_of(CUgraphExec exec, int device) {
  return {Space::kGraph, reinterpret_cast<uint64_t>(exec), static_cast<uint32_t>(device)};
}

// Charges one device after the other, makes the graph when all of them were given, and keeps what
// was charged: each charge waits on the stack for those that follow.
template <typename Make>
CUresult make_charged(const GraphMemory& memory, int device, CUgraphExec* exec, const Make& make) {
  while (device < kMostDevices && memory.bytes[device] == 0) ++device;
  if (device == kMostDevices) return make();
  Charge charge(gate_of_device(device), memory.bytes[device]);
  if (charge.refused()) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = make_charged(memory, device + 1, exec, make);
  if (result == CUDA_SUCCESS) charge.keep(key_of(*exec, device), Lifetime::kGraph);
  return result;
}

template <typename Make>
CUresult instantiate(CUgraphExec* exec, CUgraph graph, const Make& make) {
  GraphMemory memory{};
  if (exec == nullptr || graph == nullptr) return make();
  if (!add_up(graph, memory)) return CUDA_ERROR_OUT_OF_MEMORY;
  return make_charged(memory, 0, exec, make);
}

template <FunctionId kFunction>
CUresult instantiate_with_params(CUgraphExec* exec, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  bool asked = false;
  const CUresult result = instantiate(exec, graph, [&] {
    asked = true;
    return real<kFunction>(exec, graph, params);
  });
  if (!asked && params != nullptr) {
    params->hErrNode_out = nullptr;
    params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  }
  return result;
}

template <FunctionId kFunction>
CUresult instantiate_with_log(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                              size_t log_bytes) {
  bool asked = false;
  const CUresult result = instantiate(exec, graph, [&] {
    asked = true;
    return real<kFunction>(exec, graph, error_node, log, log_bytes);
  });
  if (!asked) {
    if (error_node != nullptr) *error_node = nullptr;
    if (log != nullptr && log_bytes > 0) log[0] = 0;
  }
  return result;
}

}  // namespace

namespace own {

CUresult cuGraphInstantiate(CUgraphExec* graph_exec, CUgraph graph, CUgraphNode* error_node,
                            char* log_buffer, size_t buffer_size) {
  return instantiate_with_log<FunctionId::cuGraphInstantiate>(graph_exec, graph, error_node,
                                                              log_buffer, buffer_size);
}

CUresult cuGraphInstantiate_v2(CUgraphExec* graph_exec, CUgraph graph, CUgraphNode* error_node,
                               char* log_buffer, size_t buffer_size) {
  return instantiate_with_log<FunctionId::cuGraphInstantiate_v2>(graph_exec, graph, error_node,
                                                                 log_buffer, buffer_size);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* graph_exec, CUgraph graph,
                                     unsigned long long flags) {
  return instantiate(graph_exec, graph, [&] {
    return real<FunctionId::cuGraphInstantiateWithFlags>(graph_exec, graph, flags);
  });
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* graph_exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* instantiate_params) {
  return instantiate_with_params<FunctionId::cuGraphInstantiateWithParams>(graph_exec, graph,
                                                                           instantiate_params);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* graph_exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* instantiate_params) {
  return instantiate_with_params<FunctionId::cuGraphInstantiateWithParams_ptsz>(graph_exec, graph,
                                                                                instantiate_params);
}

CUresult cuGraphExecDestroy(CUgraphExec graph_exec) {
  const Serial before = mark();
  const CUresult result = real<FunctionId::cuGraphExecDestroy>(graph_exec);
  for (int device = 0; result == CUDA_SUCCESS && device < kMostDevices; ++device) {
    uncount(key_of(graph_exec, device), before);
  }
  return result;
}

}  // namespace own
}  // namespace nvshare::interposer
