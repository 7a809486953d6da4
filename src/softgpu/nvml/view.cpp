#include "softgpu/nvml/view.h"

#include <algorithm>

#include "softgpu/engine/schedule.h"

namespace nvshare::softgpu {
namespace {

unsigned percent(Nanos busy) {
  // A stretch in which copies go both ways counts twice in the engine's books.
  const Nanos rounded = (busy * 100 + kSamplePeriod / 2) / kSamplePeriod;
  return static_cast<unsigned>(std::clamp<Nanos>(rounded, 0, 100));
}

}  // namespace

int View::device_count() const {
  return card_ != nullptr ? card_->device_count : static_cast<int>(config_.devices.size());
}

const DeviceConfig& View::device(int index) const {
  return card_ != nullptr ? card_->devices[index].config
                          : config_.devices[static_cast<std::size_t>(index)];
}

bool View::lost(int device) const {
  return card_ != nullptr && card_->devices[device].lost != 0;
}

MemoryUse View::memory(int index) const {
  return {device(index).memory, card_ != nullptr ? memory_used(*card_, index, -1) : 0};
}

std::vector<ProcessUse> View::processes(int device) const {
  std::vector<ProcessUse> found;
  if (card_ == nullptr) return found;
  for_each_bit(card_->occupied, [&](int slot) {
    const Process& process = card_->processes[slot];
    const std::uint64_t memory = memory_used(*card_, device, slot);
    if (process.usage[device].has_context == 0 && memory == 0) return;
    found.push_back({slot, static_cast<std::uint32_t>(process.pid), memory});
  });
  return found;
}

std::vector<Period> View::periods_after(Nanos since) const {
  std::vector<Period> periods;
  if (card_ == nullptr) return periods;
  const Nanos last = last_period().end;
  const Nanos earliest = std::max(since, card_->born_at);
  for (int back = kSamplePeriods - 1; back >= 0; --back) {
    const Nanos end = last - back * kSamplePeriod;
    if (end > earliest) periods.push_back({end});
  }
  return periods;
}

Busy View::busy(int device, Period period, std::optional<int> slot) const {
  if (card_ == nullptr) return {};
  const Nanos from = period.end - kSamplePeriod;
  const int who = slot.value_or(-1);
  return {percent(busy_between(*card_, who, device, from, period.end, false)),
          percent(busy_between(*card_, who, device, from, period.end, true))};
}

View::Moved View::moved(int device) const {
  Moved sum;
  if (card_ == nullptr) return sum;
  for_each_bit(card_->occupied, [&](int slot) {
    const Usage& usage = card_->processes[slot].usage[device];
    sum.in += usage.copied_in;
    sum.out += usage.copied_out;
  });
  return sum;
}

}  // namespace nvshare::softgpu
