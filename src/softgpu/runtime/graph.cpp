#include "softgpu/runtime/graph.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>

#include "softgpu/runtime/execute.h"
#include "softgpu/runtime/memory_ops.h"

namespace nvshare::softgpu {
namespace {

constexpr std::uint64_t kGraphStep = std::uint64_t{32} << 20;  // memory of graphs comes in these

}  // namespace

std::shared_ptr<Graph> new_graph(Runtime& rt, const std::shared_ptr<Context>& context) {
  auto graph = std::make_shared<Graph>();
  graph->handle = reinterpret_cast<CUgraph>(rt.new_handle());
  graph->context = context;
  rt.graphs.add(reinterpret_cast<std::uint64_t>(graph->handle), graph);
  return graph;
}

void drop_graph(Runtime& rt, Graph& graph) {
  for (const auto& node : graph.nodes) {
    rt.nodes.remove(node->handle);
    if (const auto* child = std::get_if<ChildTask>(&node->task)) drop_graph(rt, *child->graph);
  }
  rt.graphs.remove(graph.handle);
}

Node* add_node(Runtime& rt, Graph& graph, Task task, std::vector<Edge> deps) {
  auto node = std::make_unique<Node>();
  node->handle = reinterpret_cast<CUgraphNode>(rt.new_handle());
  node->id = rt.new_id();
  node->graph = &graph;
  node->task = std::move(task);
  node->deps = std::move(deps);
  Node* raw = node.get();
  graph.nodes.push_back(std::move(node));
  // The registry only finds; the graph owns.
  rt.nodes.add(reinterpret_cast<std::uint64_t>(raw->handle),
               std::shared_ptr<Node>(raw, [](Node*) {}));
  return raw;
}

void remove_node(Runtime& rt, Node& node) {
  Graph& graph = *node.graph;
  for (const auto& other : graph.nodes) {
    std::erase_if(other->deps, [&](const Edge& edge) { return edge.from == &node; });
  }
  rt.nodes.remove(node.handle);
  graph.nodes.remove_if([&](const auto& one) { return one.get() == &node; });
}

CUresult new_graph_piece(Runtime& rt, std::size_t bytes, int device,
                         std::shared_ptr<GraphPiece>& out) {
  const auto piece = rt.pages.take(round_up(bytes, kGraphStep));
  if (!piece) return CUDA_ERROR_OUT_OF_MEMORY;
  out = std::make_shared<GraphPiece>();
  out->piece = *piece;
  out->device = device;
  out->give_back = [&rt, device](const Piece& one) {
    rt.addresses.allocations.erase(one.address);
    if (rt.graph_live.erase(one.address) > 0) release_memory(*rt.segment, device, one.bytes);
    rt.pages.give_back(one);
  };
  Allocation allocation;
  allocation.base = piece->address;
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kPool;
  allocation.device = device;
  allocation.id = rt.new_id();
  allocation.graph = true;
  allocation.piece = *piece;
  rt.addresses.allocations[piece->address] = allocation;
  return CUDA_SUCCESS;
}

std::shared_ptr<Graph> clone_graph(Runtime& rt, const std::shared_ptr<Graph>& graph) {
  auto copy = new_graph(rt, graph->context.lock());
  copy->cloned_from = graph;
  copy->user_objects = graph->user_objects;
  for (const auto& [object, count] : copy->user_objects) {
    if (auto found = rt.user_objects.find(object)) found->references += count;
  }
  std::map<const Node*, Node*> twin;
  for (const auto& node : graph->nodes) {
    Node* made = add_node(rt, *copy, node->task, {});
    made->original = node.get();
    made->original_id = node->id;
    made->enabled = node->enabled;
    if (auto* child = std::get_if<ChildTask>(&made->task)) {
      child->graph = clone_graph(rt, child->graph);
      child->graph->child = true;
    }
    twin[node.get()] = made;
  }
  for (const auto& node : graph->nodes) {
    for (const Edge& edge : node->deps) {
      twin[node.get()]->deps.push_back({twin[edge.from], edge.data});
    }
  }
  return copy;
}

std::vector<Node*> in_topological_order(const Graph& graph) {
  std::map<const Node*, std::size_t> open;
  std::map<const Node*, std::vector<Node*>> dependents;
  std::vector<Node*> order;
  for (const auto& node : graph.nodes) {
    open[node.get()] = node->deps.size();
    for (const Edge& edge : node->deps) dependents[edge.from].push_back(node.get());
    if (node->deps.empty()) order.push_back(node.get());
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (Node* next : dependents[order[i]]) {
      if (--open[next] == 0) order.push_back(next);
    }
  }
  if (order.size() != graph.nodes.size()) order.clear();
  return order;
}

namespace {

bool frees(const Graph& graph, std::uint64_t address) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const auto& node) {
    const auto* task = std::get_if<FreeTask>(&node->task);
    return task != nullptr && task->address == address;
  });
}

// Memory of an allocation node comes to life when the graph is launched.
CUresult allocate_for_launch(Call& call, GraphExec& exec, const Graph& graph) {
  Runtime& rt = call.rt;
  for (const auto& node : graph.nodes) {
    if (const auto* child = std::get_if<ChildTask>(&node->task)) {
      SOFTGPU_TRY(allocate_for_launch(call, exec, *child->graph));
    }
    const auto* task = std::get_if<AllocTask>(&node->task);
    if (task == nullptr) continue;
    const std::uint64_t base = task->piece->piece.address;
    if (rt.graph_live.count(base) != 0 && !frees(graph, base)) {
      if ((exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0) {
        free_graph_memory(rt, base);
      } else {
        // It may be that freeing it is on its way.
        rt.wait_all(call.lock, nullptr);
        if (rt.graph_live.count(base) != 0) return CUDA_ERROR_INVALID_VALUE;
      }
    }
    if (rt.graph_live.count(base) == 0 &&
        !charge_memory(*rt.segment, task->piece->device, task->piece->piece.bytes)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    ++rt.graph_live[base];
    // What a graph has used once it keeps until it is destroyed.
    if (exec.allocated.insert(base).second) rt.graph_memory[0] += task->piece->piece.bytes;
    rt.graph_memory[1] = std::max(rt.graph_memory[1], rt.graph_memory[0]);
    rt.graph_memory[2] = std::max(rt.graph_memory[2], rt.graph_memory[0]);
    rt.graph_memory[3] = std::max(rt.graph_memory[3], rt.graph_memory[2]);
  }
  return CUDA_SUCCESS;
}

// Submits a graph's nodes, branches side by side, and says where its ends are.
class GraphSubmission {
 public:
  GraphSubmission(Call& call, std::shared_ptr<Context> context)
      : call_(call), context_(std::move(context)) {}

  std::vector<LanePoint> run(const Graph& graph, const std::vector<LanePoint>& start, int lane) {
    std::map<const Node*, std::vector<LanePoint>> ends;
    std::set<const Node*> waited_for;
    for (Node* node : in_topological_order(graph)) {
      std::vector<LanePoint> deps;
      for (const Edge& edge : node->deps) {
        const auto& points = ends[edge.from];
        deps.insert(deps.end(), points.begin(), points.end());
        waited_for.insert(edge.from);
      }
      if (node->deps.empty()) deps = start;
      ends[node] = submit(*node, deps, lane_for(deps, lane));
    }
    std::vector<LanePoint> leaves;
    for (const auto& [node, points] : ends) {
      if (waited_for.count(node) == 0) leaves.insert(leaves.end(), points.begin(), points.end());
    }
    return leaves.empty() ? start : leaves;
  }

 private:
  std::vector<LanePoint> submit(Node& node, const std::vector<LanePoint>& deps, int lane) {
    if (const auto* child = std::get_if<ChildTask>(&node.task)) {
      return run(*child->graph, deps, lane);
    }
    if (!node.enabled) return {submit_task(call_, context_, lane, EmptyTask{}, deps)};
    if (const auto* free = std::get_if<FreeTask>(&node.task)) {
      Op op;
      op.device = context_->device;
      op.context = context_;
      op.done = [&rt = call_.rt, address = free->address](Nanos) {
        free_graph_memory(rt, address);
      };
      return {claim(call_.rt.submit(call_.lock, lane, std::move(op), deps))};
    }
    return {claim(submit_task(call_, context_, lane, node.task, deps))};
  }

  LanePoint claim(LanePoint point) {
    tail_[point.lane()] = point.packed;
    return point;
  }

  // Behind what it waits for, when that is the end of its lane; else a lane of its own.
  int lane_for(const std::vector<LanePoint>& deps, int first) {
    if (tail_.empty()) return first;
    for (const LanePoint& point : deps) {
      const auto tail = tail_.find(point.lane());
      if (tail != tail_.end() && tail->second == point.packed) return point.lane();
    }
    return call_.rt.pick_lane(-1);
  }

  Call& call_;
  std::shared_ptr<Context> context_;
  std::map<int, std::uint64_t> tail_;
};

}  // namespace

bool free_graph_memory(Runtime& rt, std::uint64_t address) {
  const auto found = rt.addresses.allocations.find(address);
  const auto live = rt.graph_live.find(address);
  if (found == rt.addresses.allocations.end() || live == rt.graph_live.end()) return false;
  if (--live->second > 0) return true;  // a later launch has it
  rt.graph_live.erase(live);
  const Piece piece = found->second.piece;
  release_memory(*rt.segment, found->second.device, piece.bytes);
  // The address stays the graph's; the pages go.
  ::madvise(reinterpret_cast<void*>(piece.address), piece.bytes, MADV_REMOVE);
  return true;
}

CUresult launch_graph(Call& call, const std::shared_ptr<GraphExec>& exec,
                      const std::shared_ptr<Stream>& stream) {
  Runtime& rt = call.rt;
  const auto context = stream->context.lock();
  if (!context || context->dead) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (context->error != CUDA_SUCCESS) return context->error;
  SOFTGPU_TRY(allocate_for_launch(call, *exec, *exec->graph));
  auto start = implicit_deps(rt, *context, *stream);
  start.push_back(stream->last);
  start.push_back(exec->last);
  const int lane = rt.finished(stream->last) ? rt.pick_lane(stream->lane) : stream->last.lane();
  const auto leaves = GraphSubmission(call, context).run(*exec->graph, start, lane);
  Op end;
  end.device = context->device;
  end.context = context;
  stream->lane = lane;
  stream->last = rt.submit(call.lock, lane, std::move(end), leaves);
  exec->last = stream->last;
  return CUDA_SUCCESS;
}

void release_user_object(Runtime& rt, CUuserObject handle, std::uint64_t count, Lock& lock) {
  auto object = rt.user_objects.find(handle);
  if (!object) return;
  object->references -= std::min(object->references, count);
  if (object->references > 0) return;
  rt.user_objects.remove(handle);
  lock.unlock();
  object->destroy(object->data);
  lock.lock();
}

}  // namespace nvshare::softgpu
