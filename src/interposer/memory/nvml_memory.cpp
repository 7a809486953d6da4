#include "interposer/catch/nvml.h"
#include "interposer/link/look.h"

// How much memory NVML tells of: with a limit, the tenant's own; without one, the library's answer.
namespace nvshare::interposer::memory {
namespace {

using namespace nvshare::nvml;
using Id = nvml::FunctionId;

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// "GPU-01234567-89ab-...", or "MIG-..." of a part of one.
bool parse_uuid(const char* text, CUuuid& uuid) {
  while (*text >= 'A' && *text <= 'Z') ++text;
  unsigned digits = 0;
  for (; *text != 0; ++text) {
    if (*text == '-') continue;
    const int value = digit(*text);
    if (value < 0 || digits == 2 * sizeof uuid.bytes) return false;
    char& byte = uuid.bytes[digits / 2];
    byte = static_cast<char>(digits % 2 == 0 ? value << 4 : byte | value);
    ++digits;
  }
  return digits == 2 * sizeof uuid.bytes;
}

// What the CUDA driver has of it, which is what limits in percent are of: NVML's total has what the
// driver keeps for itself in it.
uint64_t memory_for_programs(nvmlDevice_t, const nvmlMemory_v2_t& memory) {
  return memory.total - memory.reserved;
}
uint64_t memory_for_programs(nvmlDevice_t device, const nvmlMemory_t& memory) {
  nvmlMemory_v2_t more{};
  more.version = struct_version<nvmlMemory_v2_t>(2);
  const auto result = catching::real_nvml<Id::nvmlDeviceGetMemoryInfo_v2>(device, &more);
  return result == NVML_SUCCESS ? memory_for_programs(device, more) : memory.total;
}

// Puts the tenant's view into what the library has told; whether there is one.
template <typename Memory>
bool show_tenants(nvmlDevice_t device, Memory& memory) {
  char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = {};
  CUuuid uuid;
  if (catching::real_nvml<Id::nvmlDeviceGetUUID>(device, &text[0], unsigned{sizeof text}) !=
          NVML_SUCCESS ||
      !parse_uuid(text, uuid)) {
    return false;
  }
  const link::MemoryView view = link::look_at_memory(uuid, memory_for_programs(device, memory));
  if (view.limit == 0) return false;
  if (view.limit < memory.total) memory.total = view.limit;
  // A limit may have been lowered below what is there.
  memory.used = view.allocated < memory.total ? view.allocated : memory.total;
  memory.free = memory.total - memory.used;
  return true;
}

}  // namespace
}  // namespace nvshare::interposer::memory

namespace nvshare::interposer::catching {
using namespace memory;

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  if (!nvml_is_there()) return NVML_ERROR_LIBRARY_NOT_FOUND;
  const auto result = real_nvml<Id::nvmlDeviceGetMemoryInfo>(device, memory);
  if (result == NVML_SUCCESS) show_tenants(device, *memory);
  return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (!nvml_is_there()) return NVML_ERROR_LIBRARY_NOT_FOUND;
  const auto result = real_nvml<Id::nvmlDeviceGetMemoryInfo_v2>(device, memory);
  if (result != NVML_SUCCESS || memory->version != struct_version<nvmlMemory_v2_t>(2)) {
    return result;
  }
  if (show_tenants(device, *memory)) memory->reserved = 0;
  return result;
}

}  // namespace nvshare::interposer::catching
