#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/uuid.h"
#include "cli/run/environment.h"

// Which GPUs a run's programs see: --gpu.
namespace nvshare::cli {

// What --gpu says.
struct GpuWish {
  bool all = false;                  // every GPU, as without nvshare
  int wanted = 1;                    // GPUs that the scheduler chooses
  bool counted = false;              // the number was given: "2x"
  std::vector<std::string> entries;  // GPUs by number or UUID; not empty: they are chosen so

  // The scheduler chooses one, and nobody has said so in so many words.
  bool leaves_it_open() const { return !all && !counted && entries.empty(); }
};

// GPUs that a program can have on one machine, as far as runs go.
inline constexpr int kMostGpus = 16;

// "auto", "all", "2x", or a list of numbers, UUIDs and beginnings of UUIDs. The error says what is
// wrong, without the option's name.
Result<GpuWish> parse_gpu_wish(std::string_view text);

// The GPUs of a machine, counted as nvidia-smi does. A GPU without a UUID cannot be used: it has
// failed, or this user has no permission.
struct MachineGpus {
  std::vector<std::optional<Uuid>> gpus;
  bool mig = false;  // a GPU is divided into MIG devices
};

// The GPUs that programs find here. An error when NVML does not say, or no GPU can be used.
Result<MachineGpus> machine_gpus();
std::vector<Uuid> reachable(const MachineGpus& machine);

// The GPUs that the wish names, in its order; none when the scheduler chooses. An error when there
// is no such GPU or there are not as many as are wanted.
Result<std::vector<Uuid>> find_gpus(const GpuWish& wish, const MachineGpus& machine);

inline constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";
inline constexpr const char* kDeviceOrder = "CUDA_DEVICE_ORDER";

// The machine without the GPUs that these values of the variables hide (null: not set). An error
// where fewer than `wanted` are left, or numbers count GPUs in an order that NVML does not know.
Result<MachineGpus> only_visible(MachineGpus machine, int wanted, const char* devices,
                                 const char* order);

// How programs are shown these GPUs. Nothing for no GPUs.
std::vector<Variable> visible_devices(const std::vector<Uuid>& gpus, const MachineGpus& machine);

}  // namespace nvshare::cli
