#include "daemon/host/gpu_sampler.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace nvshare::daemon {

// What the threads and the sampler have in common. A thread that is left behind keeps it alive.
struct GpuSampler::Shared {
  Ask ask;
  UniqueFd ready;
  std::mutex mutex;
  std::condition_variable wake;
  Duration period{};
  bool stopping = false;
  int running = 0;
  std::map<std::size_t, GpuSample> latest;  // by GPU, not yet taken
};

Result<std::unique_ptr<GpuSampler>> GpuSampler::start(std::size_t gpus, Ask ask, Duration period) {
  auto shared = std::make_shared<Shared>();
  shared->ask = std::move(ask);
  shared->period = period;
  shared->ready.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!shared->ready) return Error{"no event descriptor for the GPUs' sampler"};
  std::unique_ptr<GpuSampler> sampler(new GpuSampler(shared));
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
    try {
      const std::lock_guard lock(shared->mutex);
      std::thread([shared, gpu] { sample_for_ever(shared, gpu); }).detach();
      ++shared->running;
    } catch (const std::system_error& error) {
      return Error{std::string("no thread for the GPUs' sampler: ") + error.what()};
    }
  }
  return sampler;
}

void GpuSampler::sample_for_ever(const std::shared_ptr<Shared>& shared, std::size_t gpu) {
  std::unique_lock lock(shared->mutex);
  while (!shared->stopping) {
    lock.unlock();
    GpuSample sample = shared->ask(gpu);
    lock.lock();
    if (shared->stopping) break;
    shared->latest[gpu] = std::move(sample);
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(shared->ready.get(), &one, sizeof one);
    // A shorter period counts at once: the wait begins anew.
    const auto from = std::chrono::steady_clock::now();
    while (!shared->stopping &&
           shared->wake.wait_until(lock, from + shared->period) != std::cv_status::timeout) {
    }
  }
  --shared->running;
  shared->wake.notify_all();
}

void GpuSampler::set_period(Duration period) {
  const std::lock_guard lock(shared_->mutex);
  shared_->period = period;
  shared_->wake.notify_all();
}

int GpuSampler::ready() const {
  return shared_->ready.get();
}

std::vector<GpuSampler::Taken> GpuSampler::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(shared_->ready.get(), &count, sizeof count);
  const std::lock_guard lock(shared_->mutex);
  std::vector<Taken> taken;
  for (auto& [gpu, sample] : shared_->latest) taken.push_back({gpu, std::move(sample)});
  shared_->latest.clear();
  return taken;
}

GpuSampler::~GpuSampler() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->wake.notify_all();
  const auto done = [this] { return shared_->running == 0; };
  // What is asked ends here, not with the last thread: that may be while the process ends.
  if (shared_->wake.wait_for(lock, kLeaveBehindAfter, done)) shared_->ask = nullptr;
}

}  // namespace nvshare::daemon
