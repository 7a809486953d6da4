#pragma once

#include <optional>
#include <vector>

#include "softgpu/engine/segment.h"

// What can be seen of a card from outside, as NVML tells it: pure functions of the shared card at
// one moment, for which its time has been played.
namespace nvshare::softgpu {

// Utilisation is that of one sampling period: five a second, as a data-centre card has, each of
// whole stretches of the engine's history, which so is exact. All periods end at multiples of their
// length, so that every process that asks sees the same ones.
inline constexpr Nanos kSamplePeriod = 10 * kBucketLength;

// How many complete periods the history of the engine always holds.
inline constexpr int kSamplePeriods =
    static_cast<int>((kHistoryBuckets - 1) * kBucketLength / kSamplePeriod) - 1;
static_assert(kSamplePeriods >= 10);

struct MemoryUse {
  std::uint64_t total = 0;
  std::uint64_t used = 0;
};

struct ProcessUse {
  int slot = 0;
  std::uint32_t pid = 0;
  std::uint64_t memory = 0;
};

struct Busy {
  unsigned compute = 0;  // percent of the period in which a kernel ran
  unsigned copy = 0;     // percent of the period in which the link moved bytes
};

// A period by the time of its end, which is a multiple of its length.
struct Period {
  Nanos end = 0;
};

class View {
 public:
  // `card` is null when no process has the card open: it is then as `config` says, and idle.
  View(const Card* card, const CardConfig& config, Nanos now)
      : card_(card), config_(config), now_(now) {}

  int device_count() const;
  const DeviceConfig& device(int index) const;
  bool lost(int device) const;
  MemoryUse memory(int device) const;

  // Those with a context or memory on the device, in the order in which they have their places.
  std::vector<ProcessUse> processes(int device) const;

  // The last complete period.
  Period last_period() const { return {now_ / kSamplePeriod * kSamplePeriod}; }
  // The complete periods that end after `since`, oldest first; kSamplePeriods at most, and none
  // from before the card was there.
  std::vector<Period> periods_after(Nanos since) const;

  // How busy the device was in the period; by one process, or (no slot) by all.
  Busy busy(int device, Period period, std::optional<int> slot = std::nullopt) const;

  // Bytes that went over the link to the device and from it, for the processes that are there.
  struct Moved {
    std::uint64_t in = 0;
    std::uint64_t out = 0;
  };
  Moved moved(int device) const;

 private:
  const Card* card_;
  const CardConfig& config_;
  Nanos now_;
};

}  // namespace nvshare::softgpu
