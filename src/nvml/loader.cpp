#include "nvml/loader.h"

#include <dlfcn.h>

namespace nvshare::nvml {
namespace {

// What stands in for a function that the library does not have.
template <typename Type>
struct Missing;
template <typename... Arguments>
struct Missing<nvmlReturn_t(Arguments...)> {
  static nvmlReturn_t call(Arguments...) { return NVML_ERROR_FUNCTION_NOT_FOUND; }
};
template <typename... Arguments>
struct Missing<const char*(Arguments...)> {
  static const char* call(Arguments...) { return "the NVML library has no text for this"; }
};

template <typename Type>
Type* resolve(void* handle, const char* symbol) {
  void* found = dlsym(handle, symbol);
  return found == nullptr ? &Missing<Type>::call : reinterpret_cast<Type*>(found);
}

}  // namespace

Loader::Loader(void* handle)
    :
#define NVSHARE_NVML_FUNCTION(result, symbol, kind, parameters, arguments) \
  symbol(resolve<Signature<FunctionId::symbol>>(handle, #symbol)),
#include "nvml/functions.def"
      handle_(handle) {
}

Loader::~Loader() {
  dlclose(handle_);
}

Result<std::unique_ptr<Loader>> Loader::open(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return Error{reason == nullptr ? path + ": cannot be loaded" : reason};
  }
  return std::unique_ptr<Loader>(new Loader(handle));
}

}  // namespace nvshare::nvml
