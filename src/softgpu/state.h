#pragma once

#include <memory>
#include <string>
#include <vector>

#include "softgpu/config.h"
#include "softgpu/engine/segment.h"

// The card as an onlooker sees it: what NVML and softgpu-smi show. Looking takes no place on the
// card and changes nothing, except that what dead processes left is cleaned up.
namespace nvshare::softgpu {

struct ProcessState {
  int pid = 0;
  std::string name;
  std::uint64_t memory = 0;  // bytes on the device, its own and what is charged to it
  std::uint64_t kernels = 0;
  Nanos compute_busy = 0;  // since it opened the card
  Nanos copy_busy = 0;
  bool has_context = false;
};

struct DeviceState {
  std::string name;
  std::uint8_t uuid[16] = {};
  std::string uuid_text;  // "GPU-xxxxxxxx-xxxx-..."
  std::string pci_text;   // "00000000:01:00.0"
  std::uint32_t pci_bus = 0;
  std::uint64_t total = 0;
  std::uint64_t used = 0;
  bool lost = false;
  std::vector<ProcessState> processes;  // that have a context or memory on it
};

struct CardState {
  Nanos now = 0;
  std::vector<DeviceState> devices;
};

class CardView {
 public:
  explicit CardView(Config config);

  // The present state. When no process has the card open, that of an idle card as configured.
  CardState snapshot();

  // Nanoseconds of [from, to) in which the process, or any for pid 0, kept the device's compute
  // engine (or with `copies` its link) busy. The last two seconds and a half are remembered.
  Nanos busy_between(int device, int pid, Nanos from, Nanos to, bool copies = false);

 private:
  Segment* card();  // null when nobody has it open

  Config config_;
  std::unique_ptr<Segment> segment_;
};

// What the first process makes of the settings; the same for every process and every run, so that
// tests can name a device by its UUID.
DeviceConfig device_config(const Config& config, int index);

}  // namespace nvshare::softgpu
