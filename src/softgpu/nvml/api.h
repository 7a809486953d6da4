#pragma once

#include <string_view>

#include "nvml/table.h"
#include "softgpu/nvml/library.h"

// The functions as programs link them, declared from the table: a body that differs from its row
// does not compile, and one that is missing does not link (exports.cpp).
namespace nvshare::nvml {
extern "C" {
#define NVSHARE_NVML_FUNCTION(result, symbol, kind, parameters, arguments) \
  __attribute__((visibility("default"))) result symbol parameters;
#include "nvml/functions.def"
}
}  // namespace nvshare::nvml

namespace nvshare::softgpu {

// What a kind of card that is like the simulated one says of itself; the driver library gives the
// same by cuDeviceGetAttribute.
inline constexpr int kCudaVersion = 13000;
inline constexpr const char* kDriverVersion = "580.00.00";
inline constexpr int kComputeMajor = 9;
inline constexpr int kComputeMinor = 0;
inline constexpr unsigned kCores = 132 * 128;
inline constexpr unsigned kSmClock = 1980;  // MHz
inline constexpr unsigned kMemoryClock = 3201;

// Copies the text and its end into a buffer of the caller's, which stays as it is when it does not
// fit.
nvmlReturn_t give_text(std::string_view text, char* buffer, unsigned length);

inline NvmlLibrary& library() {
  return NvmlLibrary::instance();
}

// The answer for a device that is there when what is asked of it is not simulated.
inline nvmlReturn_t not_simulated(nvmlDevice_t device, const void* output) {
  return library().on_device(device, [&](const View&, int) {
    return output == nullptr ? nvml::NVML_ERROR_INVALID_ARGUMENT : nvml::NVML_ERROR_NOT_SUPPORTED;
  });
}

// The answer that is the same for every device that is there.
template <typename Type>
nvmlReturn_t always(nvmlDevice_t device, Type* output, Type value) {
  return library().on_device(device, [&](const View&, int) {
    if (output == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
    *output = value;
    return nvml::NVML_SUCCESS;
  });
}

}  // namespace nvshare::softgpu
