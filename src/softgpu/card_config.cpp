#include "softgpu/card_config.h"

#include <cstdio>

namespace nvshare::softgpu {
namespace {

void name_device(DeviceConfig& device, const std::string& card, int index) {
  std::uint64_t state = 0xcbf29ce484222325;
  for (const char c : card + "#" + std::to_string(index)) {
    state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  for (std::uint8_t& byte : device.uuid) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::uint8_t>(state >> 56);
  }
}

}  // namespace

CardConfig card_config(const Config& config) {
  CardConfig card;
  for (int index = 0; index < config.count; ++index) {
    DeviceConfig device{};
    device.memory = static_cast<std::uint64_t>(config.memory.count);
    device.link = static_cast<double>(config.link.count) / 1e9;
    device.slice = config.slice.count();
    device.switch_cost = config.switch_cost.count();
    std::snprintf(device.name, sizeof device.name, "%s", config.name.c_str());
    name_device(device, config.card, index);
    device.pci_bus = static_cast<std::uint32_t>(index) + 1;
    card.devices.push_back(device);
  }
  return card;
}

}  // namespace nvshare::softgpu
