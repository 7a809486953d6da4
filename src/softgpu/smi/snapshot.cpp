#include "softgpu/smi/snapshot.h"

namespace nvshare::smi {
namespace {

using namespace nvshare::nvml;

// The value that `ask` fills in, if the library has one.
template <typename Raw, typename Ask>
std::optional<unsigned> number(Ask ask) {
  Raw value{};
  if (ask(&value) != NVML_SUCCESS) return std::nullopt;
  return static_cast<unsigned>(value);
}

template <typename Ask>
std::string text(Ask ask) {
  char buffer[128] = {};
  return ask(buffer, static_cast<unsigned>(sizeof buffer)) == NVML_SUCCESS ? buffer : "";
}

void ask_memory(const Loader& nvml, nvmlDevice_t device, DeviceLine& line) {
  nvmlMemory_v2_t memory{};
  memory.version = struct_version<nvmlMemory_v2_t>(2);
  if (nvml.nvmlDeviceGetMemoryInfo_v2(device, &memory) == NVML_SUCCESS) {
    line.memory_total = memory.total;
    line.memory_used = memory.used;
    line.memory_free = memory.free;
    line.memory_reserved = memory.reserved;
    return;
  }
  nvmlMemory_t old{};
  if (nvml.nvmlDeviceGetMemoryInfo(device, &old) != NVML_SUCCESS) return;
  line.memory_total = old.total;
  line.memory_used = old.used;
  line.memory_free = old.free;
}

void ask_state(const Loader& nvml, nvmlDevice_t device, DeviceLine& line) {
  nvmlUtilization_t utilization{};
  if (nvml.nvmlDeviceGetUtilizationRates(device, &utilization) == NVML_SUCCESS) {
    line.busy = utilization.gpu;
    line.copies = utilization.memory;
  }
  const auto plain = [&](auto function) {
    return number<unsigned>([&](unsigned* out) { return function(device, out); });
  };
  const auto clock = [&](auto function, nvmlClockType_t type) {
    return number<unsigned>([&](unsigned* out) { return function(device, type, out); });
  };
  const auto enabled = [&](auto function) {
    return number<nvmlEnableState_t>([&](nvmlEnableState_t* out) { return function(device, out); });
  };
  line.temperature = number<unsigned>([&](unsigned* out) {
    return nvml.nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, out);
  });
  line.fan = plain(nvml.nvmlDeviceGetFanSpeed);
  line.power = plain(nvml.nvmlDeviceGetPowerUsage);
  line.power_limit = plain(nvml.nvmlDeviceGetEnforcedPowerLimit);
  line.sm_clock = clock(nvml.nvmlDeviceGetClockInfo, NVML_CLOCK_SM);
  line.memory_clock = clock(nvml.nvmlDeviceGetClockInfo, NVML_CLOCK_MEM);
  line.sm_clock_limit = clock(nvml.nvmlDeviceGetMaxClockInfo, NVML_CLOCK_SM);
  line.memory_clock_limit = clock(nvml.nvmlDeviceGetMaxClockInfo, NVML_CLOCK_MEM);
  line.link_generation = plain(nvml.nvmlDeviceGetCurrPcieLinkGeneration);
  line.link_width = plain(nvml.nvmlDeviceGetCurrPcieLinkWidth);
  line.persistence = enabled(nvml.nvmlDeviceGetPersistenceMode);
  line.display_active = enabled(nvml.nvmlDeviceGetDisplayActive);
  line.ecc = number<nvmlEnableState_t>([&](nvmlEnableState_t* out) {
    nvmlEnableState_t pending{};
    return nvml.nvmlDeviceGetEccMode(device, out, &pending);
  });
  line.mig = number<unsigned>([&](unsigned* out) {
    unsigned pending = 0;
    return nvml.nvmlDeviceGetMigMode(device, out, &pending);
  });
  line.performance_state = number<nvmlPstates_t>(
      [&](nvmlPstates_t* out) { return nvml.nvmlDeviceGetPerformanceState(device, out); });
  line.compute_mode = number<nvmlComputeMode_t>(
      [&](nvmlComputeMode_t* out) { return nvml.nvmlDeviceGetComputeMode(device, out); });
}

void ask_processes(const Loader& nvml, nvmlDevice_t device, DeviceLine& line) {
  std::vector<nvmlProcessInfo_t> infos(16);
  unsigned count = 0;
  nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
  // More may come between two calls; whoever needs more than a few turns is lying.
  for (int turn = 0; turn < 8 && result == NVML_ERROR_INSUFFICIENT_SIZE; ++turn) {
    if (count > infos.size()) infos.resize(count + 16);
    count = static_cast<unsigned>(infos.size());
    result = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos.data());
  }
  if (result != NVML_SUCCESS) return;
  for (unsigned i = 0; i < count; ++i) {
    ProcessLine process;
    process.pid = infos[i].pid;
    process.name = text([&](char* buffer, unsigned length) {
      return nvml.nvmlSystemGetProcessName(infos[i].pid, buffer, length);
    });
    if (infos[i].usedGpuMemory != kNotAvailable) process.memory = infos[i].usedGpuMemory;
    line.processes.push_back(std::move(process));
  }
}

DeviceLine ask_device(const Loader& nvml, unsigned index) {
  DeviceLine line;
  line.index = index;
  nvmlDevice_t device{};
  if (const nvmlReturn_t result = nvml.nvmlDeviceGetHandleByIndex_v2(index, &device);
      result != NVML_SUCCESS) {
    line.trouble = nvml.nvmlErrorString(result);
    return line;
  }
  line.name = text([&](char* b, unsigned n) { return nvml.nvmlDeviceGetName(device, b, n); });
  line.uuid = text([&](char* b, unsigned n) { return nvml.nvmlDeviceGetUUID(device, b, n); });
  nvmlPciInfo_t pci{};
  if (nvml.nvmlDeviceGetPciInfo_v3(device, &pci) == NVML_SUCCESS) line.bus_id = pci.busId;
  int major = 0;
  int minor = 0;
  if (nvml.nvmlDeviceGetCudaComputeCapability(device, &major, &minor) == NVML_SUCCESS) {
    line.compute_capability = std::to_string(major) + "." + std::to_string(minor);
  }
  ask_memory(nvml, device, line);
  ask_state(nvml, device, line);
  ask_processes(nvml, device, line);
  return line;
}

}  // namespace

std::optional<NvmlError> take_snapshot(const Loader& nvml, Snapshot& snapshot) {
  clock_gettime(CLOCK_REALTIME, &snapshot.taken);
  snapshot.driver_version =
      text([&](char* b, unsigned n) { return nvml.nvmlSystemGetDriverVersion(b, n); });
  int cuda = 0;
  if (nvml.nvmlSystemGetCudaDriverVersion(&cuda) == NVML_SUCCESS) {
    snapshot.cuda_version = std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10);
  }
  unsigned count = 0;
  if (const nvmlReturn_t result = nvml.nvmlDeviceGetCount_v2(&count); result != NVML_SUCCESS) {
    return NvmlError{result, nvml.nvmlErrorString(result)};
  }
  for (unsigned i = 0; i < count; ++i) snapshot.devices.push_back(ask_device(nvml, i));
  return std::nullopt;
}

}  // namespace nvshare::smi
