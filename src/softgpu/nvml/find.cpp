// Finding devices, and what each one is.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "softgpu/nvml/api.h"
#include "softgpu/visible_devices.h"

namespace nvshare::softgpu {
namespace {

// Hands out the first device that matches, unless it fell off.
template <typename Matches>
nvmlReturn_t find_device(const View& view, nvmlDevice_t* device, Matches matches) {
  for (int index = 0; index < view.device_count(); ++index) {
    if (!matches(index)) continue;
    if (view.lost(index)) return nvml::NVML_ERROR_GPU_IS_LOST;
    *device = library().handle(index);
    return nvml::NVML_SUCCESS;
  }
  return nvml::NVML_ERROR_NOT_FOUND;
}

nvml::nvmlPciInfo_t pci_info(const DeviceConfig& device) {
  nvml::nvmlPciInfo_t info{};
  info.bus = device.pci_bus;
  std::snprintf(info.busIdLegacy, sizeof info.busIdLegacy, "0000:%02X:00.0", info.bus & 0xff);
  std::snprintf(info.busId, sizeof info.busId, "00000000:%02X:00.0", info.bus & 0xff);
  return info;
}

struct BusId {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned slot = 0;
};

// "DOMAIN:BUS:DEVICE.0"; the function may be left out, or the domain, but not both.
std::optional<BusId> parse_bus_id(std::string_view text) {
  std::vector<unsigned> fields;
  std::string separators;
  while (true) {
    unsigned field = 0;
    const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), field, 16);
    if (status != std::errc{}) return std::nullopt;
    fields.push_back(field);
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
    if (text.empty()) break;
    separators += text.front();
    text.remove_prefix(1);
  }
  const bool has_function = separators.ends_with('.');
  if (has_function && fields.back() != 0) return std::nullopt;
  if (separators == "::." || separators == "::") return BusId{fields[0], fields[1], fields[2]};
  if (separators == ":.") return BusId{0, fields[0], fields[1]};
  return std::nullopt;
}

// Old programs have room for the beginning of the structure only.
nvmlReturn_t give_pci_info(nvmlDevice_t device, nvml::nvmlPciInfo_t* pci, std::size_t size) {
  return library().on_device(device, [&](const View& view, int index) {
    if (pci == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
    const nvml::nvmlPciInfo_t info = pci_info(view.device(index));
    std::memcpy(static_cast<void*>(pci), &info, size);
    return nvml::NVML_SUCCESS;
  });
}

}  // namespace
}  // namespace nvshare::softgpu

namespace nvshare::nvml {

using namespace nvshare::softgpu;

nvmlReturn_t nvmlDeviceGetCount(unsigned* count) {
  return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  return library().look([&](const View& view) {
    if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *count = static_cast<unsigned>(view.device_count());
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  return library().look([&](const View& view) {
    if (device == nullptr || index >= static_cast<unsigned>(view.device_count())) {
      return NVML_ERROR_INVALID_ARGUMENT;
    }
    return find_device(view, device,
                       [&](int candidate) { return candidate == static_cast<int>(index); });
  });
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char* serial, nvmlDevice_t* device) {
  return library().look([&](const View&) {
    if (serial == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_ERROR_NOT_FOUND;  // no device has a serial number
  });
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  return library().look([&](const View& view) {
    if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    return find_device(view, device, [&](int index) {
      const std::string text = uuid_text(view.device(index));
      return text == uuid || text.substr(4) == uuid;
    });
  });
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* pci_bus_id, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* pci_bus_id, nvmlDevice_t* device) {
  return library().look([&](const View& view) {
    if (pci_bus_id == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const std::optional<BusId> id = parse_bus_id(pci_bus_id);
    if (!id) return NVML_ERROR_INVALID_ARGUMENT;
    return find_device(view, device, [&](int index) {
      return id->domain == 0 && id->slot == 0 && id->bus == view.device(index).pci_bus;
    });
  });
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index) {
  return library().on_device(device, [&](const View&, int found) {
    if (index == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *index = static_cast<unsigned>(found);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned* minor) {
  return nvmlDeviceGetIndex(device, minor);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned length) {
  return library().on_device(device, [&](const View& view, int index) {
    return give_text(view.device(index).name, name, length);
  });
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  return library().on_device(device, [&](const View& view, int index) {
    return give_text(uuid_text(view.device(index)), uuid, length);
  });
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char* serial, unsigned) {
  return not_simulated(device, serial);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char* version, unsigned) {
  return not_simulated(device, version);
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return give_pci_info(device, pci, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return give_pci_info(device, pci, offsetof(nvmlPciInfo_t, busId));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return give_pci_info(device, pci, sizeof *pci);
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t* type) {
  return always(device, type, NVML_BRAND_UNKNOWN);
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device,
                                       nvmlDeviceArchitecture_t* architecture) {
  return always(device, architecture, NVML_DEVICE_ARCH_HOPPER);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  return library().on_device(device, [&](const View&, int) {
    if (major == nullptr || minor == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *major = kComputeMajor;
    *minor = kComputeMinor;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned* cores) {
  return always(device, cores, kCores);
}

nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned* multi_gpu) {
  return always(device, multi_gpu, 0u);
}

// Of MIG devices alone.
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  return not_simulated(device, attributes);
}

}  // namespace nvshare::nvml
