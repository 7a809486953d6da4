#pragma once

#include "cuda/types.h"

namespace nvshare::cuda {

// Whether a symbol has, or is, the twin whose default stream is the calling thread's own.
enum class Flavour : uint8_t { None, Legacy, Ptds, Ptsz };

// What a call does to the GPU and to memory: what the interposer has to do around it.
enum class Kind : uint8_t {
  Plain,        // neither work for the GPU nor memory of it
  Resolve,      // hands out function pointers
  Context,      // contexts come and go, and the memory they take by themselves
  Module,       // code is loaded or unloaded, and its memory with it; also when it is looked at
  Stream,       // streams and events come and go
  Launch,       // kernels
  GraphLaunch,  // a whole graph
  GraphUpload,  // a graph made ready on the GPU
  Copy,         // bytes move, or are decompressed
  Memset,       // bytes are set
  Prefetch,     // managed memory moves or is dropped
  HostFunc,     // the host is called in stream order
  StreamOp,     // memory operations, semaphores and attachments in stream order
  Event,        // recorded or waited for, in stream order
  Sync,         // waits until the GPU has done its work
  Capture,      // a stream's work is recorded instead of done
  Graph,        // graphs are built, looked at or changed
  Bind,         // addresses are written down for later: in nodes of graphs that copy, set or wait,
                // in what is made executable of them, in textures. What lies there is looked at
  Alloc,        // device memory is taken
  Free,         // device memory is given back
  AllocAsync,   // the same in stream order, from a pool
  FreeAsync,
  Trim,       // a pool gives memory back
  HostAlloc,  // host memory is taken or pinned
  HostFree,   // host memory is given back or unpinned
  Import,     // memory that another process or API owns becomes usable
  ImportEnd,
  Map,         // addresses and handles of device memory, not how much of it is taken
  Info,        // tells how much device memory there is or is in use
  Checkpoint,  // a process's GPU state is saved or brought back
};

// One for each row, named by its symbol.
enum class FunctionId : uint16_t {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) symbol,
#include "cuda/functions.def"
};

inline constexpr unsigned kFunctionCount = 0
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) +1
#include "cuda/functions.def"
    ;

struct Function {
  FunctionId id;
  const char* name;
  const char* symbol;
  int since;
  Flavour flavour;
  Kind kind;
};

// The table, indexed by FunctionId.
extern const Function kFunctions[kFunctionCount];

inline const Function& function(FunctionId id) {
  return kFunctions[static_cast<unsigned>(id)];
}

// Signature<FunctionId::cuMemAlloc_v2> is the function's type.
template <FunctionId>
struct SignatureOf;
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  template <>                                                                            \
  struct SignatureOf<FunctionId::symbol> {                                               \
    using Type = CUresult parameters;                                                    \
  };
#include "cuda/functions.def"
template <FunctionId id>
using Signature = typename SignatureOf<id>::Type;

// What cuGetProcAddress finds for a name, a CUDA version and CUdriverProcAddress_flags. `function`
// is null unless the status is CU_GET_PROC_ADDRESS_SUCCESS.
struct Resolution {
  CUdriverProcAddressQueryResult status;
  const Function* function;
};

// As the driver resolves: of the symbols with this name, the newest that is not newer than
// `version`; with CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, of a name that has twins for
// per-thread streams, the newest such twin. Null or unknown name: SYMBOL_NOT_FOUND; known, but
// every symbol in question newer than `version`: VERSION_NOT_SUFFICIENT.
Resolution find(const char* name, int version, uint64_t flags);

// The row of an exported symbol, as dlsym is asked for it; null when the table has none.
const Function* find_symbol(const char* symbol);

// "CUDA_ERROR_INVALID_VALUE", or null for a number that is no result.
const char* result_name(CUresult result);

}  // namespace nvshare::cuda
