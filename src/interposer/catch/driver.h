#pragma once

#include "cuda/table.h"
#include "interposer/guest/elf.h"

// The driver's own functions, as the interposer calls them.
namespace nvshare::interposer {

using namespace nvshare::cuda;

namespace catching {

// The pointers, indexed by FunctionId. Never null: before the driver is found, and for functions
// that it does not have, a pointer leads to a function that answers CUDA_ERROR_NOT_FOUND (or, when
// there is no driver at all, CUDA_ERROR_NO_DEVICE) after trying to resolve.
extern void* g_driver[kFunctionCount];

// real<FunctionId::cuInit>(0) calls the driver's cuInit.
template <FunctionId id, typename... Arguments>
inline CUresult real(Arguments... arguments) {
  using Pointer = Signature<id>*;
  return reinterpret_cast<Pointer>(g_driver[static_cast<unsigned>(id)])(arguments...);
}

// Whether the driver has this function (resolves it).
bool driver_has(FunctionId id);

// Whether this is a CUDA driver: libcuda.so.1, whatever its file is called.
bool is_driver(const Object& object);

// The driver's functions are those of this library from now on. False when they come from another
// one that is in use already.
bool use_driver(const Object& object);

}  // namespace catching

// Every room calls the driver.
using catching::real;

}  // namespace nvshare::interposer
