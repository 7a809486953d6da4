#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "softgpu/smi/snapshot.h"

namespace nvshare::smi {

// A column of a query: its name, another that means the same, its unit, and its value.
struct DeviceField {
  std::string_view name;
  std::string_view alias;
  std::string_view unit;
  std::optional<std::string> (*value)(const Snapshot&, const DeviceLine&);
};
struct ProcessField {
  std::string_view name;
  std::string_view alias;
  std::string_view unit;
  std::optional<std::string> (*value)(const Snapshot&, const DeviceLine&, const ProcessLine&);
};

const std::vector<DeviceField>& device_fields();
const std::vector<ProcessField>& process_fields();
const DeviceField* find_device_field(std::string_view name);
const ProcessField* find_process_field(std::string_view name);

// Comma-separated lines; the fields must be known. What has no value is "[N/A]".
std::string device_csv(const Snapshot& snapshot, const std::vector<std::string>& fields,
                       bool header, bool units);
std::string process_csv(const Snapshot& snapshot, const std::vector<std::string>& fields,
                        bool header, bool units);

}  // namespace nvshare::smi
