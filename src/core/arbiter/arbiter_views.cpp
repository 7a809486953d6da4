// What the arbiter tells about itself, and what it takes for granted about what it is told.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/arbiter/arbiter.h"

namespace nvshare::core {
namespace {

// To the millisecond, and with the letters of to_text().
std::string span(Duration duration) {
  const auto whole = std::chrono::floor<std::chrono::milliseconds>(std::max(duration, Duration{}));
  return whole.count() < 1000 ? fmt::format("{}ms", whole.count()) : to_text(Duration{whole});
}

bool lacks_a_slot(const LeaseWhy& why) {
  return why.active >= why.slots || (why.class_slots && why.class_active >= *why.class_slots);
}

std::string slots_text(const LeaseWhy& why) {
  if (why.active >= why.slots) {
    return fmt::format("no slot is free ({} of {} are taken)", why.active, why.slots);
  }
  return fmt::format("no slot of {} is free ({} of {} are taken)", why.lease.task_class,
                     why.class_active, *why.class_slots);
}

std::string pressure_text(const LeaseWhy& why) {
  return fmt::format("the GPU is under high pressure (usage {:.1f}%, and it ends at {:g}%)",
                     why.usage.value_or(0), why.marks.low);
}

std::string ahead_text(const LeaseWhy& why) {
  std::string text;
  for (const auto& [name, count] : why.ahead) {
    text += fmt::format("{}{} {}", text.empty() ? "behind " : ", ", count, name);
  }
  return text;
}

}  // namespace

std::string text_of(const LeaseWhy& why, Time now) {
  const std::string left = span(why.lease.until - now);
  if (why.lease.preparing) {
    return fmt::format(
        "waits for {}: its slot is taken, and its memory comes to the GPU; gives up in {}",
        span(now - why.lease.asked), left);
  }
  if (why.lease.active) {
    return fmt::format("held for {}, ends in {}", span(now - why.lease.acquired), left);
  }
  std::vector<std::string> reasons;
  if (lacks_a_slot(why)) reasons.push_back(slots_text(why));
  // Without any lease on the GPU the first waiter enters whatever the pressure is.
  if (why.state == Admission::High && why.active > 0) reasons.push_back(pressure_text(why));
  if (!why.ahead.empty()) reasons.push_back(ahead_text(why));
  if (reasons.empty()) reasons.emplace_back("its turn has come");
  return fmt::format("waits for {}: {}; gives up in {}", span(now - why.lease.asked),
                     fmt::join(reasons, "; "), left);
}

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::Acquired:
      return "ACQUIRED";
    case Outcome::Timeout:
      return "TIMEOUT";
    case Outcome::Skipped:
      return "SKIPPED";
    case Outcome::FallbackCpu:
      return "FALLBACK_CPU";
    case Outcome::QueueFull:
      return "QUEUE_FULL";
    case Outcome::Revoked:
      return "REVOKED";
    case Outcome::Preparing:
      return "PREPARING";
  }
  return "?";
}

std::string_view name_of(LeaseReason reason) {
  switch (reason) {
    case LeaseReason::None:
      return "";
    case LeaseReason::GpuUsageHigh:
      return "GPU_USAGE_HIGH";
    case LeaseReason::GpuUsageUnknown:
      return "GPU_USAGE_UNKNOWN";
    case LeaseReason::GpuBusy:
      return "GPU_BUSY";
    case LeaseReason::GpuMemory:
      return "GPU_MEMORY";
    case LeaseReason::GpuGone:
      return "GPU_GONE";
    case LeaseReason::Overdue:
      return "OVERDUE";
  }
  return "?";
}

std::vector<std::string> problems(const ArbiterConfig& config) {
  constexpr int kMostSlots = 1024;
  constexpr int kLongestQueue = 65536;
  std::vector<std::string> found = problems(config.usage);
  for (std::string& one : problems(config.classes)) found.push_back(std::move(one));
  if (config.slots < 1 || config.slots > kMostSlots) {
    found.push_back(fmt::format("lease_slots: {} is not from 1 to {}", config.slots, kMostSlots));
  }
  if (config.queue < 0 || config.queue > kLongestQueue) {
    found.push_back(
        fmt::format("lease_queue: {} is not from 0 to {}", config.queue, kLongestQueue));
  }
  return found;
}

std::optional<Error> Arbiter::check(const LeaseRequest& request) const {
  if (records_.contains(request.lease)) return Error{"this lease is there already"};
  if (!gpus_.contains(request.gpu)) return Error{"there is no such GPU"};
  if (!find_class(request.task_class)) {
    std::string names;
    for (const TaskClass& one : config_.classes) names += (names.empty() ? "" : ", ") + one.name;
    return Error{fmt::format("there is no class '{}'; there are {}", request.task_class, names)};
  }
  const auto range = [](const char* name, std::optional<Duration> value, Duration low,
                        Duration high) -> std::optional<Error> {
    if (!value || (*value >= low && *value <= high)) return std::nullopt;
    return Error{fmt::format("{}: {}ms is not from {} to {}", name,
                             std::chrono::duration_cast<std::chrono::milliseconds>(*value).count(),
                             to_text(low), to_text(high))};
  };
  if (auto wrong = range("maxWaitMs", request.max_wait, 0s, kLongestWait)) return wrong;
  if (auto wrong = range("holdMaxMs", request.hold_max, 1ms, kLongestHold)) return wrong;
  if (auto wrong = range("estimatedAudioMs", request.audio, 0s, kLongestHold)) return wrong;
  return range("estimatedGpuHoldMs", request.gpu_hold, 0s, kLongestHold);
}

const TaskClass* Arbiter::find_class(std::string_view name) const {
  const auto found = std::ranges::find(config_.classes, name, &TaskClass::name);
  return found == config_.classes.end() ? nullptr : &*found;
}

std::optional<Time> Arbiter::next_wakeup() const {
  std::optional<Time> next;
  if (!timers_.empty()) next = std::get<Time>(*timers_.begin());
  for (const auto& [id, gpu] : gpus_) {
    const auto change = gpu.pressure.next_change(now_, config_.usage);
    if (change && (!next || *change < *next)) next = change;
  }
  return next;
}

Admission Arbiter::state(GpuId gpu, const TaskClass& task_class, Time now) const {
  const auto found = gpus_.find(gpu);
  if (found == gpus_.end()) return Admission::Unknown;
  return found->second.pressure.state(tenant_priority(task_class.priority), now, config_.usage);
}

std::optional<GpuId> Arbiter::roomiest(const TaskClass& task_class, Time now) const {
  const auto rank = [&](GpuId id, const Gpu& gpu) {
    const Admission state = this->state(id, task_class, now);
    const int worse = state == Admission::Normal ? 0 : state == Admission::Unknown ? 1 : 2;
    const auto& sample = gpu.pressure.sample();
    return std::tuple{!slot_free(gpu, task_class), worse, std::ssize(gpu.active) + gpu.waiting,
                      sample ? sample->busy : 0.0, id};
  };
  std::optional<decltype(rank(GpuId{}, gpus_.begin()->second))> best;
  for (const auto& [id, gpu] : gpus_) {
    const auto one = rank(id, gpu);
    if (!best || one < *best) best = one;
  }
  if (!best) return std::nullopt;
  return std::get<GpuId>(*best);
}

std::optional<ArbiterGpuView> Arbiter::gpu(GpuId id, Time now) const {
  const auto found = gpus_.find(id);
  if (found == gpus_.end()) return std::nullopt;
  const Gpu& gpu = found->second;
  ArbiterGpuView view;
  const TaskClass* least = nullptr;
  for (const TaskClass& one : config_.classes) {
    if (one.pressure != Refusal::Wait) continue;
    if (!least || one.priority < least->priority) least = &one;
  }
  const int priority = least ? tenant_priority(least->priority) : kHighestPriority;
  view.state = gpu.pressure.state(priority, now, config_.usage);
  if (const auto& sample = gpu.pressure.sample()) {
    view.usage = sample->busy;
    view.age = now - sample->at;
  }
  view.marks = gpu.pressure.marks(now, config_.usage);
  const auto raised = gpu.pressure.raised_until();
  if (raised && *raised > now) view.raised_until = raised;
  view.active = static_cast<int>(gpu.active.size());
  view.waiting = gpu.waiting;
  return view;
}

LeaseView Arbiter::view(LeaseId lease, const Record& record) const {
  return {lease,         record.request.gpu, record.task_class.name, record.task_class.priority,
          record.active, record.preparing,   record.asked,           record.acquired,
          record.until,  record.expected_end};
}

std::optional<LeaseView> Arbiter::lease(LeaseId lease) const {
  const auto found = records_.find(lease);
  if (found == records_.end()) return std::nullopt;
  return view(lease, found->second);
}

std::optional<LeaseWhy> Arbiter::explain(LeaseId lease, Time now) const {
  const auto found = records_.find(lease);
  if (found == records_.end()) return std::nullopt;
  const Record& record = found->second;
  const Gpu& gpu = gpus_.at(record.request.gpu);
  // Classes may have changed since the request came. Its queue knows.
  const auto queue = gpu.queues.find({record.task_class.name, record.sheds});
  const bool waits = !record.active && queue != gpu.queues.end();
  const TaskClass& task_class = waits ? queue->second.task_class : record.task_class;
  const int priority = tenant_priority(task_class.priority);
  LeaseWhy why{.lease = view(lease, record),
               .state = gpu.pressure.state(priority, now, config_.usage),
               .usage = gpu.pressure.usage(priority),
               .marks = gpu.pressure.marks(now, config_.usage),
               .active = static_cast<int>(gpu.active.size()),
               .slots = config_.slots,
               .class_active = 0,
               .class_slots = task_class.slots,
               .ahead = {}};
  const auto of_class = gpu.active_of.find(task_class.name);
  if (of_class != gpu.active_of.end()) why.class_active = of_class->second;
  if (!waits) return why;

  // As serve() chooses: by priority, then by arrival.
  std::map<std::pair<int, std::string>, int> ahead;
  for (const auto& [key, other] : gpu.queues) {
    const int rank = other.task_class.priority;
    if (rank < task_class.priority) continue;
    const auto& waiters = other.waiters;
    const auto end = rank > task_class.priority ? waiters.end() : waiters.lower_bound(record.order);
    const auto count = static_cast<int>(std::distance(waiters.begin(), end));
    if (count > 0) ahead[{-rank, key.task_class}] += count;
  }
  for (const auto& [key, count] : ahead) why.ahead.emplace_back(key.second, count);
  return why;
}

std::vector<LeaseView> Arbiter::active() const {
  std::vector<LeaseView> all;
  for (const auto& [id, gpu] : gpus_) {
    for (const LeaseId lease : gpu.active) all.push_back(view(lease, records_.at(lease)));
  }
  return all;
}

std::vector<LeaseView> Arbiter::leases() const {
  std::vector<std::pair<std::tuple<bool, int, std::uint64_t>, LeaseView>> sorted;
  for (const auto& [lease, record] : records_) {
    sorted.push_back(
        {{!record.active, -record.task_class.priority, record.order}, view(lease, record)});
  }
  std::ranges::sort(sorted, {}, [](const auto& entry) {
    return std::tuple{entry.first, entry.second.lease};
  });
  std::vector<LeaseView> all;
  for (auto& [key, one] : sorted) all.push_back(std::move(one));
  return all;
}

}  // namespace nvshare::core
