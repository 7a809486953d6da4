// How busy devices are, as a whole and by process.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "softgpu/nvml/api.h"

namespace nvshare::softgpu {
namespace {

// A buffer for the processes' utilisation must have room for as many as there can be, as a card's
// own driver wants it.
constexpr unsigned kProcessRoom = kMaxProcesses;

// How long the bytes over the link are counted.
constexpr Nanos kThroughputPeriod = 20'000'000;

struct ProcessBusy {
  std::uint32_t pid = 0;
  Nanos last_seen = 0;  // the end of the last period in which it was busy
  Busy busy;            // mean from the first such period on
};

std::optional<ProcessBusy> busy_since(const View& view, int device, const ProcessUse& process,
                                      const std::vector<Period>& periods) {
  ProcessBusy found{process.pid, 0, {}};
  unsigned counted = 0;
  for (const Period period : periods) {
    const Busy busy = view.busy(device, period, process.slot);
    const bool any = busy.compute != 0 || busy.copy != 0;
    if (any) found.last_seen = period.end;
    if (found.last_seen == 0) continue;
    ++counted;
    found.busy.compute += busy.compute;
    found.busy.copy += busy.copy;
  }
  if (counted == 0) return std::nullopt;
  found.busy = {(found.busy.compute + counted / 2) / counted,
                (found.busy.copy + counted / 2) / counted};
  return found;
}

std::vector<ProcessBusy> all_busy_since(const View& view, int device,
                                        unsigned long long last_seen) {
  std::vector<ProcessBusy> all;
  const std::vector<Period> periods =
      view.periods_after(last_seen == 0 ? 0 : library().card_time(last_seen));
  for (const ProcessUse& process : view.processes(device)) {
    if (auto busy = busy_since(view, device, process, periods)) all.push_back(*busy);
  }
  return all;
}

void pause_for(Nanos duration) {
  timespec time{duration / 1'000'000'000, duration % 1'000'000'000};
  while (nanosleep(&time, &time) != 0) {
  }
}

}  // namespace
}  // namespace nvshare::softgpu

namespace nvshare::nvml {

using namespace nvshare::softgpu;

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  // Without the library's lock: a driver hangs for one device, and answers for all others.
  while (library().hangs()) ::pause();
  return library().on_device(device, [&](const View& view, int index) {
    if (utilization == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const Busy busy = view.busy(index, view.last_period());
    *utilization = {busy.compute, busy.copy};
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned* utilization,
                                             unsigned* period_us) {
  return not_simulated(device, utilization == nullptr ? nullptr : period_us);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned* utilization,
                                             unsigned* period_us) {
  return not_simulated(device, utilization == nullptr ? nullptr : period_us);
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long last_seen, nvmlValueType_t* value_type,
                                  unsigned* count, nvmlSample_t* samples) {
  return library().on_device(device, [&](const View& view, int index) {
    if (value_type == nullptr || count == nullptr || (samples != nullptr && *count == 0)) {
      return NVML_ERROR_INVALID_ARGUMENT;
    }
    const bool compute = type == NVML_GPU_UTILIZATION_SAMPLES;
    if (!compute && type != NVML_MEMORY_UTILIZATION_SAMPLES) {
      return type <= NVML_MODULE_POWER_SAMPLES ? NVML_ERROR_NOT_SUPPORTED
                                               : NVML_ERROR_INVALID_ARGUMENT;
    }
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (samples == nullptr) {
      *count = kSamplePeriods;
      return NVML_SUCCESS;
    }
    const std::vector<Period> periods =
        view.periods_after(last_seen == 0 ? 0 : library().card_time(last_seen));
    if (periods.empty()) return NVML_ERROR_NOT_FOUND;
    *count = std::min(*count, static_cast<unsigned>(periods.size()));
    for (unsigned i = 0; i < *count; ++i) {
      const Busy busy = view.busy(index, periods[i]);
      samples[i].timeStamp = library().time_stamp(periods[i].end);
      samples[i].sampleValue.ullVal = 0;
      samples[i].sampleValue.uiVal = compute ? busy.compute : busy.copy;
    }
    return NVML_SUCCESS;
  });
}

// Kilobytes a second over the next 20 ms, for which the call waits; what the device receives is
// what it is sent by copies from the host.
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned* value) {
  if (counter >= NVML_PCIE_UTIL_COUNT) value = nullptr;
  std::uint64_t counts[2] = {};
  for (int i = 0; i < 2; ++i) {
    if (i > 0) pause_for(kThroughputPeriod);
    const nvmlReturn_t result = library().on_device(device, [&](const View& view, int index) {
      if (value == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
      const View::Moved moved = view.moved(index);
      counts[i] = counter == NVML_PCIE_UTIL_RX_BYTES ? moved.in : moved.out;
      return NVML_SUCCESS;
    });
    if (result != NVML_SUCCESS) return result;
  }
  // A process that has gone takes its count with it.
  const std::uint64_t bytes = counts[1] > counts[0] ? counts[1] - counts[0] : 0;
  *value = static_cast<unsigned>(bytes / 1024 * (1'000'000'000 / kThroughputPeriod));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t* utilization,
                                             unsigned* count, unsigned long long last_seen) {
  return library().on_device(device, [&](const View& view, int index) {
    if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (utilization == nullptr || *count < kProcessRoom) {
      *count = kProcessRoom;
      return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    const std::vector<ProcessBusy> all = all_busy_since(view, index, last_seen);
    if (all.empty()) return NVML_ERROR_NOT_FOUND;
    *count = static_cast<unsigned>(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      utilization[i] = {all[i].pid,
                        library().time_stamp(all[i].last_seen),
                        all[i].busy.compute,
                        all[i].busy.copy,
                        0,
                        0};
    }
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t* info) {
  return library().on_device(device, [&](const View& view, int index) {
    if (info == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != struct_version<nvmlProcessesUtilizationInfo_t>(1)) {
      return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (info->procUtilArray == nullptr || info->processSamplesCount < kProcessRoom) {
      info->processSamplesCount = kProcessRoom;
      return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    const std::vector<ProcessBusy> all = all_busy_since(view, index, info->lastSeenTimeStamp);
    if (all.empty()) return NVML_ERROR_NOT_FOUND;
    info->processSamplesCount = static_cast<unsigned>(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      info->procUtilArray[i] = {library().time_stamp(all[i].last_seen),
                                all[i].pid,
                                all[i].busy.compute,
                                all[i].busy.copy,
                                0,
                                0,
                                0,
                                0};
    }
    return NVML_SUCCESS;
  });
}

}  // namespace nvshare::nvml
