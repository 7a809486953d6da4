// Coming and going, and the machine as a whole.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "softgpu/nvml/api.h"

namespace nvshare::softgpu {

nvmlReturn_t give_text(std::string_view text, char* buffer, unsigned length) {
  if (buffer == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
  if (length <= text.size()) return nvml::NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(buffer, text.data(), text.size());
  buffer[text.size()] = 0;
  return nvml::NVML_SUCCESS;
}

}  // namespace nvshare::softgpu

namespace nvshare::nvml {

using namespace nvshare::softgpu;

nvmlReturn_t nvmlInit() {
  return library().init();
}

nvmlReturn_t nvmlInit_v2() {
  return library().init();
}

// The flags allow for machines without a card, which this one is not; unknown ones are ignored.
nvmlReturn_t nvmlInitWithFlags(unsigned) {
  return library().init();
}

nvmlReturn_t nvmlShutdown() {
  return library().shutdown();
}

const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
      return "Insufficient Permissions";
    case NVML_ERROR_ALREADY_INITIALIZED:
      return "Already Initialized";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_INSUFFICIENT_POWER:
      return "Insufficient External Power";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
      return "Timeout";
    case NVML_ERROR_IRQ_ISSUE:
      return "Interrupt Request Issue";
    case NVML_ERROR_LIBRARY_NOT_FOUND:
      return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
      return "Function Not Found";
    case NVML_ERROR_CORRUPTED_INFOROM:
      return "Corrupted infoROM";
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED:
      return "GPU requires reset";
    case NVML_ERROR_OPERATING_SYSTEM:
      return "GPU access blocked by the operating system";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
      return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE:
      return "In use by another client";
    case NVML_ERROR_MEMORY:
      return "Insufficient Memory";
    case NVML_ERROR_NO_DATA:
      return "No data";
    case NVML_ERROR_VGPU_ECC_NOT_SUPPORTED:
      return "vGPU ECC not supported";
    case NVML_ERROR_INSUFFICIENT_RESOURCES:
      return "Insufficient Resources";
    case NVML_ERROR_FREQ_NOT_SUPPORTED:
      return "Invalid Frequency";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
      return "Argument version mismatch";
    case NVML_ERROR_DEPRECATED:
      return "Requested functionality has been deprecated";
    case NVML_ERROR_NOT_READY:
      return "System is not in ready state";
    case NVML_ERROR_GPU_NOT_FOUND:
      return "No supported GPUs were found";
    case NVML_ERROR_INVALID_STATE:
      return "Resource not in correct state to perform requested operation";
    case NVML_ERROR_UNKNOWN:
      break;
  }
  return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length) {
  return library().call([&](NvmlLibrary&) { return give_text(kDriverVersion, version, length); });
}

// The library's own version, which needs no driver.
nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned length) {
  return give_text(std::to_string(kCudaVersion / 1000) + "." + kDriverVersion, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
  return library().call([&](NvmlLibrary&) {
    if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *version = kCudaVersion;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

// What the program was started as, cut to the buffer.
nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char* name, unsigned length) {
  return library().call([&](NvmlLibrary&) {
    if (name == nullptr || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
    if (!file) return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_NOT_FOUND;
    std::string text;
    std::getline(file, text, '\0');
    text.resize(std::min<std::size_t>(text.size(), length - 1));
    return give_text(text, name, length);
  });
}

}  // namespace nvshare::nvml
