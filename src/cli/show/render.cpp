#include "cli/show/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/show/table.h"

namespace nvshare::cli {
namespace {

constexpr std::size_t kNameWidth = 28;
constexpr std::size_t kProgramWidth = 20;

std::string percent(std::optional<double> value) {
  return value ? fmt::format("{:.1f}%", *value) : "-";
}

// Hours and days, too, for a scheduler runs long.
std::string long_time(Duration time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count();
  if (seconds < 60) return fmt::format("{}s", seconds);
  if (seconds < 3600) return fmt::format("{}min", seconds / 60);
  if (seconds < 86400) return fmt::format("{}h{:02}min", seconds / 3600, seconds / 60 % 60);
  return fmt::format("{}d{:02}h", seconds / 86400, seconds / 3600 % 24);
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

std::string tenants_text(const std::vector<TenantInfo>& tenants, bool colour) {
  if (tenants.empty()) return "no program runs under nvshare\n";
  std::vector<std::vector<Cell>> rows;
  for (const TenantInfo& tenant : tenants) {
    rows.push_back(
        {short_text(tenant.name, kNameWidth),
         tenant.cores < 100 ? fmt::format("{}%", tenant.cores) : "-", percent(tenant.share),
         of_limit(sum_of(tenant, &ProcessInfo::allocated), tenant.memory),
         some_or_none(sum_of(tenant, &ProcessInfo::swapped)), fmt::format("{}", tenant.priority),
         state_cell(state_of(tenant)), fmt::format("{}", tenant.processes.size())});
  }
  return table_text({{"NAME"},
                     {"CORES", true},
                     {"GETS", true},
                     {"MEMORY", true},
                     {"SWAPPED", true},
                     {"PRIORITY", true},
                     {"STATE"},
                     {"PROCESSES", true}},
                    rows, colour);
}

// What sleepers keep although it could move, one line each.
std::string kept_text(const std::vector<TenantInfo>& tenants) {
  std::string text;
  for (const TenantInfo& tenant : tenants) {
    const Bytes kept = tenant.resident - tenant.pinned - tenant.to_leave;
    if (!tenant.asleep || kept.count <= 0) continue;
    text += fmt::format("{} sleeps, and {} of it stay on the GPU: the host has no place for them\n",
                        short_text(tenant.name, kNameWidth), to_text(kept));
  }
  return text;
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
  std::string text = scheduler_line(status.scheduler) + "\n" + gpus_text(status.gpus, colour);
  if (arena.needed.count > 0 || arena.used.count > 0) text += arena_line(arena);
  text += "\n" + tenants_text(status.tenants, colour) + kept_text(status.tenants);
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

std::string why_text(const std::string& name, const WhyInfo& why) {
  if (why.processes.empty()) {
    return fmt::format("{} has no process on a GPU\n", short_text(name, 64));
  }
  std::string text;
  for (const WhyProcess& one : why.processes) {
    text += fmt::format("{} (pid {}) on GPU {}: {}\n", short_text(one.program, kProgramWidth),
                        one.pid, one.gpu, short_text(one.text, 1000));
  }
  return why.arena ? text + arena_line(*why.arena) : text;
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
