#include "sim/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace nvshare::sim {
namespace {

double ratio(Duration a, Duration b) {
  return static_cast<double>(a.count()) / static_cast<double>(b.count());
}

// As the scenario says.
Span presence_of(const Scenario& scenario, const Report& report, int tenant) {
  const Time end{report.lasted};
  Span there{Time{}, end};
  const auto place = static_cast<std::size_t>(tenant);
  if (place < scenario.clients.size()) {
    const ClientSpec& spec = scenario.clients[place];
    there.from = std::min(end, Time{spec.arrives});
    if (spec.leaves) there.to = std::min(end, Time{*spec.leaves});
  }
  return there;
}

}  // namespace

Span presence(const Scenario& scenario, const Report& report, const ServiceReport& service) {
  return presence_of(scenario, report, service.tenant);
}

Span presence(const Scenario& scenario, const Report& report, const ClientReport& client) {
  Span there = presence_of(scenario, report, client.tenant);
  if (client.finished) there.to = std::min(there.to, *client.finished);
  there.to = std::max(there.from, there.to);
  return there;
}

std::vector<double> coverage(const std::vector<Span>& spans, Duration lasted, std::size_t buckets) {
  std::vector<double> covered(buckets, 0.0);
  if (lasted <= Duration::zero() || buckets == 0) return covered;
  const double width = static_cast<double>(buckets);
  for (const Span& span : spans) {
    const double from = std::clamp(ratio(span.from - Time{}, lasted) * width, 0.0, width);
    const double to = std::clamp(ratio(span.to - Time{}, lasted) * width, 0.0, width);
    for (auto i = static_cast<std::size_t>(from); i < buckets && static_cast<double>(i) < to; ++i) {
      const double left = static_cast<double>(i);
      covered[i] += std::max(0.0, std::min(to, left + 1) - std::max(from, left));
    }
  }
  for (double& part : covered) part = std::min(part, 1.0);
  return covered;
}

TimeUnit unit_for(Duration longest) {
  if (longest < 100ms) return {"ms", 1ms, 2};
  if (longest < 10s) return {"ms", 1ms, 0};
  if (longest < 15min) return {"s", 1s, 2};
  if (longest < 10h) return {"min", 1min, 1};
  return {"h", 1h, 2};
}

std::string in_unit(Duration time, const TimeUnit& unit) {
  return fmt::format("{:.{}f}", ratio(time, unit.one), unit.decimals);
}

Duration axis_step(Duration lasted, int marks) {
  static constexpr std::array<Duration, 15> kAboveSeconds{
      1s, 2s, 5s, 10s, 20s, 30s, 1min, 2min, 5min, 10min, 20min, 30min, 1h, 2h, 4h};
  const auto fits = [&](Duration step) { return lasted / step <= marks; };
  for (Duration decade = 1us; decade < 1s; decade *= 10) {
    for (int factor : {1, 2, 5}) {
      if (fits(decade * factor)) return decade * factor;
    }
  }
  for (Duration step : kAboveSeconds) {
    if (fits(step)) return step;
  }
  Duration step = 6h;
  while (!fits(step)) step *= 2;
  return step;
}

std::string axis_label(Duration at, Duration step) {
  static constexpr std::array<TimeUnit, 5> kUnits{
      {{"h", 1h, 0}, {"min", 1min, 0}, {"s", 1s, 0}, {"ms", 1ms, 0}, {"us", 1us, 0}}};
  for (const TimeUnit& unit : kUnits) {
    if (step >= unit.one) return fmt::format("{}{}", at / unit.one, unit.name);
  }
  return to_text(at);
}

}  // namespace nvshare::sim
