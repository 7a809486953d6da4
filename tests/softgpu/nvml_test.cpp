#include <cstring>
#include <functional>

#include "softgpu/nvml_fixture.h"

// What NVML answers by itself: initialisation, names and handles, sizes, errors.
namespace nvshare::softgpu {
namespace {

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
