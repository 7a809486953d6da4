#include <time.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "softgpu/nvml_fixture.h"

// What NVML tells of processes that use the card.
namespace nvshare::softgpu {
namespace {

using namespace std::chrono_literals;
using Watching = Initialised;

// Waits until it is so, ten seconds at most.
bool eventually(const std::function<bool()>& is_so) {
  for (int i = 0; i < 200; ++i) {
    if (is_so()) return true;
    std::this_thread::sleep_for(50ms);
  }
  return false;
}

unsigned long long now_us() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<unsigned long long>(time.tv_sec) * 1'000'000 +
         static_cast<unsigned long long>(time.tv_nsec) / 1000;
}

TEST_F(Watching, MemoryComesWithItsProcessAndGoesWithKill) {
  Tenant first;
  Tenant second;
  ASSERT_EQ(first.started(), "0");
  ASSERT_EQ(second.started(), "0");
  const unsigned long long idle = used();
  EXPECT_EQ(first.tell("alloc 104857600"), "0");
  EXPECT_EQ(second.tell("alloc 314572800"), "0");
  EXPECT_EQ(used(), idle + 400 * kMi);
  auto seen = processes();
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[first.pid()] + seen[second.pid()], used());
  EXPECT_EQ(seen[second.pid()] - seen[first.pid()], 200 * kMi);
  EXPECT_EQ(first.tell("free"), "0");
  EXPECT_EQ(used(), idle + 300 * kMi);
  const unsigned dead = second.pid();
  second.kill_now();
  EXPECT_LE(used(), idle);
  EXPECT_EQ(processes().count(dead), 0u);
  first.kill_now();
  EXPECT_EQ(used(), 0u);
  EXPECT_TRUE(processes().empty());
  Tenant third;
  EXPECT_EQ(third.tell("alloc 1048576"), "0");
  EXPECT_GE(used(), kMi);
  EXPECT_EQ(processes().count(third.pid()), 1u);
}

TEST_F(Watching, EveryGenerationOfTheListTellsTheSame) {
  Tenant first;
  Tenant second;
  EXPECT_EQ(first.tell("alloc 104857600"), "0");
  unsigned count = 0;
  EXPECT_EQ(nvml->nvmlDeviceGetComputeRunningProcesses_v3(device, &count, nullptr),
            NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 2u);
  nvmlProcessInfo_v2_t infos[3];
  count = 1;
  EXPECT_EQ(nvml->nvmlDeviceGetComputeRunningProcesses_v2(device, &count, infos),
            NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(nvml->nvmlDeviceGetComputeRunningProcesses_v3(device, &count, nullptr),
            NVML_ERROR_INVALID_ARGUMENT);
  nvmlProcessInfo_v1_t old_infos[3];
  std::memset(old_infos, 0xaa, sizeof old_infos);
  count = 3;
  EXPECT_OK(nvml->nvmlDeviceGetComputeRunningProcesses(device, &count, old_infos));
  EXPECT_EQ(old_infos[2].pid, 0xaaaaaaaau);
  count = 3;
  EXPECT_OK(nvml->nvmlDeviceGetComputeRunningProcesses_v2(device, &count, infos));
  ASSERT_EQ(count, 2u);
  for (unsigned i = 0; i < 2; ++i) {
    EXPECT_EQ(infos[i].pid, old_infos[i].pid);
    EXPECT_EQ(infos[i].usedGpuMemory, old_infos[i].usedGpuMemory);
    EXPECT_EQ(infos[i].gpuInstanceId, 0xffffffffu);
  }
  count = 3;
  EXPECT_OK(nvml->nvmlDeviceGetGraphicsRunningProcesses_v3(device, &count, infos));
  EXPECT_EQ(count, 0u);
  char name[256];
  EXPECT_OK(nvml->nvmlSystemGetProcessName(first.pid(), name, sizeof name));
  EXPECT_STREQ(name, NVSHARE_TENANT);
  EXPECT_OK(nvml->nvmlSystemGetProcessName(first.pid(), name, 4));
  EXPECT_EQ(std::string(name), std::string(NVSHARE_TENANT).substr(0, 3));
  EXPECT_EQ(nvml->nvmlSystemGetProcessName(first.pid(), name, 0), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvml->nvmlSystemGetProcessName(0, name, 9), NVML_ERROR_NOT_FOUND);
}

TEST_F(Watching, ABusyProcessIsSeenAndTwoHaveHalfEach) {
  Tenant first;
  Tenant second;
  EXPECT_EQ(first.tell("spin 60000"), "0");
  EXPECT_TRUE(eventually([&] { return busy() >= 98; }));
  auto seen = busy_processes(0);
  EXPECT_EQ(seen.count(second.pid()), 0u);
  EXPECT_GE(seen[first.pid()].smUtil, 30u);  // the period in which it started counts too
  EXPECT_EQ(second.tell("spin 60000"), "0");
  const unsigned long long both = now_us();
  std::this_thread::sleep_for(900ms);
  seen = busy_processes(both + 250'000);  // past the period in which the second started
  EXPECT_NEAR(seen[first.pid()].smUtil, 50, 3);
  EXPECT_NEAR(seen[second.pid()].smUtil, 50, 3);
  EXPECT_GE(busy(), 95u);
  first.kill_now();
  const unsigned long long alone = now_us();
  std::this_thread::sleep_for(700ms);
  seen = busy_processes(alone + 250'000);
  EXPECT_EQ(seen.count(first.pid()), 0u);
  EXPECT_GE(seen[second.pid()].smUtil, 98u);
  second.kill_now();
  EXPECT_EQ(busy(), 0u);
}

TEST_F(Watching, SamplesAreLaterThanTheLastSeen) {
  Tenant tenant;
  EXPECT_EQ(tenant.tell("spin 60000"), "0");
  unsigned room = 0;
  nvmlValueType_t type{};
  EXPECT_OK(
      nvml->nvmlDeviceGetSamples(device, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &room, nullptr));
  ASSERT_GE(room, 10u);
  EXPECT_EQ(type, NVML_VALUE_TYPE_UNSIGNED_INT);
  std::vector<nvmlSample_t> samples(room);
  std::this_thread::sleep_for(900ms);
  unsigned count = room;
  ASSERT_OK(nvml->nvmlDeviceGetSamples(device, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count,
                                       samples.data()));
  ASSERT_GE(count, 3u);
  for (unsigned i = 1; i < count; ++i) {
    EXPECT_EQ(samples[i].timeStamp - samples[i - 1].timeStamp, 200'000u);
    EXPECT_LE(samples[i].timeStamp, now_us());
  }
  EXPECT_GE(samples[count - 1].sampleValue.uiVal, 98u);
  const unsigned long long last = samples[count - 1].timeStamp;
  const unsigned long long before = samples[count - 2].timeStamp;
  EXPECT_LE(now_us() - last, 1'000'000u);
  count = 1;
  ASSERT_OK(nvml->nvmlDeviceGetSamples(device, NVML_GPU_UTILIZATION_SAMPLES, before, &type, &count,
                                       samples.data()));
  EXPECT_EQ(samples[0].timeStamp, last);
  count = 7;
  EXPECT_EQ(nvml->nvmlDeviceGetSamples(device, NVML_GPU_UTILIZATION_SAMPLES, now_us() + 9'000'000,
                                       &type, &count, samples.data()),
            NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(count, 7u);
  EXPECT_TRUE(busy_processes(now_us() + 9'000'000).empty());
  count = 0;
  EXPECT_EQ(nvml->nvmlDeviceGetSamples(device, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count,
                                       samples.data()),
            NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvml->nvmlDeviceGetSamples(device, NVML_TOTAL_POWER_SAMPLES, 0, &type, &count, nullptr),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvml->nvmlDeviceGetSamples(device, static_cast<nvmlSamplingType_t>(99), 0, &type,
                                       &count, nullptr),
            NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(Watching, BothKindsOfProcessSamplesAgree) {
  Tenant tenant;
  EXPECT_EQ(tenant.tell("spin 60000"), "0");
  ASSERT_TRUE(eventually([&] { return busy() >= 98; }));
  unsigned count = 5;
  nvmlProcessUtilizationSample_t samples[64];
  EXPECT_EQ(nvml->nvmlDeviceGetProcessUtilization(device, samples, &count, 0),
            NVML_ERROR_INSUFFICIENT_SIZE);
  ASSERT_LE(count, 64u);
  const unsigned long long since = now_us() - 300'000;
  count = 64;
  ASSERT_OK(nvml->nvmlDeviceGetProcessUtilization(device, samples, &count, since));
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(samples[0].pid, tenant.pid());
  EXPECT_GT(samples[0].timeStamp, since);
  nvmlProcessUtilizationInfo_v1_t infos[64];
  nvmlProcessesUtilizationInfo_t info{struct_version<nvmlProcessesUtilizationInfo_t>(1), 64, since,
                                      infos};
  ASSERT_OK(nvml->nvmlDeviceGetProcessesUtilizationInfo(device, &info));
  ASSERT_EQ(info.processSamplesCount, 1u);
  EXPECT_EQ(infos[0].pid, tenant.pid());
  EXPECT_NEAR(infos[0].smUtil, samples[0].smUtil, 10);
  EXPECT_GT(infos[0].timeStamp, since);
}

TEST_F(Watching, CopiesAreSeenOnTheLink) {
  set("NVSHARE_SOFTGPU_LINK", "128Mi");
  Tenant tenant;
  ASSERT_EQ(tenant.started(), "0");
  unsigned kilobytes = 1;
  EXPECT_OK(nvml->nvmlDeviceGetPcieThroughput(device, NVML_PCIE_UTIL_RX_BYTES, &kilobytes));
  EXPECT_EQ(kilobytes, 0u);
  EXPECT_EQ(tenant.tell("copy 134217728"), "0");
  EXPECT_OK(nvml->nvmlDeviceGetPcieThroughput(device, NVML_PCIE_UTIL_RX_BYTES, &kilobytes));
  EXPECT_GE(kilobytes, 128u * 1024 * 9 / 10);
  EXPECT_OK(nvml->nvmlDeviceGetPcieThroughput(device, NVML_PCIE_UTIL_TX_BYTES, &kilobytes));
  EXPECT_EQ(kilobytes, 0u);
  EXPECT_TRUE(eventually([&] {
    nvmlUtilization_t utilization{};
    EXPECT_OK(nvml->nvmlDeviceGetUtilizationRates(device, &utilization));
    return utilization.memory >= 98 && utilization.gpu == 0;
  }));
}

TEST_F(Watching, TheDriverAndNvmlMeanTheSameDevice) {
  char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
  ASSERT_OK(nvml->nvmlDeviceGetUUID(device, uuid, sizeof uuid));  // before anybody has it open
  std::string hex;
  for (const char* c = uuid + 4; *c != 0; ++c) {
    if (*c != '-') hex += *c;
  }
  Tenant tenant;
  EXPECT_EQ(tenant.tell("uuid"), hex);
  EXPECT_EQ(tenant.tell("alloc 10485760"), "0");
  EXPECT_EQ(tenant.tell("nvml " NVSHARE_NVML), std::to_string(used()));
  int version = 0;
  EXPECT_OK(nvml->nvmlSystemGetCudaDriverVersion(&version));
  EXPECT_EQ(version, 13000);
}

TEST_F(Watching, ADeviceThatFellOffIsLost) {
  set("NVSHARE_SOFTGPU_LOSE_DEVICE", "1");
  Tenant tenant;
  ASSERT_EQ(tenant.started(), "0");
  EXPECT_OK(nvml->nvmlDeviceGetHandleByIndex_v2(0, &device));
  tenant.tell("spin 1");
  nvmlMemory_t memory{};
  EXPECT_TRUE(eventually(
      [&] { return nvml->nvmlDeviceGetMemoryInfo(device, &memory) == NVML_ERROR_GPU_IS_LOST; }));
  nvmlDevice_t found{};
  EXPECT_EQ(nvml->nvmlDeviceGetHandleByIndex_v2(0, &found), NVML_ERROR_GPU_IS_LOST);
  EXPECT_OK(nvml->nvmlDeviceGetHandleByIndex_v2(1, &found));
  EXPECT_OK(nvml->nvmlDeviceGetMemoryInfo(found, &memory));
}

TEST_F(Watching, WorksInAChildOfFork) {
  Tenant tenant;
  EXPECT_EQ(tenant.tell("alloc 10485760"), "0");
  const unsigned long long before = used();
  const pid_t child = fork();
  if (child == 0) _exit(used() == before && processes().count(tenant.pid()) == 1 ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(used(), before);
}

TEST_F(Watching, ManyThreadsMayAskAtOnce) {
  Tenant tenant;
  EXPECT_EQ(tenant.tell("alloc 10485760"), "0");
  EXPECT_EQ(tenant.tell("spin 60000"), "0");
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        if (nvml->nvmlInit_v2() != NVML_SUCCESS) ++wrong;
        if (used() < 10 * kMi || processes().size() != 1) ++wrong;
        if (nvml->nvmlShutdown() != NVML_SUCCESS) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace nvshare::softgpu
