#include "interposer/memory/graph.h"

#include "interposer/catch/bodies.h"
#include "interposer/gate/gate.h"
#include "interposer/memory/driver_room.h"

// Memory of graphs. The driver takes it when an executable graph is first launched or uploaded, and
// the executable graph keeps it until it is destroyed, whether or not its nodes free it. So an
// executable graph counts, from its making to its end, the sum of its allocation nodes: never less
// than the driver takes for it, as the driver may let nodes share memory that are not in use at the
// same time. What it leaves allocated counts by itself from then on (memory_graph.h).
namespace nvshare::interposer::memory {
namespace {

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

bool note_allocation(CUgraphNode node, GraphMemory& memory) {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  if (real<FunctionId::cuGraphMemAllocNodeGetParams>(node, &params) != CUDA_SUCCESS) return true;
  const CUmemLocation& location = params.poolProps.location;
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return true;
  if (location.id < 0 || location.id >= kMostGraphDevices) return true;
  memory.bytes[location.id] = sum(memory.bytes[location.id], params.bytesize);
  if (!memory.allocated.hold()) return false;
  GraphMemory::Allocation replaced{};
  memory.allocated.put(params.dptr, 0, {params.bytesize, location.id}, replaced);
  return true;
}

bool note_free(CUgraphNode node, GraphMemory& memory) {
  CUdeviceptr address = 0;
  if (real<FunctionId::cuGraphMemFreeNodeGetParams>(node, &address) != CUDA_SUCCESS) return true;
  if (!memory.freed.hold()) return false;
  bool replaced = false;
  memory.freed.put(address, 0, true, replaced);
  return true;
}

// Notes one node, and puts the graph inside it on the list.
bool note_node(CUgraphNode node, GraphMemory& memory, List<CUgraph>& inside) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUgraph child = nullptr;
  if (real<FunctionId::cuGraphNodeGetType>(node, &type) != CUDA_SUCCESS) return true;
  switch (type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return note_allocation(node, memory);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return note_free(node, memory);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return real<FunctionId::cuGraphChildGraphNodeGetGraph>(node, &child) != CUDA_SUCCESS ||
             inside.add(child);
    default:
      return true;
  }
}

bool note_graph(CUgraph graph, GraphMemory& memory, List<CUgraph>& inside) {
  size_t count = 0;
  if (real<FunctionId::cuGraphGetNodes>(graph, nullptr, &count) != CUDA_SUCCESS) return true;
  List<CUgraphNode> nodes(count);
  if (!nodes.there()) return false;
  if (real<FunctionId::cuGraphGetNodes>(graph, nodes.items(), &count) != CUDA_SUCCESS) return true;
  for (size_t i = 0; i < count; ++i) {
    if (!note_node(nodes.items()[i], memory, inside)) return false;
  }
  return true;
}

// Charges one device after the other, makes the call when all of them were given, and keeps what
// was charged: each charge waits on the stack for those that follow. What the graph counts already
// is not charged again.
template <typename Call>
CUresult charged(const GraphMemory& memory, int device, CUgraphExec* exec, bool anew,
                 const Call& call) {
  uint64_t bytes = 0;
  for (; device < kMostGraphDevices; ++device) {
    bytes = memory.bytes[device];
    if (bytes == 0) continue;
    const uint64_t before = anew ? 0 : counted(key_of(*exec, device));
    bytes -= before < bytes ? before : bytes;
    if (bytes != 0) break;
  }
  if (device == kMostGraphDevices) return call();
  Charge charge(link::gate_of_device(device), bytes);
  if (charge.refused()) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = charged(memory, device + 1, exec, anew, call);
  if (result != CUDA_SUCCESS) return result;
  if (anew) {
    charge.keep(key_of(*exec, device), Lifetime::kGraph);
  } else {
    charge.add_to(key_of(*exec, device), Lifetime::kGraph);
  }
  return result;
}

template <typename Call>
CUresult instantiate(CUgraphExec* exec, CUgraph graph, const Call& call) {
  if (!g_graph_memory.load(std::memory_order_relaxed)) return call();
  if (exec == nullptr || graph == nullptr) return call();
  GraphMemory memory;
  if (!memory.look_through(graph)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = charged(memory, 0, exec, true, call);
  if (result == CUDA_SUCCESS) note_left(*exec, memory);
  return result;
}

// Drivers of today refuse to change allocation nodes; should one not, more is charged, and what is
// less is given back with the rest.
template <typename Call>
CUresult update(CUgraphExec exec, CUgraph graph, const Call& call) {
  if (!g_graph_memory.load(std::memory_order_relaxed)) return call();
  if (exec == nullptr || graph == nullptr) return call();
  GraphMemory memory;
  if (!memory.look_through(graph)) return CUDA_ERROR_OUT_OF_MEMORY;
  return charged(memory, 0, &exec, false, call);
}

template <FunctionId kFunction>
CUresult instantiate_with_params(CUgraphExec* exec, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  bool asked = false;
  const CUresult result = instantiate(exec, graph, [&] {
    asked = true;
    return real_with_memory<kFunction>(exec, graph, params);
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
    return real_with_memory<kFunction>(exec, graph, error_node, log, log_bytes);
  });
  if (!asked) {
    if (error_node != nullptr) *error_node = nullptr;
    if (log != nullptr && log_bytes > 0) log[0] = 0;
  }
  return result;
}

template <FunctionId kFunction>
CUresult pass(CUgraphExec exec, CUstream stream, bool per_thread) {
  if (gate::Slot* slot = gate::enter_free()) {
    const CUresult result = real<kFunction>(exec, stream);
    gate::leave_free(slot);
    return result;
  }
  const gate::Destination destination{stream, per_thread};
  return with_room(destination, [&] {
    const gate::Passage passage(destination, gate::Needs::kTurn);
    if (passage.refused()) return gate::Passage::kRefused;
    return real<kFunction>(exec, stream);
  });
}

template <FunctionId kFunction>
CUresult launch(CUgraphExec exec, CUstream stream, bool per_thread) {
  const bool noted = anything_left() && !stream_is_capturing(stream, per_thread);
  const CUresult result = pass<kFunction>(exec, stream, per_thread);
  if (noted && result == CUDA_SUCCESS) left_launched(exec);
  return result;
}

void note_kind(const CUgraphNodeParams* params) {
  if (params != nullptr && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) g_graph_memory = true;
}

}  // namespace

std::atomic<bool> g_graph_memory{false};

Key key_of(CUgraphExec exec, int device) {
  return {KeyKind::kGraph, reinterpret_cast<uint64_t>(exec), static_cast<uint32_t>(device)};
}

bool GraphMemory::look_through(CUgraph graph) {
  List<CUgraph> graphs(0);
  if (!graphs.there() || !graphs.add(graph)) return false;
  CUgraph next = nullptr;
  while (graphs.take(next)) {
    if (!note_graph(next, *this, graphs)) return false;
  }
  return true;
}

}  // namespace nvshare::interposer::memory

namespace nvshare::interposer::own {
using namespace memory;

CUresult cuGraphAddMemAllocNode(CUgraphNode* graph_node, CUgraph graph,
                                const CUgraphNode* dependencies, size_t num_dependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS* node_params) {
  g_graph_memory = true;
  return real_with_room<FunctionId::cuGraphAddMemAllocNode>(graph_node, graph, dependencies,
                                                            num_dependencies, node_params);
}

CUresult cuGraphAddNode(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies,
                        size_t num_dependencies, CUgraphNodeParams* node_params) {
  note_kind(node_params);
  return real_with_memory<FunctionId::cuGraphAddNode>(graph_node, graph, dependencies,
                                                      num_dependencies, node_params);
}

CUresult cuGraphAddNode_v2(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* dependency_data, size_t num_dependencies,
                           CUgraphNodeParams* node_params) {
  note_kind(node_params);
  return real_with_memory<FunctionId::cuGraphAddNode_v2>(
      graph_node, graph, dependencies, dependency_data, num_dependencies, node_params);
}

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
    return real_with_memory<FunctionId::cuGraphInstantiateWithFlags>(graph_exec, graph, flags);
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

CUresult cuGraphExecUpdate(CUgraphExec graph_exec, CUgraph graph, CUgraphNode* error_node_out,
                           CUgraphExecUpdateResult* update_result_out) {
  return update(graph_exec, graph, [&] {
    return real_with_memory<FunctionId::cuGraphExecUpdate>(graph_exec, graph, error_node_out,
                                                           update_result_out);
  });
}

CUresult cuGraphExecUpdate_v2(CUgraphExec graph_exec, CUgraph graph,
                              CUgraphExecUpdateResultInfo* result_info) {
  return update(graph_exec, graph, [&] {
    return real_with_memory<FunctionId::cuGraphExecUpdate_v2>(graph_exec, graph, result_info);
  });
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  return launch<FunctionId::cuGraphLaunch>(graph, stream, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph_exec, CUstream stream) {
  return launch<FunctionId::cuGraphLaunch_ptsz>(graph_exec, stream, true);
}

CUresult cuGraphExecDestroy(CUgraphExec graph_exec) {
  const Serial before = mark();
  const CUresult result = real<FunctionId::cuGraphExecDestroy>(graph_exec);
  if (result != CUDA_SUCCESS || !g_graph_memory.load(std::memory_order_relaxed)) return result;
  left_behind(graph_exec, before);
  for (int device = 0; device < kMostGraphDevices; ++device) {
    uncount(key_of(graph_exec, device), before);
  }
  return result;
}

CUresult cuGraphDestroy(CUgraph graph) {
  const CUresult result = real<FunctionId::cuGraphDestroy>(graph);
  if (result == CUDA_SUCCESS && g_graph_memory.load(std::memory_order_relaxed)) {
    // Should the driver have dropped what its executable graphs left.
    uncount_unknown(Lifetime::kGraph);
  }
  return result;
}

}  // namespace nvshare::interposer::own
