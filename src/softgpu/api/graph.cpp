#include "softgpu/runtime/graph.h"

#include <algorithm>
#include <cstdio>

#include "softgpu/api/api.h"
#include "softgpu/api/graph_nodes.h"

// Graphs as structures: nodes, edges, copies, user objects.
namespace nvshare::softgpu {
namespace {

CUresult find(Call& call, CUgraph handle, std::shared_ptr<Graph>& out) {
  SOFTGPU_TRY(call.ready());
  out = call.rt.graphs.find(handle);
  return out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Writes a list as the driver does: without room only the number; with more room than there is,
// nulls behind it.
template <typename Handle>
void write_list(const std::vector<Handle>& list, Handle* out, size_t* count) {
  if (out == nullptr) {
    *count = list.size();
    return;
  }
  const size_t room = *count;
  for (size_t i = 0; i < room; ++i) out[i] = i < list.size() ? list[i] : Handle{};
  *count = std::min(room, list.size());
}

std::vector<Node*> dependents(const Node& node) {
  std::vector<Node*> found;
  for (const auto& other : node.graph->nodes) {
    for (const Edge& edge : other->deps) {
      if (edge.from == &node) found.push_back(other.get());
    }
  }
  return found;
}

CUresult find_pair(Call& call, const Graph& graph, CUgraphNode from, CUgraphNode to, Node*& first,
                   Node*& second) {
  const auto a = call.rt.nodes.find(from);
  const auto b = call.rt.nodes.find(to);
  if (!a || !b || a->graph != &graph || b->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
  first = a.get();
  second = b.get();
  return CUDA_SUCCESS;
}

bool has_memory_nodes(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    return std::holds_alternative<AllocTask>(node->task) ||
           std::holds_alternative<FreeTask>(node->task);
  });
}

void drop_with_objects(Call& call, const std::shared_ptr<Graph>& graph) {
  const auto objects = graph->user_objects;
  drop_graph(call.rt, *graph);
  for (const auto& [object, count] : objects) {
    release_user_object(call.rt, object, count, call.lock);
  }
}

}  // namespace

SOFTGPU_API(cuGraphCreate)(CUgraph* graph, unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (graph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  (void)call.any_context();
  *graph = new_graph(call.rt, call.ctx)->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphDestroy)(CUgraph graph) {
  Call call;
  std::shared_ptr<Graph> found;
  SOFTGPU_TRY(find(call, graph, found));
  if (found->child) return CUDA_ERROR_INVALID_VALUE;
  drop_with_objects(call, found);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphClone)(CUgraph* graph_clone, CUgraph original_graph) {
  Call call;
  std::shared_ptr<Graph> found;
  SOFTGPU_TRY(find(call, original_graph, found));
  if (graph_clone == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (has_memory_nodes(*found)) return CUDA_ERROR_NOT_SUPPORTED;
  *graph_clone = clone_graph(call.rt, found)->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphNodeFindInClone)
(CUgraphNode* node, CUgraphNode original_node, CUgraph cloned_graph) {
  Call call;
  std::shared_ptr<Graph> found;
  SOFTGPU_TRY(find(call, cloned_graph, found));
  const auto original = call.rt.nodes.find(original_node);
  if (node == nullptr || !original) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& one : found->nodes) {
    if (one->original_id == original->id) {
      *node = one->handle;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

SOFTGPU_API(cuGraphNodeGetType)(CUgraphNode node, CUgraphNodeType* type) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.nodes.find(node);
  if (!found || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = type_of(*found);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphGetNodes)(CUgraph graph, CUgraphNode* nodes, size_t* num_nodes) {
  Call call;
  std::shared_ptr<Graph> found;
  SOFTGPU_TRY(find(call, graph, found));
  if (num_nodes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> list;
  for (const auto& node : found->nodes) list.push_back(node->handle);
  write_list(list, nodes, num_nodes);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphGetRootNodes)
(CUgraph graph, CUgraphNode* root_nodes, size_t* num_root_nodes) {
  Call call;
  std::shared_ptr<Graph> found;
  SOFTGPU_TRY(find(call, graph, found));
  if (num_root_nodes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> list;
  for (const auto& node : found->nodes) {
    if (node->deps.empty()) list.push_back(node->handle);
  }
  write_list(list, root_nodes, num_root_nodes);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphGetEdges_v2)
(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edge_data, size_t* num_edges) {
  Call call;
  std::shared_ptr<Graph> found;
  SOFTGPU_TRY(find(call, graph, found));
  if (num_edges == nullptr || (from == nullptr) != (to == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<CUgraphNode> sources;
  std::vector<CUgraphNode> targets;
  std::vector<CUgraphEdgeData> data;
  for (const auto& node : found->nodes) {
    for (const Edge& edge : node->deps) {
      sources.push_back(edge.from->handle);
      targets.push_back(node->handle);
      data.push_back(edge.data);
    }
  }
  size_t room = *num_edges;
  if (edge_data != nullptr) write_list(data, edge_data, &room);
  room = *num_edges;
  write_list(sources, from, &room);
  write_list(targets, to, num_edges);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphGetEdges)
(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* num_edges) {
  return impl_cuGraphGetEdges_v2(graph, from, to, nullptr, num_edges);
}

SOFTGPU_API(cuGraphNodeGetDependencies_v2)
(CUgraphNode node, CUgraphNode* dependencies, CUgraphEdgeData* edge_data,
 size_t* num_dependencies) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.nodes.find(node);
  if (!found || num_dependencies == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> list;
  std::vector<CUgraphEdgeData> data;
  for (const Edge& edge : found->deps) {
    list.push_back(edge.from->handle);
    data.push_back(edge.data);
  }
  size_t room = *num_dependencies;
  if (edge_data != nullptr) write_list(data, edge_data, &room);
  write_list(list, dependencies, num_dependencies);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphNodeGetDependencies)
(CUgraphNode node, CUgraphNode* dependencies, size_t* num_dependencies) {
  return impl_cuGraphNodeGetDependencies_v2(node, dependencies, nullptr, num_dependencies);
}

SOFTGPU_API(cuGraphNodeGetDependentNodes_v2)
(CUgraphNode node, CUgraphNode* dependent_nodes, CUgraphEdgeData* edge_data,
 size_t* num_dependent_nodes) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.nodes.find(node);
  if (!found || num_dependent_nodes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> list;
  for (const Node* other : dependents(*found)) list.push_back(other->handle);
  const std::vector<CUgraphEdgeData> data(list.size());
  size_t room = *num_dependent_nodes;
  if (edge_data != nullptr) write_list(data, edge_data, &room);
  write_list(list, dependent_nodes, num_dependent_nodes);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphNodeGetDependentNodes)
(CUgraphNode node, CUgraphNode* dependent_nodes, size_t* num_dependent_nodes) {
  return impl_cuGraphNodeGetDependentNodes_v2(node, dependent_nodes, nullptr, num_dependent_nodes);
}

SOFTGPU_API(cuGraphAddDependencies_v2)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* edge_data,
 size_t num_dependencies) {
  Call call;
  std::shared_ptr<Graph> found;
  SOFTGPU_TRY(find(call, graph, found));
  if (num_dependencies > 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < num_dependencies; ++i) {
    Node* first = nullptr;
    Node* second = nullptr;
    SOFTGPU_TRY(find_pair(call, *found, from[i], to[i], first, second));
    const bool known = std::any_of(second->deps.begin(), second->deps.end(),
                                   [&](const Edge& edge) { return edge.from == first; });
    // A circle is only noticed when the graph is made executable.
    if (known || first == second) return CUDA_ERROR_INVALID_VALUE;
    second->deps.push_back({first, edge_data == nullptr ? CUgraphEdgeData{} : edge_data[i]});
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphAddDependencies)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t num_dependencies) {
  return impl_cuGraphAddDependencies_v2(graph, from, to, nullptr, num_dependencies);
}

SOFTGPU_API(cuGraphRemoveDependencies_v2)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData*,
 size_t num_dependencies) {
  Call call;
  std::shared_ptr<Graph> found;
  SOFTGPU_TRY(find(call, graph, found));
  if (num_dependencies > 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < num_dependencies; ++i) {
    Node* first = nullptr;
    Node* second = nullptr;
    SOFTGPU_TRY(find_pair(call, *found, from[i], to[i], first, second));
    if (std::erase_if(second->deps, [&](const Edge& edge) { return edge.from == first; }) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphRemoveDependencies)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t num_dependencies) {
  return impl_cuGraphRemoveDependencies_v2(graph, from, to, nullptr, num_dependencies);
}

SOFTGPU_API(cuGraphDestroyNode)(CUgraphNode node) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.nodes.find(node);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  const auto type = type_of(*found);
  // A graph with memory of its own keeps its shape.
  if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  remove_node(call.rt, *found);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphDebugDotPrint)(CUgraph graph, const char* path, unsigned) {
  Call call;
  std::shared_ptr<Graph> found;
  SOFTGPU_TRY(find(call, graph, found));
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  std::fputs("digraph dot {\n", file);
  for (const auto& node : found->nodes) {
    std::fprintf(file, "  n%llu [label=\"type %u\"];\n", static_cast<unsigned long long>(node->id),
                 static_cast<unsigned>(type_of(*node)));
    for (const Edge& edge : node->deps) {
      std::fprintf(file, "  n%llu -> n%llu;\n", static_cast<unsigned long long>(edge.from->id),
                   static_cast<unsigned long long>(node->id));
    }
  }
  std::fputs("}\n", file);
  std::fclose(file);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuUserObjectCreate)
(CUuserObject* object_out, void* address, CUhostFn destroy, unsigned initial_refcount,
 unsigned flags) {
  Call call;
  SOFTGPU_TRY(call.ready());
  if (object_out == nullptr || destroy == nullptr || initial_refcount == 0 ||
      initial_refcount > 0x7fffffff || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto object = std::make_shared<UserObject>();
  object->handle = reinterpret_cast<CUuserObject>(call.rt.new_handle());
  object->data = address;
  object->destroy = destroy;
  object->references = initial_refcount;
  call.rt.user_objects.add(reinterpret_cast<std::uint64_t>(object->handle), object);
  *object_out = object->handle;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuUserObjectRetain)(CUuserObject object, unsigned count) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.user_objects.find(object);
  if (!found || count == 0 || count > 0x7fffffff) return CUDA_ERROR_INVALID_VALUE;
  found->references += count;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuUserObjectRelease)(CUuserObject object, unsigned count) {
  Call call;
  SOFTGPU_TRY(call.ready());
  const auto found = call.rt.user_objects.find(object);
  if (!found || count == 0 || count > found->references) return CUDA_ERROR_INVALID_VALUE;
  release_user_object(call.rt, object, count, call.lock);
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphRetainUserObject)
(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  Call call;
  std::shared_ptr<Graph> found;
  SOFTGPU_TRY(find(call, graph, found));
  const auto kept = call.rt.user_objects.find(object);
  if (!kept || count == 0 || count > 0x7fffffff ||
      (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  found->user_objects[object] += count;
  if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) kept->references += count;
  return CUDA_SUCCESS;
}

SOFTGPU_API(cuGraphReleaseUserObject)(CUgraph graph, CUuserObject object, unsigned count) {
  Call call;
  std::shared_ptr<Graph> found;
  SOFTGPU_TRY(find(call, graph, found));
  const auto held = found->user_objects.find(object);
  if (held == found->user_objects.end() || count == 0 || count > held->second) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  held->second -= count;
  if (held->second == 0) found->user_objects.erase(held);
  release_user_object(call.rt, object, count, call.lock);
  return CUDA_SUCCESS;
}

}  // namespace nvshare::softgpu
