#include "softgpu/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "softgpu/engine/schedule.h"

namespace nvshare::softgpu {
namespace {

DeviceState describe(const DeviceConfig& config) {
  DeviceState device;
  device.name = config.name;
  std::copy_n(config.uuid, 16, device.uuid);
  device.uuid_text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) device.uuid_text += '-';
    device.uuid_text += fmt::format("{:02x}", config.uuid[i]);
  }
  device.pci_bus = config.pci_bus;
  device.pci_text = fmt::format("00000000:{:02X}:00.0", config.pci_bus);
  device.total = config.memory;
  return device;
}

}  // namespace

DeviceConfig device_config(const Config& config, int index) {
  DeviceConfig device{};
  device.memory = static_cast<std::uint64_t>(config.memory.count);
  device.link = static_cast<double>(config.link.count) / 1e9;
  device.slice = config.slice.count();
  device.switch_cost = config.switch_cost.count();
  std::snprintf(device.name, sizeof device.name, "%s", config.name.c_str());
  std::uint64_t state = 0xcbf29ce484222325;
  for (const char c : config.card + "#" + std::to_string(index)) {
    state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  for (std::size_t i = 0; i < 16; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    device.uuid[i] = static_cast<std::uint8_t>(state >> 56);
  }
  device.pci_bus = static_cast<std::uint32_t>(index) + 1;
  return device;
}

CardView::CardView(Config config) : config_(std::move(config)) {}

Segment* CardView::card() {
  if (segment_) {
    // The card we hold open may be one that everybody else has left: look for the living one.
    Segment::Lock lock(*segment_);
    segment_->reap();
    if (segment_->card().occupied != 0) return segment_.get();
  }
  segment_.reset();
  auto found = Segment::look(config_.card);
  if (found) segment_ = std::move(*found);
  return segment_.get();
}

CardState CardView::snapshot() {
  CardState state;
  state.now = monotonic_now();
  Segment* open = card();
  if (open == nullptr) {
    for (int i = 0; i < config_.count; ++i) {
      state.devices.push_back(describe(device_config(config_, i)));
    }
    return state;
  }
  Segment::Lock lock(*open);
  open->reap();
  Card& shared = open->card();
  state.now = monotonic_now();
  advance(shared, state.now);
  for (int index = 0; index < shared.device_count; ++index) {
    DeviceState device = describe(shared.devices[index].config);
    device.used = memory_used(shared, index, -1);
    device.lost = shared.devices[index].lost != 0;
    for_each_bit(shared.occupied, [&](int slot) {
      const Process& process = shared.processes[slot];
      const Usage& usage = process.usage[index];
      const std::uint64_t memory = memory_used(shared, index, slot);
      if (usage.has_context == 0 && memory == 0) return;
      device.processes.push_back({process.pid, process.name, memory, usage.kernels,
                                  usage.compute_busy, usage.copy_busy, usage.has_context != 0});
    });
    state.devices.push_back(std::move(device));
  }
  return state;
}

Nanos CardView::busy_between(int device, int pid, Nanos from, Nanos to, bool copies) {
  Segment* open = card();
  if (open == nullptr) return 0;
  Segment::Lock lock(*open);
  Card& shared = open->card();
  advance(shared, monotonic_now());
  if (pid == 0) return softgpu::busy_between(shared, -1, device, from, to, copies);
  Nanos busy = 0;
  for_each_bit(shared.occupied, [&](int slot) {
    if (shared.processes[slot].pid != pid) return;
    busy += softgpu::busy_between(shared, slot, device, from, to, copies);
  });
  return busy;
}

}  // namespace nvshare::softgpu
