#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands/doctor.h"
#include "cli/show/table.h"

namespace nvshare::cli {
namespace {

std::string_view name_of(Level level) {
  switch (level) {
    case Level::Good:
      return "ok";
    case Level::Warning:
      return "warning";
    case Level::Problem:
      return "problem";
  }
  return "";
}

std::string_view look_of(Level level) {
  if (level == Level::Good) return kGreen;
  return level == Level::Warning ? kYellow : kRed;
}

long count(const std::vector<Finding>& findings, Level level) {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const Finding& one) { return one.level == level; });
}

}  // namespace

bool has_problem(const std::vector<Finding>& findings) {
  return count(findings, Level::Problem) > 0;
}

std::string findings_text(const std::vector<Finding>& findings, bool colour) {
  std::string text;
  for (const Finding& one : findings) {
    const std::string name = fmt::format("{:<8}", name_of(one.level));
    text += colour ? fmt::format("{}{}{}", look_of(one.level), name, kPlain) : name;
    text += short_text(one.what, 1000);
    if (!one.advice.empty()) text += ": " + short_text(one.advice, 1000);
    text += "\n";
  }
  const long problems = count(findings, Level::Problem);
  const long warnings = count(findings, Level::Warning);
  if (problems + warnings == 0) return text + "\nall is well\n";
  return text + fmt::format("\n{} problem{}, {} warning{}\n", problems, problems == 1 ? "" : "s",
                            warnings, warnings == 1 ? "" : "s");
}

std::string findings_json(const std::vector<Finding>& findings) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Finding& one : findings) {
    list.push_back({{"level", name_of(one.level)}, {"what", one.what}, {"advice", one.advice}});
  }
  const Json all{{"healthy", !has_problem(findings)}, {"findings", list}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string write_probe(const Probe& probe) {
  const nlohmann::json line{{"library", probe.library_version},
                            {"failed", probe.failed},
                            {"error", probe.error},
                            {"driver", probe.driver_version},
                            {"devices", probe.devices}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<Probe> read_probe(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  const auto has = [&](const char* key, bool text) {
    return json.is_object() && json.contains(key) &&
           (text ? json[key].is_string() : json[key].is_number_integer());
  };
  if (!has("library", true) || !has("failed", true) || !has("error", false) ||
      !has("driver", false) || !has("devices", false)) {
    return Error{"it does not make sense"};
  }
  return Probe{json["library"].get<std::string>(), json["failed"].get<std::string>(),
               json["error"].get<int>(), json["driver"].get<int>(), json["devices"].get<int>()};
}

}  // namespace nvshare::cli
