// How much memory there is, and which processes have it.
#include <algorithm>

#include "softgpu/nvml/api.h"

namespace nvshare::softgpu {
namespace {

constexpr unsigned kNoInstance = 0xffffffff;  // there is no MIG

void fill(nvml::nvmlProcessInfo_v1_t& info, const ProcessUse& process) {
  info = {process.pid, process.memory};
}

void fill(nvml::nvmlProcessInfo_v2_t& info, const ProcessUse& process) {
  info = {process.pid, process.memory, kNoInstance, kNoInstance};
}

// The list as programs ask for it: with too little room they are told how much they need.
template <typename Info>
nvmlReturn_t give_processes(const std::vector<ProcessUse>& processes, unsigned* count,
                            Info* infos) {
  if (count == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
  const unsigned room = *count;
  *count = static_cast<unsigned>(processes.size());
  if (processes.empty()) return nvml::NVML_SUCCESS;
  if (room < processes.size()) return nvml::NVML_ERROR_INSUFFICIENT_SIZE;
  if (infos == nullptr) return nvml::NVML_ERROR_INVALID_ARGUMENT;
  for (std::size_t i = 0; i < processes.size(); ++i) fill(infos[i], processes[i]);
  return nvml::NVML_SUCCESS;
}

template <typename Info>
nvmlReturn_t compute_processes(nvmlDevice_t device, unsigned* count, Info* infos) {
  return library().on_device(device, [&](const View& view, int index) {
    return give_processes(view.processes(index), count, infos);
  });
}

// Nobody draws on the card, and there is no MPS.
template <typename Info>
nvmlReturn_t no_processes(nvmlDevice_t device, unsigned* count, Info* infos) {
  return library().on_device(device,
                             [&](const View&, int) { return give_processes({}, count, infos); });
}

}  // namespace
}  // namespace nvshare::softgpu

namespace nvshare::nvml {

using namespace nvshare::softgpu;

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return library().on_device(device, [&](const View& view, int index) {
    if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const MemoryUse use = view.memory(index);
    *memory = {use.total, use.total - use.used, use.used};
    return NVML_SUCCESS;
  });
}

// The software driver keeps nothing back for itself.
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  return library().on_device(device, [&](const View& view, int index) {
    if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const unsigned version = struct_version<nvmlMemory_v2_t>(2);
    if (memory->version != version) return NVML_ERROR_FUNCTION_NOT_FOUND;
    const MemoryUse use = view.memory(index);
    *memory = {version, use.total, 0, use.total - use.used, use.used};
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t* memory) {
  return not_simulated(device, memory);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned* count,
                                                  nvmlProcessInfo_v1_t* infos) {
  return compute_processes(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                     nvmlProcessInfo_v2_t* infos) {
  return compute_processes(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                     nvmlProcessInfo_t* infos) {
  return compute_processes(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned* count,
                                                   nvmlProcessInfo_v1_t* infos) {
  return no_processes(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                      nvmlProcessInfo_v2_t* infos) {
  return no_processes(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                      nvmlProcessInfo_t* infos) {
  return no_processes(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned* count,
                                                     nvmlProcessInfo_v1_t* infos) {
  return no_processes(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                        nvmlProcessInfo_v2_t* infos) {
  return no_processes(device, count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                        nvmlProcessInfo_t* infos) {
  return no_processes(device, count, infos);
}

}  // namespace nvshare::nvml
