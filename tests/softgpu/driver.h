#pragma once

#include "cuda/types.h"

// The driver's functions as any program sees them, declared from the one table.
namespace nvshare::cuda {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  extern "C" CUresult symbol parameters;
#include "cuda/functions.def"
}  // namespace nvshare::cuda

extern "C" unsigned long softgpuCallCount(const char* symbol);
extern "C" void softgpuFailCalls(const char* symbol, int calls);
extern "C" int softgpuIsImplemented(const char* symbol);
