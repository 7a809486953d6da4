#include "daemon/host/gpus.h"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

namespace nvshare::daemon {
namespace {

using namespace nvshare::nvml;

constexpr unsigned kMostGpus = 64;
constexpr unsigned kMostProcesses = 1024;  // of one GPU
constexpr std::size_t kMostForeign = 256;  // shown

}  // namespace

// --- asking NVML -------------------------------------------------------------------------------

Result<std::unique_ptr<GpuSampler>> GpuSampler::open(const std::string& library) {
  auto loaded = Loader::open(library);
  if (!loaded) return loaded.error();
  std::unique_ptr<GpuSampler> sampler(new GpuSampler(std::move(*loaded)));
  if (const auto looked = sampler->look(); !looked) return looked.error();
  return sampler;
}

Result<void> GpuSampler::look() {
  const auto failed = [&](nvmlReturn_t result) {
    return Error{fmt::format("NVML: {}", nvml_->nvmlErrorString(result))};
  };
  if (const auto result = nvml_->nvmlInit_v2(); result != NVML_SUCCESS) return failed(result);
  initialised_ = true;
  unsigned count = 0;
  if (const auto result = nvml_->nvmlDeviceGetCount_v2(&count); result != NVML_SUCCESS) {
    return failed(result);
  }
  for (unsigned i = 0; i < std::min(count, kMostGpus); ++i) {
    Found gpu;
    char uuid[96] = {};
    char name[96] = {};
    nvmlMemory_t memory{};
    if (nvml_->nvmlDeviceGetHandleByIndex_v2(i, &gpu.device) != NVML_SUCCESS) continue;
    if (nvml_->nvmlDeviceGetUUID(gpu.device, uuid, sizeof uuid) != NVML_SUCCESS) continue;
    if (nvml_->nvmlDeviceGetMemoryInfo(gpu.device, &memory) != NVML_SUCCESS) continue;
    (void)nvml_->nvmlDeviceGetName(gpu.device, name, sizeof name);
    const auto parsed = parse_uuid(printable(uuid, sizeof uuid));
    if (!parsed) continue;
    gpu.uuid = *parsed;
    gpu.name = printable(name, sizeof name);
    gpu.total = Bytes{static_cast<std::int64_t>(memory.total)};
    gpu.used = Bytes{static_cast<std::int64_t>(memory.used)};
    found_.push_back(std::move(gpu));
  }
  if (found_.empty()) return Error{"NVML knows no GPU"};
  return {};
}

GpuSample GpuSampler::sample(nvmlDevice_t device) const {
  GpuSample sample;
  nvmlUtilization_t busy{};
  if (nvml_->nvmlDeviceGetUtilizationRates(device, &busy) == NVML_SUCCESS) {
    sample.utilisation = static_cast<int>(std::min(busy.gpu, 100u));
  }
  nvmlMemory_t memory{};
  if (nvml_->nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS) {
    sample.used = Bytes{static_cast<std::int64_t>(memory.used)};
  }
  std::vector<nvmlProcessInfo_t> infos(kMostProcesses);
  unsigned count = kMostProcesses;
  if (nvml_->nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos.data()) ==
      NVML_SUCCESS) {
    infos.resize(std::min(count, kMostProcesses));
    for (const nvmlProcessInfo_t& one : infos) {
      // All ones where the driver does not tell.
      const bool known = one.usedGpuMemory < static_cast<std::uint64_t>(core::kMostMemory.count);
      sample.processes.push_back({static_cast<int>(one.pid),
                                  Bytes{known ? static_cast<std::int64_t>(one.usedGpuMemory) : 0}});
    }
  }
  count = kMostProcesses;
  infos.assign(kMostProcesses, {});
  sample.mps = nvml_->nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &count, infos.data()) ==
                   NVML_SUCCESS &&
               count > 0;
  std::vector<nvmlProcessUtilizationSample_t> busy_ones(kMostProcesses);
  count = kMostProcesses;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto from =
      std::chrono::duration_cast<std::chrono::microseconds>(now - kMeasuredEvery).count();
  if (nvml_->nvmlDeviceGetProcessUtilization(device, busy_ones.data(), &count,
                                             static_cast<unsigned long long>(from)) ==
      NVML_SUCCESS) {
    busy_ones.resize(std::min(count, kMostProcesses));
    for (const auto& one : busy_ones) {
      sample.busy[static_cast<int>(one.pid)] = static_cast<int>(std::min(one.smUtil, 100u));
    }
  }
  return sample;
}

Result<void> GpuSampler::start() {
  ready_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ready_) return Error{"no event descriptor for NVML"};
  thread_ = std::thread([this] { run(); });
  return {};
}

void GpuSampler::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    std::vector<GpuSample> samples;
    for (const Found& gpu : found_) samples.push_back(sample(gpu.device));
    lock.lock();
    latest_ = std::move(samples);
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(ready_.get(), &one, sizeof one);
    wake_.wait_for(lock, kMeasuredEvery, [this] { return stopping_; });
  }
}

std::vector<GpuSample> GpuSampler::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(ready_.get(), &count, sizeof count);
  const std::lock_guard lock(mutex_);
  return std::exchange(latest_, {});
}

GpuSampler::~GpuSampler() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (initialised_) (void)nvml_->nvmlShutdown();
}

// --- what it means -----------------------------------------------------------------------------

Overhead OverheadEstimate::add(Bytes used, Bytes booked, int clients, Time now) {
  const Overhead reading{std::max(Bytes{0}, used - booked), clients, now - start_ < kSettles};
  if (reading.at_most) return reading;
  readings_.push_back(reading);
  if (readings_.size() > kReadings) readings_.pop_front();
  return *std::min_element(readings_.begin(), readings_.end(),
                           [](const Overhead& a, const Overhead& b) { return a.bytes < b.bytes; });
}

Bytes resident_on(const Broker& broker, GpuId gpu) {
  Bytes sum{};
  for (const ClientId id : broker.gpus().at(gpu).clients) {
    const auto view = broker.core().view(id);
    if (view) sum += view->resident + view->rounded;
  }
  return sum;
}

Duration billed_on(const Broker& broker, GpuId gpu) {
  Duration billed{};
  for (const core::ShareView& share : broker.core().snapshot().shares) {
    if (share.gpu == gpu && !share.is_part) billed += share.billed;
  }
  return billed;
}

bool MoveWatch::steady(const Broker& broker, GpuId gpu) {
  const GpuRecord& record = broker.gpus().at(gpu);
  const bool quiet =
      std::all_of(record.clients.begin(), record.clients.end(), [&](const ClientId id) {
        // Of a program that is larger than the GPU nobody knows how much is there.
        const ClientRecord& client = broker.clients().at(id);
        return client.memory.orders().empty() && client.memory.beyond() == Bytes{};
      });
  return std::exchange(before_, record.moves) == record.moves && quiet;
}

Result<void> GpuMonitor::add_gpus(Time now) {
  for (const GpuSampler::Found& gpu : sampler_.found()) {
    const auto id = broker_.add_gpu(gpu.uuid, gpu.name, gpu.total, now);
    if (!id) return id.error();
    ids_.push_back(*id);
    // Where hardly anything is in use there is nobody to come back, and what is used is overhead.
    const bool nobody = gpu.used.count < gpu.total.count / 50;
    OverheadEstimate estimate(nobody ? now - OverheadEstimate::kSettles : now);
    broker_.gpu_measured(*id, std::nullopt, gpu.used, estimate.add(gpu.used, {}, 0, now), now);
    overheads_.emplace(*id, std::move(estimate));
  }
  return {};
}

void MeterCheck::add(Duration billed, int seen, Time now) {
  constexpr double kNew = 0.25;  // the two are not about exactly the same second
  const auto blend = [&](std::optional<double>& value, double one) {
    value = value ? *value + kNew * (one - *value) : one;
  };
  // Less than before: a tenant is gone, and what it was billed with it.
  if (at_ && now > *at_ && billed >= billed_) {
    blend(metered_, 100 * std::chrono::duration<double>(billed - billed_) /
                        std::chrono::duration<double>(now - *at_));
    blend(seen_, seen);
  }
  at_ = now;
  billed_ = billed;
}

const MeterCheck* GpuMonitor::meter_check(GpuId gpu) const {
  const auto at = meters_.find(gpu);
  return at == meters_.end() ? nullptr : &at->second;
}

void GpuMonitor::check_meter(GpuId id, const GpuSample& sample, const std::set<int>& clients,
                             Time now) {
  int seen = 0;
  for (const auto& [pid, percent] : sample.busy) seen += clients.contains(pid) ? percent : 0;
  // Without a process that is busy NVML may not know any at all.
  if (sample.busy.empty() && !meters_.contains(id)) return;
  meters_[id].add(billed_on(broker_, id), std::min(seen, 100), now);
}

void GpuMonitor::update(GpuId id, const GpuSample& sample, Time now) {
  std::set<int> registered;
  for (const ClientId client : broker_.gpus().at(id).clients) {
    registered.insert(broker_.clients().at(client).pid);
  }
  std::optional<Overhead> overhead;
  const bool steady = moves_[id].steady(broker_, id);
  if (sample.used && steady) {
    const auto clients = static_cast<int>(broker_.gpus().at(id).clients.size());
    overhead = overheads_.at(id).add(*sample.used, resident_on(broker_, id), clients, now);
  }
  broker_.gpu_measured(id, sample.utilisation, sample.used, overhead, now);
  broker_.overlap_seen(id, sample.mps, now);
  check_meter(id, sample, registered, now);
  for (const GpuProcess& process : sample.processes) {
    if (registered.contains(process.pid) || foreign_.size() >= kMostForeign) continue;
    foreign_.push_back({process.pid, id, process.memory});
  }
}

void GpuMonitor::update(Time now) {
  const std::vector<GpuSample> samples = sampler_.take();
  if (samples.size() != ids_.size()) return;
  broker_.settle(now);
  foreign_.clear();
  for (std::size_t i = 0; i < ids_.size(); ++i) update(ids_[i], samples[i], now);
}

}  // namespace nvshare::daemon
