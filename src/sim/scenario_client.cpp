#include "sim/scenario_client.h"

#include <fmt/format.h>

#include <algorithm>

namespace nvshare::sim {
namespace {

using config::Choices;
using config::Kind;
using config::TableReader;

constexpr std::size_t kLongestName = 64;

// A word for what a client does. Some differ only in how long their kernels are.
struct Word {
  WorkloadKind kind = WorkloadKind::Saturating;
  Duration kernel{};  // where the file names none
};

Choices<Word> phase_words() {
  return {{"saturating", {}},
          {"fine", {WorkloadKind::Saturating, 10us}},
          {"bursty", {WorkloadKind::Bursty}},
          {"long-kernels", {WorkloadKind::Saturating, 200ms}},
          {"silent", {WorkloadKind::Silent}},
          {"idle", {WorkloadKind::Idle}}};
}

Choices<Word> workload_words() {
  auto words = phase_words();
  words.insert(words.begin() + 4, {"phases", {WorkloadKind::Phases}});
  return words;
}

// A slash would make "train/2" mean two things; control characters would break every table.
void check_name(TableReader& table, const std::string& name) {
  const bool odd = std::any_of(name.begin(), name.end(), [](char c) {
    return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (name.empty() || name.size() > kLongestName || odd) {
    table.problem(
        "name", fmt::format("must be 1 to {} characters, without '/' and line ends", kLongestName));
  }
}

// What is not named stays as it is.
void read_limits(TableReader& table, core::Limits& limits) {
  if (const auto cores = table.integer("cores", 1, core::kNoCoreLimit)) {
    limits.core_percent = static_cast<int>(*cores);
  }
  if (const auto memory = table.bytes("memory_limit", Bytes{1}, kLargestMemory)) {
    limits.memory = *memory;
  }
  if (const auto priority =
          table.integer("priority", core::kLowestPriority, core::kHighestPriority)) {
    limits.priority = static_cast<int>(*priority);
  }
}

// The step's time, which must be later than the one before.
std::optional<Duration> read_at(TableReader& step, std::optional<Duration> before) {
  const auto at = step.duration("at", Duration{0}, kLongestTime);
  if (!at && !step.has("at")) step.missing("at", "each step needs its time");
  if (at && before && *at <= *before) {
    step.problem("at", fmt::format("{} is not later than the step before ({})", to_text(*at),
                                   to_text(*before)));
  }
  return at;
}

std::vector<MemoryStep> read_memory(TableReader& table) {
  const config::Value* value = table.find("memory");
  if (!value) return {};
  if (value->kind == Kind::Text) {
    const auto size = table.bytes("memory", Bytes{0}, kLargestMemory);
    return size ? std::vector{MemoryStep{Duration{0}, *size}} : std::vector<MemoryStep>{};
  }
  if (value->kind != Kind::Array) {
    table.problem("memory", fmt::format("is {}, not a size such as \"4Gi\" or a list of "
                                        "{{ at, allocated }}",
                                        name_of(value->kind)));
    return {};
  }
  std::vector<MemoryStep> steps;
  std::optional<Duration> before;
  for (TableReader& step : table.tables("memory")) {
    const auto at = read_at(step, before);
    const auto allocated = step.bytes("allocated", Bytes{0}, kLargestMemory);
    if (!allocated && !step.has("allocated")) step.missing("allocated", "how much it then has");
    step.finish();
    if (at) before = at;
    if (at && allocated) steps.push_back({*at, *allocated});
  }
  return steps;
}

std::vector<LimitStep> read_changes(TableReader& table, core::Limits limits,
                                    std::optional<Duration> leaves) {
  std::vector<LimitStep> changes;
  std::optional<Duration> before;
  for (TableReader& change : table.tables("changes")) {
    const auto at = read_at(change, before);
    if (at && leaves && *at >= *leaves) {
      change.problem("at", fmt::format("{} is not before the client leaves ({})", to_text(*at),
                                       to_text(*leaves)));
    }
    read_limits(change, limits);
    change.finish();
    if (at) before = at;
    if (at) changes.push_back({*at, limits});
  }
  return changes;
}

// All phases share one kernel: the longest that one of them brings with it.
std::vector<Phase> read_phases(TableReader& table, Duration& kernel) {
  std::vector<Phase> phases;
  for (TableReader& one : table.tables("phases")) {
    const auto word = one.choice("kind", phase_words());
    if (!word && !one.has("kind")) one.missing("kind", "what the client does in this phase");
    const auto lasts = one.duration("lasts", Duration{1}, kLongestTime);
    if (!lasts && !one.has("lasts")) one.missing("lasts", "how long this phase is");
    one.finish();
    const Word meant = word.value_or(Word{});
    phases.push_back({meant.kind, lasts.value_or(Duration{1})});
    kernel = std::max(kernel, meant.kernel);
  }
  return phases;
}

bool does(const Workload& work, WorkloadKind kind) {
  return work.kind == kind || std::any_of(work.phases.begin(), work.phases.end(),
                                          [&](const Phase& phase) { return phase.kind == kind; });
}

// A setting that the workload would silently ignore is a mistake.
void check_used(TableReader& table, const char* key, bool used, const char* by) {
  if (table.has(key) && !used) table.problem(key, fmt::format("is only used by {}", by));
}

Workload read_workload(TableReader& table) {
  Workload work;
  const Word word = table.choice("workload", workload_words()).value_or(Word{});
  work.kind = word.kind;
  work.kernel = word.kernel;
  work.phases = read_phases(table, work.kernel);
  const bool bursty = does(work, WorkloadKind::Bursty);
  const auto kernel = table.duration("kernel", Duration{0}, 1h);
  const auto burst = table.duration("burst", Duration{1}, kLongestTime);
  const auto gap = table.duration("gap", Duration{1}, kLongestTime);
  work.every = table.duration("every", Duration{1}, kLongestTime);
  const auto total = table.duration("total", Duration{1}, kLongestTime);
  work.kernel = kernel.value_or(work.kernel);
  if (bursty) {
    work.burst = burst.value_or(60ms);
    work.gap = gap.value_or(40ms);
  }
  work.total = total;

  const bool phases = work.kind == WorkloadKind::Phases;
  if (phases && !table.has("phases")) table.missing("phases", "the workload 'phases' needs them");
  if (phases && table.has("phases") && work.phases.empty()) {
    table.problem("phases", "needs at least one { kind, lasts }");
  }
  const bool works = work.kind != WorkloadKind::Idle;
  // A wrong workload has been reported; what it would have used cannot be known.
  if (table.has("workload") && !table.text("workload")) return work;
  check_used(table, "phases", phases, "the workload 'phases'");
  check_used(table, "burst", bursty, "the workload 'bursty'");
  check_used(table, "gap", bursty, "the workload 'bursty'");
  // Phases begin anew, so that no burst of theirs would be due.
  check_used(table, "every", work.kind == WorkloadKind::Bursty, "the workload 'bursty'");
  if (table.has("every") && table.has("gap")) table.problem("gap", "is not used with 'every'");
  check_used(table, "kernel", works, "workloads that use the GPU");
  check_used(table, "total", works, "workloads that use the GPU");
  return work;
}

std::string read_name(TableReader& table, const char* missing) {
  const auto name = table.text("name");
  if (name) {
    check_name(table, *name);
  } else if (!table.has("name")) {
    table.missing("name", missing);
  }
  return name.value_or("");
}

}  // namespace

TenantSpec read_tenant(TableReader& table) {
  TenantSpec tenant;
  tenant.name = read_name(table, "each tenant needs one");
  read_limits(table, tenant.limits);
  tenant.part_of = table.text("part_of");
  tenant.changes = read_changes(table, tenant.limits, std::nullopt);
  return tenant;
}

ClientSpec read_client(TableReader& table) {
  ClientSpec client;
  client.name = read_name(table, "each client needs one");
  read_limits(table, client.limits);
  client.part_of = table.text("part_of");
  client.processes = static_cast<int>(table.integer("processes", 1, kMostProcesses).value_or(1));
  client.arrives = table.duration("arrives", Duration{0}, kLongestTime).value_or(Duration{0});
  client.leaves = table.duration("leaves", Duration{0}, kLongestTime);
  if (client.leaves && *client.leaves <= client.arrives) {
    table.problem("leaves", fmt::format("{} is not later than it arrives ({})",
                                        to_text(*client.leaves), to_text(client.arrives)));
  }
  client.memory = read_memory(table);
  client.changes = read_changes(table, client.limits, client.leaves);
  client.work = read_workload(table);
  return client;
}

}  // namespace nvshare::sim
