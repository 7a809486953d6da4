#include "cli/show/answers.h"

#include <nlohmann/json.hpp>

#include "cli/show/fields.h"

namespace nvshare::cli {
namespace {

using namespace fields;

Bytes bytes(const Json& object, const char* key) {
  return Bytes{integer(find(object, key))};
}

std::optional<Bytes> some_bytes(const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return Bytes{integer(value)};
}

Duration time(const Json& object, const char* key) {
  return Duration{integer(find(object, key))};
}

ArenaInfo arena_of(const Json& json) {
  return {bytes(json, "arena_needed"), bytes(json, "arena_used"), bytes(json, "arena_limit"),
          text(json, "arena_limited_by")};
}

SchedulerInfo scheduler_of(const Json& json) {
  return {text(json, "version"),        whole(json, "pid"),   time(json, "uptime"),
          flag(json, "private", false), text(json, "policy"), flag(json, "scheduling", true),
          text(json, "run_directory"),  arena_of(json)};
}

std::optional<GpuLeasesInfo> gpu_leases_of(const Json& json) {
  const Json* leases = find(json, "leases");
  if (leases == nullptr || !leases->is_object()) return std::nullopt;
  return GpuLeasesInfo{text(*leases, "state"),
                       number(*leases, "usage"),
                       number(*leases, "high_water").value_or(0),
                       number(*leases, "low_water").value_or(0),
                       whole(*leases, "active"),
                       whole(*leases, "slots"),
                       whole(*leases, "waiting")};
}

GpuInfo gpu_of(const Json& json) {
  return {whole(json, "index"),
          text(json, "uuid"),
          text(json, "name"),
          bytes(json, "memory"),
          some_bytes(json, "memory_used"),
          number(json, "utilisation"),
          whole(json, "clients"),
          whole(json, "running"),
          bytes(json, "swapped"),
          bytes(json, "incoming"),
          bytes(json, "outgoing"),
          gpu_leases_of(json)};
}

ProcessInfo process_of(const Json& json) {
  return {whole(json, "pid"),      text(json, "program"),    whole(json, "gpu"),
          text(json, "state"),     bytes(json, "allocated"), bytes(json, "resident"),
          time(json, "used"),      time(json, "held"),       whole(json, "holds"),
          bytes(json, "swapped"),  bytes(json, "pinned"),    bytes(json, "incoming"),
          bytes(json, "outgoing"), bytes(json, "beyond")};
}

MovesInfo moves_of(const Json& json) {
  const Json* moves = find(json, "moves");
  if (moves == nullptr) return {};
  return {bytes(*moves, "out"), bytes(*moves, "in"), bytes(*moves, "copied")};
}

// Of a tenant; a scheduler before tenants had parts tells it of processes alone.
Bytes sum_of(const Json& json, const char* key, const std::vector<ProcessInfo>& processes,
             Bytes ProcessInfo::*what) {
  if (const auto told = some_bytes(json, key)) return *told;
  Bytes sum;
  for (const ProcessInfo& one : processes) sum += one.*what;
  return sum;
}

TenantInfo tenant_of(const Json& json) {
  TenantInfo tenant;
  tenant.name = text(json, "name");
  tenant.kind = text(json, "kind");
  tenant.parent = text(json, "parent");
  if (find(json, "cores") != nullptr) tenant.cores = static_cast<int>(whole(json, "cores"));
  tenant.memory = some_bytes(json, "memory");
  tenant.priority = static_cast<int>(whole(json, "priority"));
  tenant.lent = some_whole(json, "lent");
  tenant.paused = flag(json, "paused", false);
  tenant.asleep = flag(json, "asleep", false);
  tenant.hold = flag(json, "hold", false);
  tenant.to_leave = bytes(json, "to_leave");
  tenant.share = number(json, "share");
  tenant.used = time(json, "used");
  tenant.resident = bytes(json, "resident");
  tenant.pinned = bytes(json, "pinned");
  tenant.moves = moves_of(json);
  if (const Json* placed = find(json, "placed")) {
    tenant.placed = list<long>(*placed, "gpus",
                               [](const Json& gpu) { return static_cast<long>(integer(&gpu)); });
    tenant.placed_why = text(*placed, "text");
  }
  tenant.processes = list(json, "processes", process_of);
  tenant.fullest = some_bytes(json, "fullest");
  tenant.swapped = sum_of(json, "swapped", tenant.processes, &ProcessInfo::swapped);
  tenant.beyond = sum_of(json, "beyond", tenant.processes, &ProcessInfo::beyond);
  tenant.incoming = sum_of(json, "incoming", tenant.processes, &ProcessInfo::incoming);
  tenant.outgoing = sum_of(json, "outgoing", tenant.processes, &ProcessInfo::outgoing);
  return tenant;
}

ForeignInfo foreign_of(const Json& json) {
  return {whole(json, "pid"), whole(json, "gpu"), some_bytes(json, "memory"),
          text(json, "program")};
}

WhyProcess why_of(const Json& json) {
  return {text(json, "tenant"), whole(json, "pid"), whole(json, "gpu"), text(json, "program"),
          text(json, "text")};
}

WhyLease why_lease_of(const Json& json) {
  return {text(json, "lease"), text(json, "tenant"),        text(json, "class"),
          whole(json, "gpu"),  flag(json, "active", false), some_whole(json, "pid"),
          text(json, "text")};
}

LimitsInfo limits_of(const Json& limits, const Json& from) {
  LimitsInfo info;
  if (find(limits, "cores") != nullptr) info.cores = static_cast<int>(whole(limits, "cores"));
  info.memory = some_bytes(limits, "memory");
  info.priority = static_cast<int>(whole(limits, "priority"));
  info.cores_from = text(from, "cores");
  info.memory_from = text(from, "memory");
  info.priority_from = text(from, "priority");
  return info;
}

SettingInfo setting_of(const Json& json) {
  return {text(json, "name"),  text(json, "value"), text(json, "default"),
          text(json, "range"), text(json, "help"),  flag(json, "changeable", true)};
}

}  // namespace

Result<Status> read_status(const std::string& json) {
  const auto answer = answer_with(json, "tenants");
  if (!answer) return answer.error();
  Status status;
  if (const Json* scheduler = find(*answer, "scheduler")) {
    status.scheduler = scheduler_of(*scheduler);
  }
  status.gpus = list(*answer, "gpus", gpu_of);
  status.tenants = list(*answer, "tenants", tenant_of);
  status.foreign = list(*answer, "foreign", foreign_of);
  status.declared = list<std::string>(*answer, "declared", text_of);
  return status;
}

Result<TenantInfo> read_tenant(const std::string& json) {
  const auto answer = answer_with(json, "tenant");
  if (!answer) return answer.error();
  return tenant_of(*find(*answer, "tenant"));
}

bool read_changed(const std::string& json) {
  return flag(Json::parse(json, nullptr, false), "changed", true);
}

bool read_kept(const std::string& json) {
  return flag(Json::parse(json, nullptr, false), "kept", true);
}

Result<WhyInfo> read_why(const std::string& json) {
  const auto answer = answer_with(json, "processes");
  if (!answer) return answer.error();
  WhyInfo why;
  why.processes = list(*answer, "processes", why_of);
  why.leases = list(*answer, "leases", why_lease_of);
  why.leases_total = whole(*answer, "leases_total");
  why.declared = flag(*answer, "declared", false);
  if (const long expires = whole(*answer, "expires"); expires > 0) why.expires = expires;
  if (const Json* placed = find(*answer, "placed")) why.placed = text(*placed, "text");
  const Json* limits = find(*answer, "limits");
  const Json* from = find(*answer, "limits_from");
  if (limits != nullptr && limits->is_object() && from != nullptr && from->is_object()) {
    why.limits = limits_of(*limits, *from);
  }
  const Json* arena = find(*answer, "host_memory");
  if (arena != nullptr && arena->is_object()) why.arena = arena_of(*arena);
  return why;
}

Result<TracePart> read_trace(const std::string& json) {
  const auto answer = answer_with(json, "lines");
  if (!answer) return answer.error();
  TracePart part;
  part.lines = list<std::string>(*answer, "lines", text_of);
  part.next = whole(*answer, "next");
  part.end = whole(*answer, "end");
  part.lost = whole(*answer, "lost");
  return part;
}

Result<std::vector<SettingInfo>> read_settings(const std::string& json) {
  const auto answer = answer_with(json, "settings");
  if (!answer) return answer.error();
  return list(*answer, "settings", setting_of);
}

std::string bare_answer(const std::string& json, bool one_line) {
  Json answer = Json::parse(json, nullptr, false);
  if (answer.is_object()) answer.erase("ok");
  return answer.dump(one_line ? -1 : 2, ' ', false, Json::error_handler_t::replace);
}

std::string status_request() {
  return line({{"op", "status"}});
}

std::string why_request(const std::string& name) {
  return line({{"op", "why"}, {"name", name}});
}

std::string trace_request(const std::string& name, std::optional<long> from) {
  Json request{{"op", "trace"}};
  if (!name.empty()) request["name"] = name;
  if (from) request["from"] = *from;
  return line(request);
}

std::string limit_request(const std::string& name, const LimitWish& wish) {
  Json request{{"op", "limit"}, {"name", name}};
  if (wish.cores) request["cores"] = *wish.cores;
  if (wish.memory) request["memory"] = wish.memory->count;
  if (wish.lift_memory) request["memory"] = nullptr;
  if (wish.priority) request["priority"] = *wish.priority;
  return line(request);
}

std::string reset_request(const std::string& name) {
  return line({{"op", "limit"}, {"name", name}, {"reset", true}});
}

std::string pause_request(const std::string& name, bool paused) {
  return line({{"op", "pause"}, {"name", name}, {"paused", paused}});
}

std::string sleep_request(const std::string& name, bool hold) {
  return line({{"op", "sleep"}, {"name", name}, {"hold", hold}});
}

std::string wake_request(const std::string& name) {
  return line({{"op", "wake"}, {"name", name}});
}

std::string config_request() {
  return line({{"op", "config"}});
}

std::string set_request(const std::string& key, const std::string& value) {
  return line({{"op", "set"}, {"name", key}, {"value", value}});
}

std::string scheduling_request(bool on) {
  return line({{"op", "scheduling"}, {"on", on}});
}

}  // namespace nvshare::cli
