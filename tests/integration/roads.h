#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "integration/preloaded.h"

namespace nvshare::integration {

// Valid arguments for everything that makes the GPU work, or writes addresses down for later.
struct Things {
  CUcontext context{};
  CUfunction noop{};
  CUstream stream{};  // as the call is to have it: null for the symbols whose null is the thread's
  CUdeviceptr device = 0;
  CUdeviceptr other = 0;
  CUdeviceptr managed = 0;
  CUdeviceptr pinned = 0;  // the address on the device
  void* host = nullptr;    // and on the host
  CUarray array{};
  CUarray other_array{};
  CUgraphExec graph{};
  // A graph of one node of each kind that has addresses in it, and one inside it; both also made
  // executable.
  CUgraph nodes{};
  CUgraph child{};
  CUgraphNode copy_node{};
  CUgraphNode memset_node{};
  CUgraphNode operation_node{};
  CUgraphNode child_node{};
  CUgraphExec nodes_made{};
  CUgraphExec child_made{};

  // Makes them all in the current context; false when something failed.
  bool make(const Driver& driver);
};

// A program under the library that has them, and the driver's own symbols.
class WithThings : public Preloaded {
 protected:
  void SetUp() override;

  Things things;
  void* library = nullptr;
};

// A call of one symbol with valid arguments, through `function`.
using Road = std::function<CUresult(void* function, Things& things)>;

// Whether a call of this kind makes the GPU work, and so must pass the gate.
bool makes_the_gpu_work(Kind kind);
// Whether the driver looks at the memory that a call of this kind is given.
bool looks_at_memory(Kind kind);

// A call of a symbol with zeros for arguments.
CUresult call_with_zeros(FunctionId id, void* function);

// The call for a row of the table; nothing when nobody wrote one. A symbol that the software GPU
// does not simulate is called with zeros: it does not look at them.
std::optional<Road> road_of(const Function& row);

}  // namespace nvshare::integration
