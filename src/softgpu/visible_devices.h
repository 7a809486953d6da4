#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "softgpu/engine/card.h"

namespace nvshare::softgpu {

// "GPU-01234567-89ab-...", as NVML and CUDA_VISIBLE_DEVICES write a device's UUID.
std::string uuid_text(const DeviceConfig& device);

// The devices of a card as the driver counts them: the fastest first, or by PCI bus where `order`,
// the value of CUDA_DEVICE_ORDER, says so.
std::vector<int> counted_devices(std::string_view order, int count, int fastest);

// The devices that a program sees with this CUDA_VISIBLE_DEVICES, in its order. `uuids` has every
// device's uuid_text(), `counted` the devices as numbers count them. Entries are numbers, or UUIDs
// and their beginnings, as the first one is. An entry that names no device, or several, ends the
// list. A device that is named twice empties it.
std::vector<int> visible_devices(std::string_view text, const std::vector<std::string>& uuids,
                                 const std::vector<int>& counted);

}  // namespace nvshare::softgpu
