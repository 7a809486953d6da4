#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/render.h"
#include "sim/timeline.h"

namespace nvshare::sim {
namespace {

constexpr int kWidth = 1000;
constexpr int kMargin = 24;
constexpr int kNames = 120;    // for the names at the left
constexpr int kNumbers = 190;  // for the limits and shares at the right
constexpr int kPlotLeft = kMargin + kNames;
constexpr int kPlotWidth = kWidth - 2 * kMargin - kNames - kNumbers;
constexpr int kLane = 26;
constexpr int kBar = 18;
constexpr int kMarks = 10;
constexpr std::size_t kMostLanes = 64;
constexpr std::size_t kMostSpans = 400;  // above, a lane is drawn by how much of each part it ran
constexpr std::size_t kParts = kPlotWidth / 2;

constexpr std::string_view kStyle = R"(<style>
  svg { color-scheme: light dark; }
  text { font-family: system-ui, 'DejaVu Sans', sans-serif; font-size: 13px; fill: #1f2430; }
  .back { fill: #ffffff; }
  .title { font-size: 19px; font-weight: 600; }
  .policy { font-size: 15px; font-weight: 600; }
  .quiet { fill: #5b6472; }
  .axis { font-size: 11px; fill: #5b6472; }
  .grid { stroke: #d9dde4; stroke-width: 1; }
  .there { fill: #e9ecf1; }
  .stop { fill: none; stroke: #b3261e; stroke-width: 2; }
  .high { fill: #b3261e; } .raised { fill: #d9a12b; } .unknown { fill: #8a93a0; }
  .t0 { fill: #2f6fde; } .t1 { fill: #d9822b; } .t2 { fill: #2e9e6b; } .t3 { fill: #a24bd1; }
  .t4 { fill: #c8453d; } .t5 { fill: #16949c; } .t6 { fill: #8a7a1f; } .t7 { fill: #c2478f; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e9ef; }
    .back { fill: #14171d; }
    .quiet, .axis { fill: #9aa4b2; }
    .grid { stroke: #303641; }
    .there { fill: #262c36; }
    .stop { stroke: #ff8a80; }
    .t0 { fill: #6ea0ff; } .t1 { fill: #f0a456; } .t2 { fill: #5cc994; } .t3 { fill: #c486ec; }
    .t4 { fill: #f0807a; } .t5 { fill: #54c5cc; } .t6 { fill: #c9b850; } .t7 { fill: #ec82bd; }
  }
</style>
)";
constexpr int kColours = 8;

// For text between tags and in attributes. Control characters have no place in XML at all.
std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out;
}

// Cut at a whole character, so that what is left is still UTF-8.
std::string shortened(const std::string& text, std::size_t longest) {
  if (text.size() <= longest) return text;
  std::size_t end = longest;
  while (end > 0 && (text[end] & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "…";
}

class Picture {
 public:
  Picture(const Scenario& scenario, const std::vector<Report>& reports)
      : scenario_(scenario), reports_(reports) {
    for (const Report& report : reports) longest_ = std::max(longest_, report.lasted);
  }

  std::string draw();

 private:
  void text(double x, double y, std::string_view style, std::string_view content,
            std::string_view anchor = "start") {
    body_ +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\" text-anchor=\"{}\">{}</text>\n",
                    x, y, style, anchor, escaped(content));
  }
  void bar(double x, double width, double y, double height, std::string_view style,
           double opacity = 1) {
    body_ += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" "
        "class=\"{}\"",
        x, y, width, height, style);
    if (opacity < 1) body_ += fmt::format(" opacity=\"{:.2f}\"", opacity);
    body_ += "/>\n";
  }
  // All blocks have the same scale, so that they can be compared.
  double x_of(Time time) const {
    const double part = static_cast<double>(time.time_since_epoch().count()) /
                        static_cast<double>(longest_.count());
    return kPlotLeft + std::clamp(part, 0.0, 1.0) * kPlotWidth;
  }

  void heading();
  void block(const Report& report);
  void axis(double top, double bottom);
  void lane(const Report& report, const ClientReport& client);
  void lease_lane(const Report& report, const ServiceReport& service);
  void pressure_lane(const Report& report, std::size_t gpu);
  void held(const std::vector<Span>& all, std::string_view style);
  void spans(const std::vector<Span>& all, std::string_view style);
  void parts(const std::vector<Span>& all, std::string_view style);
  void legend();
  void pressure_legend();

  const Scenario& scenario_;
  const std::vector<Report>& reports_;
  std::string body_;
  double y_ = 0;
  Duration longest_ = 1us;
};

void Picture::heading() {
  y_ = kMargin + 16;
  text(kMargin, y_, "title", shortened(scenario_.name, 80));
  // About 140 characters fit on a line; two lines are enough for what a scenario is about.
  std::string about = shortened(scenario_.about, 280);
  for (int line = 0; line < 2 && !about.empty(); ++line) {
    std::size_t cut = about.size();
    if (cut > 140) cut = about.rfind(' ', 140);
    if (cut == std::string::npos || cut == 0) cut = about.size();
    y_ += line == 0 ? 22 : 17;
    text(kMargin, y_, "quiet", about.substr(0, cut));
    about.erase(0, std::min(about.size(), cut + 1));
  }
  y_ += 14;
}

void Picture::axis(double top, double bottom) {
  const Duration step = axis_step(longest_, kMarks);
  for (Duration at{}; at <= longest_; at += step) {
    const double x = x_of(Time{at});
    body_ += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" "
        "class=\"grid\"/>\n",
        x, top, bottom);
    text(x, bottom + 14, "axis", axis_label(at, step), "middle");
  }
}

void Picture::held(const std::vector<Span>& all, std::string_view style) {
  if (all.size() <= kMostSpans) return spans(all, style);
  parts(all, style);
}

void Picture::spans(const std::vector<Span>& all, std::string_view style) {
  for (const Span& span : all) {
    if (span.to <= span.from) continue;
    const double from = x_of(span.from);
    // A sliver stays visible.
    bar(from, std::max(0.4, x_of(span.to) - from), y_, kBar, style);
  }
}

void Picture::parts(const std::vector<Span>& all, std::string_view style) {
  const auto ran = coverage(all, longest_, kParts);
  const double width = static_cast<double>(kPlotWidth) / static_cast<double>(kParts);
  const auto level = [&](std::size_t i) { return std::lround(ran[i] * 10); };
  for (std::size_t i = 0; i < kParts;) {
    std::size_t end = i + 1;
    while (end < kParts && level(end) == level(i)) ++end;
    if (level(i) > 0) {
      bar(kPlotLeft + static_cast<double>(i) * width, static_cast<double>(end - i) * width, y_,
          kBar, style, static_cast<double>(level(i)) / 10);
    }
    i = end;
  }
}

void Picture::lane(const Report& report, const ClientReport& client) {
  const Span there = presence(scenario_, report, client);
  const std::string style = fmt::format("t{}", client.tenant % kColours);
  const double middle = y_ + kBar / 2.0 + 4.5;
  text(kPlotLeft - 10, middle, "", shortened(client.name, 16), "end");
  bar(x_of(there.from), x_of(there.to) - x_of(there.from), y_, kBar, "there");
  held(client.spans, style);
  if (client.first_throttle) {
    const double x = x_of(*client.first_throttle);
    body_ += fmt::format("<path d=\"M{0:.1f} {1:.1f} V{2:.1f}\" class=\"stop\"/>\n", x, y_ - 3,
                         y_ + kBar + 3);
  }
  const auto place = static_cast<std::size_t>(client.tenant);
  const int cores = place < scenario_.clients.size() ? scenario_.clients[place].limits.core_percent
                                                     : core::kNoCoreLimit;
  text(kPlotLeft + kPlotWidth + 84, middle, "quiet",
       cores == core::kNoCoreLimit ? "no limit" : fmt::format("{} %", cores), "end");
  text(kWidth - kMargin, middle, "", fmt::format("{:.1f} %", client.share_percent), "end");
  y_ += kLane;
}

// Below the clients: when a service had at least one lease.
void Picture::lease_lane(const Report& report, const ServiceReport& service) {
  const Span there = presence(scenario_, report, service);
  text(kPlotLeft - 10, y_ + kBar / 2.0 + 4.5, "quiet", shortened(service.name, 9) + " leases",
       "end");
  bar(x_of(there.from), x_of(there.to) - x_of(there.from), y_, kBar, "there");
  held(service.leases, fmt::format("t{}", service.tenant % kColours));
  text(kWidth - kMargin, y_ + kBar / 2.0 + 4.5, "quiet",
       fmt::format("{} of {}", service.acquired, service.requests), "end");
  y_ += kLane;
}

void Picture::pressure_lane(const Report& report, std::size_t gpu) {
  const PressureReport& pressure = report.gpus[gpu].pressure;
  text(kPlotLeft - 10, y_ + kBar / 2.0 + 4.5, "quiet", fmt::format("GPU {} pressure", gpu), "end");
  bar(kPlotLeft, x_of(Time{report.lasted}) - kPlotLeft, y_, kBar, "there");
  const auto of = [&](auto test) {
    std::vector<Span> found;
    for (const PressureSpan& span : pressure.spans) {
      if (test(span)) found.push_back(span.time);
    }
    return found;
  };
  held(of([](const auto& s) { return s.raised; }), "raised");
  held(of([](const auto& s) { return s.state == core::Admission::High; }), "high");
  held(of([](const auto& s) { return s.state == core::Admission::Unknown; }), "unknown");
  y_ += kLane;
}

void Picture::block(const Report& report) {
  y_ += 30;
  std::string state;
  for (std::size_t i = 0; i < std::min<std::size_t>(4, report.gpus.size()); ++i) {
    const std::string which = report.gpus.size() > 1 ? fmt::format("GPU {}", i) : "GPU";
    state += fmt::format("{}{} busy {:.1f} %", i > 0 ? ", " : "", which,
                         report.gpus[i].utilization_percent);
  }
  text(kMargin, y_, "policy", core::name_of(report.policy));
  text(kPlotLeft, y_, "quiet", state);
  text(kPlotLeft + kPlotWidth + 84, y_, "quiet", "asked", "end");
  text(kWidth - kMargin, y_, "quiet", "received", "end");
  y_ += 12;
  const std::size_t lanes = std::min(kMostLanes, report.clients.size());
  const double top = y_;
  const std::size_t services = std::min(kMostLanes, report.services.size());
  const std::size_t gpus = services > 0 ? std::min(kMostLanes, report.gpus.size()) : 0;
  const double bottom = top + static_cast<double>(lanes + services + gpus) * kLane;
  axis(top, bottom);
  y_ += (kLane - kBar) / 2.0;
  for (std::size_t i = 0; i < lanes; ++i) lane(report, report.clients[i]);
  for (std::size_t i = 0; i < services; ++i) lease_lane(report, report.services[i]);
  for (std::size_t i = 0; i < gpus; ++i) pressure_lane(report, i);
  y_ = bottom + 20;
  if (lanes < report.clients.size()) {
    y_ += 14;
    text(kPlotLeft, y_, "quiet", fmt::format("and {} more", report.clients.size() - lanes));
  }
}

void Picture::legend() {
  y_ += 26;
  const double y = y_ - 11;
  bar(kPlotLeft, 22, y, 12, "t0");
  text(kPlotLeft + 28, y_, "quiet", "holds the GPU (paler: part of the time)");
  bar(kPlotLeft + 290, 22, y, 12, "there");
  text(kPlotLeft + 318, y_, "quiet", "there, not on the GPU");
  body_ += fmt::format("<path d=\"M{0} {1:.1f} V{2:.1f}\" class=\"stop\"/>\n", kPlotLeft + 480,
                       y - 2, y + 14);
  text(kPlotLeft + 488, y_, "quiet", "first stopped by its limit");
  const auto services = [](const Report& report) { return !report.services.empty(); };
  if (std::ranges::any_of(reports_, services)) pressure_legend();
  y_ += kMargin;
}

void Picture::pressure_legend() {
  y_ += 20;
  double x = kPlotLeft;
  for (const auto& [style, meaning] :
       {std::pair{"high", "high pressure"}, std::pair{"raised", "a hint raises the marks"},
        std::pair{"unknown", "usage unknown"}}) {
    bar(x, 22, y_ - 11, 12, style);
    text(x + 28, y_, "quiet", meaning);
    x += 200;
  }
}

std::string Picture::draw() {
  heading();
  for (const Report& report : reports_) block(report);
  legend();
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0} {1:.0f}\" role=\"img\">\n<title>{2}</title>\n{3}"
      "<rect width=\"{0}\" height=\"{1:.0f}\" class=\"back\"/>\n{4}</svg>\n",
      kWidth, y_, escaped(scenario_.name), kStyle, body_);
}

}  // namespace

std::string to_svg(const Scenario& scenario, const std::vector<Report>& reports) {
  return Picture(scenario, reports).draw();
}

}  // namespace nvshare::sim
