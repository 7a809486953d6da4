#pragma once

#include <time.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nvml/loader.h"

// What softgpu-smi shows: everything NVML says of the machine at one moment. What NVML does not
// know is empty.
namespace nvshare::smi {

struct ProcessLine {
  unsigned pid = 0;
  std::string name;
  std::optional<std::uint64_t> memory;  // bytes
};

struct DeviceLine {
  unsigned index = 0;
  std::optional<std::string> trouble;  // why there is nothing else to be said of the device
  std::string name;
  std::string uuid;
  std::string bus_id;
  std::optional<std::uint64_t> memory_total;
  std::optional<std::uint64_t> memory_used;
  std::optional<std::uint64_t> memory_free;
  std::optional<std::uint64_t> memory_reserved;
  std::optional<unsigned> busy;    // percent
  std::optional<unsigned> copies;  // percent
  std::optional<unsigned> temperature;
  std::optional<unsigned> fan;
  std::optional<unsigned> power;  // milliwatts
  std::optional<unsigned> power_limit;
  std::optional<unsigned> sm_clock;  // MHz
  std::optional<unsigned> memory_clock;
  std::optional<unsigned> sm_clock_limit;
  std::optional<unsigned> memory_clock_limit;
  std::optional<unsigned> performance_state;
  std::optional<unsigned> link_generation;
  std::optional<unsigned> link_width;
  std::optional<unsigned> persistence;  // 0 or 1, as the next ones
  std::optional<unsigned> display_active;
  std::optional<unsigned> ecc;
  std::optional<unsigned> mig;
  std::optional<unsigned> compute_mode;
  std::optional<std::string> compute_capability;
  std::vector<ProcessLine> processes;
};

struct Snapshot {
  timespec taken{};
  std::string driver_version;
  std::string cuda_version;
  std::vector<DeviceLine> devices;
};

// A result of NVML that is an error, as text and as the number that becomes the exit status.
struct NvmlError {
  nvml::nvmlReturn_t code = nvml::NVML_SUCCESS;
  std::string message;
};

// NVML must be initialised. Devices that cannot be asked are in the snapshot, with their trouble.
std::optional<NvmlError> take_snapshot(const nvml::Loader& nvml, Snapshot& snapshot);

}  // namespace nvshare::smi
