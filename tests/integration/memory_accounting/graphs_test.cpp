#include <string_view>
#include <vector>

#include "interposer/memory/graph.h"
#include "machine.h"

// An executable graph counts the sum of its allocation nodes, from its making to its end.
namespace nvshare::interposer {
namespace {

class Graphs : public Machine {
 protected:
  static CUdeviceptr add_allocation(CUgraph graph, uint64_t bytes, int device = 0) {
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    params.bytesize = bytes;
    CUgraphNode node{};
    EXPECT_OK(own::cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &params));
    return params.dptr;
  }
  static CUgraph new_graph() {
    CUgraph graph{};
    EXPECT_OK(real<FunctionId::cuGraphCreate>(&graph, 0));
    return graph;
  }
};

TEST_F(Graphs, CountTheirAllocationNodes) {
  const CUgraph graph = new_graph();
  add_allocation(graph, kMiB + 1);
  add_allocation(graph, 2 * kMiB);
  EXPECT_EQ(allocated(), 0u);
  CUgraphExec exec{};
  ASSERT_OK(own::cuGraphInstantiateWithFlags(&exec, graph, 0));
  EXPECT_EQ(allocated(), 3 * kMiB + 1);
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_EQ(allocated(), 0u);
  EXPECT_OK(own::cuGraphDestroy(graph));
}

TEST_F(Graphs, CountOnEveryWayToMakeThem) {
  const CUgraph graph = new_graph();
  add_allocation(graph, kMiB);
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  const std::function<CUresult(CUgraphExec*)> ways[] = {
      [&](CUgraphExec* exec) { return own::cuGraphInstantiate(exec, graph, nullptr, nullptr, 0); },
      [&](CUgraphExec* exec) {
        return own::cuGraphInstantiate_v2(exec, graph, nullptr, nullptr, 0);
      },
      [&](CUgraphExec* exec) { return own::cuGraphInstantiateWithFlags(exec, graph, 0); },
      [&](CUgraphExec* exec) { return own::cuGraphInstantiateWithParams(exec, graph, &params); },
      [&](CUgraphExec* exec) {
        return own::cuGraphInstantiateWithParams_ptsz(exec, graph, &params);
      },
  };
  for (const auto& way : ways) {
    CUgraphExec exec{};
    limit(kMiB - 1);
    EXPECT_EQ(way(&exec), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(allocated(), 0u);
    limit(kMiB);
    ASSERT_OK(way(&exec));
    EXPECT_EQ(allocated(), kMiB);
    // The driver allows one executable graph of these at a time.
    CUgraphExec second{};
    limit(0);
    EXPECT_EQ(way(&second), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(allocated(), kMiB);
    ASSERT_OK(own::cuGraphExecDestroy(exec));
    EXPECT_NE(own::cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(allocated(), 0u);
  }
  EXPECT_OK(own::cuGraphDestroy(graph));
}

TEST_F(Graphs, ThatAreRefusedSaySo) {
  const CUgraph graph = new_graph();
  add_allocation(graph, kMiB);
  limit(1);
  CUgraphExec exec{};
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  EXPECT_EQ(own::cuGraphInstantiateWithParams(&exec, graph, &params), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_ERROR);
  CUgraphNode node = reinterpret_cast<CUgraphNode>(uint64_t{1});
  char log[8] = "full";
  EXPECT_EQ(own::cuGraphInstantiate_v2(&exec, graph, &node, log, sizeof log),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(node, nullptr);
  EXPECT_STREQ(log, "");
  EXPECT_OK(own::cuGraphDestroy(graph));
}

TEST_F(Graphs, CountCapturedAllocations) {
  const CUstream stream = new_stream();
  CUdeviceptr address = 0;
  CUgraph graph{};
  CUgraphExec exec{};
  ASSERT_OK(real<FunctionId::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_OK(own::cuMemAllocAsync(&address, 7 * kMiB, stream));
  ASSERT_OK(own::cuMemFreeAsync(address, stream));
  ASSERT_OK(real<FunctionId::cuStreamEndCapture>(stream, &graph));
  ASSERT_OK(own::cuGraphInstantiateWithFlags(&exec, graph, 0));
  EXPECT_EQ(allocated(), 7 * kMiB);
  ASSERT_OK(own::cuGraphLaunch(exec, stream));
  ASSERT_OK(real<FunctionId::cuStreamSynchronize>(stream));
  EXPECT_EQ(allocated(), 7 * kMiB);
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_EQ(allocated(), 0u);
  EXPECT_OK(own::cuGraphDestroy(graph));
}

TEST_F(Graphs, CountOnEveryDeviceOrNotAtAll) {
  const CUgraph graph = new_graph();
  add_allocation(graph, kMiB, 0);
  add_allocation(graph, 2 * kMiB, 1);
  CUgraphExec exec{};
  limit(2 * kMiB - 1, 1);
  EXPECT_EQ(own::cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(allocated(0), 0u);
  limit(2 * kMiB, 1);
  ASSERT_OK(own::cuGraphInstantiateWithFlags(&exec, graph, 0));
  EXPECT_EQ(allocated(0), kMiB);
  EXPECT_EQ(allocated(1), 2 * kMiB);
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_OK(own::cuGraphDestroy(graph));
}

// Children that hold memory cannot be copied, but they can be handed over.
CUgraph g_child = nullptr;
CUgraphNode child_node() {
  return reinterpret_cast<CUgraphNode>(uint64_t{0x77});
}
Signature<FunctionId::cuGraphGetNodes>* g_real_nodes = nullptr;
Signature<FunctionId::cuGraphNodeGetType>* g_real_type = nullptr;

CUresult nodes_and_child(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  if (graph == g_child) return g_real_nodes(graph, nodes, count);
  if (nodes != nullptr) nodes[0] = child_node();
  *count = 1;
  return CUDA_SUCCESS;
}
CUresult type_or_child(CUgraphNode node, CUgraphNodeType* type) {
  if (node != child_node()) return g_real_type(node, type);
  *type = CU_GRAPH_NODE_TYPE_GRAPH;
  return CUDA_SUCCESS;
}
CUresult graph_of_child(CUgraphNode, CUgraph* graph) {
  *graph = g_child;
  return CUDA_SUCCESS;
}

TEST_F(Graphs, CountTheGraphsInsideThem) {
  const CUgraph graph = new_graph();
  g_child = new_graph();
  add_allocation(g_child, 3 * kMiB);
  g_real_nodes = reinterpret_cast<Signature<FunctionId::cuGraphGetNodes>*>(
      catching::g_driver[static_cast<unsigned>(FunctionId::cuGraphGetNodes)]);
  g_real_type = reinterpret_cast<Signature<FunctionId::cuGraphNodeGetType>*>(
      catching::g_driver[static_cast<unsigned>(FunctionId::cuGraphNodeGetType)]);
  CUgraphExec exec{};
  {
    const Instead nodes(FunctionId::cuGraphGetNodes, reinterpret_cast<void*>(&nodes_and_child));
    const Instead type(FunctionId::cuGraphNodeGetType, reinterpret_cast<void*>(&type_or_child));
    const Instead child(FunctionId::cuGraphChildGraphNodeGetGraph,
                        reinterpret_cast<void*>(&graph_of_child));
    ASSERT_OK(own::cuGraphInstantiateWithFlags(&exec, graph, 0));
  }
  EXPECT_EQ(allocated(), 3 * kMiB);
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_OK(own::cuGraphDestroy(graph));
  EXPECT_OK(own::cuGraphDestroy(g_child));
}

// What a graph allocates and does not free itself.
class LeftByGraphs : public Graphs {
 protected:
  void SetUp() override {
    Graphs::SetUp();
    stream = new_stream();
    graph = new_graph();
    address = add_allocation(graph, 3 * kMiB);
    CUgraphNode node{};
    const CUdeviceptr passing = add_allocation(graph, kMiB);
    ASSERT_OK(real<FunctionId::cuGraphAddMemFreeNode>(&node, graph, nullptr, 0, passing));
    ASSERT_OK(own::cuGraphInstantiateWithFlags(&exec, graph, 0));
    EXPECT_EQ(allocated(), 4 * kMiB);
  }
  void TearDown() override {
    if (graph != nullptr) {
      EXPECT_OK(own::cuGraphDestroy(graph));
    }
    EXPECT_FALSE(memory::anything_left());
    Graphs::TearDown();
  }
  void launch() {
    ASSERT_OK(own::cuGraphLaunch(exec, stream));
    ASSERT_OK(real<FunctionId::cuStreamSynchronize>(stream));
  }

  CUstream stream{};
  CUgraph graph{};
  CUgraphExec exec{};
  CUdeviceptr address = 0;
};

TEST_F(LeftByGraphs, CountsUntilItIsFreed) {
  launch();
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_EQ(allocated(), 3 * kMiB);
  ASSERT_OK(own::cuMemFree_v2(address));
  EXPECT_EQ(allocated(), 0u);
}

TEST_F(LeftByGraphs, IsNotThereBeforeALaunch) {
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_EQ(allocated(), 0u);
}

TEST_F(LeftByGraphs, IsNotThereAfterItWasFreed) {
  launch();
  ASSERT_OK(own::cuMemFreeAsync(address, stream));
  ASSERT_OK(real<FunctionId::cuStreamSynchronize>(stream));
  EXPECT_EQ(allocated(), 4 * kMiB) << "the executable graph keeps it";
  launch();
  ASSERT_OK(own::cuMemFree_v2(address));
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_EQ(allocated(), 0u);
}

TEST_F(LeftByGraphs, IsNotThereAfterItWasFreedInOrder) {
  launch();
  ASSERT_OK(own::cuMemFreeAsync(address, stream));
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_EQ(allocated(), 0u);
  ASSERT_OK(real<FunctionId::cuStreamSynchronize>(stream));
}

TEST_F(LeftByGraphs, IsThereAgainAfterAnotherLaunch) {
  launch();
  ASSERT_OK(own::cuMemFree_v2(address));
  launch();
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_EQ(allocated(), 3 * kMiB);
  ASSERT_OK(own::cuMemFree_v2(address));
}

TEST_F(LeftByGraphs, GoesWhenTheDriverDoesNotKnowItAnyMore) {
  launch();
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_EQ(allocated(), 3 * kMiB);
  ASSERT_OK(own::cuGraphDestroy(graph));
  graph = nullptr;
  EXPECT_EQ(allocated(), 0u);
}

// Neither graph is real to the driver here: only what is noted of them counts.
CUdeviceptr g_foreign = 0;
CUresult one_node(CUgraph, CUgraphNode* nodes, size_t* count) {
  if (nodes != nullptr) nodes[0] = child_node();
  *count = 1;
  return CUDA_SUCCESS;
}
CUresult frees(CUgraphNode, CUgraphNodeType* type) {
  *type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  return CUDA_SUCCESS;
}
CUresult frees_foreign(CUgraphNode, CUdeviceptr* freed) {
  *freed = g_foreign;
  return CUDA_SUCCESS;
}

TEST_F(LeftByGraphs, IsFreedByTheLaunchOfAnotherGraph) {
  g_foreign = address;
  const CUgraph other = new_graph();
  CUgraphExec other_exec{};
  {
    const Instead nodes(FunctionId::cuGraphGetNodes, reinterpret_cast<void*>(&one_node));
    const Instead type(FunctionId::cuGraphNodeGetType, reinterpret_cast<void*>(&frees));
    const Instead params(FunctionId::cuGraphMemFreeNodeGetParams,
                         reinterpret_cast<void*>(&frees_foreign));
    ASSERT_OK(own::cuGraphInstantiateWithFlags(&other_exec, other, 0));
  }
  launch();
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_EQ(allocated(), 3 * kMiB);
  ASSERT_OK(own::cuGraphLaunch(other_exec, stream));
  EXPECT_EQ(allocated(), 0u);
  ASSERT_OK(own::cuGraphExecDestroy(other_exec));
  ASSERT_OK(own::cuGraphDestroy(other));
}

// A handle that the driver hands out again before the call that destroyed it is over.
CUresult make_42(CUgraphExec* exec, CUgraph, unsigned long long) {
  *exec = reinterpret_cast<CUgraphExec>(uint64_t{42});
  return CUDA_SUCCESS;
}
CUgraph g_next_graph = nullptr;
CUresult destroy_and_reuse(CUgraphExec) {
  CUgraphExec again{};
  const CUgraph graph = g_next_graph;
  g_next_graph = nullptr;
  return graph == nullptr ? CUDA_SUCCESS : own::cuGraphInstantiateWithFlags(&again, graph, 0);
}

TEST_F(Graphs, WithAHandleThatComesBackAtOnceAreCountedAnew) {
  const Instead making(FunctionId::cuGraphInstantiateWithFlags, reinterpret_cast<void*>(&make_42));
  const Instead destroying(FunctionId::cuGraphExecDestroy,
                           reinterpret_cast<void*>(&destroy_and_reuse));
  const CUgraph graph = new_graph();
  add_allocation(graph, 2 * kMiB);
  const CUgraph next = g_next_graph = new_graph();
  add_allocation(next, 3 * kMiB);
  CUgraphExec exec{};
  ASSERT_OK(own::cuGraphInstantiateWithFlags(&exec, graph, 0));
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_EQ(allocated(), 3 * kMiB);
  EXPECT_TRUE(memory::anything_left()) << "what the new one leaves is known";
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_EQ(allocated(), 0u);
  EXPECT_FALSE(memory::anything_left());
  EXPECT_OK(own::cuGraphDestroy(graph));
  EXPECT_OK(own::cuGraphDestroy(next));
}

TEST_F(Graphs, CountInFullWhateverTheirPlaceHeldBefore) {
  const CUgraph graph = new_graph();
  add_allocation(graph, 2 * kMiB);
  const CUgraph next = new_graph();
  add_allocation(next, 3 * kMiB);
  CUgraphExec first{};
  ASSERT_OK(own::cuGraphInstantiateWithFlags(&first, graph, 0));
  CUgraphExec second = first;
  ASSERT_OK(own::cuGraphInstantiateWithFlags(&second, next, 0));
  EXPECT_EQ(allocated(), 5 * kMiB);
  ASSERT_OK(own::cuGraphExecDestroy(first));
  EXPECT_EQ(allocated(), 3 * kMiB);
  ASSERT_OK(own::cuGraphExecDestroy(second));
  EXPECT_OK(own::cuGraphDestroy(graph));
  EXPECT_OK(own::cuGraphDestroy(next));
}

CUresult accept_update(CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo*) {
  return CUDA_SUCCESS;
}

TEST_F(Graphs, UpdatesThatAllocateMoreCountMore) {
  const CUgraph graph = new_graph();
  add_allocation(graph, kMiB);
  const CUgraph larger = new_graph();
  add_allocation(larger, 3 * kMiB);
  add_allocation(larger, kMiB, 1);
  CUgraphExec exec{};
  ASSERT_OK(own::cuGraphInstantiateWithFlags(&exec, graph, 0));
  CUgraphExecUpdateResultInfo info{};
  EXPECT_NE(own::cuGraphExecUpdate_v2(exec, larger, &info), CUDA_SUCCESS);
  EXPECT_EQ(allocated(), kMiB);
  {
    const Instead instead(FunctionId::cuGraphExecUpdate_v2,
                          reinterpret_cast<void*>(&accept_update));
    limit(3 * kMiB - 1);
    EXPECT_EQ(own::cuGraphExecUpdate_v2(exec, larger, &info), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(allocated(0), kMiB);
    limit(3 * kMiB);
    ASSERT_OK(own::cuGraphExecUpdate_v2(exec, larger, &info));
    EXPECT_EQ(allocated(0), 3 * kMiB);
    EXPECT_EQ(allocated(1), kMiB);
    ASSERT_OK(own::cuGraphExecUpdate_v2(exec, graph, &info));
    EXPECT_EQ(allocated(0), 3 * kMiB);
  }
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_OK(own::cuGraphDestroy(graph));
  EXPECT_OK(own::cuGraphDestroy(larger));
}

TEST_F(Graphs, CountNodesAddedInTheGeneralWay) {
  memory::g_graph_memory = false;
  const CUgraph graph = new_graph();
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  params.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.alloc.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  params.alloc.bytesize = kMiB;
  CUgraphNode node{};
  ASSERT_OK(own::cuGraphAddNode(&node, graph, nullptr, 0, &params));
  EXPECT_TRUE(memory::g_graph_memory);
  memory::g_graph_memory = false;
  params.alloc.dptr = 0;
  ASSERT_OK(own::cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params));
  CUgraphExec exec{};
  ASSERT_OK(own::cuGraphInstantiateWithFlags(&exec, graph, 0));
  EXPECT_EQ(allocated(), 2 * kMiB);
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_OK(own::cuGraphDestroy(graph));
}

// Every function that may make an allocation node has a body that notices it.
TEST_F(Graphs, EveryWayToAnAllocationNodeIsSeen) {
  std::vector<std::string_view> ways;
  for (const Function& row : kFunctions) {
    const std::string_view symbol = row.symbol;
    const bool adds = symbol.substr(0, 10) == "cuGraphAdd";
    const bool any = symbol.find("AddNode") != symbol.npos;
    if (adds && (any || symbol.find("Alloc") != symbol.npos)) ways.push_back(symbol);
  }
  EXPECT_EQ(ways, (std::vector<std::string_view>{"cuGraphAddMemAllocNode", "cuGraphAddNode",
                                                 "cuGraphAddNode_v2"}));
}

TEST_F(Graphs, WithManyNodesAreSeenWhole) {
  const CUgraph graph = new_graph();
  CUgraphNode node{};
  for (int i = 0; i < 2000; ++i) {
    ASSERT_OK(real<FunctionId::cuGraphAddEmptyNode>(&node, graph, nullptr, 0));
  }
  for (int i = 0; i < 5; ++i) add_allocation(graph, 1000);
  CUgraphExec exec{};
  ASSERT_OK(own::cuGraphInstantiateWithFlags(&exec, graph, 0));
  EXPECT_EQ(allocated(), 5000u);
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_OK(own::cuGraphDestroy(graph));
}

TEST_F(Graphs, WithoutMemoryAskForNothing) {
  const CUgraph graph = new_graph();
  CUgraphExec exec{};
  limit(1);
  ASSERT_OK(own::cuGraphInstantiateWithFlags(&exec, graph, 0));
  EXPECT_EQ(g_accounts[0].requests, 0u);
  ASSERT_OK(own::cuGraphExecDestroy(exec));
  EXPECT_OK(own::cuGraphDestroy(graph));
  EXPECT_EQ(own::cuGraphInstantiateWithFlags(nullptr, graph, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuGraphInstantiateWithFlags(&exec, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(own::cuGraphInstantiateWithParams(&exec, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace nvshare::interposer
