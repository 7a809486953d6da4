#include <cstring>

#include "nvml/table.h"

// A libnvidia-ml.so.1 of a card that no other one has; its symbols have a version, so that dlvsym
// finds them, too.
namespace nvshare::nvml {

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char* uuid, unsigned length) {
  std::strncpy(uuid, "GPU-5ec0de00-0000-0000-0000-000000000001", length);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t* memory) {
  *memory = {800'000, 500'000, 300'000};
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t* memory) {
  *memory = {memory->version, 800'000, 200'000, 500'000, 100'000};
  return NVML_SUCCESS;
}

}  // namespace nvshare::nvml
