#include <dlfcn.h>

#include "cuda/table.h"

// A library that is linked with the driver, and that looks for functions on behalf of others: what
// is found depends on who asks.
namespace driver {

using namespace nvshare::cuda;

#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  extern "C" CUresult symbol parameters;
#include "cuda/functions.def"

}  // namespace driver

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* relay_dlsym(void* handle, const char* symbol) {
  return dlsym(handle, symbol);
}

EXPORT void* relay_dlvsym(void* handle, const char* symbol, const char* version) {
  return dlvsym(handle, symbol, version);
}

// The functions as this library is linked with them, in the order of the table.
EXPORT void* const* relay_linked() {
  static void* const all[] = {
#define NVSHARE_CUDA_FUNCTION(name, symbol, since, flavour, kind, parameters, arguments) \
  reinterpret_cast<void*>(                                                               \
      static_cast<nvshare::cuda::Signature<nvshare::cuda::FunctionId::symbol>*>(driver::symbol)),
#include "cuda/functions.def"
  };
  return all;
}

// The same through a call, whose target the loader may look up as late as that.
EXPORT int relay_driver_version() {
  int version = 0;
  driver::cuDriverGetVersion(&version);
  return version;
}
