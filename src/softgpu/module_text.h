#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

// What the software GPU reads from a module: lines that begin with "//@softgpu". To any other
// reader of the same text (the real driver, which takes it as PTX) they are comments.
//
//   //@softgpu kernel NAME = BUILTIN(TYPE, ...)
//   //@softgpu global NAME = BYTES
namespace nvshare::softgpu {

enum class ParamType { kPointer, kU8, kU16, kU32, kU64, kF32, kF64 };

std::size_t size_of(ParamType type);

struct KernelText {
  std::string name;
  std::string builtin;
  std::vector<ParamType> params;
};

struct GlobalText {
  std::string name;
  std::size_t bytes = 0;
};

struct ModuleText {
  int target = 90;  // compute capability that the PTX, if it is such, was made for
  std::vector<KernelText> kernels;
  std::vector<GlobalText> globals;
};

// Reads a module's text. An unknown builtin, a wrong number of parameters, a name given twice:
// an error with its line. A text without any such line is an empty module.
Result<ModuleText> parse_module(std::string_view text);

}  // namespace nvshare::softgpu
