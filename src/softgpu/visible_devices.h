#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "softgpu/engine/card.h"

namespace nvshare::softgpu {

// "GPU-01234567-89ab-...", as NVML and CUDA_VISIBLE_DEVICES write a device's UUID.
std::string uuid_text(const DeviceConfig& device);

// The devices that a program sees with this CUDA_VISIBLE_DEVICES, in its order. `uuids` has every
// device's uuid_text(). Entries are numbers, or UUIDs and their beginnings, as the first one is. An
// entry that names no device, or several, ends the list. A device that is named twice empties it.
std::vector<int> visible_devices(std::string_view text, const std::vector<std::string>& uuids);

}  // namespace nvshare::softgpu
