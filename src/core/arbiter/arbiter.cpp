#include "core/arbiter/arbiter.h"

#include <fmt/format.h>

#include <algorithm>

namespace nvshare::core {
namespace {

// A caller that comes back sooner than this costs more than it can gain.
constexpr Duration kLeastRetry = 50ms;
// How long a class is expected to hold a lease before it has held one.
constexpr Duration kFirstGuess = 1s;
// A new hold counts for one part in so many of what a class usually takes.
constexpr int kHoldMemory = 8;

// A class that never waits does not for a request that wants to.
Refusal stricter(Refusal of_class, std::optional<Refusal> of_request) {
  if (!of_request || *of_request == Refusal::Wait) return of_class;
  return *of_request;
}

Outcome outcome_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::Wait:
      return Outcome::Timeout;
    case Refusal::Skip:
      return Outcome::Skipped;
    case Refusal::FallbackCpu:
      return Outcome::FallbackCpu;
  }
  return Outcome::Timeout;
}

void count(LeaseCounts& counts, const Answer& answer) {
  switch (answer.outcome) {
    case Outcome::Acquired:
      ++counts.acquired;
      counts.waited += answer.waited;
      return;
    case Outcome::Timeout:
      ++counts.timed_out;
      return;
    case Outcome::Skipped:
      ++counts.skipped;
      return;
    case Outcome::FallbackCpu:
      ++counts.fell_back;
      return;
    case Outcome::QueueFull:
      ++counts.queue_full;
      return;
    case Outcome::Revoked:
      ++counts.revoked;
      return;
    case Outcome::Preparing:
      return;
  }
}

}  // namespace

bool Arbiter::slot_free(const Gpu& gpu, const TaskClass& task_class) const {
  if (std::ssize(gpu.active) >= config_.slots) return false;
  if (!task_class.slots) return true;
  const auto of_class = gpu.active_of.find(task_class.name);
  return of_class == gpu.active_of.end() || of_class->second < *task_class.slots;
}

// Waiters that shed under pressure have left the queue before this is asked.
bool Arbiter::may_enter(const Gpu& gpu, const Queue& queue, Time now) const {
  if (!slot_free(gpu, queue.task_class)) return false;
  switch (gpu.pressure.state(tenant_priority(queue.task_class.priority), now, config_.usage)) {
    case Admission::Normal:
      return true;
    case Admission::High:
      // The floor: without any lease, the first waiter enters whatever the usage is. Otherwise
      // programs that ask for no lease could keep all services out for ever.
      return gpu.active.empty();
    case Admission::Unknown:
      return true;  // queue and leases alone decide
  }
  return false;
}

LeaseReason Arbiter::why_not(const Gpu& gpu, const TaskClass& task_class, Time now) const {
  switch (gpu.pressure.state(tenant_priority(task_class.priority), now, config_.usage)) {
    case Admission::High:
      return LeaseReason::GpuUsageHigh;
    case Admission::Unknown:
      return slot_free(gpu, task_class) ? LeaseReason::GpuUsageUnknown : LeaseReason::GpuBusy;
    case Admission::Normal:
      break;
  }
  return LeaseReason::GpuBusy;
}

Duration Arbiter::retry_after(const Gpu& gpu, LeaseReason reason, Time now) const {
  std::optional<Duration> least;
  for (const LeaseId lease : gpu.active) {
    const Duration left = records_.at(lease).expected_end - now;
    if (left > 0s && (!least || left < *least)) least = left;
  }
  // Under high pressure a lease that ends is no promise: the next samples decide.
  const Duration unknown = reason == LeaseReason::GpuBusy ? kLeastRetry : config_.usage.cache_ttl;
  return std::max(least.value_or(unknown), kLeastRetry);
}

Arbiter::Timer Arbiter::timer_of(const Record& record) const {
  const bool held = record.active && !record.preparing;
  return {record.until, held ? Due::LeaseEnds : Due::WaitEnds, record.request.lease};
}

Duration Arbiter::usual_hold(const TaskClass& task_class) const {
  const auto known = usual_hold_.find(task_class.name);
  return known == usual_hold_.end() ? kFirstGuess : known->second;
}

Result<Answers> Arbiter::ask(const LeaseRequest& request, Time now) {
  if (auto wrong = check(request)) return *wrong;
  Answers answers;
  advance(now, answers);

  const TaskClass& task_class = *find_class(request.task_class);
  Gpu& gpu = gpus_.at(request.gpu);
  Record record{request, task_class};
  record.sheds = stricter(task_class.pressure, request.refusal) != Refusal::Wait;
  record.asked = now;
  record.until = now + request.max_wait.value_or(task_class.max_wait);
  record.order = ++arrivals_;
  // A request that gives way under pressure must not raise the marks for the others.
  if (!record.sheds && request.audio && *request.audio >= config_.usage.long_audio) {
    gpu.pressure.raise(now, config_.usage);
  }
  Queue& queue = gpu.queues[{task_class.name, record.sheds}];
  queue.task_class = task_class;
  queue.waiters.emplace(record.order, request.lease);
  ++gpu.waiting;
  timers_.insert(timer_of(record));
  records_.emplace(request.lease, std::move(record));
  serve(gpu, now, answers);
  refuse_at_once(request.lease, now, answers);
  return answers;
}

// A request that did not get its lease waits only where its class and the queue let it.
void Arbiter::refuse_at_once(LeaseId lease, Time now, Answers& answers) {
  const auto found = records_.find(lease);
  if (found == records_.end() || found->second.active) return;
  const Record& record = found->second;
  const Gpu& gpu = gpu_of(record);
  const LeaseReason reason = why_not(gpu, record.task_class, now);
  const Refusal refusal =
      stricter(reason == LeaseReason::GpuBusy ? record.task_class.busy : record.task_class.pressure,
               record.request.refusal);
  if (refusal != Refusal::Wait || record.until <= now) {
    refuse(lease, outcome_of(refusal), reason, now, answers);
  } else if (gpu.waiting > config_.queue) {
    const LeaseId last = last_in_line(gpu);
    const LeaseReason why = why_not(gpu, records_.at(last).task_class, now);
    refuse(last, Outcome::QueueFull, why, now, answers);
  }
}

// The newest waiter of the lowest class. Requests of one class could keep all others out otherwise.
LeaseId Arbiter::last_in_line(const Gpu& gpu) const {
  const Queue* last = nullptr;
  const auto rank = [](const Queue& queue) {
    return std::pair{-queue.task_class.priority, queue.waiters.rbegin()->first};
  };
  for (const auto& [key, queue] : gpu.queues) {
    if (!queue.waiters.empty() && (!last || rank(queue) > rank(*last))) last = &queue;
  }
  return last->waiters.rbegin()->second;
}

Result<Answers> Arbiter::release(LeaseId lease, Time now) {
  const auto found = records_.find(lease);
  if (found == records_.end()) return Error{"no such lease"};
  if (found->second.active) {
    if (!found->second.preparing) ++counts_[found->second.task_class.name].released;
    end_lease(lease, now);
  } else {
    leave_queue(found->second);
    records_.erase(found);
  }
  return tick(now);
}

Result<Answers> Arbiter::ready(LeaseId lease, Time now) {
  const auto found = records_.find(lease);
  if (found == records_.end()) return Error{"no such lease"};
  Record& record = found->second;
  if (!record.preparing) return Error{"the lease is not preparing"};
  Answers answers;
  // At the last moment of its wait, which is the first one of a request that does not wait.
  if (now <= record.until) {
    timers_.erase(timer_of(record));
    hold(record, now, answers);
  }
  advance(now, answers);
  return answers;
}

Result<Time> Arbiter::renew(LeaseId lease, std::optional<Duration> hold, Time now) {
  const auto found = records_.find(lease);
  if (found == records_.end()) return Error{"no such lease"};
  Record& record = found->second;
  if (!record.active || record.preparing) return Error{"the request still waits for its lease"};
  if (record.until <= now) return Error{"the lease is overdue"};
  if (hold && (*hold < 1ms || *hold > kLongestHold)) {
    return Error{fmt::format("{} is not from 1ms to {}", to_text(*hold), to_text(kLongestHold))};
  }
  const Duration most = record.task_class.hold_max;
  timers_.erase(timer_of(record));
  record.until = now + std::min(hold.value_or(record.request.hold_max.value_or(most)), most);
  timers_.insert(timer_of(record));
  return record.until;
}

Result<void> Arbiter::restore(const LeaseRequest& request, Time acquired, Time expires) {
  if (auto wrong = check(request)) return *wrong;
  Record record{request, *find_class(request.task_class)};
  record.asked = acquired;
  Record& held = records_.emplace(request.lease, std::move(record)).first->second;
  take_slot(held);
  lasts(held, acquired, expires);
  return {};
}

Answers Arbiter::tick(Time now) {
  Answers answers;
  advance(now, answers);
  return answers;
}

Answers Arbiter::take_sample(GpuId id, const UsageSample& sample, Time now) {
  const auto found = gpus_.find(id);
  if (found != gpus_.end()) found->second.pressure.take(sample, now, config_.usage);
  return tick(now);
}

Answers Arbiter::set_config(const ArbiterConfig& config, Time now) {
  config_ = config;
  for (auto& [id, gpu] : gpus_) {
    for (auto& [key, queue] : gpu.queues) {
      if (const TaskClass* now_so = find_class(key.task_class)) queue.task_class = *now_so;
    }
  }
  return tick(now);
}

void Arbiter::add_gpu(GpuId gpu) {
  gpus_.try_emplace(gpu);
}

Answers Arbiter::remove_gpu(GpuId id, Time now) {
  Answers answers;
  advance(now, answers);
  const auto found = gpus_.find(id);
  if (found == gpus_.end()) return answers;
  std::vector<LeaseId> waiting;
  for (const auto& [key, queue] : found->second.queues) {
    for (const auto& [order, lease] : queue.waiters) waiting.push_back(lease);
  }
  for (const LeaseId lease : waiting) {
    refuse(lease, Outcome::Timeout, LeaseReason::GpuGone, now, answers);
  }
  const std::set<LeaseId> active = found->second.active;
  for (const LeaseId lease : active) {
    const bool waits = records_.at(lease).preparing;
    answers.push_back({lease, waits ? Outcome::Timeout : Outcome::Revoked, LeaseReason::GpuGone});
    count(counts_[records_.at(lease).task_class.name], answers.back());
    end_lease(lease, now);
  }
  gpus_.erase(found);
  return answers;
}

// Time passes: states change, leases become overdue, waits end. In the order of their times.
void Arbiter::advance(Time now, Answers& answers) {
  now_ = std::max(now_, now);
  for (auto& [id, gpu] : gpus_) {
    gpu.pressure.look(now_, config_.usage);
    if (gpu.waiting > 0) serve(gpu, now_, answers);
  }
  while (!timers_.empty() && std::get<Time>(*timers_.begin()) <= now_) {
    const LeaseId lease = std::get<LeaseId>(*timers_.begin());
    Record& record = records_.at(lease);
    Gpu& gpu = gpu_of(record);
    if (record.active) {
      answers.push_back(record.preparing ? not_ready(record, now_)
                                         : Answer{lease, Outcome::Revoked, LeaseReason::Overdue});
      count(counts_[record.task_class.name], answers.back());
      end_lease(lease, now_);
      serve(gpu, now_, answers);
    } else {
      refuse(lease, Outcome::Timeout, why_not(gpu, record.task_class, now_), now_, answers);
    }
  }
}

// Grants what can be granted: the waiter of the highest class, then the one that came first.
void Arbiter::serve(Gpu& gpu, Time now, Answers& answers) {
  shed(gpu, now, answers);
  while (gpu.waiting > 0) {
    const Queue* best = nullptr;
    const auto rank = [](const Queue& queue) {
      return std::pair{-queue.task_class.priority, queue.waiters.begin()->first};
    };
    for (auto it = gpu.queues.begin(); it != gpu.queues.end();) {
      const Queue& queue = it->second;
      if (queue.waiters.empty()) {
        it = gpu.queues.erase(it);
        continue;
      }
      const bool better = !best || rank(queue) < rank(*best);
      if (better && may_enter(gpu, queue, now)) best = &queue;
      ++it;
    }
    if (!best) return;
    grant(best->waiters.begin()->second, now, answers);
  }
}

// Under high pressure the waiters that would not have waited then leave at once.
void Arbiter::shed(Gpu& gpu, Time now, Answers& answers) {
  std::vector<LeaseId> leaving;
  for (const auto& [key, queue] : gpu.queues) {
    if (!key.sheds || queue.waiters.empty()) continue;
    const int priority = tenant_priority(queue.task_class.priority);
    if (gpu.pressure.state(priority, now, config_.usage) == Admission::Normal) continue;
    for (const auto& [order, lease] : queue.waiters) leaving.push_back(lease);
  }
  for (const LeaseId lease : leaving) {
    const Record& record = records_.at(lease);
    const LeaseReason reason = why_not(gpu, record.task_class, now);
    const Refusal refusal = stricter(record.task_class.pressure, record.request.refusal);
    refuse(lease, outcome_of(refusal), reason, now, answers);
  }
}

void Arbiter::take_slot(Record& record) {
  Gpu& gpu = gpu_of(record);
  record.active = true;
  gpu.active.insert(record.request.lease);
  ++gpu.active_of[record.task_class.name];
}

// The lease is held until then, or its holder's memory must have come in.
void Arbiter::lasts(Record& record, Time acquired, Time until) {
  const Duration expected = record.request.gpu_hold.value_or(usual_hold(record.task_class));
  record.acquired = acquired;
  record.until = until;
  record.expected_end = std::min(acquired + expected, until);
  timers_.insert(timer_of(record));
}

// The wait for the holder's memory is over.
Answer Arbiter::not_ready(const Record& record, Time now) const {
  const Refusal refusal = stricter(record.task_class.busy, record.request.refusal);
  constexpr LeaseReason kWhy = LeaseReason::GpuMemory;
  return {record.request.lease,
          outcome_of(refusal),
          kWhy,
          now - record.asked,
          {},
          retry_after(gpus_.at(record.request.gpu), kWhy, now)};
}

void Arbiter::grant(LeaseId lease, Time now, Answers& answers) {
  Record& record = records_.at(lease);
  leave_queue(record);
  take_slot(record);
  if (!record.request.has_memory) return hold(record, now, answers);
  const bool waits = stricter(record.task_class.busy, record.request.refusal) == Refusal::Wait;
  record.preparing = true;
  lasts(record, now, waits ? record.until : now);
  answers.push_back({lease, Outcome::Preparing, LeaseReason::None, now - record.asked});
}

void Arbiter::hold(Record& record, Time now, Answers& answers) {
  const Duration most = record.task_class.hold_max;
  record.preparing = false;
  lasts(record, now, now + std::min(record.request.hold_max.value_or(most), most));
  answers.push_back({record.request.lease, Outcome::Acquired, LeaseReason::None, now - record.asked,
                     record.until});
  count(counts_[record.task_class.name], answers.back());
}

void Arbiter::refuse(LeaseId lease, Outcome outcome, LeaseReason reason, Time now,
                     Answers& answers) {
  const auto found = records_.find(lease);
  const Record& record = found->second;
  leave_queue(record);
  answers.push_back(
      {lease, outcome, reason, now - record.asked, {}, retry_after(gpu_of(record), reason, now)});
  count(counts_[record.task_class.name], answers.back());
  records_.erase(found);
}

void Arbiter::end_lease(LeaseId lease, Time now) {
  const auto found = records_.find(lease);
  const Record& record = found->second;
  Gpu& gpu = gpu_of(record);
  timers_.erase(timer_of(record));
  gpu.active.erase(lease);
  const std::string& name = record.task_class.name;
  if (const auto of_class = gpu.active_of.find(name); --of_class->second == 0) {
    gpu.active_of.erase(of_class);
  }
  if (!record.preparing) {
    const Duration held = std::max(now - record.acquired, Duration{});
    const auto [usual, first] = usual_hold_.try_emplace(name, held);
    if (!first) usual->second += (held - usual->second) / kHoldMemory;
  }
  records_.erase(found);
}

void Arbiter::leave_queue(const Record& record) {
  Gpu& gpu = gpu_of(record);
  timers_.erase(timer_of(record));
  gpu.queues.at({record.task_class.name, record.sheds}).waiters.erase(record.order);
  --gpu.waiting;
}

}  // namespace nvshare::core
