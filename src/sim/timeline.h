#pragma once

#include <string>
#include <vector>

#include "sim/scenario.h"
#include "sim/simulator.h"

namespace nvshare::sim {

// What pictures and tables need to know about a client's time.

// From when to when the client was there.
Span presence(const Scenario& scenario, const Report& report, const ClientReport& client);
// The service's processes together.
Span presence(const Scenario& scenario, const Report& report, const ServiceReport& service);

// Of each of `buckets` equal parts of the time from 0 to `lasted`, which part the spans cover,
// 0..1.
std::vector<double> coverage(const std::vector<Span>& spans, Duration lasted, std::size_t buckets);

// The unit in which times of this size are easily compared.
struct TimeUnit {
  const char* name;
  Duration one;
  int decimals;
};
TimeUnit unit_for(Duration longest);
std::string in_unit(Duration time, const TimeUnit& unit);

// A round distance between marks on an axis, so that there are at most `marks` of them, and what
// such a mark is called ("500ms", "2h").
Duration axis_step(Duration lasted, int marks);
std::string axis_label(Duration at, Duration step);

}  // namespace nvshare::sim
