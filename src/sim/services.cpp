#include "sim/services.h"

#include <algorithm>

namespace nvshare::sim {
namespace {

using core::Admission;
using core::GpuId;
using core::LeaseId;
using core::Outcome;

// How long `percent` of them waited at most.
Duration percentile(const std::vector<Duration>& sorted, std::size_t percent) {
  if (sorted.empty()) return {};
  const std::size_t rank = (sorted.size() * percent + 99) / 100;
  return sorted[std::max<std::size_t>(rank, 1) - 1];
}

}  // namespace

bool Services::any(const Scenario& scenario) {
  return std::ranges::any_of(scenario.clients,
                             [](const ClientSpec& spec) { return spec.lease.has_value(); });
}

Services::Services(const Scenario& scenario, std::size_t gpus, bool keep_spans)
    : scenario_(scenario), keep_spans_(keep_spans), arbiter_(scenario.arbiter), gpus_(gpus) {
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) arbiter_.add_gpu(GpuId{gpu});
  for (std::size_t i = 0; i < scenario.clients.size(); ++i) {
    const ClientSpec& spec = scenario.clients[i];
    if (!spec.lease) continue;
    ServiceReport& report = services_[i].report;
    report.name = spec.name;
    report.tenant = static_cast<int>(i);
    report.task_class = spec.lease->asks.task_class;
  }
}

Result<Services::Verdicts> Services::ask(Process& p, bool again, Time now) {
  core::LeaseRequest request = p.spec->lease->asks;
  request.lease = LeaseId{++last_};
  request.gpu = GpuId{static_cast<std::uint64_t>(p.report.gpu)};
  const core::TaskClass* task_class = arbiter_.find_class(request.task_class);
  const int priority = task_class ? core::tenant_priority(task_class->priority) : 0;
  p.lease = request.lease;
  holders_[request.lease] = {&p, request.gpu, priority, std::nullopt};
  const auto answers = arbiter_.ask(request, now);
  if (!answers) return answers.error();
  ServiceReport& report = service_of(p).report;
  ++(again ? report.asked_again : report.requests);
  return take(*answers, now);
}

Services::Verdicts Services::give_back(Process& p, Time now) {
  if (!p.lease) return {};
  const auto answers = arbiter_.release(*p.lease, now);
  ended(*p.lease, now);
  return answers ? take(*answers, now) : Verdicts{};
}

Services::Verdicts Services::sample(std::size_t gpu, const core::Snapshot& bills, int seen,
                                    Time now) {
  const auto usage = gpus_[gpu].meter.read(bills, GpuId{gpu}, seen, now, now);
  return usage ? take(arbiter_.take_sample(GpuId{gpu}, *usage, now), now) : Verdicts{};
}

Services::Verdicts Services::tick(Time now) {
  return take(arbiter_.tick(now), now);
}

Services::Verdicts Services::take(const core::Answers& answers, Time now) {
  Verdicts verdicts;
  for (const core::Answer& answer : answers) {
    const auto at = holders_.find(answer.lease);
    if (at == holders_.end()) continue;
    verdicts.push_back({at->second.process->id, answer});
    count(service_of(*at->second.process), answer);
    if (answer.outcome == Outcome::Acquired) {
      acquired(at->second, now);
    } else {
      ended(answer.lease, now);
    }
  }
  look(now);
  return verdicts;
}

void Services::count(Service& service, const core::Answer& answer) {
  ServiceReport& report = service.report;
  const Refused refused = scenario_.clients[static_cast<std::size_t>(report.tenant)].lease->refused;
  switch (answer.outcome) {
    case Outcome::Acquired:
      ++report.acquired;
      service.waits.push_back(answer.waited);
      return;
    case Outcome::Revoked:
      ++report.revoked;
      return;
    case Outcome::Preparing:
      return;
    case Outcome::FallbackCpu:
      ++report.fell_back;
      return;
    case Outcome::Timeout:
      ++report.timed_out;
      break;
    case Outcome::Skipped:
      ++report.skipped;
      break;
    case Outcome::QueueFull:
      ++report.queue_full;
      break;
  }
  if (refused == Refused::FallBack) ++report.fell_back;
  if (refused == Refused::Skip) ++report.given_up;
}

// --- leases -------------------------------------------------------------------------------------

void Services::acquired(Holder& holder, Time now) {
  holder.acquired = now;
  const Place place{holder.process->tenant, holder.gpu};
  held_[place].insert(holder.priority);
  lend(place);
}

// A lease, or the wait for one. The process may do without from now on.
void Services::ended(LeaseId lease, Time now) {
  const auto at = holders_.find(lease);
  if (at == holders_.end()) return;
  const Holder holder = at->second;
  holders_.erase(at);
  if (holder.process->lease == lease) holder.process->lease.reset();
  if (!holder.acquired) return;
  if (keep_spans_) {
    service_of(*holder.process).report.leases.push_back({*holder.acquired, now});
  }
  const Place place{holder.process->tenant, holder.gpu};
  std::multiset<int>& there = held_[place];
  there.erase(there.find(holder.priority));
  lend(place);
}

// The highest of a tenant's leases counts, as in the scheduler.
void Services::lend(const Place& place) {
  const std::multiset<int>& there = held_[place];
  const auto before = lent_.find(place);
  if (there.empty()) {
    if (before != lent_.end()) lent_.erase(before);
    lent_now_.push_back({place.first, place.second, std::nullopt});
  } else if (before == lent_.end() || before->second != *there.rbegin()) {
    lent_[place] = *there.rbegin();
    lent_now_.push_back({place.first, place.second, *there.rbegin()});
  }
}

// --- reports ------------------------------------------------------------------------------------

void Services::look(Time now) {
  for (std::size_t gpu = 0; gpu < gpus_.size(); ++gpu) look(gpu, now);
}

void Services::look(std::size_t gpu, Time now) {
  const auto view = arbiter_.gpu(GpuId{gpu}, now);
  Gpu& of = gpus_[gpu];
  const bool raised = view->raised_until.has_value();
  if (view->state == of.now.state && raised == of.now.raised) return;
  if (view->state == Admission::High && of.now.state != Admission::High) ++of.report.times_high;
  close(of, now);
  of.now = {{now, now}, view->state, raised};
}

// Enters the stretch that ends now.
void Services::close(Gpu& gpu, Time now) {
  gpu.now.time.to = now;
  const Duration lasted = now - gpu.now.time.from;
  if (lasted <= Duration::zero()) return;
  if (gpu.now.state == Admission::High) gpu.report.high += lasted;
  if (gpu.now.state == Admission::Unknown) gpu.report.unknown += lasted;
  if (gpu.now.raised) gpu.report.raised += lasted;
  if (keep_spans_) gpu.report.spans.push_back(gpu.now);
}

PressureReport Services::pressure(std::size_t gpu, Time now) {
  close(gpus_[gpu], now);
  return std::move(gpus_[gpu].report);
}

std::vector<ServiceReport> Services::reports(Time now) {
  while (!holders_.empty()) ended(holders_.begin()->first, now);
  std::vector<ServiceReport> all;
  for (auto& [place, service] : services_) {
    std::ranges::sort(service.waits);
    service.report.wait_p50 = percentile(service.waits, 50);
    service.report.wait_p99 = percentile(service.waits, 99);
    service.report.wait_max = percentile(service.waits, 100);
    std::ranges::sort(service.report.leases, {}, &Span::from);
    all.push_back(std::move(service.report));
  }
  return all;
}

}  // namespace nvshare::sim
