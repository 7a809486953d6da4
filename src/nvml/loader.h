#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "nvml/table.h"

namespace nvshare::nvml {

// An NVML library that was loaded at run time: one member per row of the table, called as the
// function itself. What the library does not have answers NVML_ERROR_FUNCTION_NOT_FOUND.
class Loader {
 public:
  // As dlopen finds it: a name without a slash is looked for along the usual paths.
  static Result<std::unique_ptr<Loader>> open(const std::string& path);

  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

#define NVSHARE_NVML_FUNCTION(result, symbol, kind, parameters, arguments) \
  Signature<FunctionId::symbol>* symbol;
#include "nvml/functions.def"

 private:
  explicit Loader(void* handle);
  void* handle_;
};

}  // namespace nvshare::nvml
