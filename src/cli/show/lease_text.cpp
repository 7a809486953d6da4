#include "cli/show/lease_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/show/table.h"

namespace nvshare::cli {
namespace {

constexpr std::size_t kNameWidth = 28;
constexpr std::size_t kTraceWidth = 40;

std::string short_time(Duration time) {
  return time < 60s ? to_text(time) : long_time(time);
}

// From one time to another; "-" where one of them is not known.
std::string span(std::optional<WallTime> from, std::optional<WallTime> to) {
  return from && to ? short_time(std::max<Duration>(*to - *from, 0ns)) : "-";
}

std::string some(std::optional<long> number) {
  return number ? fmt::format("{}", *number) : "-";
}

std::string some(const std::string& text, std::size_t width = kNameWidth) {
  return text.empty() ? "-" : short_text(text, width);
}

Cell state_cell(const LeaseInfo& lease) {
  return lease.active ? Cell("active", kGreen) : Cell("waiting", kYellow);
}

Cell state_cell(const LeaseGpuInfo& gpu) {
  return {some(gpu.state), gpu.state == "NORMAL" ? kGreen : kYellow};
}

std::string marks(const LeaseGpuInfo& gpu, std::optional<WallTime> now) {
  std::string text = fmt::format("{:.0f}-{:.0f}%", gpu.low, gpu.high);
  if (gpu.raised_until && now && *gpu.raised_until > *now) {
    text += fmt::format(", raised for {}", span(now, gpu.raised_until));
  }
  return text;
}

std::string counts_text(const LeaseStatus& status, bool colour) {
  std::vector<std::vector<Cell>> rows;
  const auto cell = [](long count) { return Cell(fmt::format("{}", count)); };
  for (const auto& [name, counts] : status.classes) {
    rows.push_back({some(name), cell(counts.acquired), cell(counts.timed_out), cell(counts.skipped),
                    cell(counts.fell_back), cell(counts.queue_full), cell(counts.revoked),
                    counts.acquired > 0 ? short_time(counts.waited / counts.acquired) : "-"});
  }
  return table_text({{"CLASS"},
                     {"GRANTED", true},
                     {"TIMED OUT", true},
                     {"SKIPPED", true},
                     {"TO CPU", true},
                     {"QUEUE FULL", true},
                     {"TAKEN AWAY", true},
                     {"MEAN WAIT", true}},
                    rows, colour);
}

// What is the same at two looks. A lease of somebody else has no id.
std::string key_of(const LeaseInfo& lease) {
  if (!lease.id.empty()) return lease.id;
  const auto asked = lease.asked.value_or(WallTime{}).time_since_epoch().count();
  return fmt::format("{} {} {}", asked, lease.task_class, some(lease.pid));
}

std::map<std::string, const LeaseInfo*> by_key(const std::vector<LeaseInfo>& leases) {
  std::map<std::string, const LeaseInfo*> all;
  for (const LeaseInfo& one : leases) all.emplace(key_of(one), &one);
  return all;
}

// "NMT 0123... of process 4711"
std::string called(const LeaseInfo& lease) {
  std::string text = some(lease.task_class);
  if (!lease.id.empty()) text += " " + short_text(lease.id, kTraceWidth);
  if (lease.pid) text += fmt::format(" of process {}", *lease.pid);
  return text;
}

std::string has_come(const LeaseInfo& lease, WallTime now) {
  if (!lease.active) return fmt::format("{}: waits for GPU {}", called(lease), lease.gpu);
  return fmt::format("{}: has a lease on GPU {} for {}", called(lease), lease.gpu,
                     span(now, lease.ends));
}

std::string has_gone(const LeaseInfo& lease) {
  const char* const what = lease.active ? "its lease has ended on" : "waits no more for";
  return fmt::format("{}: {} GPU {}", called(lease), what, lease.gpu);
}

std::string_view words_of(std::string_view reason) {
  if (reason == "GPU_USAGE_HIGH") return "the GPU is under high load";
  if (reason == "GPU_USAGE_UNKNOWN") return "the GPU's load is not known";
  if (reason == "GPU_BUSY") return "all slots are taken";
  if (reason == "GPU_MEMORY") return "its memory did not come to the GPU in time";
  if (reason == "GPU_GONE") return "its GPU is gone";
  if (reason == "OVERDUE") return "it was held for too long without a renewal";
  if (reason == "OWNER_GONE") return "its owner has ended";
  if (reason == "REVOKED") return "it was revoked";
  return {};
}

std::string reason_text(std::string_view reason) {
  const std::string_view words = words_of(reason);
  return words.empty() ? some(std::string(reason)) : std::string(words);
}

}  // namespace

std::string leases_text(const std::vector<LeaseInfo>& leases, WallTime now, bool colour) {
  if (leases.empty()) return "no lease is held, and no request waits\n";
  std::vector<std::vector<Cell>> rows;
  for (const LeaseInfo& one : leases) {
    rows.push_back({some(one.id, kTraceWidth), some(one.task_class), fmt::format("{}", one.gpu),
                    state_cell(one), span(one.active ? one.acquired : one.asked, now),
                    span(now, one.ends), fmt::format("{}", one.priority), some(one.uid),
                    some(one.pid), some(one.trace, kTraceWidth)});
  }
  return table_text({{"LEASE"},
                     {"CLASS"},
                     {"GPU", true},
                     {"STATE"},
                     {"FOR", true},
                     {"LEFT", true},
                     {"PRIORITY", true},
                     {"USER", true},
                     {"PROCESS", true},
                     {"TRACE"}},
                    rows, colour);
}

std::string lease_why_text(const LeaseInfo& lease) {
  return fmt::format("{} of {}{} on GPU {}: {}\n", lease.active ? "lease" : "request",
                     some(lease.task_class), lease.pid ? fmt::format(" (pid {})", *lease.pid) : "",
                     lease.gpu, short_text(lease.why, 1000));
}

std::string classes_text(const std::vector<ClassInfo>& classes, bool colour) {
  std::vector<std::vector<Cell>> rows;
  for (const ClassInfo& one : classes) {
    rows.push_back({some(one.name), fmt::format("{}", one.priority), short_time(one.max_wait),
                    short_time(one.hold_max), some(one.busy), some(one.pressure),
                    one.slots ? some(one.slots) : "all"});
  }
  return table_text({{"CLASS"},
                     {"PRIORITY", true},
                     {"LONGEST WAIT", true},
                     {"LONGEST HOLD", true},
                     {"WHEN BUSY"},
                     {"UNDER PRESSURE"},
                     {"SLOTS", true}},
                    rows, colour);
}

std::string lease_status_text(const LeaseStatus& status, bool colour) {
  if (status.gpus.empty()) return "no GPU is known yet\n";
  std::vector<std::vector<Cell>> rows;
  for (const LeaseGpuInfo& one : status.gpus) {
    rows.push_back({fmt::format("{}", one.gpu), state_cell(one),
                    one.usage ? fmt::format("{:.1f}%", *one.usage) : "-",
                    one.age ? short_time(*one.age) : "-", marks(one, status.time),
                    fmt::format("{} / {}", one.active, one.slots), fmt::format("{}", one.waiting)});
  }
  std::string text = table_text({{"GPU", true},
                                 {"STATE"},
                                 {"LOAD", true},
                                 {"AGE", true},
                                 {"MARKS"},
                                 {"LEASES", true},
                                 {"WAITING", true}},
                                rows, colour);
  if (!status.classes.empty()) text += "\n" + counts_text(status, colour);
  return text;
}

std::string lease_changes_text(const LeaseLook& before, const LeaseLook& after, WallTime now) {
  std::vector<std::string> lines;
  std::map<long, std::string> states;
  for (const LeaseGpuInfo& one : before.status.gpus) states[one.gpu] = one.state;
  for (const LeaseGpuInfo& one : after.status.gpus) {
    if (states[one.gpu] != one.state)
      lines.push_back(fmt::format("GPU {}: {}", one.gpu, some(one.state)));
  }
  const auto old = by_key(before.leases);
  const auto now_there = by_key(after.leases);
  for (const LeaseInfo& one : before.leases) {
    if (!now_there.contains(key_of(one))) lines.push_back(has_gone(one));
  }
  for (const LeaseInfo& one : after.leases) {
    const auto was = old.find(key_of(one));
    if (was == old.end() || was->second->active != one.active) lines.push_back(has_come(one, now));
  }
  std::string text;
  const auto second = std::chrono::floor<std::chrono::seconds>(now);
  for (const std::string& one : lines) text += fmt::format("{:%FT%TZ} {}\n", second, one);
  return text;
}

std::string not_granted_text(const LeaseAnswer& answer) {
  std::string text = "no lease";
  if (answer.result == "TIMEOUT") text += " within " + short_time(answer.waited);
  text += answer.result == "QUEUE_FULL" ? ": too many requests wait"
                                        : ": " + reason_text(answer.reason);
  if (answer.retry_after) text += "; try again in " + short_time(*answer.retry_after);
  return text;
}

std::string taken_away_text(std::string_view reason) {
  return reason.empty() ? "the scheduler does not know it any more" : reason_text(reason);
}

}  // namespace nvshare::cli
