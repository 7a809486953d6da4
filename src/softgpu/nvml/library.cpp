#include "softgpu/nvml/library.h"

#include <pthread.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>

#include "softgpu/card_config.h"
#include "softgpu/engine/schedule.h"

namespace nvshare::softgpu {
namespace {

Nanos realtime_now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<Nanos>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

// A child of fork() has no card mapped; it finds it again when it asks.
void before_fork() {
  NvmlLibrary::instance().mutex_.lock();
}
void after_fork() {
  NvmlLibrary::instance().mutex_.unlock();
}
void after_fork_in_child() {
  NvmlLibrary& library = NvmlLibrary::instance();
  if (library.session_ && library.session_->segment) {
    library.session_->segment->abandon();
    library.session_->segment.reset();
  }
  library.mutex_.unlock();
}

NvmlLibrary& NvmlLibrary::instance() {
  // Never destroyed, so that no call at exit comes too late.
  alignas(NvmlLibrary) static std::byte storage[sizeof(NvmlLibrary)];
  static NvmlLibrary* const library = [] {
    auto* made = new (storage) NvmlLibrary();
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
    return made;
  }();
  return *library;
}

nvmlReturn_t NvmlLibrary::init() try {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (references_ > 0) {
    ++references_;
    return nvml::NVML_SUCCESS;
  }
  auto loaded = load_config([](const std::string& name) { return std::getenv(name.c_str()); });
  if (!loaded) {
    std::fprintf(stderr, "nvshare software GPU: %s\n", loaded.error().message.c_str());
    return nvml::NVML_ERROR_UNKNOWN;
  }
  if (loaded->nvml_unavailable) return nvml::NVML_ERROR_DRIVER_NOT_LOADED;
  session_ = std::make_unique<Session>();
  session_->config = card_config(*loaded);
  session_->card_name = loaded->card;
  session_->hang = loaded->hang_nvml;
  session_->clock_difference = realtime_now() - monotonic_now();
  references_ = 1;
  return nvml::NVML_SUCCESS;
} catch (const std::bad_alloc&) {
  return nvml::NVML_ERROR_MEMORY;
}

nvmlReturn_t NvmlLibrary::shutdown() {
  return call([](NvmlLibrary& library) {
    // With the last one everything is let go: the library may be unloaded next.
    if (--library.references_ == 0) library.session_.reset();
    return nvml::NVML_SUCCESS;
  });
}

bool NvmlLibrary::hangs() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!session_ || session_->hang == 0) return false;
  return ++session_->questions >= session_->hang;
}

unsigned long long NvmlLibrary::time_stamp(Nanos time) const {
  return static_cast<unsigned long long>((time + session_->clock_difference) / 1000);
}

Nanos NvmlLibrary::card_time(unsigned long long time_stamp) const {
  if (time_stamp > static_cast<unsigned long long>(kNever / 1000 - 1)) return kNever;
  // The end of that microsecond: what is later has a later time stamp.
  return static_cast<Nanos>(time_stamp) * 1000 + 999 - session_->clock_difference;
}

int NvmlLibrary::device_of(nvmlDevice_t device, const View& view) const {
  for (int index = 0; index < view.device_count(); ++index) {
    if (reinterpret_cast<const char*>(device) == &handles_[index]) return index;
  }
  return -1;
}

View NvmlLibrary::open_view(std::unique_ptr<Segment::Lock>& lock) {
  // Twice, because a card that all have left may have a successor of the same name.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (!session_->segment) {
      auto found = Segment::look(session_->card_name);
      if (!found) break;
      session_->segment = std::move(*found);
    }
    lock = std::make_unique<Segment::Lock>(*session_->segment);
    session_->segment->reap();
    if (session_->segment->card().occupied != 0) {
      const Nanos now = monotonic_now();
      advance(session_->segment->card(), now);
      return View(&session_->segment->card(), session_->config, now);
    }
    lock.reset();
    session_->segment.reset();
  }
  return View(nullptr, session_->config, monotonic_now());
}

NvmlLibrary::Sight::Sight(NvmlLibrary& library) : view_(library.open_view(lock_)) {}

}  // namespace nvshare::softgpu
