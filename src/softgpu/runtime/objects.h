#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "cuda/types.h"
#include "softgpu/engine/card.h"
#include "softgpu/kernels.h"
#include "softgpu/runtime/memory.h"

// What handles stand for. A handle is a number that was never used before, looked up in a registry;
// nothing that a caller hands in is ever followed as a pointer before it has been found there.
namespace nvshare::softgpu {

struct Stream;
struct Event;
struct Graph;
struct Node;
struct Capture;

struct Context {
  CUcontext handle{};
  int device = 0;
  unsigned flags = 0;
  std::uint64_t id = 0;
  unsigned api_version = 0;
  bool primary = false;
  bool dead = false;
  int attached = 1;
  CUresult error = CUDA_SUCCESS;  // sticks
  std::shared_ptr<Stream> legacy;
  std::map<std::uint64_t, std::shared_ptr<Stream>> per_thread;
  std::set<std::shared_ptr<Stream>> streams;  // those that were created
  std::map<CUlimit, std::size_t> limits;
  CUfunc_cache cache = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared_config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  std::set<CUcontext> peers;
  std::uint64_t memory = 0;  // charged for the context itself
};

struct Stream {
  CUstream handle{};
  std::weak_ptr<Context> context;
  unsigned flags = 0;
  int priority = 0;
  std::uint64_t id = 0;
  bool legacy = false;
  LanePoint last;  // the end of what was submitted
  int lane = -1;
  std::shared_ptr<Capture> capture;
  std::vector<Node*> capture_deps;
  std::vector<CUgraphNode> reported_deps;  // what cuStreamGetCaptureInfo points to
  std::vector<CUgraphEdgeData> reported_edges;
  std::map<CUlaunchAttributeID, CUlaunchAttributeValue> attributes;
};

struct Event {
  CUevent handle{};
  std::weak_ptr<Context> context;
  unsigned flags = 0;
  bool recorded = false;
  std::uint64_t records = 0;   // how often it was recorded
  std::uint64_t finished = 0;  // the last record that is complete
  Nanos time = 0;
  LanePoint point;
  int ipc = -1;  // entry in the card
  bool imported = false;
  std::shared_ptr<Capture> capture;  // recorded in a capture
  std::vector<Node*> capture_deps;
};

struct Module;

struct Function {
  CUfunction handle{};
  std::weak_ptr<Module> module;
  std::string name;
  const Builtin* builtin = nullptr;
  std::vector<ParamType> params;
  std::vector<std::size_t> offsets;
  std::size_t param_bytes = 0;
  std::map<CUfunction_attribute, int> attributes;
  // The launch interface of CUDA 3 and earlier.
  int block[3] = {1, 1, 1};
  std::vector<unsigned char> param_buffer;
  unsigned old_shared = 0;
};

struct Library;

struct Module {
  CUmodule handle{};
  std::weak_ptr<Context> context;
  std::weak_ptr<Library> library;
  std::map<std::string, std::shared_ptr<Function>> functions;
  std::vector<std::shared_ptr<Function>> in_order;
  std::map<std::string, std::uint64_t> globals;  // addresses
  std::uint64_t memory = 0;                      // charged for its code, from the first use on
};

struct Kernel {
  CUkernel handle{};
  std::weak_ptr<Library> library;
  std::string name;
  std::map<CUfunction_attribute, int> attributes;
};

// A module that is loaded into each context when it is first used there.
struct Library {
  CUlibrary handle{};
  ModuleText text;
  std::map<CUcontext, std::shared_ptr<Module>> modules;
  std::map<std::string, std::shared_ptr<Kernel>> kernels;
  std::vector<std::shared_ptr<Kernel>> in_order;
};

struct LinkState {
  std::string text;
  std::string output;
};

struct Array {
  CUarray handle{};
  std::weak_ptr<Context> context;
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  std::uint64_t base = 0;
  std::size_t element = 0;
  std::size_t pitch = 0;
  std::size_t slice = 0;
  bool of_mipmap = false;
};

struct Mipmap {
  CUmipmappedArray handle{};
  std::weak_ptr<Context> context;
  std::vector<std::shared_ptr<Array>> levels;
};

// A pool of stream-ordered memory. Freed pieces stay in it until the threshold is kept again.
struct Pool {
  CUmemoryPool handle{};
  int device = 0;
  bool standard = false;  // the device's default pool
  bool exportable = false;
  bool on_device = true;
  CUmemPoolProps props{};
  std::uint64_t threshold = 0;
  int reuse[3] = {1, 1, 1};
  std::uint64_t used = 0;
  std::uint64_t used_high = 0;
  std::uint64_t reserved = 0;
  std::uint64_t reserved_high = 0;
  std::multimap<std::uint64_t, Piece> idle;  // by size
  std::map<int, CUmemAccess_flags> access;
  UniqueFd imported;  // the memory file of the process that has the pool
};

// --- What streams do and graphs are made of ---

struct KernelTask {
  std::shared_ptr<Function> function;
  CUkernel kernel{};  // when the graph was given one
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared = 0;
  std::vector<unsigned char> params;
  std::vector<void*> param_pointers;  // what cuGraphKernelNodeGetParams points to
  std::map<CUlaunchAttributeID, CUlaunchAttributeValue> attributes;
};

struct CopySide {
  CUmemorytype type = CU_MEMORYTYPE_HOST;  // host, device or array
  std::uint64_t base = 0;
  std::size_t pitch = 0;
  std::size_t slice = 0;  // bytes from one plane to the next
  bool pinned = false;
};

struct CopyTask {
  CUDA_MEMCPY3D given{};  // as the caller said it
  CopySide from;
  CopySide to;
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t depth = 1;
  std::shared_ptr<std::vector<unsigned char>> staged;  // bytes taken at the call

  double bytes() const {
    return static_cast<double>(width) * static_cast<double>(height) * static_cast<double>(depth);
  }
};

struct MemsetTask {
  CUDA_MEMSET_NODE_PARAMS params{};
};

struct HostTask {
  CUhostFn function = nullptr;
  void* data = nullptr;
  CUstreamCallback callback = nullptr;  // the older kind, which is told the stream and a status
  CUstream stream{};
};

struct EventRecordTask {
  std::shared_ptr<Event> event;
};
struct EventWaitTask {
  std::shared_ptr<Event> event;
};
struct MemOpTask {
  std::vector<CUstreamBatchMemOpParams> operations;
  unsigned flags = 0;
  CUcontext context{};
};
// The address of an allocation node, kept as long as a graph has the node.
struct GraphPiece {
  Piece piece;
  int device = 0;
  std::function<void(const Piece&)> give_back;
  ~GraphPiece() { give_back(piece); }
};
struct AllocTask {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  std::vector<CUmemAccessDesc> access;
  std::shared_ptr<GraphPiece> piece;
};
struct FreeTask {
  std::uint64_t address = 0;
};
struct ChildTask {
  std::shared_ptr<Graph> graph;
};
// Managed memory moves to a device, or to the host (device < 0). Never in a graph.
struct PrefetchTask {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  int device = -1;
};
struct EmptyTask {};

using Task =
    std::variant<KernelTask, CopyTask, MemsetTask, HostTask, EventRecordTask, EventWaitTask,
                 MemOpTask, AllocTask, FreeTask, ChildTask, PrefetchTask, EmptyTask>;

struct Edge {
  Node* from;
  CUgraphEdgeData data{};
};

struct Node {
  CUgraphNode handle{};
  Graph* graph = nullptr;
  Task task;
  std::vector<Edge> deps;
  const Node* original = nullptr;  // what it was cloned from
  std::uint64_t original_id = 0;
  std::uint64_t id = 0;
  bool enabled = true;
};

struct UserObject {
  CUuserObject handle{};
  void* data = nullptr;
  CUhostFn destroy = nullptr;
  std::uint64_t references = 0;
};

struct Graph {
  CUgraph handle{};
  std::list<std::unique_ptr<Node>> nodes;
  std::weak_ptr<Graph> cloned_from;
  std::map<CUuserObject, std::uint64_t> user_objects;
  bool child = false;  // belongs to a node
  std::weak_ptr<Context> context;
};

struct GraphExec {
  CUgraphExec handle{};
  std::shared_ptr<Graph> graph;  // a copy
  std::weak_ptr<Graph> source;
  std::uint64_t source_id = 0;
  std::uint64_t flags = 0;
  std::map<CUgraphNode, Node*> by_original;
  std::weak_ptr<Context> context;
  LanePoint last;                     // a graph runs once at a time
  std::set<std::uint64_t> allocated;  // by allocation nodes, not yet freed
};

struct Capture {
  std::shared_ptr<Graph> graph;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  std::uint64_t id = 0;
  std::uint64_t thread = 0;
  Stream* origin = nullptr;
  std::vector<Stream*> streams;
  std::set<std::uint64_t> allocated;
  bool to_graph = false;  // into a graph of the caller's
};

// Handles of one kind.
template <typename T>
class Registry {
 public:
  std::shared_ptr<T> find(const void* handle) const {
    const auto found = objects_.find(reinterpret_cast<std::uint64_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }
  void add(std::uint64_t handle, std::shared_ptr<T> object) {
    objects_.emplace(handle, std::move(object));
  }
  bool remove(const void* handle) {
    return objects_.erase(reinterpret_cast<std::uint64_t>(handle)) > 0;
  }
  auto& all() { return objects_; }

 private:
  std::unordered_map<std::uint64_t, std::shared_ptr<T>> objects_;
};

}  // namespace nvshare::softgpu
