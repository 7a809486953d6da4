#pragma once

#include "cuda/table.h"
#include "softgpu/runtime/call.h"

// The bodies that the exported functions call, declared from the one table. A body that nobody
// wrote is a null pointer here, and the exported function then answers CUDA_ERROR_NOT_SUPPORTED.
namespace nvshare::softgpu {

#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  extern "C" __attribute__((weak, visibility("hidden"))) CUresult impl_##symbol parameters;
#include "cuda/functions.def"

// The body behind a row: its own, that of the row it is the per-thread twin of, or that of another
// version with the same signature. Null when there is none.
void* implementation_of(FunctionId id);

// The exported function of a row, as cuGetProcAddress hands it out.
void* exported(FunctionId id);

// How often each row was called in this process.
std::uint64_t calls_of(FunctionId id);

}  // namespace nvshare::softgpu
