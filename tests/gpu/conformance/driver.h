#pragma once

#include <dlfcn.h>

#include "cuda/table.h"

namespace nvshare::conformance {

// What a call gives when the library does not export the function: no result of the driver.
inline constexpr cuda::CUresult kMissing = static_cast<cuda::CUresult>(0x7fff0001);

// libcuda.so.1 as the dynamic loader finds it, with every symbol of the table as dlsym gives it.
class Driver {
 public:
  Driver() : library_(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    for (const cuda::Function& row : cuda::kFunctions) {
      symbols_[static_cast<unsigned>(row.id)] =
          library_ == nullptr ? nullptr : ::dlsym(library_, row.symbol);
    }
  }

  bool loaded() const { return library_ != nullptr; }

  void* address(cuda::FunctionId id) const { return symbols_[static_cast<unsigned>(id)]; }

  // The function; when it is missing, one of the same type that returns kMissing.
  template <cuda::FunctionId id>
  cuda::Signature<id>* function() const {
    void* symbol = address(id);
    return symbol == nullptr ? &Missing<cuda::Signature<id>>::call
                             : reinterpret_cast<cuda::Signature<id>*>(symbol);
  }

 private:
  template <typename>
  struct Missing;
  template <typename... Arguments>
  struct Missing<cuda::CUresult(Arguments...)> {
    static cuda::CUresult call(Arguments...) { return kMissing; }
  };

  void* library_;
  void* symbols_[cuda::kFunctionCount] = {};
};

}  // namespace nvshare::conformance
