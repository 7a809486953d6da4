#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "sim/render.h"
#include "sim/timeline.h"

namespace nvshare::sim {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kMostRows = 40;  // of clients; the rest is only counted

// Characters as a terminal shows them, near enough: what is not the continuation of one.
std::size_t columns_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string space(width - std::min(width, columns_of(text)), ' ');
  return left ? text + space : space + text;
}

// Rows of cells under a heading; the first column to the left, numbers to the right.
class Grid {
 public:
  void column(std::string heading) { rows_[0].push_back(std::move(heading)); }
  void row() { rows_.emplace_back(); }
  void cell(std::string text) { rows_.back().push_back(std::move(text)); }

  std::size_t width() const {
    std::size_t all = 0;
    for (std::size_t width : widths()) all += width + 2;
    return all;
  }

  std::string text() const {
    const std::vector<std::size_t> wide = widths();
    std::string text;
    for (const auto& row : rows_) {
      std::string line;
      for (std::size_t i = 0; i < row.size(); ++i) line += "  " + padded(row[i], wide[i], i == 0);
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
    return text;
  }

 private:
  std::vector<std::size_t> widths() const {
    std::vector<std::size_t> wide(rows_[0].size(), 0);
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) wide[i] = std::max(wide[i], columns_of(row[i]));
    }
    return wide;
  }

  std::vector<std::vector<std::string>> rows_{1};
};

std::string wrapped(const std::string& text) {
  std::string out;
  std::size_t used = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (used > 0 && used + 1 + columns_of(word) > kWidth) {
      out += "\n";
      used = 0;
    }
    if (used > 0) out += " ", ++used;
    out += word;
    used += columns_of(word);
    at = end + 1;
  }
  return out;
}

std::string percent(double value) {
  return fmt::format("{:.1f} %", value);
}

std::string asked(const Scenario& scenario, const ClientReport& client) {
  const auto place = static_cast<std::size_t>(client.tenant);
  if (place >= scenario.clients.size()) return "?";
  const int cores = scenario.clients[place].limits.core_percent;
  return cores == core::kNoCoreLimit ? "no limit" : fmt::format("{} %", cores);
}

std::string or_dash(const std::optional<Time>& time, const TimeUnit& unit) {
  return time ? in_unit(time->time_since_epoch(), unit) : "-";
}

Bytes moved(const Report& report) {
  Bytes all;
  for (const ClientReport& client : report.clients) all += client.moved_in + client.moved_out;
  return all;
}

bool any_client(const Report& report, const std::function<bool(const ClientReport&)>& test) {
  return std::any_of(report.clients.begin(), report.clients.end(), test);
}

std::string rows_left_out(std::size_t rows) {
  if (rows <= kMostRows) return "";
  return fmt::format("  and {} more (--format json has all)\n", rows - kMostRows);
}

std::string client_rows(const Scenario& scenario, const Report& report, const TimeUnit& unit) {
  const bool gpus = report.gpus.size() > 1;
  const bool ends = any_client(report, [](const auto& c) { return c.finished.has_value(); });
  const bool moves = moved(report).count > 0;
  Grid grid;
  grid.column("client");
  if (gpus) grid.column("GPU");
  for (const char* heading : {"asked", "share", "run", "gpu", "wait", "longest", "throttled"}) {
    grid.column(heading);
  }
  if (ends) grid.column("finished");
  if (moves) grid.column("moved in");
  if (moves) grid.column("moved out");
  for (std::size_t i = 0; i < std::min(kMostRows, report.clients.size()); ++i) {
    const ClientReport& client = report.clients[i];
    grid.row();
    grid.cell(client.name);
    if (gpus) grid.cell(fmt::format("{}", client.gpu));
    grid.cell(asked(scenario, client));
    grid.cell(percent(client.share_percent));
    for (Duration time : {client.run, client.gpu_time, client.wait, client.longest_wait}) {
      grid.cell(in_unit(time, unit));
    }
    grid.cell(or_dash(client.first_throttle, unit));
    if (ends) grid.cell(or_dash(client.finished, unit));
    if (moves) grid.cell(to_text(client.moved_in));
    if (moves) grid.cell(to_text(client.moved_out));
  }
  return grid.text() + rows_left_out(report.clients.size());
}

// What became of the services' requests.
std::string service_rows(const Report& report) {
  if (report.services.empty()) return "";
  const auto any = [&](std::uint64_t ServiceReport::*count) {
    return std::ranges::any_of(report.services, [&](const auto& one) { return one.*count > 0; });
  };
  struct Column {
    const char* heading;
    std::uint64_t ServiceReport::*count;
  };
  std::vector<Column> columns{{"requests", &ServiceReport::requests},
                              {"acquired", &ServiceReport::acquired},
                              {"timed out", &ServiceReport::timed_out},
                              {"skipped", &ServiceReport::skipped},
                              {"fell back", &ServiceReport::fell_back}};
  for (const Column& rare :
       {Column{"queue full", &ServiceReport::queue_full},
        Column{"revoked", &ServiceReport::revoked}, Column{"again", &ServiceReport::asked_again}}) {
    if (any(rare.count)) columns.push_back(rare);
  }
  Grid grid;
  for (const char* heading : {"service", "class"}) grid.column(heading);
  for (const Column& column : columns) grid.column(column.heading);
  for (const char* heading : {"wait p50", "p99", "longest"}) grid.column(heading);
  for (std::size_t i = 0; i < std::min(kMostRows, report.services.size()); ++i) {
    const ServiceReport& service = report.services[i];
    grid.row();
    grid.cell(service.name);
    grid.cell(service.task_class);
    for (const Column& column : columns) grid.cell(fmt::format("{}", service.*column.count));
    for (Duration wait : {service.wait_p50, service.wait_p99, service.wait_max}) {
      grid.cell(to_text(wait));
    }
  }
  return grid.text() + rows_left_out(report.services.size());
}

// How often the arbiter held services back for the GPU's usage.
std::string pressure_rows(const Report& report) {
  if (report.services.empty() || report.lasted <= Duration::zero()) return "";
  const auto part = [&](Duration time) {
    return percent(100.0 * static_cast<double>(time.count()) /
                   static_cast<double>(report.lasted.count()));
  };
  Grid grid;
  for (const char* heading : {"pressure", "high", "times", "raised", "unknown"}) {
    grid.column(heading);
  }
  for (std::size_t i = 0; i < std::min(kMostRows, report.gpus.size()); ++i) {
    const PressureReport& pressure = report.gpus[i].pressure;
    grid.row();
    grid.cell(fmt::format("GPU {}", i));
    grid.cell(part(pressure.high));
    grid.cell(fmt::format("{}", pressure.times_high));
    grid.cell(part(pressure.raised));
    grid.cell(part(pressure.unknown));
  }
  return grid.text() + rows_left_out(report.gpus.size());
}

// A line of the timeline.
struct Lane {
  std::string name;
  std::string text;
};

// One character for each part of the time: how much of it the spans cover.
std::string covered(const std::vector<Span>& spans, const Span& there, Duration lasted,
                    std::size_t width) {
  const auto present = coverage({there}, lasted, width);
  const auto ran = coverage(spans, lasted, width);
  std::string text;
  for (std::size_t i = 0; i < width; ++i) {
    if (ran[i] > 0.875) {
      text += "█";
    } else if (ran[i] > 0.5) {
      text += "▓";
    } else if (ran[i] > 0.25) {
      text += "▒";
    } else if (ran[i] > 0.01) {
      text += "░";
    } else {
      text += present[i] > 0.5 ? "·" : " ";
    }
  }
  return text;
}

// The state that lasted longest in each part of the time.
std::string pressure_lane(const PressureReport& pressure, Duration lasted, std::size_t width) {
  const auto where = [&](auto test) {
    std::vector<Span> spans;
    for (const PressureSpan& span : pressure.spans) {
      if (test(span)) spans.push_back(span.time);
    }
    return coverage(spans, lasted, width);
  };
  const auto high = where([](const auto& s) { return s.state == core::Admission::High; });
  const auto unknown = where([](const auto& s) { return s.state == core::Admission::Unknown; });
  const auto raised = where([](const auto& s) { return s.raised; });
  std::string text;
  for (std::size_t i = 0; i < width; ++i) {
    text += unknown[i] > 0.5 ? "?" : high[i] > 0.5 ? "H" : raised[i] > 0.5 ? "^" : "·";
  }
  return text;
}

std::vector<Lane> lanes_of(const Scenario& scenario, const Report& report, std::size_t width) {
  std::vector<Lane> lanes;
  for (std::size_t i = 0; i < std::min(kMostRows, report.clients.size()); ++i) {
    const ClientReport& client = report.clients[i];
    const Span there = presence(scenario, report, client);
    lanes.push_back({client.name, covered(client.spans, there, report.lasted, width)});
  }
  for (std::size_t i = 0; i < std::min(kMostRows, report.services.size()); ++i) {
    const ServiceReport& service = report.services[i];
    const Span there = presence(scenario, report, service);
    lanes.push_back(
        {service.name + " leases", covered(service.leases, there, report.lasted, width)});
  }
  for (std::size_t i = 0; i < std::min(kMostRows, report.gpus.size()); ++i) {
    if (report.services.empty()) break;
    lanes.push_back({fmt::format("GPU {} pressure", i),
                     pressure_lane(report.gpus[i].pressure, report.lasted, width)});
  }
  return lanes;
}

std::string timeline(const Scenario& scenario, const Report& report, const TimeUnit& unit) {
  if (report.lasted <= Duration::zero()) return "";
  if (!any_client(report, [](const auto& c) { return !c.spans.empty(); })) return "";
  std::size_t names = 0;
  for (const Lane& lane : lanes_of(scenario, report, 0)) {
    names = std::max(names, columns_of(lane.name));
  }
  // Round times often fall between two of 80 characters.
  const std::size_t width =
      std::min<std::size_t>(80, kWidth - std::min<std::size_t>(names + 6, kWidth / 2));
  std::string text;
  for (const Lane& lane : lanes_of(scenario, report, width)) {
    text += fmt::format("  {} |{}|\n", padded(lane.name, names, true), lane.text);
  }
  const std::string end = fmt::format("{} {}", in_unit(report.lasted, unit), unit.name);
  text += fmt::format("  {} 0{}\n", std::string(names, ' '), padded(end, width + 1, false));
  return text;
}

std::string utilization(const Report& report) {
  if (report.gpus.size() == 1) {
    return "GPU busy " + percent(report.gpus[0].utilization_percent);
  }
  std::string text = "GPUs busy";
  for (std::size_t i = 0; i < std::min<std::size_t>(8, report.gpus.size()); ++i) {
    text += fmt::format(" {}: {}{}", i, percent(report.gpus[i].utilization_percent),
                        i + 1 < report.gpus.size() ? "," : "");
  }
  return text + (report.gpus.size() > 8 ? " ..." : "");
}

std::string block(const Scenario& scenario, const Report& report) {
  const TimeUnit unit = unit_for(report.lasted);
  std::string head = fmt::format("policy {}: {}, played {} {}", core::name_of(report.policy),
                                 utilization(report), in_unit(report.lasted, unit), unit.name);
  if (const Bytes all = moved(report); all.count > 0) head += ", moved " + to_text(all);
  head += fmt::format(" (times in {})", unit.name);
  return head + "\n" + client_rows(scenario, report, unit) + service_rows(report) +
         pressure_rows(report) + timeline(scenario, report, unit);
}

// The policies in one table: what each client ran and how busy the GPU was.
std::string comparison(const std::vector<Report>& reports) {
  const bool moves = std::any_of(reports.begin(), reports.end(),
                                 [](const Report& r) { return moved(r).count > 0; });
  const TimeUnit unit = unit_for(reports.front().lasted);
  const auto make = [&](bool clients) {
    Grid grid;
    grid.column("policy");
    if (clients) {
      for (const ClientReport& client : reports.front().clients) {
        grid.column(fmt::format("{} run {}", client.name, unit.name));
      }
    }
    grid.column("GPU busy");
    grid.column(fmt::format("played {}", unit.name));
    if (moves) grid.column("moved");
    for (const Report& report : reports) {
      grid.row();
      grid.cell(std::string(core::name_of(report.policy)));
      if (clients) {
        for (const ClientReport& client : report.clients) grid.cell(in_unit(client.run, unit));
      }
      double busy = 0;
      for (const GpuReport& gpu : report.gpus) busy += gpu.utilization_percent;
      grid.cell(percent(busy / static_cast<double>(std::max<std::size_t>(1, report.gpus.size()))));
      grid.cell(in_unit(report.lasted, unit));
      if (moves) grid.cell(to_text(moved(report)));
    }
    return grid;
  };
  const Grid full = make(reports.front().clients.size() <= kMostRows);
  return (full.width() <= kWidth ? full : make(false)).text();
}

}  // namespace

std::string to_table(const Scenario& scenario, const std::vector<Report>& reports) {
  std::string text = scenario.name + "\n";
  if (!scenario.about.empty()) text += wrapped(scenario.about) + "\n";
  const bool lanes = std::any_of(reports.begin(), reports.end(), [](const Report& report) {
    return any_client(report, [](const auto& client) { return !client.spans.empty(); });
  });
  if (reports.size() > 1) text += "\n" + comparison(reports);
  if (reports.size() == 1 || lanes) {
    for (const Report& report : reports) text += "\n" + block(scenario, report);
  }
  if (lanes) {
    text += "\n  █▓▒░ holds the GPU all or part of the time   · there, but not on the GPU\n";
    if (!reports.front().services.empty()) {
      text +=
          "  leases: with one all or part of the time   pressure: H high, ^ marks are raised, "
          "? usage unknown\n";
    }
  }
  return text;
}

}  // namespace nvshare::sim
