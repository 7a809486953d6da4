#include "softgpu/visible_devices.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>

#include "base/uuid.h"

namespace nvshare::softgpu {
namespace {

constexpr int kNone = -1;

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// The digits that the entry begins with: the driver reads "1st" as 1.
int by_number(std::string_view entry, const std::vector<int>& counted) {
  int number = kNone;
  const auto read = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  const bool known =
      read.ec == std::errc{} && number >= 0 && static_cast<std::size_t>(number) < counted.size();
  return known ? counted[static_cast<std::size_t>(number)] : kNone;
}

int by_uuid(std::string_view entry, const std::vector<std::string>& uuids) {
  if (!entry.starts_with("GPU-")) return kNone;
  const auto matches = [&](const std::string& uuid) { return uuid.starts_with(entry); };
  if (std::count_if(uuids.begin(), uuids.end(), matches) != 1) return kNone;
  return static_cast<int>(std::find_if(uuids.begin(), uuids.end(), matches) - uuids.begin());
}

}  // namespace

std::string uuid_text(const DeviceConfig& device) {
  return to_text(std::to_array(device.uuid));
}

std::vector<int> counted_devices(std::string_view order, int count, int fastest) {
  std::vector<int> devices(static_cast<std::size_t>(count));
  std::iota(devices.begin(), devices.end(), 0);
  if (order == "PCI_BUS_ID" || fastest >= count) return devices;
  std::rotate(devices.begin(), devices.begin() + fastest, devices.begin() + fastest + 1);
  return devices;
}

std::vector<int> visible_devices(std::string_view text, const std::vector<std::string>& uuids,
                                 const std::vector<int>& counted) {
  const bool by_uuids = trimmed(text).starts_with("GPU-");
  std::vector<int> devices;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view entry = trimmed(text.substr(at, end - at));
    const int device = by_uuids ? by_uuid(entry, uuids) : by_number(entry, counted);
    if (device == kNone) break;
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) return {};
    devices.push_back(device);
    at = end + 1;
  }
  return devices;
}

}  // namespace nvshare::softgpu
