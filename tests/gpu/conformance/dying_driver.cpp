// A libcuda.so.1 that refuses everything and dies in one function: to see that the conformance
// program gets through all the same.

#include <stdlib.h>

#include "cuda/table.h"

namespace nvshare::cuda {
namespace {

template <FunctionId id, typename... Arguments>
CUresult answer(Arguments...) {
  if (id == FunctionId::cuDeviceGetName) ::abort();
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

extern "C" {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  CUresult symbol parameters {                                                           \
    return answer<FunctionId::symbol> arguments;                                         \
  }
#include "cuda/functions.def"
}

}  // namespace nvshare::cuda
