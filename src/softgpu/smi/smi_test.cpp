#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "softgpu/smi/options.h"
#include "softgpu/smi/query.h"
#include "softgpu/smi/render.h"

namespace nvshare::smi {
namespace {

Snapshot sample() {
  Snapshot snapshot;
  snapshot.driver_version = "580.00.00";
  snapshot.cuda_version = "13.0";
  DeviceLine device;
  device.name = "nvshare Software GPU";
  device.uuid = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10";
  device.bus_id = "00000000:01:00.0";
  device.memory_total = std::uint64_t{80} << 30;
  device.memory_used = std::uint64_t{1563} << 20;
  device.memory_free = *device.memory_total - *device.memory_used;
  device.busy = 100;
  device.copies = 7;
  device.persistence = 0;
  device.display_active = 0;
  device.performance_state = 0;
  device.compute_mode = 0;
  device.processes.push_back({532, "/usr/bin/python3", std::uint64_t{774} << 20});
  device.processes.push_back(
      {541, "/a/very/long/path/that/does/not/fit/into/the/column/train", std::nullopt});
  snapshot.devices.push_back(device);
  DeviceLine lost;
  lost.index = 1;
  lost.trouble = "GPU is lost";
  snapshot.devices.push_back(lost);
  return snapshot;
}

Result<Options> parse(std::vector<std::string> arguments) {
  return parse_options(arguments);
}

TEST(SmiTable, ShowsWhatPeopleExpectWhereTheyExpectIt) {
  const std::string text = table(sample(), "0.1.0");
  const std::string expected =
      R"(+-----------------------------------------------------------------------------------------+
| SOFTGPU-SMI 0.1.0                 Driver Version: 580.00.00      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  nvshare Software GPU          Off  |   00000000:01:00.0 Off |                  N/A |
| N/A   N/A    P0               N/A / N/A |    1563MiB /  81920MiB |    100%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
|   1  GPU is lost                        |                        |                      |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A             532      C   /usr/bin/python3                        774MiB |
|    0   N/A  N/A             541      C   ...es/not/fit/into/the/column/train        N/A |
+-----------------------------------------------------------------------------------------+
)";
  EXPECT_EQ(text.substr(text.find('\n') + 1), expected);
}

TEST(SmiTable, NobodyIsThere) {
  Snapshot snapshot = sample();
  snapshot.devices[0].processes.clear();
  EXPECT_NE(table(snapshot, "0").find("|  No running processes found      "), std::string::npos);
}

TEST(SmiTable, EveryLineIsAsWideAsTheOthers) {
  Snapshot snapshot = sample();
  snapshot.devices[0].name = std::string(95, 'n');
  snapshot.devices[0].memory_total = std::uint64_t{4} << 40;
  snapshot.devices[0].memory_used = std::uint64_t{4} << 40;
  snapshot.devices[0].power = 700'000;
  snapshot.devices[0].power_limit = 700'000;
  snapshot.devices[0].temperature = 90;
  snapshot.devices[0].fan = 100;
  snapshot.devices[0].compute_mode = 3;
  snapshot.devices[0].processes[0].pid = 4'000'000'000;
  snapshot.devices[0].processes[0].memory = std::uint64_t{4} << 40;
  const std::string text = table(snapshot, "100.100.100");
  std::size_t from = text.find('\n') + 1;
  while (from < text.size()) {
    const std::size_t end = text.find('\n', from);
    if (end != from) {
      EXPECT_EQ(end - from, 91u) << text.substr(from, end - from);
    }
    from = end + 1;
  }
}

TEST(SmiList, OneLineForEachDevice) {
  EXPECT_EQ(list(sample()),
            "GPU 0: nvshare Software GPU (UUID: GPU-01020304-0506-0708-090a-0b0c0d0e0f10)\n"
            "GPU 1: GPU is lost\n");
}

TEST(SmiQuery, DevicesWithUnitsAndWithout) {
  const std::vector<std::string> fields{"index", "gpu_name", "memory.total", "utilization.gpu",
                                        "fan.speed"};
  EXPECT_EQ(device_csv(sample(), fields, true, true),
            "index, name, memory.total [MiB], utilization.gpu [%], fan.speed [%]\n"
            "0, nvshare Software GPU, 81920 MiB, 100 %, [N/A]\n"
            "1, [N/A], [N/A], [N/A], [N/A]\n");
  EXPECT_EQ(device_csv(sample(), {"memory.used", "pstate"}, false, false),
            "1563, P0\n[N/A], [N/A]\n");
}

TEST(SmiQuery, Processes) {
  EXPECT_EQ(process_csv(sample(), {"pid", "process_name", "used_memory"}, true, true),
            "pid, process_name, used_gpu_memory [MiB]\n"
            "532, /usr/bin/python3, 774 MiB\n"
            "541, /a/very/long/path/that/does/not/fit/into/the/column/train, [N/A]\n");
}

TEST(SmiQuery, NoFieldHasTwoMeanings) {
  std::set<std::string_view> seen;
  for (const DeviceField& field : device_fields()) {
    EXPECT_TRUE(seen.insert(field.name).second) << field.name;
    if (!field.alias.empty()) {
      EXPECT_TRUE(seen.insert(field.alias).second) << field.alias;
    }
  }
}

TEST(SmiJson, IsJsonAndHasNullForWhatIsNotKnown) {
  Snapshot snapshot = sample();
  snapshot.devices[0].processes[0].name = "not \xff UTF-8";
  const auto parsed = nlohmann::json::parse(json(snapshot));
  EXPECT_EQ(parsed["devices"][0]["memory"]["used_bytes"], std::uint64_t{1563} << 20);
  EXPECT_EQ(parsed["devices"][0]["utilization"]["gpu_percent"], 100);
  EXPECT_TRUE(parsed["devices"][0]["temperature_celsius"].is_null());
  EXPECT_EQ(parsed["devices"][0]["processes"][1]["pid"], 541);
  EXPECT_TRUE(parsed["devices"][0]["processes"][1]["used_bytes"].is_null());
  EXPECT_EQ(parsed["devices"][1]["error"], "GPU is lost");
}

TEST(SmiOptions, TheUsualOnes) {
  EXPECT_EQ(parse({})->show, Show::kTable);
  EXPECT_EQ(parse({"-L"})->show, Show::kList);
  EXPECT_EQ(parse({"--json"})->show, Show::kJson);
  EXPECT_EQ(*parse({"-l", "2"})->loop, 2s);
  EXPECT_EQ(*parse({"--loop=0.5"})->loop, 500ms);
  EXPECT_EQ(parse({"-i", "0"})->device, "0");
  const auto query =
      parse({"--query-gpu=name, memory.used", "--format=csv,noheader,nounits", "-l", "1"});
  ASSERT_TRUE(query);
  EXPECT_EQ(query->fields, (std::vector<std::string>{"name", "memory.used"}));
  EXPECT_FALSE(query->header);
  EXPECT_FALSE(query->units);
  EXPECT_EQ(parse({"--query-compute-apps", "pid,name", "--format", "csv"})->show, Show::kProcesses);
}

TEST(SmiOptions, WhatIsWrongIsSaidInOneLine) {
  const std::vector<std::vector<std::string>> wrong{
      {"--bogus"},
      {"extra"},
      {"--json=1"},
      {"-L", "--json"},
      {"-l"},
      {"-l", "0"},
      {"-l", "soon"},
      {"-l", "-1"},
      {"--loop="},
      {"--query-gpu=bogus", "--format=csv"},
      {"--query-gpu=name,", "--format=csv"},
      {"--query-gpu=name"},
      {"--query-gpu=pid", "--format=csv"},
      {"--query-compute-apps=memory.total", "--format=csv"},
      {"--query-gpu=name", "--format=noheader"},
      {"--query-gpu=name", "--format=csv,bad"},
      {"--format=csv"},
      {"-i"},
  };
  for (const auto& arguments : wrong) {
    const auto parsed = parse_options(arguments);
    ASSERT_FALSE(parsed) << arguments[0];
    EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos) << parsed.error().message;
  }
}

TEST(SmiOptions, HelpNamesEveryField) {
  const std::string help = help_text();
  for (const DeviceField& field : device_fields()) {
    EXPECT_NE(help.find(std::string(field.name)), std::string::npos);
  }
}

}  // namespace
}  // namespace nvshare::smi
