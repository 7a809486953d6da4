#include "softgpu/smi/render.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace nvshare::smi {
namespace {

constexpr int kLeft = 41;
constexpr int kMiddle = 24;
constexpr int kRight = 22;
constexpr int kWhole = kLeft + kMiddle + kRight + 2;

std::string rule(char fill, char edge) {
  const auto part = [&](int width) { return std::string(static_cast<std::size_t>(width), fill); };
  return edge + part(kLeft) + '+' + part(kMiddle) + '+' + part(kRight) + edge + '\n';
}

std::string whole_rule(char fill, char edge) {
  return edge + std::string(kWhole, fill) + edge + '\n';
}

std::string row(const std::string& left, const std::string& middle, const std::string& right) {
  return fmt::format("|{:<{}}|{:<{}}|{:<{}}|\n", left, kLeft, middle, kMiddle, right, kRight);
}

std::string whole_row(const std::string& text) {
  return fmt::format("|{:<{}}|\n", text, kWhole);
}

// Cut to the width: names at their end, paths at their beginning.
std::string head_of(const std::string& text, std::size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 3) + "...";
}
std::string tail_of(const std::string& text, std::size_t width) {
  return text.size() <= width ? text : "..." + text.substr(text.size() - (width - 3));
}

template <typename Number>
std::string with_unit(const std::optional<Number>& value, const char* unit) {
  return value ? fmt::format("{}{}", *value, unit) : "N/A";
}

std::string mebibytes(const std::optional<std::uint64_t>& bytes) {
  return bytes ? fmt::format("{}MiB", *bytes >> 20) : "N/A";
}

std::string watts(const std::optional<unsigned>& milliwatts) {
  return milliwatts ? fmt::format("{}W", (*milliwatts + 500) / 1000) : "N/A";
}

std::string on_or_off(const std::optional<unsigned>& value) {
  return value ? (*value != 0 ? "On" : "Off") : "N/A";
}

std::string compute_mode(const std::optional<unsigned>& mode) {
  static constexpr const char* kNames[] = {"Default", "E. Thread", "Prohibited", "E. Process"};
  return mode && *mode < std::size(kNames) ? kNames[*mode] : "N/A";
}

std::string device_rows(const DeviceLine& device) {
  if (device.trouble) {
    return row(fmt::format("{:>4}  {}", device.index, head_of(*device.trouble, 33)), "", "");
  }
  const std::string state =
      device.performance_state ? fmt::format("P{}", *device.performance_state) : "N/A";
  return row(fmt::format("{:>4}  {:<27} {:>5}  ", device.index, head_of(device.name, 27),
                         on_or_off(device.persistence)),
             fmt::format("{:>19} {:>3} ", device.bus_id, on_or_off(device.display_active)),
             fmt::format("{:>21} ", "N/A")) +
         row(fmt::format("{:>4}  {:>4}  {:>4}  {:>22} ", with_unit(device.fan, "%"),
                         with_unit(device.temperature, "C"), state,
                         watts(device.power) + " / " + watts(device.power_limit)),
             fmt::format("{:>23} ", fmt::format("{} / {:>9}", mebibytes(device.memory_used),
                                                mebibytes(device.memory_total))),
             fmt::format("{:>8} {:>12} ", with_unit(device.busy, "%"),
                         compute_mode(device.compute_mode))) +
         row("", "",
             fmt::format("{:>21} ",
                         device.mig ? (*device.mig != 0 ? "Enabled" : "Disabled") : "N/A"));
}

std::string process_rows(const Snapshot& snapshot) {
  std::string rows;
  for (const DeviceLine& device : snapshot.devices) {
    for (const ProcessLine& process : device.processes) {
      rows += whole_row(fmt::format("{:>5}   N/A  N/A {:>15} {:>6}   {:<35} {:>10} ", device.index,
                                    process.pid, "C", tail_of(process.name, 35),
                                    mebibytes(process.memory)));
    }
  }
  return rows.empty() ? whole_row("  No running processes found") : rows;
}

template <typename Value>
nlohmann::ordered_json or_null(const std::optional<Value>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

nlohmann::ordered_json device_json(const DeviceLine& device) {
  nlohmann::ordered_json out{{"index", device.index}};
  if (device.trouble) {
    out["error"] = *device.trouble;
    return out;
  }
  out["name"] = device.name;
  out["uuid"] = device.uuid;
  out["pci_bus_id"] = device.bus_id;
  out["compute_capability"] = or_null(device.compute_capability);
  out["memory"] = {{"total_bytes", or_null(device.memory_total)},
                   {"used_bytes", or_null(device.memory_used)},
                   {"free_bytes", or_null(device.memory_free)}};
  out["utilization"] = {{"gpu_percent", or_null(device.busy)},
                        {"memory_percent", or_null(device.copies)}};
  out["temperature_celsius"] = or_null(device.temperature);
  out["power_milliwatts"] = or_null(device.power);
  out["processes"] = nlohmann::ordered_json::array();
  for (const ProcessLine& process : device.processes) {
    out["processes"].push_back(
        {{"pid", process.pid}, {"name", process.name}, {"used_bytes", or_null(process.memory)}});
  }
  return out;
}

}  // namespace

std::string table(const Snapshot& snapshot, const std::string& version) {
  tm local{};
  localtime_r(&snapshot.taken.tv_sec, &local);
  char date[64];
  strftime(date, sizeof date, "%a %b %e %H:%M:%S %Y", &local);
  std::string out = std::string(date) + "\n" + whole_rule('-', '+');
  out += whole_row(fmt::format(" {:<33} Driver Version: {:<14} CUDA Version: {:<8} ",
                               "SOFTGPU-SMI " + version, snapshot.driver_version,
                               snapshot.cuda_version));
  out += rule('-', '+');
  out += row(" GPU  Name                 Persistence-M ", " Bus-Id          Disp.A ",
             " Volatile Uncorr. ECC ");
  out += row(" Fan  Temp   Perf          Pwr:Usage/Cap ", "           Memory-Usage ",
             " GPU-Util  Compute M. ");
  out += row("", "", "               MIG M. ");
  out += rule('=', '|');
  for (const DeviceLine& device : snapshot.devices) out += device_rows(device) + rule('-', '+');
  out += "\n" + whole_rule('-', '+');
  out += whole_row(" Processes:");
  out += whole_row(
      "  GPU   GI   CI              PID   Type   Process name                        GPU Memory ");
  out += whole_row(
      "        ID   ID                                                               Usage      ");
  out += whole_rule('=', '|') + process_rows(snapshot) + whole_rule('-', '+');
  return out;
}

std::string list(const Snapshot& snapshot) {
  std::string out;
  for (const DeviceLine& device : snapshot.devices) {
    out += device.trouble
               ? fmt::format("GPU {}: {}\n", device.index, *device.trouble)
               : fmt::format("GPU {}: {} (UUID: {})\n", device.index, device.name, device.uuid);
  }
  return out;
}

std::string json(const Snapshot& snapshot) {
  nlohmann::ordered_json out{{"driver_version", snapshot.driver_version},
                             {"cuda_version", snapshot.cuda_version},
                             {"devices", nlohmann::ordered_json::array()}};
  for (const DeviceLine& device : snapshot.devices) out["devices"].push_back(device_json(device));
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace nvshare::smi
