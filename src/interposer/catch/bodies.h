#pragma once

#include "interposer/catch/driver.h"

// What happens when a program calls a driver function. Most functions are passed on as they are, or
// through the gate, by their Kind (hooks.cpp). Those with a line in own_bodies.def have a body of
// their own, a function of the same name in namespace `own`, which calls real<FunctionId::...>.
namespace nvshare::interposer::own {

#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  CUresult symbol parameters;
#include "cuda/functions.def"

}  // namespace nvshare::interposer::own
