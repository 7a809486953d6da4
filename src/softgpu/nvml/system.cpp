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

namespace {

constexpr struct {
  nvmlReturn_t result;
  const char* text;
} kTexts[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
    {NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
    {NVML_ERROR_OPERATING_SYSTEM, "GPU access blocked by the operating system"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
    {NVML_ERROR_IN_USE, "In use by another client"},
    {NVML_ERROR_MEMORY, "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "No data"},
    {NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, "vGPU ECC not supported"},
    {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
    {NVML_ERROR_FREQ_NOT_SUPPORTED, "Invalid Frequency"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
    {NVML_ERROR_DEPRECATED, "Requested functionality has been deprecated"},
    {NVML_ERROR_NOT_READY, "System is not in ready state"},
    {NVML_ERROR_GPU_NOT_FOUND, "No supported GPUs were found"},
    {NVML_ERROR_INVALID_STATE, "Resource not in correct state to perform requested operation"},
};

}  // namespace

const char* nvmlErrorString(nvmlReturn_t result) {
  for (const auto& row : kTexts) {
    if (row.result == result) return row.text;
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
