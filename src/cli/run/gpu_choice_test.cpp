#include "cli/run/gpu_choice.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nvshare::cli {
namespace {

using Gpus = std::vector<std::optional<Uuid>>;

const Uuid kFirst = *parse_uuid("GPU-01020304-0506-0708-090a-0b0c0d0e0f10");
const Uuid kSecond = *parse_uuid("GPU-0102aa04-0506-0708-090a-0b0c0d0e0f10");
const MachineGpus kTwo{{kFirst, kSecond}};

// Numbers of the GPUs that the text chooses, or what is wrong with it.
std::string chosen(std::string_view text, const MachineGpus& machine = kTwo) {
  const auto wish = parse_gpu_wish(text);
  if (!wish) return wish.error().message;
  const auto gpus = find_gpus(*wish, machine);
  if (!gpus) return gpus.error().message;
  std::string numbers;
  for (const Uuid& gpu : *gpus) {
    numbers += std::to_string(std::ranges::find(machine.gpus, gpu) - machine.gpus.begin());
  }
  return numbers;
}

TEST(GpuChoice, GpusAreChosenByNumberAndByUuidInTheirOrder) {
  EXPECT_EQ(chosen("0"), "0");
  EXPECT_EQ(chosen("1,0"), "10");
  EXPECT_EQ(chosen("GPU-0102aa04-0506-0708-090a-0b0c0d0e0f10"), "1");
  EXPECT_EQ(chosen("GPU-0102AA,0"), "10");
}

TEST(GpuChoice, WithoutANameTheSchedulerChooses) {
  EXPECT_TRUE(parse_gpu_wish("auto")->leaves_it_open());
  EXPECT_EQ(chosen("auto"), "");
  EXPECT_TRUE(parse_gpu_wish("all")->all);
  EXPECT_EQ(parse_gpu_wish("2x")->wanted, 2);
  EXPECT_FALSE(parse_gpu_wish("1x")->leaves_it_open());
  EXPECT_FALSE(parse_gpu_wish("0")->leaves_it_open());
}

TEST(GpuChoice, AGpuThatIsNotThereIsNamedWithThoseThatAre) {
  EXPECT_EQ(chosen("9"), "there is no GPU 9: this machine has 0 and 1");
  EXPECT_EQ(chosen("0,2"), "there is no GPU 2: this machine has 0 and 1");
  EXPECT_EQ(chosen("1", {{kFirst}}), "there is no GPU 1: this machine has only 0");
  EXPECT_EQ(chosen("8", {Gpus(8, Uuid{})}), "there is no GPU 8: this machine has 0 to 7");
  EXPECT_EQ(chosen("GPU-ff"), "there is no GPU GPU-ff: nvidia-smi -L lists those of this machine");
  EXPECT_EQ(chosen("GPU-0102"), "the UUIDs of 2 GPUs begin with GPU-0102: give more of it");
  EXPECT_EQ(chosen("3x"), "there are no 3 GPUs: this machine has 2: 0 and 1");
}

TEST(GpuChoice, AGpuThatHasFailedKeepsItsNumber) {
  const MachineGpus machine{{kFirst, std::nullopt, kSecond}};
  EXPECT_EQ(chosen("2", machine), "2");
  EXPECT_EQ(chosen("GPU-0102aa,0", machine), "20");
  EXPECT_EQ(reachable(machine).size(), 2u);
  EXPECT_EQ(chosen("1", machine),
            "GPU 1 has failed, or may not be used: nvidia-smi -i 1 says which");
  EXPECT_EQ(chosen("3", machine), "there is no GPU 3: this machine has 0 and 2");
  EXPECT_EQ(chosen("3x", machine), "there are no 3 GPUs: this machine has 2: 0 and 2");
  EXPECT_EQ(chosen("9", {{std::nullopt, kFirst}}), "there is no GPU 9: this machine has only 1");
  EXPECT_EQ(chosen("9", {{std::nullopt, kFirst, kSecond, kFirst}}),
            "there is no GPU 9: this machine has 1, 2 and 3");
}

TEST(GpuChoice, AGpuIsNamedOnce) {
  EXPECT_EQ(chosen("0,0"), "GPU 0 is named twice");
  EXPECT_EQ(chosen("1,GPU-0102aa"), "GPU GPU-0102aa is named twice");
}

TEST(GpuChoice, BadTextIsToldWithWhatIsGood) {
  for (const char* text : {"", "x", "0x", "17x", "-1", "1.5", "0,", ",0", "0 ,1", "GPU-", "GPU-xyz",
                           "gpu0", "MIG-01", "99999999999", "auto,0"}) {
    EXPECT_EQ(chosen(text),
              "'" + std::string(text) +
                  "' is not auto, all, 2x (for any two), a number, a UUID (GPU-...) or a list of "
                  "those");
  }
  EXPECT_EQ(chosen("0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"), "a run has at most 16 GPUs");
}

std::string shown(const std::vector<Uuid>& gpus, const MachineGpus& machine = kTwo) {
  std::string text;
  for (const auto& [name, value] : visible_devices(gpus, machine)) {
    text += name + "=" + *value + "\n";
  }
  return text;
}

// vLLM and other programs read the variable as numbers.
TEST(GpuChoice, ProgramsAreShownNumbersAndTheOrderThatTheyCountIn) {
  EXPECT_EQ(shown({kSecond, kFirst}), "CUDA_VISIBLE_DEVICES=1,0\nCUDA_DEVICE_ORDER=PCI_BUS_ID\n");
  EXPECT_EQ(shown({}), "");
}

TEST(GpuChoice, ProgramsAreShownUuidsWhereCudaCountsInAnotherWay) {
  const std::string uuid = "CUDA_VISIBLE_DEVICES=" + to_text(kSecond) + "\n";
  EXPECT_EQ(shown({kSecond}, {{kFirst, kSecond}, true}), uuid) << "CUDA counts MIG devices";
  EXPECT_EQ(shown({kSecond}, {{std::nullopt, kSecond}}), uuid) << "CUDA leaves the first one out";
  EXPECT_EQ(shown({kSecond}, {{kFirst}}), uuid) << "NVML did not name it";
  EXPECT_EQ(shown({kFirst}, {{kFirst, std::nullopt}}),
            "CUDA_VISIBLE_DEVICES=0\nCUDA_DEVICE_ORDER=PCI_BUS_ID\n");
}

TEST(GpuChoice, WhatTheVariableHidesIsNotChosen) {
  const auto left = [](const char* devices, const char* order) {
    const auto machine = only_visible(kTwo, 1, devices, order);
    return machine ? reachable(*machine) : std::vector<Uuid>{};
  };
  const auto refused = [](int wanted, const char* devices, const char* order) {
    return only_visible(kTwo, wanted, devices, order).error().message;
  };
  const std::string second = to_text(kSecond);
  EXPECT_EQ(left(nullptr, nullptr), (std::vector<Uuid>{kFirst, kSecond}));
  EXPECT_EQ(left(second.c_str(), nullptr), std::vector<Uuid>{kSecond});
  EXPECT_EQ(left("1", "PCI_BUS_ID"), std::vector<Uuid>{kSecond});
  EXPECT_EQ(left("1,x,0", "PCI_BUS_ID"), std::vector<Uuid>{kSecond}) << "CUDA stops there";
  EXPECT_EQ(refused(1, "", nullptr), "1 wanted, and CUDA_VISIBLE_DEVICES= leaves 0");
  EXPECT_EQ(refused(1, "MIG-01", nullptr), "1 wanted, and CUDA_VISIBLE_DEVICES=MIG-01 leaves 0");
  EXPECT_EQ(refused(2, "1", "PCI_BUS_ID"), "2 wanted, and CUDA_VISIBLE_DEVICES=1 leaves 1");
  EXPECT_EQ(refused(1, "1", "FASTEST_FIRST"),
            "the numbers in CUDA_VISIBLE_DEVICES=1 need not be those of nvidia-smi: set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID, or name UUIDs");
  EXPECT_FALSE(only_visible({{kFirst}}, 1, "", nullptr)) << "no text is the beginning of no UUID";
  EXPECT_FALSE(only_visible({{std::nullopt, kFirst, kSecond}}, 1, "1", "PCI_BUS_ID"));
}

}  // namespace
}  // namespace nvshare::cli
