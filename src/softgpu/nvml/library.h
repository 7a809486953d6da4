#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "nvml/table.h"
#include "softgpu/config.h"
#include "softgpu/engine/segment.h"
#include "softgpu/nvml/view.h"

namespace nvshare::softgpu {

using nvml::nvmlDevice_t;
using nvml::nvmlReturn_t;

// NVML within this process. There is one, because NVML's ABI has no handle for it. It looks at the
// card and has no place in it: it is neither seen nor counted, and the card does not live for it.
class NvmlLibrary {
 public:
  static NvmlLibrary& instance();

  // Counted: what was initialised n times is there until the n-th shutdown.
  nvmlReturn_t init();
  nvmlReturn_t shutdown();

  // Calls `body(NvmlLibrary&)` when initialised, one caller at a time.
  template <typename Body>
  nvmlReturn_t call(Body body);

  // Calls `body(const View&)` with the card as it is now.
  template <typename Body>
  nvmlReturn_t look(Body body);

  // The same for a device that is there: `body(const View&, int device)`.
  template <typename Body>
  nvmlReturn_t on_device(nvmlDevice_t device, Body body);

  // Counts a question how busy a device is. True: this one never returns (hang_nvml).
  bool hangs();

  // Handles are addresses of ours; their bearers never look behind them.
  nvmlDevice_t handle(int device) { return reinterpret_cast<nvmlDevice_t>(&handles_[device]); }

  // Microseconds since 1970 for times of the card, and the latest time of the card with that stamp.
  // The difference between the two clocks is taken once, so that a sample keeps its stamp.
  unsigned long long time_stamp(Nanos time) const;
  Nanos card_time(unsigned long long time_stamp) const;

 private:
  friend void before_fork();
  friend void after_fork();
  friend void after_fork_in_child();

  int device_of(nvmlDevice_t device, const View& view) const;
  // Holds the card if there is one, up to now, with the dead taken out of it.
  class Sight {
   public:
    explicit Sight(NvmlLibrary& library);
    const View& view() const { return view_; }

   private:
    std::unique_ptr<Segment::Lock> lock_;
    View view_;
  };
  View open_view(std::unique_ptr<Segment::Lock>& lock);

  std::mutex mutex_;
  int references_ = 0;
  // What there is between the first init and the last shutdown.
  struct Session {
    CardConfig config;
    std::string card_name;
    Nanos clock_difference = 0;
    std::int64_t hang = 0;  // this question how busy a device is; 0: none
    std::int64_t questions = 0;
    std::unique_ptr<Segment> segment;  // null while no process has the card open
  };
  std::unique_ptr<Session> session_;
  char handles_[kMaxDevices] = {};
};

template <typename Body>
nvmlReturn_t NvmlLibrary::call(Body body) {
  try {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (references_ == 0) return nvml::NVML_ERROR_UNINITIALIZED;
    return body(*this);
  } catch (const std::bad_alloc&) {
    return nvml::NVML_ERROR_MEMORY;
  } catch (...) {
    return nvml::NVML_ERROR_UNKNOWN;
  }
}

template <typename Body>
nvmlReturn_t NvmlLibrary::look(Body body) {
  return call([&](NvmlLibrary& library) {
    const Sight sight(library);
    return body(sight.view());
  });
}

template <typename Body>
nvmlReturn_t NvmlLibrary::on_device(nvmlDevice_t device, Body body) {
  return look([&](const View& view) {
    const int index = device_of(device, view);
    if (index < 0) return nvml::NVML_ERROR_INVALID_ARGUMENT;
    if (view.lost(index)) return nvml::NVML_ERROR_GPU_IS_LOST;
    return body(view, index);
  });
}

}  // namespace nvshare::softgpu
