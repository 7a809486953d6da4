// How services come by their leases, and how the arbiter learns of the usage.

#include <algorithm>
#include <cmath>

#include "sim/simulator_impl.h"

namespace nvshare::sim {

using core::Outcome;

void Simulator::ask_for_lease(Process& p, bool again) {
  const auto verdicts = services_->ask(p, again, now_);
  if (!verdicts) {
    failed_ = verdicts.error().with_context(p.report.name);
    return;
  }
  follow(*verdicts);
}

void Simulator::give_back_lease(Process& p) {
  if (p.lease) follow(services_->give_back(p, now_));
}

// The core learns of the priority first, so that the holder's work has it from its beginning.
void Simulator::follow(const Services::Verdicts& verdicts) {
  for (const core::PriorityLent& lent : services_->take_lent()) {
    tell(lent);
    if (failed_) return;
  }
  for (const Services::Verdict& verdict : verdicts) {
    if (failed_) return;
    follow(verdict);
  }
}

void Simulator::follow(const Services::Verdict& verdict) {
  Process& p = processes_[verdict.process];
  if (observer_ != nullptr) {
    observer_->after_answer(*p.spec, verdict.answer, now_, services_->arbiter());
  }
  if (!p.present) return;
  switch (verdict.answer.outcome) {
    case Outcome::Acquired:
      return want_gpu(p);
    case Outcome::Revoked:
      return;  // its work goes on, with the tenant's own priority
    case Outcome::Preparing:
      return;  // no request of a scenario waits for memory
    case Outcome::FallbackCpu:
      return rest(p);
    case Outcome::Timeout:
    case Outcome::Skipped:
    case Outcome::QueueFull:
      break;
  }
  if (p.spec->lease->refused != Refused::Retry) return rest(p);
  at(now_ + verdict.answer.retry_after, Happening::AsksAgain, p.id);
}

// The meters' readings reach the core before the arbiter looks at the bills.
void Simulator::measure_usage() {
  read_all_meters();
  at(now_, Happening::UsageIsTaken, 0);
  at(now_ + scenario_.usage_sample_interval, Happening::UsageIsMeasured, 0);
}

// NVML's part of the sample is the time in which the GPU was busy, in whole percent.
void Simulator::take_usage() {
  const core::Snapshot bills = core_.snapshot();
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    const Duration busy = gpus_[i].model.busy_time();
    const Duration since = busy - std::exchange(gpus_[i].busy_seen, busy);
    const double part = static_cast<double>(since.count()) /
                        static_cast<double>(scenario_.usage_sample_interval.count());
    const int seen = std::clamp(static_cast<int>(std::lround(100 * part)), 0, 100);
    follow(services_->sample(i, bills, seen, now_));
    if (failed_) return;
  }
}

}  // namespace nvshare::sim
