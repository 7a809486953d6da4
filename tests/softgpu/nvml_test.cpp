#include <time.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "nvml/loader.h"
#include "softgpu/tenant.h"

// libnvidia-ml.so.1 of the software GPU, with processes that use the card.
namespace nvshare::softgpu {
namespace {

using namespace nvshare::nvml;
using namespace std::chrono_literals;

constexpr unsigned long long kMi = 1 << 20;

#define EXPECT_OK(call) EXPECT_EQ((call), NVML_SUCCESS)
#define ASSERT_OK(call) ASSERT_EQ((call), NVML_SUCCESS)

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

// Calls a function with null for every pointer and zero for every number.
template <typename... Arguments>
nvmlReturn_t call_with_nothing(nvmlReturn_t (*function)(Arguments...)) {
  return function(Arguments{}...);
}
nvmlReturn_t call_with_nothing(const char* (*)(nvmlReturn_t)) {
  return NVML_SUCCESS;
}

std::map<std::string, std::function<nvmlReturn_t()>> every_call(const Loader& nvml) {
  std::map<std::string, std::function<nvmlReturn_t()>> calls;
#define NVSHARE_NVML_FUNCTION(result, symbol, kind, parameters, arguments) \
  calls[#symbol] = [function = nvml.symbol] { return call_with_nothing(function); };
#include "nvml/functions.def"
  return calls;
}

TEST_F(Library, BeforeInitAllThatNeedsItSaysSo) {
  const auto calls = every_call(*nvml);
  for (const Function& row : kFunctions) {
    const std::string symbol = row.symbol;
    if (row.kind == Kind::Text || symbol == "nvmlSystemGetNVMLVersion") continue;
    if (row.kind == Kind::Init && symbol != "nvmlShutdown") continue;
    EXPECT_EQ(calls.at(symbol)(), NVML_ERROR_UNINITIALIZED) << symbol;
  }
  char version[80] = {};
  EXPECT_OK(nvml->nvmlSystemGetNVMLVersion(version, sizeof version));
  EXPECT_EQ(std::string(version).rfind("13.", 0), 0u) << version;
}

TEST_F(Initialised, NullIsAnInvalidArgumentEverywhere) {
  const auto calls = every_call(*nvml);
  for (const Function& row : kFunctions) {
    if (row.kind == Kind::Text || row.kind == Kind::Init) continue;
    EXPECT_EQ(calls.at(row.symbol)(), NVML_ERROR_INVALID_ARGUMENT) << row.symbol;
  }
  EXPECT_EQ(nvml->nvmlDeviceGetName(device, nullptr, 64), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvml->nvmlDeviceGetMemoryInfo(device, nullptr), NVML_ERROR_INVALID_ARGUMENT);
  unsigned number = 0;
  EXPECT_EQ(nvml->nvmlDeviceGetIndex(reinterpret_cast<nvmlDevice_t>(&number), &number),
            NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(Library, ExportsTheTableAndNothingElse) {
  FILE* listing = popen("nm -D --defined-only " NVSHARE_NVML, "r");
  ASSERT_NE(listing, nullptr);
  std::set<std::string> symbols;
  char address[64];
  char type[8];
  char symbol[128];
  while (fscanf(listing, "%63s %7s %127s", address, type, symbol) == 3) symbols.insert(symbol);
  ASSERT_EQ(pclose(listing), 0);
  std::set<std::string> table;
  for (const Function& row : kFunctions) table.insert(row.symbol);
  EXPECT_EQ(symbols, table);
}

TEST_F(Library, InitIsCounted) {
  unsigned count = 0;
  ASSERT_OK(nvml->nvmlInit());
  ASSERT_OK(nvml->nvmlInitWithFlags(NVML_INIT_FLAG_NO_GPUS));
  EXPECT_OK(nvml->nvmlShutdown());
  EXPECT_OK(nvml->nvmlDeviceGetCount_v2(&count));
  EXPECT_EQ(count, 2u);
  EXPECT_OK(nvml->nvmlShutdown());
  EXPECT_EQ(nvml->nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvml->nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
  ASSERT_OK(nvml->nvmlInit_v2());
  EXPECT_OK(nvml->nvmlShutdown());
}

TEST_F(Library, MayBeUnavailable) {
  set("NVSHARE_SOFTGPU_NVML_UNAVAILABLE", "true");
  EXPECT_EQ(nvml->nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
  unsigned count = 0;
  EXPECT_EQ(nvml->nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
  set("NVSHARE_SOFTGPU_NVML_UNAVAILABLE", "false");
  EXPECT_OK(nvml->nvmlInit_v2());
  EXPECT_OK(nvml->nvmlShutdown());
}

TEST_F(Library, WrongSettingsAreNotInitialised) {
  set("NVSHARE_SOFTGPU_MEMORY", "much");
  EXPECT_EQ(nvml->nvmlInit_v2(), NVML_ERROR_UNKNOWN);
}

TEST_F(Initialised, WithoutProcessesTheCardIsAsConfigured) {
  unsigned count = 0;
  EXPECT_OK(nvml->nvmlDeviceGetCount(&count));
  EXPECT_EQ(count, 2u);
  char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
  EXPECT_OK(nvml->nvmlDeviceGetName(device, name, sizeof name));
  EXPECT_STREQ(name, "Test Card");
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(busy(), 0u);
  count = 0;
  EXPECT_OK(nvml->nvmlDeviceGetComputeRunningProcesses_v3(device, &count, nullptr));
  EXPECT_EQ(count, 0u);
  EXPECT_TRUE(busy_processes(0).empty());
}

TEST_F(Initialised, TextsThatDoNotFitLeaveTheBufferAlone) {
  char buffer[96] = "untouched";
  for (const unsigned length : {0u, 1u, 9u}) {
    EXPECT_EQ(nvml->nvmlDeviceGetName(device, buffer, length), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(nvml->nvmlDeviceGetUUID(device, buffer, length), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(nvml->nvmlSystemGetDriverVersion(buffer, length), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_STREQ(buffer, "untouched");
  }
  EXPECT_OK(nvml->nvmlDeviceGetName(device, buffer, 10));
}

TEST_F(Initialised, DevicesAreFoundByIndexUuidAndBus) {
  nvmlDevice_t second{};
  nvmlDevice_t found{};
  ASSERT_OK(nvml->nvmlDeviceGetHandleByIndex(1, &second));
  EXPECT_NE(second, device);
  EXPECT_EQ(nvml->nvmlDeviceGetHandleByIndex_v2(2, &found), NVML_ERROR_INVALID_ARGUMENT);
  char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
  ASSERT_OK(nvml->nvmlDeviceGetUUID(second, uuid, sizeof uuid));
  EXPECT_OK(nvml->nvmlDeviceGetHandleByUUID(uuid, &found));
  EXPECT_EQ(found, second);
  EXPECT_OK(nvml->nvmlDeviceGetHandleByUUID(uuid + 4, &found));
  EXPECT_EQ(nvml->nvmlDeviceGetHandleByUUID("GPU-0", &found), NVML_ERROR_NOT_FOUND);
  nvmlPciInfo_t pci{};
  ASSERT_OK(nvml->nvmlDeviceGetPciInfo_v3(second, &pci));
  for (const char* text : {"00000000:02:00.0", "0000:02:00.0", "0:2:0", "02:00.0"}) {
    found = nullptr;
    EXPECT_OK(nvml->nvmlDeviceGetHandleByPciBusId_v2(text, &found)) << text;
    EXPECT_EQ(found, second) << text;
  }
  EXPECT_STREQ(pci.busId, "00000000:02:00.0");
  EXPECT_EQ(nvml->nvmlDeviceGetHandleByPciBusId("0000:7f:00.0", &found), NVML_ERROR_NOT_FOUND);
  for (const char* text : {"", "garbage", "02:00", "0000:02:00.1", "0000:02:00.0x"}) {
    EXPECT_EQ(nvml->nvmlDeviceGetHandleByPciBusId_v2(text, &found), NVML_ERROR_INVALID_ARGUMENT)
        << text;
  }
}

// Programs of old have room for less than the structure has today.
TEST_F(Initialised, EachVersionOfTheBusInformationWritesItsOwnSize) {
  const auto written = [&](auto function) {
    nvmlPciInfo_t pci;
    std::memset(&pci, 0xaa, sizeof pci);
    EXPECT_OK(function(device, &pci));
    std::size_t size = sizeof pci;
    const auto* bytes = reinterpret_cast<const unsigned char*>(&pci);
    while (size > 0 && bytes[size - 1] == 0xaa) --size;
    return size;
  };
  EXPECT_EQ(written(nvml->nvmlDeviceGetPciInfo), 32u);
  EXPECT_EQ(written(nvml->nvmlDeviceGetPciInfo_v2), 36u);
  EXPECT_EQ(written(nvml->nvmlDeviceGetPciInfo_v3), 68u);
}

TEST_F(Initialised, VersionedStructuresMustSayWhatTheyAre) {
  nvmlMemory_v2_t memory{};
  EXPECT_EQ(nvml->nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_ERROR_FUNCTION_NOT_FOUND);
  memory.version = struct_version<nvmlMemory_v2_t>(2);
  EXPECT_OK(nvml->nvmlDeviceGetMemoryInfo_v2(device, &memory));
  EXPECT_EQ(memory.total, 1024 * kMi);
  EXPECT_EQ(memory.reserved, 0u);
  nvmlProcessesUtilizationInfo_t info{};
  EXPECT_EQ(nvml->nvmlDeviceGetProcessesUtilizationInfo(device, &info),
            NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  info.version = struct_version<nvmlProcessesUtilizationInfo_t>(1);
  EXPECT_EQ(nvml->nvmlDeviceGetProcessesUtilizationInfo(device, &info),
            NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_GT(info.processSamplesCount, 0u);
}

TEST_F(Initialised, MemoryComesWithItsProcessAndGoesWithKill) {
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

TEST_F(Initialised, EveryGenerationOfTheListTellsTheSame) {
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

TEST_F(Initialised, ABusyProcessIsSeenAndTwoHaveHalfEach) {
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

TEST_F(Initialised, SamplesAreLaterThanTheLastSeen) {
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

TEST_F(Initialised, BothKindsOfProcessSamplesAgree) {
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

TEST_F(Initialised, CopiesAreSeenOnTheLink) {
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

TEST_F(Initialised, TheDriverAndNvmlMeanTheSameDevice) {
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

TEST_F(Initialised, ADeviceThatFellOffIsLost) {
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

TEST_F(Initialised, WorksInAChildOfFork) {
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

TEST_F(Initialised, ManyThreadsMayAskAtOnce) {
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

TEST_F(Initialised, WhatIsNotSimulatedIsNotSupported) {
  unsigned number = 0;
  unsigned long long large = 0;
  EXPECT_EQ(nvml->nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &number),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvml->nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_COUNT, &number),
            NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvml->nvmlDeviceGetPowerUsage(device, &number), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvml->nvmlDeviceGetFanSpeed(device, &number), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvml->nvmlDeviceGetTotalEnergyConsumption(device, &large), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvml->nvmlDeviceGetMigMode(device, &number, &number), NVML_ERROR_NOT_SUPPORTED);
  nvmlDeviceAttributes_t attributes{};
  EXPECT_EQ(nvml->nvmlDeviceGetAttributes_v2(device, &attributes), NVML_ERROR_NOT_SUPPORTED);
  nvmlFieldValue_t fields[2] = {};
  EXPECT_OK(nvml->nvmlDeviceGetFieldValues(device, 2, fields));
  EXPECT_EQ(fields[1].nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvml->nvmlDeviceGetClockInfo(device, NVML_CLOCK_COUNT, &number),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvml->nvmlDeviceGetMaxClockInfo(device, NVML_CLOCK_COUNT, &number),
            NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(Library, EveryResultHasAText) {
  std::set<std::string> texts;
  int results = 0;
  for (int value = 0; value < 1000; ++value) {
    const auto result = static_cast<nvmlReturn_t>(value);
    if (result_name(result) == nullptr) {
      EXPECT_STREQ(nvml->nvmlErrorString(result), "Unknown Error");
      continue;
    }
    ++results;
    texts.insert(nvml->nvmlErrorString(result));
  }
  EXPECT_EQ(texts.size(), static_cast<std::size_t>(results));
  EXPECT_STREQ(nvml->nvmlErrorString(NVML_ERROR_UNINITIALIZED), "Uninitialized");
}

}  // namespace
}  // namespace nvshare::softgpu
