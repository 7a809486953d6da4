// The machine's GPUs through NVML.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "core/event.h"
#include "daemon/broker/records.h"
#include "daemon/host/gpu_sampler.h"
#include "daemon/serve/reactor.h"
#include "nvml/loader.h"

namespace nvshare::daemon {
namespace {

using namespace nvshare::nvml;

constexpr unsigned kMostGpus = 64;
constexpr unsigned kMostProcesses = 1024;  // of one GPU

class LoadedGpus : public NvmlGpus {
 public:
  explicit LoadedGpus(std::unique_ptr<Loader> nvml) : nvml_(std::move(nvml)) {}
  ~LoadedGpus() override {
    if (initialised_) (void)nvml_->nvmlShutdown();
  }

  Result<void> look();
  const std::vector<FoundGpu>& found() const override { return found_; }
  GpuSample sample(std::size_t gpu) const override;

 private:
  void ask_processes(nvmlDevice_t device, GpuSample& sample) const;
  void ask_busy(nvmlDevice_t device, GpuSample& sample) const;

  std::unique_ptr<Loader> nvml_;
  bool initialised_ = false;
  std::vector<FoundGpu> found_;
  std::vector<nvmlDevice_t> devices_;
};

Result<void> LoadedGpus::look() {
  const auto failed = [&](nvmlReturn_t result) {
    return Error{fmt::format("NVML: {}", nvml_->nvmlErrorString(result))};
  };
  if (const auto result = nvml_->nvmlInit_v2(); result != NVML_SUCCESS) return failed(result);
  initialised_ = true;
  unsigned count = 0;
  if (const auto result = nvml_->nvmlDeviceGetCount_v2(&count); result != NVML_SUCCESS) {
    return failed(result);
  }
  for (unsigned i = 0; i < std::min(count, kMostGpus); ++i) {
    FoundGpu gpu;
    nvmlDevice_t device{};
    char uuid[96] = {};
    char name[96] = {};
    nvmlMemory_t memory{};
    if (nvml_->nvmlDeviceGetHandleByIndex_v2(i, &device) != NVML_SUCCESS) continue;
    if (nvml_->nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS) continue;
    if (nvml_->nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS) continue;
    (void)nvml_->nvmlDeviceGetName(device, name, sizeof name);
    const auto parsed = parse_uuid(printable(uuid, sizeof uuid));
    if (!parsed) continue;
    gpu.uuid = *parsed;
    gpu.name = printable(name, sizeof name);
    gpu.total = Bytes{static_cast<std::int64_t>(memory.total)};
    gpu.used = Bytes{static_cast<std::int64_t>(memory.used)};
    found_.push_back(std::move(gpu));
    devices_.push_back(device);
  }
  if (found_.empty()) return Error{"NVML knows no GPU"};
  return {};
}

GpuSample LoadedGpus::sample(std::size_t gpu) const {
  const nvmlDevice_t device = devices_.at(gpu);
  GpuSample sample;
  sample.at = monotonic_now();
  nvmlUtilization_t busy{};
  if (nvml_->nvmlDeviceGetUtilizationRates(device, &busy) == NVML_SUCCESS) {
    sample.utilisation = static_cast<int>(std::min(busy.gpu, 100u));
  }
  nvmlMemory_t memory{};
  if (nvml_->nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS) {
    sample.used = Bytes{static_cast<std::int64_t>(memory.used)};
  }
  ask_processes(device, sample);
  ask_busy(device, sample);
  return sample;
}

void LoadedGpus::ask_processes(nvmlDevice_t device, GpuSample& sample) const {
  std::vector<nvmlProcessInfo_t> infos(kMostProcesses);
  unsigned count = kMostProcesses;
  if (nvml_->nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos.data()) ==
      NVML_SUCCESS) {
    infos.resize(std::min(count, kMostProcesses));
    for (const nvmlProcessInfo_t& one : infos) {
      // All ones where the driver does not tell.
      const bool known = one.usedGpuMemory < static_cast<std::uint64_t>(core::kMostMemory.count);
      sample.processes.push_back({static_cast<int>(one.pid),
                                  Bytes{known ? static_cast<std::int64_t>(one.usedGpuMemory) : 0}});
    }
  }
  count = kMostProcesses;
  infos.assign(kMostProcesses, {});
  sample.mps = nvml_->nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &count, infos.data()) ==
                   NVML_SUCCESS &&
               count > 0;
}

void LoadedGpus::ask_busy(nvmlDevice_t device, GpuSample& sample) const {
  std::vector<nvmlProcessUtilizationSample_t> busy_ones(kMostProcesses);
  unsigned count = kMostProcesses;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto from =
      std::chrono::duration_cast<std::chrono::microseconds>(now - kMeasuredOver).count();
  if (nvml_->nvmlDeviceGetProcessUtilization(device, busy_ones.data(), &count,
                                             static_cast<unsigned long long>(from)) !=
      NVML_SUCCESS) {
    return;
  }
  busy_ones.resize(std::min(count, kMostProcesses));
  for (const auto& one : busy_ones) {
    sample.busy[static_cast<int>(one.pid)] = static_cast<int>(std::min(one.smUtil, 100u));
  }
}

}  // namespace

Result<std::shared_ptr<NvmlGpus>> NvmlGpus::open(const std::string& library) {
  auto loaded = Loader::open(library);
  if (!loaded) return loaded.error();
  auto gpus = std::make_shared<LoadedGpus>(std::move(*loaded));
  if (const auto looked = gpus->look(); !looked) return looked.error();
  return std::shared_ptr<NvmlGpus>(std::move(gpus));
}

}  // namespace nvshare::daemon
