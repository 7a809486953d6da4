// Names every function of the table, so that one without a body fails the build and not a program.
#include "softgpu/nvml/api.h"

namespace nvshare::softgpu {
namespace {

using Any = void (*)();

[[maybe_unused, gnu::used]] const Any kBodies[] = {
#define NVSHARE_NVML_FUNCTION(result, symbol, kind, parameters, arguments) \
  reinterpret_cast<Any>(&nvml::symbol),
#include "nvml/functions.def"
};

}  // namespace
}  // namespace nvshare::softgpu
