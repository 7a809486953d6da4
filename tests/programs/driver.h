#pragma once

#include <dlfcn.h>

#include <string>

#include "cuda/table.h"

namespace nvshare::programs {

using namespace nvshare::cuda;

// libcuda.so.1 as programs find it: opened at run time. Plain functions are looked up with dlsym;
// with per-thread default streams they are asked of cuGetProcAddress, as the CUDA runtime does.
class Driver {
 public:
  // Why there is no driver; empty when there is one.
  std::string open(bool per_thread_streams) {
    library_ = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return ::dlerror();
    for (const Function& row : kFunctions) {
      functions_[static_cast<unsigned>(row.id)] = ::dlsym(library_, row.symbol);
    }
    return per_thread_streams ? use_per_thread_streams() : std::string();
  }

  // call<FunctionId::cuInit>(0). CUDA_ERROR_NOT_FOUND when the driver does not have it.
  template <FunctionId id, typename... Arguments>
  CUresult call(Arguments... arguments) const {
    void* address = functions_[static_cast<unsigned>(id)];
    if (address == nullptr) return CUDA_ERROR_NOT_FOUND;
    return reinterpret_cast<Signature<id>*>(address)(arguments...);
  }

  void* address(FunctionId id) const { return functions_[static_cast<unsigned>(id)]; }

 private:
  // Puts what cuGetProcAddress answers in the place of each function that has a twin.
  std::string use_per_thread_streams() {
    for (const Function& twin : kFunctions) {
      if (twin.flavour != Flavour::Ptds && twin.flavour != Flavour::Ptsz) continue;
      const std::string symbol = twin.symbol;
      const Function* plain = find_symbol(symbol.substr(0, symbol.rfind('_')).c_str());
      if (plain == nullptr) continue;
      void* found = nullptr;
      CUdriverProcAddressQueryResult status{};
      const CUresult result = call<FunctionId::cuGetProcAddress_v2>(
          twin.name, &found, twin.since, uint64_t{CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM},
          &status);
      if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND)
        return "cuGetProcAddress failed";
      functions_[static_cast<unsigned>(plain->id)] = found;
    }
    return "";
  }

  void* library_ = nullptr;
  void* functions_[kFunctionCount] = {};
};

}  // namespace nvshare::programs
