#pragma once

#include "softgpu/runtime/call.h"

namespace nvshare::softgpu {

std::shared_ptr<Graph> new_graph(Runtime& rt, const std::shared_ptr<Context>& context);
// Takes the graph's nodes and its references to user objects out of the registries.
void drop_graph(Runtime& rt, Graph& graph);
Node* add_node(Runtime& rt, Graph& graph, Task task, std::vector<Edge> deps);
void remove_node(Runtime& rt, Node& node);

// Addresses for an allocation node; charged to the card while a launch has them allocated.
CUresult new_graph_piece(Runtime& rt, std::size_t bytes, int device,
                         std::shared_ptr<GraphPiece>& out);

// A copy with nodes of its own, which know what they are copies of.
std::shared_ptr<Graph> clone_graph(Runtime& rt, const std::shared_ptr<Graph>& graph);

// The nodes such that each comes after all it waits for; empty when there is a circle in it.
std::vector<Node*> in_topological_order(const Graph& graph);

CUresult launch_graph(Call& call, const std::shared_ptr<GraphExec>& exec,
                      const std::shared_ptr<Stream>& stream);

// Gives back memory of allocation nodes; false when the address is not such memory.
bool free_graph_memory(Runtime& rt, std::uint64_t address);

void release_user_object(Runtime& rt, CUuserObject handle, std::uint64_t count, Lock& lock);

}  // namespace nvshare::softgpu
