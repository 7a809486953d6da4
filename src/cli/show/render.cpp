#include "cli/show/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "cli/show/table.h"

namespace nvshare::cli {
namespace {

constexpr std::size_t kNameWidth = 28;
constexpr std::size_t kProgramWidth = 20;

std::string percent(std::optional<double> value) {
  return value ? fmt::format("{:.1f}%", *value) : "-";
}

std::string size(std::optional<Bytes> bytes) {
  return bytes ? to_text(*bytes) : "-";
}

std::string of_limit(std::optional<Bytes> used, std::optional<Bytes> limit) {
  return fmt::format("{} / {}", size(used), size(limit));
}

Bytes sum_of(const TenantInfo& tenant, Bytes ProcessInfo::*what) {
  Bytes sum;
  for (const ProcessInfo& one : tenant.processes) sum += one.*what;
  return sum;
}

// Most of the time nothing.
std::string some_or_none(Bytes bytes) {
  return bytes.count > 0 ? to_text(bytes) : "-";
}

// Who does not run may be on the way: the GPU then copies, and is not busy for NVML.
std::string state_of(const ProcessInfo& process) {
  if (process.state == "idle" || process.state == "waiting") {
    if (process.outgoing.count > 0) return "moving out";
    if (process.incoming.count > 0) return "moving in";
  }
  return short_text(process.state, kProgramWidth);
}

std::string_view asleep(const TenantInfo& tenant) {
  return tenant.hold ? "held asleep" : "asleep";
}

// A process of a sleeper that is on its way out says so until it has left.
std::string state_of(const TenantInfo& tenant, const ProcessInfo& process) {
  const bool at_rest = process.state == "idle" || process.state == "waiting";
  if (tenant.asleep && at_rest && process.outgoing.count <= 0) return std::string(asleep(tenant));
  return state_of(process);
}

// Of several processes the busiest speaks for the tenant.
std::string state_of(const TenantInfo& tenant) {
  if (tenant.paused) return "paused";
  if (tenant.asleep) {
    for (const ProcessInfo& one : tenant.processes) {
      if (state_of(tenant, one) != asleep(tenant)) return state_of(one);
    }
    return std::string(asleep(tenant));
  }
  if (tenant.processes.empty()) return "-";
  for (const ProcessInfo& one : tenant.processes) {
    if (one.state == "running") return one.state;
  }
  for (const ProcessInfo& one : tenant.processes) {
    if (state_of(one) != "idle") return state_of(one);
  }
  return "idle";
}

Cell state_cell(std::string state) {
  const std::string_view look = state == "running"                ? kGreen
                                : state == "paused"               ? kRed
                                : state == "idle" || state == "-" ? std::string_view()
                                                                  : kYellow;
  return {std::move(state), look};
}

// One line: what is needed, used and possible.
std::string arena_line(const ArenaInfo& arena) {
  std::string text = fmt::format("host memory for swapping: {} needed, {} used, {} possible",
                                 to_text(arena.needed), to_text(arena.used), to_text(arena.limit));
  if (!arena.limited_by.empty()) text += fmt::format(" (limited by {})", limiter(arena));
  if (arena.needed > arena.limit)
    text += fmt::format(", {} short", to_text(arena.needed - arena.limit));
  return text + "\n";
}

std::string scheduler_line(const SchedulerInfo& scheduler) {
  return fmt::format(
      "nvshare-scheduler {} ({}, {}), policy {}, up {}{}\n",
      short_text(scheduler.version, kNameWidth), scheduler.is_private ? "private" : "system",
      short_text(scheduler.run_directory, 100), short_text(scheduler.policy, kNameWidth),
      long_time(scheduler.uptime), scheduler.scheduling ? "" : ", SCHEDULING IS OFF");
}

std::string gpus_text(const std::vector<GpuInfo>& gpus, bool colour) {
  if (gpus.empty()) return "no GPU is known yet\n";
  std::vector<std::vector<Cell>> rows;
  for (const GpuInfo& gpu : gpus) {
    rows.push_back({fmt::format("{}", gpu.index), short_text(gpu.name, kNameWidth),
                    of_limit(gpu.memory_used, gpu.memory), some_or_none(gpu.swapped),
                    some_or_none(gpu.incoming + gpu.outgoing), percent(gpu.utilisation),
                    fmt::format("{}", gpu.clients), fmt::format("{}", gpu.running)});
  }
  return table_text({{"GPU", true},
                     {"MODEL"},
                     {"MEMORY", true},
                     {"SWAPPED", true},
                     {"MOVING", true},
                     {"BUSY", true},
                     {"PROCESSES", true},
                     {"RUNNING", true}},
                    rows, colour);
}

// One line for each GPU, and none where no lease was ever asked for.
std::string leases_lines(const std::vector<GpuInfo>& gpus) {
  std::string text;
  for (const GpuInfo& gpu : gpus) {
    if (!gpu.leases) continue;
    const GpuLeasesInfo& leases = *gpu.leases;
    text += fmt::format("leases on GPU {}: {} / {}, {} waiting, {}, load {} (marks {:g}-{:g}%)\n",
                        gpu.index, leases.active, leases.slots, leases.waiting,
                        short_text(leases.state, kNameWidth), percent(leases.usage), leases.low,
                        leases.high);
  }
  return text;
}

// GPUs of the tenant's processes; before these have come, GPUs that its run was placed on.
// A lease lends a priority where that is the higher one.
std::string priority_text(const TenantInfo& tenant) {
  if (tenant.lent.value_or(tenant.priority) <= tenant.priority) {
    return fmt::format("{}", tenant.priority);
  }
  return fmt::format("{} (lease)", *tenant.lent);
}

std::string gpus_of(const TenantInfo& tenant) {
  std::set<long> gpus;
  for (const ProcessInfo& one : tenant.processes) gpus.insert(one.gpu);
  if (gpus.empty()) gpus.insert(tenant.placed.begin(), tenant.placed.end());
  return gpus.empty() ? "-" : fmt::format("{}", fmt::join(gpus, ","));
}

// A tenant in its place in the tree.
struct Branch {
  TenantInfo tenant;  // with the processes of all its parts
  std::vector<Branch> parts;
  bool has_own = false;  // processes that are in no part
};

Branch branch_of(const TenantInfo& tenant, const std::vector<TenantInfo>& all, int depth = 0) {
  constexpr int kDeepest = 32;  // an answer that goes in a circle ends
  Branch branch{tenant, {}, !tenant.processes.empty()};
  for (const TenantInfo& one : all) {
    if (one.parent.empty() || one.parent != tenant.name || depth == kDeepest) continue;
    branch.parts.push_back(branch_of(one, all, depth + 1));
    const std::vector<ProcessInfo>& below = branch.parts.back().tenant.processes;
    branch.tenant.processes.insert(branch.tenant.processes.end(), below.begin(), below.end());
  }
  return branch;
}

// A tenant that is no run, with nothing to tell: no processes of its own, no limits, plain runs at
// most.
bool is_plain(const Branch& branch, bool is_private) {
  const TenantInfo& tenant = branch.tenant;
  const bool limited = tenant.cores < 100 || tenant.memory ||
                       (tenant.priority != 0 && !(is_private && tenant.priority == 10));
  const bool deep = std::any_of(branch.parts.begin(), branch.parts.end(),
                                [](const Branch& one) { return !one.parts.empty(); });
  constexpr std::array<std::string_view, 4> kAround{"user", "pod", "container", "cgroup"};
  const bool around = std::ranges::find(kAround, tenant.kind) != kAround.end();
  return around && !branch.has_own && !limited && !tenant.paused && !deep;
}

struct Line {
  TenantInfo tenant;
  std::size_t depth = 0;
};

void add_lines(const Branch& branch, std::size_t depth, bool paused, std::vector<Line>& lines) {
  lines.push_back({branch.tenant, depth});
  lines.back().tenant.paused |= paused;
  paused = lines.back().tenant.paused;
  for (const Branch& part : branch.parts) add_lines(part, depth + 1, paused, lines);
}

// Parts follow their parents.
std::vector<Line> lines_of(const Status& status) {
  std::vector<Line> lines;
  for (const TenantInfo& tenant : status.tenants) {
    if (!tenant.parent.empty()) continue;
    const Branch branch = branch_of(tenant, status.tenants);
    if (!is_plain(branch, status.scheduler.is_private)) {
      add_lines(branch, 0, false, lines);
      continue;
    }
    for (const Branch& part : branch.parts) add_lines(part, 0, false, lines);
  }
  return lines;
}

// GPUs are a column where there are several.
std::string tenants_text(const Status& status, bool colour) {
  const bool several_gpus = status.gpus.size() > 1;
  const std::vector<Line> lines = lines_of(status);
  if (lines.empty()) return "no program runs under nvshare\n";
  std::vector<std::vector<Cell>> rows;
  for (const auto& [tenant, depth] : lines) {
    rows.push_back({std::string(2 * depth, ' ') + short_text(tenant.name, kNameWidth),
                    tenant.cores < 100 ? fmt::format("{}%", tenant.cores) : "-",
                    percent(tenant.share),
                    of_limit(sum_of(tenant, &ProcessInfo::allocated), tenant.memory),
                    some_or_none(sum_of(tenant, &ProcessInfo::swapped)), priority_text(tenant),
                    state_cell(state_of(tenant)), fmt::format("{}", tenant.processes.size())});
    if (several_gpus) rows.back().emplace_back(gpus_of(tenant));
  }
  std::vector<Column> columns{{"NAME"},         {"CORES", true},    {"GETS", true},
                              {"MEMORY", true}, {"SWAPPED", true},  {"PRIORITY", true},
                              {"STATE"},        {"PROCESSES", true}};
  if (several_gpus) columns.push_back({"GPU"});
  return table_text(columns, rows, colour);
}

// What sleepers keep although it could move, one line each.
std::string kept_text(const std::vector<TenantInfo>& tenants) {
  std::string text;
  for (const TenantInfo& tenant : tenants) {
    const Bytes kept = tenant.resident - tenant.pinned - tenant.to_leave;
    const bool has_parts = std::any_of(tenants.begin(), tenants.end(), [&](const TenantInfo& one) {
      return one.parent == tenant.name;
    });
    if (!tenant.asleep || has_parts || kept.count <= 0) continue;
    text += fmt::format("{} sleeps, and {} of it stay on the GPU: the host has no place for them\n",
                        short_text(tenant.name, kNameWidth), to_text(kept));
  }
  return text;
}

std::string placed_line(const std::string& name, const std::string& placed) {
  return fmt::format("{} was {}\n", short_text(name, 64), short_text(placed, 1000));
}

// Why runs are on their GPUs, where there are several.
std::string placed_text(const Status& status) {
  constexpr std::size_t kMostLines = 8;
  if (status.gpus.size() < 2) return "";
  std::string text;
  std::size_t lines = 0;
  for (const TenantInfo& tenant : status.tenants) {
    if (!tenant.placed_why.empty() && ++lines <= kMostLines) {
      text += placed_line(tenant.name, tenant.placed_why);
    }
  }
  if (lines > kMostLines) {
    text += fmt::format("{} more were placed: nvshare why NAME\n", lines - kMostLines);
  }
  return text;
}

// One line, however many the file has.
std::string declared_text(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 8;
  if (names.empty()) return "";
  std::vector<std::string> shown;
  for (const std::string& name : names) {
    if (shown.size() < kMostNames) shown.push_back(short_text(name, kNameWidth));
  }
  const std::size_t more = names.size() - shown.size();
  return fmt::format("declared, without a process now: {}{}\n", fmt::join(shown, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

std::string foreign_text(const std::vector<ForeignInfo>& foreign, bool colour) {
  std::vector<std::vector<Cell>> rows;
  for (const ForeignInfo& one : foreign) {
    rows.push_back({fmt::format("{}", one.pid), short_text(one.program, kProgramWidth),
                    fmt::format("{}", one.gpu), size(one.memory)});
  }
  return "not under nvshare:\n" +
         table_text({{"PID", true}, {"PROGRAM"}, {"GPU", true}, {"MEMORY", true}}, rows, colour);
}

}  // namespace

std::string status_text(const Status& status, bool colour) {
  const ArenaInfo& arena = status.scheduler.arena;
  std::string text = scheduler_line(status.scheduler) + "\n" + gpus_text(status.gpus, colour) +
                     leases_lines(status.gpus);
  if (arena.needed.count > 0 || arena.used.count > 0) text += arena_line(arena);
  text += "\n" + tenants_text(status, colour) + placed_text(status) + kept_text(status.tenants) +
          declared_text(status.declared);
  if (!status.foreign.empty()) text += "\n" + foreign_text(status.foreign, colour);
  return text;
}

std::string processes_text(const Status& status, bool colour) {
  std::vector<std::vector<Cell>> rows;
  for (const TenantInfo& tenant : status.tenants) {
    for (const ProcessInfo& one : tenant.processes) {
      rows.push_back({fmt::format("{}", one.pid), short_text(tenant.name, kNameWidth),
                      short_text(one.program, kProgramWidth), fmt::format("{}", one.gpu),
                      state_cell(state_of(tenant, one)), to_text(one.allocated),
                      to_text(one.resident), some_or_none(one.pinned), to_text(one.used),
                      to_text(one.held)});
    }
  }
  if (rows.empty()) return "no program runs under nvshare\n";
  return table_text({{"PID", true},
                     {"NAME"},
                     {"PROGRAM"},
                     {"GPU", true},
                     {"STATE"},
                     {"MEMORY", true},
                     {"ON GPU", true},
                     {"PINNED", true},
                     {"USED", true},
                     {"HELD BACK", true}},
                    rows, colour);
}

// A limit may be below what is in use, on the GPU where most is.
std::string above_limit(const TenantInfo& tenant) {
  std::map<long, Bytes> used;
  for (const ProcessInfo& one : tenant.processes) used[one.gpu] += one.allocated;
  Bytes most{};
  for (const auto& [gpu, bytes] : used) most = std::max(most, bytes);
  most = tenant.fullest.value_or(most);
  if (!tenant.memory || most <= *tenant.memory) return {};
  return fmt::format(" ({} in use: kept, and no more is given)", to_text(most));
}

std::string tenant_line(const TenantInfo& tenant) {
  return fmt::format("{}: cores {}%, memory {}{}, priority {}{}\n", short_text(tenant.name, 64),
                     tenant.cores, tenant.memory ? to_text(*tenant.memory) : "without limit",
                     above_limit(tenant), tenant.priority,
                     tenant.paused   ? ", paused"
                     : tenant.asleep ? fmt::format(", {}", asleep(tenant))
                                     : "");
}

std::string limiter(const ArenaInfo& arena) {
  if (arena.limited_by == "cgroup") return "a cgroup";
  if (arena.limited_by == "machine") return "the machine";
  return short_text(arena.limited_by, kNameWidth);
}

// Where each limit comes from.
std::string limits_line(const LimitsInfo& limits) {
  return fmt::format("limits: cores {}% ({}), memory {} ({}), priority {} ({})\n", limits.cores,
                     short_text(limits.cores_from, kNameWidth),
                     limits.memory ? to_text(*limits.memory) : "without limit",
                     short_text(limits.memory_from, kNameWidth), limits.priority,
                     short_text(limits.priority_from, kNameWidth));
}

std::string leases_text(const std::string& name, const WhyInfo& why) {
  std::string text;
  for (const WhyLease& one : why.leases) {
    const bool of_a_part = !one.tenant.empty() && one.tenant != name;
    text += fmt::format("{} {} of {}{}{} on GPU {}: {}\n", one.active ? "lease" : "request",
                        short_text(one.id, kNameWidth + 4), short_text(one.task_class, kNameWidth),
                        one.pid ? fmt::format(" (pid {})", *one.pid) : "",
                        of_a_part ? " in " + short_text(one.tenant, kNameWidth) : "", one.gpu,
                        short_text(one.text, 1000));
  }
  const long more = why.leases_total - std::ssize(why.leases);
  if (more > 0) text += fmt::format("and {} more: nvshare lease list\n", more);
  return text;
}

std::string why_text(const std::string& name, const WhyInfo& why) {
  const std::string limits = leases_text(name, why) + (why.limits ? limits_line(*why.limits) : "");
  std::string text;
  if (!why.placed.empty()) text = placed_line(name, why.placed);
  if (why.declared) {
    return text + fmt::format("{} is declared, and has no process now\n", short_text(name, 64)) +
           limits +
           (why.expires
                ? fmt::format("forgotten after {} hours without a process\n", *why.expires / 3600)
                : "");
  }
  if (why.processes.empty()) {
    return text + fmt::format("{} has no process on a GPU\n", short_text(name, 64)) + limits;
  }
  for (const WhyProcess& one : why.processes) {
    const bool of_a_part = !one.tenant.empty() && one.tenant != name;
    text += fmt::format("{} (pid {}){} on GPU {}: {}\n", short_text(one.program, kProgramWidth),
                        one.pid, of_a_part ? " in " + short_text(one.tenant, kNameWidth) : "",
                        one.gpu, short_text(one.text, 1000));
  }
  return text + limits + (why.arena ? arena_line(*why.arena) : "");
}

std::string settings_text(const std::vector<SettingInfo>& settings, bool colour) {
  std::vector<std::vector<Cell>> rows;
  for (const SettingInfo& one : settings) {
    const bool changed = one.value != one.default_value;
    rows.push_back({short_text(one.name, kNameWidth),
                    Cell(short_text(one.value, kNameWidth), changed ? kYellow : ""),
                    short_text(one.default_value, kNameWidth), short_text(one.range, 40),
                    short_text(one.help, 80) + (one.changeable ? "" : " (from the start on)")});
  }
  return table_text({{"SETTING"}, {"VALUE"}, {"DEFAULT"}, {"RANGE"}, {"WHAT IT DOES"}}, rows,
                    colour);
}

}  // namespace nvshare::cli
