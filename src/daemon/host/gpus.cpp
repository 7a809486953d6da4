#include "daemon/host/gpus.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <utility>

namespace nvshare::daemon {
namespace {

constexpr std::size_t kMostForeign = 256;  // shown, of one GPU

}  // namespace

Overhead OverheadEstimate::add(Bytes used, Bytes booked, int clients, Time now) {
  const Overhead reading{std::max(Bytes{0}, used - booked), clients, now - start_ < kSettles};
  if (reading.at_most) return reading;
  readings_.emplace_back(now, reading);
  while (readings_.size() > kFewest && now - readings_.front().first > kBelieved) {
    readings_.pop_front();
  }
  return std::ranges::min(readings_, {}, [](const auto& one) { return one.second.bytes; }).second;
}

Bytes resident_on(const Broker& broker, GpuId gpu) {
  Bytes sum{};
  for (const ClientId id : broker.gpus().at(gpu).clients) {
    const auto view = broker.core().view(id);
    if (view) sum += view->resident + view->rounded;
  }
  return sum;
}

Duration billed_on(const core::Snapshot& snapshot, GpuId gpu) {
  Duration billed{};
  for (const core::ShareView& share : snapshot.shares) {
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

Result<void> GpuMonitor::add_gpus(const std::vector<FoundGpu>& found, Time now) {
  for (const FoundGpu& gpu : found) {
    const auto id = broker_.add_gpu(gpu.uuid, gpu.name, gpu.total, now);
    if (!id) return id.error();
    ids_.push_back(*id);
    // Where hardly anything is in use there is nobody to come back, and what is used is overhead.
    const bool nobody = gpu.used.count < gpu.total.count / 50;
    OverheadEstimate estimate(nobody ? now - OverheadEstimate::kSettles : now);
    broker_.gpu_measured(*id, std::nullopt, gpu.used, estimate.add(gpu.used, {}, 0, now), now);
    watched_.emplace(*id, Watched(std::move(estimate)));
  }
  return {};
}

void MeterCheck::add(Duration billed, int seen, Time now) {
  // The two are not about exactly the same second. A reading counts for a quarter per second.
  constexpr double kKeptPerSecond = 0.75;
  // Less than before: a tenant is gone, and what it was billed with it.
  if (at_ && now > *at_ && billed >= billed_) {
    const double passed = std::chrono::duration<double>(now - *at_).count();
    const auto blend = [&](std::optional<double>& value, double one) {
      value = value ? one + std::pow(kKeptPerSecond, passed) * (*value - one) : one;
    };
    blend(metered_, 100 * std::chrono::duration<double>(billed - billed_).count() / passed);
    blend(seen_, seen);
  }
  at_ = now;
  billed_ = billed;
}

const MeterCheck* GpuMonitor::meter_check(GpuId gpu) const {
  const auto at = watched_.find(gpu);
  return at == watched_.end() || !at->second.meter ? nullptr : &*at->second.meter;
}

std::vector<Foreign> GpuMonitor::foreign() const {
  std::vector<Foreign> all;
  for (const auto& [id, gpu] : watched_) {
    all.insert(all.end(), gpu.foreign.begin(), gpu.foreign.end());
  }
  return all;
}

void GpuMonitor::check_meter(GpuId id, const GpuSample& sample, const core::Snapshot& bills,
                             const std::set<int>& clients, Time now) {
  int seen = 0;
  for (const auto& [pid, percent] : sample.busy) seen += clients.contains(pid) ? percent : 0;
  std::optional<MeterCheck>& meter = watched_.at(id).meter;
  // Without a process that is busy NVML may not know any at all.
  if (sample.busy.empty() && !meter) return;
  if (!meter) meter.emplace();
  meter->add(billed_on(bills, id), std::min(seen, 100), now);
}

void GpuMonitor::update(GpuId id, const GpuSample& sample, const core::Snapshot& bills, Time now) {
  Watched& watched = watched_.at(id);
  std::set<int> registered;
  for (const ClientId client : broker_.gpus().at(id).clients) {
    registered.insert(broker_.clients().at(client).pid);
  }
  std::optional<Overhead> overhead;
  const bool steady = watched.moves.steady(broker_, id);
  if (sample.used && steady) {
    const auto clients = static_cast<int>(broker_.gpus().at(id).clients.size());
    overhead = watched.overhead.add(*sample.used, resident_on(broker_, id), clients, now);
  }
  broker_.gpu_measured(id, sample.utilisation, sample.used, overhead, now);
  broker_.overlap_seen(id, sample.mps, now);
  check_meter(id, sample, bills, registered, now);
  watched.foreign.clear();
  for (const GpuProcess& process : sample.processes) {
    if (registered.contains(process.pid) || watched.foreign.size() >= kMostForeign) continue;
    watched.foreign.push_back({process.pid, id, process.memory});
  }
  const auto usage = watched.usage.read(bills, id, sample.utilisation, sample.at, now);
  if (usage) on_usage_(id, *usage);
}

void GpuMonitor::update(const std::vector<GpuSampler::Taken>& samples, Time now) {
  broker_.settle(now);
  broker_.read_meters(now);
  const core::Snapshot bills = broker_.core().snapshot();  // once, because it has every tenant
  for (const GpuSampler::Taken& one : samples) {
    if (one.gpu < ids_.size()) update(ids_[one.gpu], one.sample, bills, now);
  }
}

}  // namespace nvshare::daemon
