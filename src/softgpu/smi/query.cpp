#include "softgpu/smi/query.h"

#include <fmt/format.h>

#include <algorithm>

namespace nvshare::smi {
namespace {

using Value = std::optional<std::string>;

Value text(const std::string& value) {
  return value.empty() ? Value() : Value(value);
}

template <typename Number>
Value plain(const std::optional<Number>& value) {
  return value ? Value(std::to_string(*value)) : Value();
}

Value mebibytes(const std::optional<std::uint64_t>& bytes) {
  return bytes ? Value(std::to_string(*bytes >> 20)) : Value();
}

Value watts(const std::optional<unsigned>& milliwatts) {
  return milliwatts ? Value(fmt::format("{:.2f}", *milliwatts / 1000.0)) : Value();
}

Value on_or_off(const std::optional<unsigned>& value) {
  return value ? Value(*value != 0 ? "Enabled" : "Disabled") : Value();
}

Value compute_mode(const std::optional<unsigned>& mode) {
  static constexpr const char* kNames[] = {"Default", "Exclusive_Thread", "Prohibited",
                                           "Exclusive_Process"};
  return mode && *mode < std::size(kNames) ? Value(kNames[*mode]) : Value();
}

Value timestamp(const Snapshot& snapshot) {
  tm local{};
  localtime_r(&snapshot.taken.tv_sec, &local);
  char day[32];
  strftime(day, sizeof day, "%Y/%m/%d %H:%M:%S", &local);
  return fmt::format("{}.{:03}", day, snapshot.taken.tv_nsec / 1'000'000);
}

using S = const Snapshot&;
using D = const DeviceLine&;
using P = const ProcessLine&;

template <typename Field>
const Field* find(const std::vector<Field>& fields, std::string_view name) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const Field& field) {
    return field.name == name || (!field.alias.empty() && field.alias == name);
  });
  return found == fields.end() ? nullptr : &*found;
}

template <typename Field>
std::string header_line(const std::vector<const Field*>& columns) {
  std::string line;
  for (const Field* column : columns) {
    if (!line.empty()) line += ", ";
    line += column->name;
    if (!column->unit.empty()) line += fmt::format(" [{}]", column->unit);
  }
  return line + "\n";
}

std::string cell(const Value& value, std::string_view unit, bool units) {
  if (!value) return "[N/A]";
  return units && !unit.empty() ? fmt::format("{} {}", *value, unit) : *value;
}

}  // namespace

const std::vector<DeviceField>& device_fields() {
  static const std::vector<DeviceField> all{
      {"timestamp", "", "", [](S s, D) { return timestamp(s); }},
      {"driver_version", "", "", [](S s, D) { return text(s.driver_version); }},
      {"count", "", "", [](S s, D) -> Value { return std::to_string(s.devices.size()); }},
      {"index", "", "", [](S, D d) -> Value { return std::to_string(d.index); }},
      {"name", "gpu_name", "", [](S, D d) { return text(d.name); }},
      {"uuid", "gpu_uuid", "", [](S, D d) { return text(d.uuid); }},
      {"pci.bus_id", "gpu_bus_id", "", [](S, D d) { return text(d.bus_id); }},
      {"memory.total", "", "MiB", [](S, D d) { return mebibytes(d.memory_total); }},
      {"memory.reserved", "", "MiB", [](S, D d) { return mebibytes(d.memory_reserved); }},
      {"memory.used", "", "MiB", [](S, D d) { return mebibytes(d.memory_used); }},
      {"memory.free", "", "MiB", [](S, D d) { return mebibytes(d.memory_free); }},
      {"utilization.gpu", "", "%", [](S, D d) { return plain(d.busy); }},
      {"utilization.memory", "", "%", [](S, D d) { return plain(d.copies); }},
      {"temperature.gpu", "", "", [](S, D d) { return plain(d.temperature); }},
      {"fan.speed", "", "%", [](S, D d) { return plain(d.fan); }},
      {"power.draw", "", "W", [](S, D d) { return watts(d.power); }},
      {"power.limit", "enforced.power.limit", "W", [](S, D d) { return watts(d.power_limit); }},
      {"clocks.current.sm", "clocks.sm", "MHz", [](S, D d) { return plain(d.sm_clock); }},
      {"clocks.current.memory", "clocks.mem", "MHz", [](S, D d) { return plain(d.memory_clock); }},
      {"clocks.max.sm", "", "MHz", [](S, D d) { return plain(d.sm_clock_limit); }},
      {"clocks.max.memory", "clocks.max.mem", "MHz",
       [](S, D d) { return plain(d.memory_clock_limit); }},
      {"pstate", "", "",
       [](S, D d) {
         return d.performance_state ? Value(fmt::format("P{}", *d.performance_state)) : Value();
       }},
      {"pcie.link.gen.current", "", "", [](S, D d) { return plain(d.link_generation); }},
      {"pcie.link.width.current", "", "", [](S, D d) { return plain(d.link_width); }},
      {"compute_cap", "", "", [](S, D d) { return d.compute_capability; }},
      {"compute_mode", "", "", [](S, D d) { return compute_mode(d.compute_mode); }},
      {"persistence_mode", "", "", [](S, D d) { return on_or_off(d.persistence); }},
      {"display_active", "", "", [](S, D d) { return on_or_off(d.display_active); }},
      {"ecc.mode.current", "", "", [](S, D d) { return on_or_off(d.ecc); }},
      {"mig.mode.current", "", "", [](S, D d) { return on_or_off(d.mig); }},
  };
  return all;
}

const std::vector<ProcessField>& process_fields() {
  static const std::vector<ProcessField> all{
      {"timestamp", "", "", [](S s, D, P) { return timestamp(s); }},
      {"gpu_name", "", "", [](S, D d, P) { return text(d.name); }},
      {"gpu_uuid", "", "", [](S, D d, P) { return text(d.uuid); }},
      {"gpu_bus_id", "", "", [](S, D d, P) { return text(d.bus_id); }},
      {"pid", "", "", [](S, D, P p) -> Value { return std::to_string(p.pid); }},
      {"process_name", "name", "", [](S, D, P p) { return text(p.name); }},
      {"used_gpu_memory", "used_memory", "MiB", [](S, D, P p) { return mebibytes(p.memory); }},
  };
  return all;
}

const DeviceField* find_device_field(std::string_view name) {
  return find(device_fields(), name);
}

const ProcessField* find_process_field(std::string_view name) {
  return find(process_fields(), name);
}

std::string device_csv(const Snapshot& snapshot, const std::vector<std::string>& fields,
                       bool header, bool units) {
  std::vector<const DeviceField*> columns;
  for (const std::string& field : fields) columns.push_back(find_device_field(field));
  std::string out = header ? header_line(columns) : "";
  for (const DeviceLine& device : snapshot.devices) {
    std::string line;
    for (const DeviceField* column : columns) {
      if (!line.empty()) line += ", ";
      line += cell(column->value(snapshot, device), column->unit, units);
    }
    out += line + "\n";
  }
  return out;
}

std::string process_csv(const Snapshot& snapshot, const std::vector<std::string>& fields,
                        bool header, bool units) {
  std::vector<const ProcessField*> columns;
  for (const std::string& field : fields) columns.push_back(find_process_field(field));
  std::string out = header ? header_line(columns) : "";
  for (const DeviceLine& device : snapshot.devices) {
    for (const ProcessLine& process : device.processes) {
      std::string line;
      for (const ProcessField* column : columns) {
        if (!line.empty()) line += ", ";
        line += cell(column->value(snapshot, device, process), column->unit, units);
      }
      out += line + "\n";
    }
  }
  return out;
}

}  // namespace nvshare::smi
