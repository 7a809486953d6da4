#include <nlohmann/json.hpp>

#include "sim/render.h"

namespace nvshare::sim {
namespace {

using Json = nlohmann::ordered_json;

double in_ms(Duration time) {
  return static_cast<double>(time.count()) / 1e6;
}

Json in_ms(const std::optional<Time>& time) {
  return time ? Json(in_ms(time->time_since_epoch())) : Json(nullptr);
}

Json client_json(const Scenario& scenario, const ClientReport& client) {
  const auto place = static_cast<std::size_t>(client.tenant);
  const bool known = place < scenario.clients.size();
  return {
      {"name", client.name},
      {"tenant", known ? Json(scenario.clients[place].name) : Json(nullptr)},
      {"gpu", client.gpu},
      {"asked_percent", known ? Json(scenario.clients[place].limits.core_percent) : Json(nullptr)},
      {"share_percent", client.share_percent},
      {"run_ms", in_ms(client.run)},
      {"gpu_ms", in_ms(client.gpu_time)},
      {"wait_ms", in_ms(client.wait)},
      {"longest_wait_ms", in_ms(client.longest_wait)},
      {"first_throttle_ms", in_ms(client.first_throttle)},
      {"finished_ms", in_ms(client.finished)},
      {"moved_in_bytes", client.moved_in.count},
      {"moved_out_bytes", client.moved_out.count},
      {"switches", client.switches}};
}

Json service_json(const ServiceReport& service) {
  return {{"name", service.name},
          {"class", service.task_class},
          {"requests", service.requests},
          {"acquired", service.acquired},
          {"timed_out", service.timed_out},
          {"skipped", service.skipped},
          {"queue_full", service.queue_full},
          {"revoked", service.revoked},
          {"asked_again", service.asked_again},
          {"fell_back", service.fell_back},
          {"given_up", service.given_up},
          {"wait_p50_ms", in_ms(service.wait_p50)},
          {"wait_p99_ms", in_ms(service.wait_p99)},
          {"longest_wait_ms", in_ms(service.wait_max)}};
}

// Nothing changes in a report without services.
void put_services(Json& json, const Report& report) {
  if (report.services.empty()) return;
  json["services"] = Json::array();
  for (const ServiceReport& service : report.services) {
    json["services"].push_back(service_json(service));
  }
  for (std::size_t i = 0; i < report.gpus.size(); ++i) {
    const PressureReport& pressure = report.gpus[i].pressure;
    json["gpus"][i]["high_pressure_ms"] = in_ms(pressure.high);
    json["gpus"][i]["times_high_pressure"] = pressure.times_high;
    json["gpus"][i]["raised_marks_ms"] = in_ms(pressure.raised);
    json["gpus"][i]["unknown_usage_ms"] = in_ms(pressure.unknown);
  }
}

void put_report(Json& json, const Scenario& scenario, const Report& report) {
  json["policy"] = core::name_of(report.policy);
  json["lasted_ms"] = in_ms(report.lasted);
  json["utilization_percent"] =
      report.gpus.empty() ? Json(nullptr) : Json(report.gpus.front().utilization_percent);
  json["events"] = report.events;
  json["clients"] = Json::array();
  for (const ClientReport& client : report.clients) {
    json["clients"].push_back(client_json(scenario, client));
  }
  json["gpus"] = Json::array();
  for (const GpuReport& gpu : report.gpus) {
    json["gpus"].push_back({{"memory_bytes", gpu.memory.count},
                            {"utilization_percent", gpu.utilization_percent},
                            {"highest_resident_bytes", gpu.highest_resident.count},
                            {"highest_swapped_bytes", gpu.highest_swapped.count}});
  }
  put_services(json, report);
}

}  // namespace

std::string to_json(const Scenario& scenario, const std::vector<Report>& reports) {
  Json json;
  json["scenario"] = scenario.name;
  if (reports.size() == 1) {
    put_report(json, scenario, reports.front());
  } else {
    json["policies"] = Json::object();
    for (const Report& report : reports) {
      put_report(json["policies"][std::string(core::name_of(report.policy))], scenario, report);
    }
  }
  // A name that came from a file's path may be no UTF-8; that must not end the program.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace nvshare::sim
