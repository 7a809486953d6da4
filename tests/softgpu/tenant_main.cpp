// A program on the card that does what it is told, line by line, and answers each with a line:
//   alloc BYTES | free | spin MILLISECONDS | copy BYTES | uuid | nvml PATH
// `spin` and `copy` do not wait for the card.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "nvml/loader.h"
#include "softgpu/driver.h"

namespace nvshare::softgpu {
namespace {

using namespace nvshare::cuda;

class Tenant {
 public:
  CUresult start() {
    CUcontext context{};
    CUmodule module{};
    if (const CUresult result = cuInit(0); result != CUDA_SUCCESS) return result;
    if (const CUresult result = cuCtxCreate_v2(&context, 0, 0); result != CUDA_SUCCESS) {
      return result;
    }
    if (const CUresult result = cuModuleLoadData(&module, "//@softgpu kernel spin = spin(u64)\n");
        result != CUDA_SUCCESS) {
      return result;
    }
    return cuModuleGetFunction(&spin_, module, "spin");
  }

  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    std::string argument;
    words >> verb >> argument;
    const unsigned long number = std::strtoul(argument.c_str(), nullptr, 10);
    if (verb == "alloc") return text(allocate(number));
    if (verb == "free") return text(free_all());
    if (verb == "spin") return text(spin(number * 1'000'000));
    if (verb == "copy") return text(copy(number));
    if (verb == "uuid") return uuid();
    if (verb == "nvml") return seen_by_nvml(argument);
    return "what?";
  }

 private:
  static std::string text(CUresult result) { return std::to_string(static_cast<int>(result)); }

  CUresult allocate(std::size_t bytes) {
    CUdeviceptr address = 0;
    const CUresult result = cuMemAlloc_v2(&address, bytes);
    if (result == CUDA_SUCCESS) allocations_.push_back(address);
    return result;
  }

  CUresult free_all() {
    CUresult worst = CUDA_SUCCESS;
    for (const CUdeviceptr address : allocations_) {
      if (const CUresult result = cuMemFree_v2(address); result != CUDA_SUCCESS) worst = result;
    }
    allocations_.clear();
    return worst;
  }

  CUresult spin(unsigned long nanoseconds) {
    void* parameters[] = {&nanoseconds};
    return cuLaunchKernel(spin_, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
  }

  CUresult copy(std::size_t bytes) {
    void* host = nullptr;
    if (const CUresult result = cuMemHostAlloc(&host, bytes, 0); result != CUDA_SUCCESS) {
      return result;
    }
    if (const CUresult result = allocate(bytes); result != CUDA_SUCCESS) return result;
    return cuMemcpyHtoDAsync_v2(allocations_.back(), host, bytes, nullptr);
  }

  static std::string uuid() {
    CUuuid id{};
    if (const CUresult result = cuDeviceGetUuid_v2(&id, 0); result != CUDA_SUCCESS) {
      return text(result);
    }
    std::string hex;
    for (const char byte : id.bytes) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
      hex += digits;
    }
    return hex;
  }

  // The memory in use as NVML, loaded into this same process, has it.
  static std::string seen_by_nvml(const std::string& path) {
    auto library = nvml::Loader::open(path);
    if (!library) return library.error().message;
    nvml::nvmlDevice_t device{};
    nvml::nvmlMemory_t memory{};
    if ((*library)->nvmlInit_v2() != nvml::NVML_SUCCESS ||
        (*library)->nvmlDeviceGetHandleByIndex_v2(0, &device) != nvml::NVML_SUCCESS ||
        (*library)->nvmlDeviceGetMemoryInfo(device, &memory) != nvml::NVML_SUCCESS ||
        (*library)->nvmlShutdown() != nvml::NVML_SUCCESS) {
      return "failed";
    }
    return std::to_string(memory.used);
  }

  CUfunction spin_{};
  std::vector<CUdeviceptr> allocations_;
};

}  // namespace
}  // namespace nvshare::softgpu

int main() {
  nvshare::softgpu::Tenant tenant;
  std::cout << tenant.start() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << tenant.answer(line) << std::endl;
  }
}
