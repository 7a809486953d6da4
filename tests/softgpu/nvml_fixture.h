#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "nvml/loader.h"
#include "softgpu/tenant.h"

// libnvidia-ml.so.1 of the software GPU, as the tests of it load it.
namespace nvshare::softgpu {

using namespace nvshare::nvml;

inline constexpr unsigned long long kMi = 1 << 20;

#define EXPECT_OK(call) EXPECT_EQ((call), NVML_SUCCESS)
#define ASSERT_OK(call) ASSERT_EQ((call), NVML_SUCCESS)

// The library as loaded, and a card of the test's own with 1 GiB and two devices.
class Library : public ::testing::Test {
 protected:
  void SetUp() override {
    static int cards = 0;
    const std::string name =
        "nvml-test-" + std::to_string(getpid()) + "-" + std::to_string(++cards);
    set("NVSHARE_SOFTGPU_CARD", name);
    set("NVSHARE_SOFTGPU_MEMORY", "1Gi");
    set("NVSHARE_SOFTGPU_COUNT", "2");
    set("NVSHARE_SOFTGPU_NAME", "Test Card");
    auto opened = Loader::open(NVSHARE_NVML);
    ASSERT_TRUE(opened) << opened.error().message;
    nvml = std::move(*opened);
  }
  void TearDown() override {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    names_.insert(name);
    setenv(name.c_str(), value.c_str(), 1);
  }

  std::unique_ptr<Loader> nvml;

 private:
  std::set<std::string> names_;
};

class Initialised : public Library {
 protected:
  void SetUp() override {
    Library::SetUp();
    ASSERT_OK(nvml->nvmlInit_v2());
    ASSERT_OK(nvml->nvmlDeviceGetHandleByIndex_v2(0, &device));
  }
  void TearDown() override {
    EXPECT_OK(nvml->nvmlShutdown());
    Library::TearDown();
  }

  unsigned long long used() {
    nvmlMemory_t memory{};
    EXPECT_OK(nvml->nvmlDeviceGetMemoryInfo(device, &memory));
    EXPECT_EQ(memory.total, 1024 * kMi);
    EXPECT_EQ(memory.free + memory.used, memory.total);
    return memory.used;
  }
  std::map<unsigned, unsigned long long> processes() {
    nvmlProcessInfo_t infos[64];
    unsigned count = 64;
    EXPECT_OK(nvml->nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos));
    std::map<unsigned, unsigned long long> found;
    for (unsigned i = 0; i < count; ++i) found[infos[i].pid] = infos[i].usedGpuMemory;
    return found;
  }
  unsigned busy() {
    nvmlUtilization_t utilization{};
    EXPECT_OK(nvml->nvmlDeviceGetUtilizationRates(device, &utilization));
    return utilization.gpu;
  }
  std::map<unsigned, nvmlProcessUtilizationSample_t> busy_processes(unsigned long long since) {
    nvmlProcessUtilizationSample_t samples[64];
    unsigned count = 64;
    std::map<unsigned, nvmlProcessUtilizationSample_t> found;
    const nvmlReturn_t result =
        nvml->nvmlDeviceGetProcessUtilization(device, samples, &count, since);
    EXPECT_TRUE(result == NVML_SUCCESS || result == NVML_ERROR_NOT_FOUND) << result_name(result);
    if (result != NVML_SUCCESS) return found;
    for (unsigned i = 0; i < count; ++i) found[samples[i].pid] = samples[i];
    return found;
  }

  nvmlDevice_t device{};
};

}  // namespace nvshare::softgpu
