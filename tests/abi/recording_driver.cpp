#include <cstdint>

#include "abi/pattern.h"
#include "cuda/table.h"

// A libcuda.so.1 that does nothing but to answer every call with what it was called with; its
// symbols have a version, so that dlvsym finds them, too. It is newer than the table: a later
// version of one function, and one that the table does not know at all.
namespace nvshare::abi {

using namespace cuda;

// What it knows beyond the table.
extern "C" __attribute__((visibility("default"))) CUresult cuFromTheFuture() {
  return CUDA_SUCCESS;
}

namespace {

constexpr int kFuture = 99000;

// Not exported: handed out by cuGetProcAddress alone.
CUresult future_cuMemAlloc() {
  return CUDA_SUCCESS;
}
CUresult unexported_cuInit(unsigned) {
  return CUDA_SUCCESS;
}

void* exported(FunctionId id);

void* look_up(const char* name, int version, uint64_t flags) {
  if (std::strcmp(name, "cuFromTheFuture") == 0) return reinterpret_cast<void*>(cuFromTheFuture);
  if (std::strcmp(name, "cuInit") == 0) return reinterpret_cast<void*>(unexported_cuInit);
  if (std::strcmp(name, "cuMemAlloc") == 0 && version >= kFuture) {
    return reinterpret_cast<void*>(future_cuMemAlloc);
  }
  const Function* row = find(name, version, flags).function;
  return row == nullptr ? nullptr : exported(row->id);
}

template <FunctionId id, typename... Arguments>
CUresult answer(Arguments... arguments) {
  return static_cast<CUresult>(digest(static_cast<unsigned>(id), arguments...));
}

template <>
CUresult answer<FunctionId::cuGetProcAddress_v2>(const char* name, void** function, int version,
                                                 uint64_t flags, CUdriverProcAddressQueryResult*) {
  *function = look_up(name, version, flags);
  return CUDA_SUCCESS;
}

}  // namespace

#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  extern "C" __attribute__((visibility("default"))) CUresult symbol parameters {         \
    return [](auto... given) { return answer<FunctionId::symbol>(given...); } arguments; \
  }
#include "cuda/functions.def"

namespace {

void* exported(FunctionId id) {
  static void* const all[kFunctionCount] = {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  reinterpret_cast<void*>(static_cast<Signature<FunctionId::symbol>*>(symbol)),
#include "cuda/functions.def"
  };
  return all[static_cast<unsigned>(id)];
}

}  // namespace
}  // namespace nvshare::abi
