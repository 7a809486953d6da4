#include "integration/roads.h"

#include <dlfcn.h>

#include <map>
#include <string>
#include <string_view>

namespace nvshare::integration {
namespace {

constexpr std::size_t kBytes = 4096;

CUDA_MEMCPY2D flat_copy(const Things& things) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = things.device;
  copy.srcPitch = 64;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = things.other;
  copy.dstPitch = 64;
  copy.WidthInBytes = 64;
  copy.Height = 4;
  return copy;
}

// For CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER, which have these fields in common.
template <typename Copy>
Copy deep_copy(const Things& things) {
  Copy copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = things.device;
  copy.srcPitch = 64;
  copy.srcHeight = 4;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = things.other;
  copy.dstPitch = 64;
  copy.dstHeight = 4;
  copy.WidthInBytes = 64;
  copy.Height = 4;
  copy.Depth = 2;
  return copy;
}

CUDA_MEMCPY3D_PEER peer_copy(const Things& things) {
  auto copy = deep_copy<CUDA_MEMCPY3D_PEER>(things);
  copy.srcContext = things.context;
  copy.dstContext = things.context;
  return copy;
}

CUDA_MEMCPY3D_BATCH_OP batch_operation(const Things& things) {
  CUDA_MEMCPY3D_BATCH_OP operation{};
  operation.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  operation.src.op.ptr.ptr = things.device;
  operation.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  operation.dst.op.ptr.ptr = things.other;
  operation.extent = {64, 1, 1};
  operation.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  return operation;
}

// What a batch of one copy, prefetch or memory operation is made of. Such calls take no default
// stream, so the symbols for the thread's own are given it by name.
struct Batch {
  explicit Batch(Things& things)
      : to{things.other},
        from{things.device},
        managed{things.managed},
        operation(batch_operation(things)),
        stream(things.stream == nullptr ? stream_per_thread() : things.stream) {
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    place = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address = things.pinned;
    write.writeValue.value = 1;
  }
  CUdeviceptr to[1];
  CUdeviceptr from[1];
  CUdeviceptr managed[1];
  std::size_t sizes[1] = {kBytes};
  CUmemcpyAttributes attributes{};
  std::size_t indexes[1] = {0};
  std::size_t failed = 0;
  CUmemLocation place{};
  CUDA_MEMCPY3D_BATCH_OP operation;
  CUstreamBatchMemOpParams write{};
  CUstream stream;
};

// The parameters of nodes.
struct Node {
  explicit Node(Things& things) : copy(deep_copy<CUDA_MEMCPY3D>(things)) {
    memset = {things.device, 0, 0, 1, kBytes, 1};
    write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address = things.device;
    write.writeValue.value = 1;
    operations = {things.context, 1, &write, 0};
    any.type = CU_GRAPH_NODE_TYPE_MEMSET;
    any.memset = {things.device, 0, 0, 1, kBytes, 1, things.context};
  }
  CUDA_MEMCPY3D copy;
  CUDA_MEMSET_NODE_PARAMS memset{};
  CUstreamBatchMemOpParams write{};
  CUDA_BATCH_MEM_OP_NODE_PARAMS operations{};
  CUgraphNodeParams any{};
  CUgraphNode made{};
  CUgraphExec executable{};
  CUgraphExecUpdateResult updated{};
  CUgraphExecUpdateResultInfo update{};
  CUDA_GRAPH_INSTANTIATE_PARAMS instantiation{};
};

CUlaunchConfig one_thread(CUstream stream) {
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  return config;
}

void nothing(void*) {}
void nothing_back(CUstream, CUresult, void*) {}

using Roads = std::map<std::string_view, Road>;

template <FunctionId id, typename... Arguments>
CUresult go(void* function, Arguments... arguments) {
  return reinterpret_cast<Signature<id>*>(function)(arguments...);
}

// ROAD(symbol, arguments): they may speak of the things as `t`, of a batch as `b`, of a node's
// parameters as `n`.
#define ROAD(symbol, ...)                                               \
  all[#symbol] = [](void* function, [[maybe_unused]] Things& t) {       \
    [[maybe_unused]] Batch b(t);                                        \
    [[maybe_unused]] Node n(t);                                         \
    return go<FunctionId::symbol>(function __VA_OPT__(, ) __VA_ARGS__); \
  }

void add_launches(Roads& all) {
  ROAD(cuLaunchKernel, t.noop, 1u, 1u, 1u, 1u, 1u, 1u, 0u, t.stream, nullptr, nullptr);
  all["cuLaunchKernelEx"] = [](void* function, Things& t) {
    const CUlaunchConfig config = one_thread(t.stream);
    return go<FunctionId::cuLaunchKernelEx>(function, &config, t.noop, nullptr, nullptr);
  };
  ROAD(cuLaunchCooperativeKernel, t.noop, 1u, 1u, 1u, 1u, 1u, 1u, 0u, t.stream, nullptr);
  ROAD(cuLaunchHostFunc, t.stream, nothing, nullptr);
  ROAD(cuStreamAddCallback, t.stream, nothing_back, nullptr, 0u);
  ROAD(cuLaunch, t.noop);
  ROAD(cuLaunchGrid, t.noop, 1, 1);
  ROAD(cuLaunchGridAsync, t.noop, 1, 1, t.stream);
  ROAD(cuGraphUpload, t.graph, t.stream);
  ROAD(cuGraphLaunch, t.graph, t.stream);
}

void add_stream_operations(Roads& all) {
  ROAD(cuStreamAttachMemAsync, t.stream, t.managed, 0ul, unsigned{CU_MEM_ATTACH_GLOBAL});
  ROAD(cuStreamWaitValue32_v2, t.stream, t.pinned, 0u, unsigned{CU_STREAM_WAIT_VALUE_GEQ});
  ROAD(cuStreamWaitValue64_v2, t.stream, t.pinned, 0ul, unsigned{CU_STREAM_WAIT_VALUE_GEQ});
  ROAD(cuStreamWriteValue32_v2, t.stream, t.pinned, 1u, 0u);
  ROAD(cuStreamWriteValue64_v2, t.stream, t.pinned, 1ul, 0u);
  ROAD(cuStreamBatchMemOp_v2, t.stream, 1u, &b.write, 0u);
}

void add_copies(Roads& all) {
  ROAD(cuMemcpy, t.other, t.device, kBytes);
  ROAD(cuMemcpyPeer, t.other, t.context, t.device, t.context, kBytes);
  ROAD(cuMemcpyHtoD_v2, t.device, t.host, kBytes);
  ROAD(cuMemcpyDtoH_v2, t.host, t.device, kBytes);
  ROAD(cuMemcpyDtoD_v2, t.other, t.device, kBytes);
  ROAD(cuMemcpyDtoA_v2, t.array, 0ul, t.device, 64ul);
  ROAD(cuMemcpyAtoD_v2, t.device, t.array, 0ul, 64ul);
  ROAD(cuMemcpyHtoA_v2, t.array, 0ul, t.host, 64ul);
  ROAD(cuMemcpyAtoH_v2, t.host, t.array, 0ul, 64ul);
  ROAD(cuMemcpyAtoA_v2, t.other_array, 0ul, t.array, 0ul, 64ul);
  ROAD(cuMemcpyAsync, t.other, t.device, kBytes, t.stream);
  ROAD(cuMemcpyPeerAsync, t.other, t.context, t.device, t.context, kBytes, t.stream);
  ROAD(cuMemcpyHtoDAsync_v2, t.device, t.host, kBytes, t.stream);
  ROAD(cuMemcpyDtoHAsync_v2, t.host, t.device, kBytes, t.stream);
  ROAD(cuMemcpyDtoDAsync_v2, t.other, t.device, kBytes, t.stream);
  ROAD(cuMemcpyHtoAAsync_v2, t.array, 0ul, t.host, 64ul, t.stream);
  ROAD(cuMemcpyAtoHAsync_v2, t.host, t.array, 0ul, 64ul, t.stream);
  ROAD(cuMemcpyBatchAsync, b.to, b.from, b.sizes, 1ul, &b.attributes, b.indexes, 1ul, &b.failed,
       b.stream);
  ROAD(cuMemcpyBatchAsync_v2, b.to, b.from, b.sizes, 1ul, &b.attributes, b.indexes, 1ul, b.stream);
  ROAD(cuMemcpy3DBatchAsync, 1ul, &b.operation, &b.failed, 0ull, b.stream);
  ROAD(cuMemcpy3DBatchAsync_v2, 1ul, &b.operation, 0ull, b.stream);
}

template <FunctionId id, typename Copy, typename... Stream>
CUresult copy_by(void* function, Copy copy, Stream... stream) {
  return go<id>(function, &copy, stream...);
}

void add_shaped_copies(Roads& all) {
#define SHAPED(symbol, made, ...)                                                     \
  all[#symbol] = [](void* function, Things& t) {                                      \
    return copy_by<FunctionId::symbol>(function, made(t) __VA_OPT__(, ) __VA_ARGS__); \
  }
  SHAPED(cuMemcpy2D_v2, flat_copy);
  SHAPED(cuMemcpy2DUnaligned_v2, flat_copy);
  SHAPED(cuMemcpy3D_v2, deep_copy<CUDA_MEMCPY3D>);
  SHAPED(cuMemcpy3DPeer, peer_copy);
  SHAPED(cuMemcpy2DAsync_v2, flat_copy, t.stream);
  SHAPED(cuMemcpy3DAsync_v2, deep_copy<CUDA_MEMCPY3D>, t.stream);
  SHAPED(cuMemcpy3DPeerAsync, peer_copy, t.stream);
#undef SHAPED
}

void add_memsets(Roads& all) {
  constexpr unsigned char byte = 1;
  constexpr unsigned short word = 1;
  ROAD(cuMemsetD8_v2, t.device, byte, kBytes);
  ROAD(cuMemsetD16_v2, t.device, word, kBytes);
  ROAD(cuMemsetD32_v2, t.device, 1u, kBytes);
  ROAD(cuMemsetD2D8_v2, t.device, 512ul, byte, 64ul, 4ul);
  ROAD(cuMemsetD2D16_v2, t.device, 512ul, word, 64ul, 4ul);
  ROAD(cuMemsetD2D32_v2, t.device, 512ul, 1u, 64ul, 4ul);
  ROAD(cuMemsetD8Async, t.device, byte, kBytes, t.stream);
  ROAD(cuMemsetD16Async, t.device, word, kBytes, t.stream);
  ROAD(cuMemsetD32Async, t.device, 1u, kBytes, t.stream);
  ROAD(cuMemsetD2D8Async, t.device, 512ul, byte, 64ul, 4ul, t.stream);
  ROAD(cuMemsetD2D16Async, t.device, 512ul, word, 64ul, 4ul, t.stream);
  ROAD(cuMemsetD2D32Async, t.device, 512ul, 1u, 64ul, 4ul, t.stream);
}

void add_prefetches(Roads& all) {
  ROAD(cuMemPrefetchAsync, t.managed, kBytes, 0, t.stream);
  ROAD(cuMemPrefetchAsync_v2, t.managed, kBytes, b.place, 0u, t.stream);
  ROAD(cuMemPrefetchBatchAsync, b.managed, b.sizes, 1ul, &b.place, b.indexes, 1ul, 0ull, b.stream);
}

void add_nodes(Roads& all) {
  ROAD(cuGraphAddMemcpyNode, &n.made, t.nodes, nullptr, 0ul, &n.copy, t.context);
  ROAD(cuGraphAddMemsetNode, &n.made, t.nodes, nullptr, 0ul, &n.memset, t.context);
  ROAD(cuGraphAddBatchMemOpNode, &n.made, t.nodes, nullptr, 0ul, &n.operations);
  ROAD(cuGraphAddNode, &n.made, t.nodes, nullptr, 0ul, &n.any);
  ROAD(cuGraphAddNode_v2, &n.made, t.nodes, nullptr, nullptr, 0ul, &n.any);
  ROAD(cuGraphMemcpyNodeSetParams, t.copy_node, &n.copy);
  ROAD(cuGraphMemsetNodeSetParams, t.memset_node, &n.memset);
  ROAD(cuGraphBatchMemOpNodeSetParams, t.operation_node, &n.operations);
  ROAD(cuGraphNodeSetParams, t.memset_node, &n.any);
  ROAD(cuGraphExecMemcpyNodeSetParams, t.nodes_made, t.copy_node, &n.copy, t.context);
  ROAD(cuGraphExecMemsetNodeSetParams, t.nodes_made, t.memset_node, &n.memset, t.context);
  ROAD(cuGraphExecBatchMemOpNodeSetParams, t.nodes_made, t.operation_node, &n.operations);
  ROAD(cuGraphExecChildGraphNodeSetParams, t.nodes_made, t.child_node, t.child);
  ROAD(cuGraphExecNodeSetParams, t.nodes_made, t.memset_node, &n.any);
  ROAD(cuGraphInstantiate, &n.executable, t.child, nullptr, nullptr, 0ul);
  ROAD(cuGraphInstantiate_v2, &n.executable, t.child, nullptr, nullptr, 0ul);
  ROAD(cuGraphInstantiateWithFlags, &n.executable, t.child, 0ull);
  ROAD(cuGraphInstantiateWithParams, &n.executable, t.child, &n.instantiation);
  ROAD(cuGraphExecUpdate, t.child_made, t.child, &n.made, &n.updated);
  ROAD(cuGraphExecUpdate_v2, t.child_made, t.child, &n.update);
}

#undef ROAD

const Roads& roads() {
  static const Roads all = [] {
    Roads made;
    add_launches(made);
    add_stream_operations(made);
    add_copies(made);
    add_shaped_copies(made);
    add_memsets(made);
    add_prefetches(made);
    add_nodes(made);
    return made;
  }();
  return all;
}

template <typename... Parameters>
CUresult with_zeros(CUresult (*function)(Parameters...)) {
  return function(Parameters{}...);
}

bool make_graph(const Driver& driver, Things& things) {
  CUgraph graph{};
  return driver.call<FunctionId::cuStreamBeginCapture_v2>(
             things.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS &&
         driver.call<FunctionId::cuLaunchKernel>(things.noop, 1u, 1u, 1u, 1u, 1u, 1u, 0u,
                                                 things.stream, static_cast<void**>(nullptr),
                                                 static_cast<void**>(nullptr)) == CUDA_SUCCESS &&
         driver.call<FunctionId::cuStreamEndCapture>(things.stream, &graph) == CUDA_SUCCESS &&
         driver.call<FunctionId::cuGraphInstantiateWithFlags>(&things.graph, graph, 0ull) ==
             CUDA_SUCCESS;
}

bool make_nodes(const Driver& driver, Things& things) {
  Node node(things);
  const auto good = [](CUresult result) { return result == CUDA_SUCCESS; };
  const CUgraphNode* none = nullptr;
  return good(driver.call<FunctionId::cuGraphCreate>(&things.nodes, 0u)) &&
         good(driver.call<FunctionId::cuGraphCreate>(&things.child, 0u)) &&
         good(driver.call<FunctionId::cuGraphAddMemsetNode>(&node.made, things.child, none, 0ul,
                                                            &node.memset, things.context)) &&
         good(driver.call<FunctionId::cuGraphAddMemcpyNode>(&things.copy_node, things.nodes, none,
                                                            0ul, &node.copy, things.context)) &&
         good(driver.call<FunctionId::cuGraphAddMemsetNode>(&things.memset_node, things.nodes, none,
                                                            0ul, &node.memset, things.context)) &&
         good(driver.call<FunctionId::cuGraphAddBatchMemOpNode>(
             &things.operation_node, things.nodes, none, 0ul, &node.operations)) &&
         good(driver.call<FunctionId::cuGraphAddChildGraphNode>(&things.child_node, things.nodes,
                                                                none, 0ul, things.child)) &&
         good(driver.call<FunctionId::cuGraphInstantiateWithFlags>(&things.nodes_made, things.nodes,
                                                                   0ull)) &&
         good(driver.call<FunctionId::cuGraphInstantiateWithFlags>(&things.child_made, things.child,
                                                                   0ull));
}

}  // namespace

CUresult call_with_zeros(FunctionId id, void* function) {
  switch (id) {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  case FunctionId::symbol:                                                               \
    return with_zeros(reinterpret_cast<Signature<FunctionId::symbol>*>(function));
#include "cuda/functions.def"
  }
  return CUDA_ERROR_UNKNOWN;
}

bool Things::make(const Driver& driver) {
  const CUDA_ARRAY_DESCRIPTOR description{64, 1, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  const auto good = [](CUresult result) { return result == CUDA_SUCCESS; };
  return good(driver.call<FunctionId::cuStreamCreate>(&stream, unsigned{CU_STREAM_NON_BLOCKING})) &&
         good(driver.call<FunctionId::cuMemAlloc_v2>(&device, std::size_t{1} << 20)) &&
         good(driver.call<FunctionId::cuMemAlloc_v2>(&other, std::size_t{1} << 20)) &&
         good(driver.call<FunctionId::cuMemAllocManaged>(&managed, std::size_t{2} << 20,
                                                         unsigned{CU_MEM_ATTACH_GLOBAL})) &&
         good(driver.call<FunctionId::cuMemHostAlloc>(&host, std::size_t{1} << 20, 0u)) &&
         good(driver.call<FunctionId::cuMemHostGetDevicePointer_v2>(&pinned, host, 0u)) &&
         good(driver.call<FunctionId::cuArrayCreate_v2>(&array, &description)) &&
         good(driver.call<FunctionId::cuArrayCreate_v2>(&other_array, &description)) &&
         good(driver.call<FunctionId::cuFuncSetBlockShape>(noop, 1, 1, 1)) &&
         make_graph(driver, *this) && make_nodes(driver, *this);
}

void WithThings::SetUp() {
  Preloaded::SetUp();
  things.context = context;
  things.noop = noop_kernel;
  ASSERT_TRUE(things.make(driver()));
  library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr);
}

bool makes_the_gpu_work(Kind kind) {
  switch (kind) {
    case Kind::Launch:
    case Kind::GraphLaunch:
    case Kind::GraphUpload:
    case Kind::Copy:
    case Kind::Memset:
    case Kind::Prefetch:
    case Kind::HostFunc:
    case Kind::StreamOp:
      return true;
    default:
      return false;
  }
}

bool looks_at_memory(Kind kind) {
  return kind == Kind::Copy || kind == Kind::Memset || kind == Kind::StreamOp || kind == Kind::Bind;
}

std::optional<Road> road_of(const Function& row) {
  if (!is_implemented(row.symbol)) {
    return [id = row.id](void* function, Things&) { return call_with_zeros(id, function); };
  }
  std::string_view symbol = row.symbol;
  const bool twin = row.flavour == Flavour::Ptds || row.flavour == Flavour::Ptsz;
  if (twin) symbol.remove_suffix(std::string_view("_ptsz").size());
  const auto found = roads().find(symbol);
  if (found == roads().end()) return std::nullopt;
  if (!twin) return found->second;
  return [road = found->second](void* function, Things& things) {
    Things own = things;
    own.stream = nullptr;
    return road(function, own);
  };
}

}  // namespace nvshare::integration
