#include <dlfcn.h>

#include "nvml/table.h"

// A library that is linked with NVML, and that looks for functions on behalf of others.
namespace nvshare::nvml {

#define EXPORT extern "C" __attribute__((visibility("default")))

#define NVSHARE_OWN_NVML(symbol) extern "C" Signature<FunctionId::symbol> symbol;
#include "interposer/catch/own_nvml.def"

EXPORT void* relay_dlsym(void* handle, const char* symbol) {
  return dlsym(handle, symbol);
}

// Through a call, whose target the loader may look up as late as that.
EXPORT nvmlReturn_t relay_memory_info(nvmlDevice_t device, nvmlMemory_t* memory) {
  return nvmlDeviceGetMemoryInfo(device, memory);
}

// The functions as this library is linked with them.
EXPORT void* const* relay_linked() {
  static void* const all[] = {
#define NVSHARE_OWN_NVML(symbol) reinterpret_cast<void*>(&symbol),
#include "interposer/catch/own_nvml.def"
      nullptr};
  return all;
}

}  // namespace nvshare::nvml
