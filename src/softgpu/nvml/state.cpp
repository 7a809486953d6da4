// How devices are set, their clocks, heat and power, and how they are joined. What the simulation
// has no notion of is "not supported", never a made-up number.
#include "softgpu/nvml/api.h"

namespace nvshare::nvml {

using namespace nvshare::softgpu;

namespace {

// The device runs at one speed.
nvmlReturn_t give_clock(nvmlDevice_t device, nvmlClockType_t type, unsigned* clock,
                        nvmlReturn_t if_unknown) {
  return library().on_device(device, [&](const View&, int) {
    if (clock == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    switch (type) {
      case NVML_CLOCK_GRAPHICS:
      case NVML_CLOCK_SM:
        *clock = kSmClock;
        return NVML_SUCCESS;
      case NVML_CLOCK_MEM:
        *clock = kMemoryClock;
        return NVML_SUCCESS;
      case NVML_CLOCK_VIDEO:
        return NVML_ERROR_NOT_SUPPORTED;
      default:
        return if_unknown;
    }
  });
}

}  // namespace

// Off: with the last process that has the card open the card is gone.
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return always(device, mode, NVML_FEATURE_DISABLED);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* mode) {
  return always(device, mode, NVML_COMPUTEMODE_DEFAULT);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t* current,
                                  nvmlEnableState_t* pending) {
  return library().on_device(device, [&](const View&, int) {
    if (current == nullptr || pending == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *current = *pending = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned* current, unsigned* pending) {
  return library().on_device(device, [&](const View&, int) {
    return current == nullptr || pending == nullptr ? NVML_ERROR_INVALID_ARGUMENT
                                                    : NVML_ERROR_NOT_SUPPORTED;
  });
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned* count) {
  return always(device, count, 0u);
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned* is_mig) {
  return always(device, is_mig, 0u);
}

nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t* active) {
  return always(device, active, NVML_FEATURE_DISABLED);
}

nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t* display) {
  return always(device, display, NVML_FEATURE_DISABLED);
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t* state) {
  return always(device, state, NVML_PSTATE_0);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned* clock) {
  return give_clock(device, type, clock, NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned* clock) {
  return give_clock(device, type, clock, NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned* celsius) {
  return not_simulated(device, sensor < NVML_TEMPERATURE_COUNT ? celsius : nullptr);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t,
                                               unsigned* celsius) {
  return not_simulated(device, celsius);
}

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned* percent) {
  return not_simulated(device, percent);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned* milliwatts) {
  return not_simulated(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned* milliwatts) {
  return not_simulated(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned* milliwatts) {
  return not_simulated(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
                                                 unsigned long long* millijoules) {
  return not_simulated(device, millijoules);
}

// The link has a speed in bytes per second, and neither lanes nor a generation.
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned* generation) {
  return not_simulated(device, generation);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned* width) {
  return not_simulated(device, width);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned* generation) {
  return not_simulated(device, generation);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned* width) {
  return not_simulated(device, width);
}

// The call succeeds; each field says for itself that there is no value.
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  return library().on_device(device, [&](const View&, int) {
    if (values == nullptr || count <= 0) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; ++i) values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                    nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t* status) {
  const nvmlReturn_t second = always(device2, status, NVML_P2P_STATUS_NOT_SUPPORTED);
  return second != NVML_SUCCESS ? second : always(device1, status, NVML_P2P_STATUS_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned, nvmlEnableState_t* active) {
  return not_simulated(device, active);
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned, nvmlNvLinkCapability_t,
                                           unsigned* result) {
  return not_simulated(device, result);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned,
                                                 nvmlPciInfo_t* pci) {
  return not_simulated(device, pci);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned,
                                                 nvmlIntNvLinkDeviceType_t* type) {
  return not_simulated(device, type);
}

}  // namespace nvshare::nvml
