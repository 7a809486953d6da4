#include "checks.h"

#include <algorithm>
#include <cstdio>

namespace nvshare::bench {
namespace {

constexpr double kMostTimes = 3;
constexpr double kMostSeconds = 10;
constexpr double kMostDeep = 1.5;

// Old and new versions of the library name it differently.
template <typename Run>
bool failed(const Run& run) {
  if constexpr (requires { run.error_occurred; }) {
    return run.error_occurred;
  } else {
    return static_cast<int>(run.skipped) != 0;
  }
}

}  // namespace

void Medians::ReportRuns(const std::vector<Run>& runs) {
  ConsoleReporter::ReportRuns(runs);
  for (const Run& run : runs) {
    if (run.run_type != Run::RT_Iteration || failed(run)) continue;
    const auto events = run.counters.find("events");
    const double each = events == run.counters.end() ? 1 : events->second.value;
    const double time = run.cpu_accumulated_time * 1e9 / static_cast<double>(run.iterations) / each;
    const std::string name = run.run_name.function_name + "/" + run.run_name.args;
    times_[name].push_back(time);
  }
}

std::map<std::string, double> Medians::results() const {
  std::map<std::string, double> results;
  for (const auto& [name, times] : times_) {
    std::vector<double> sorted = times;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    results.emplace(name, *middle);
  }
  return results;
}

int check_limits(const std::map<std::string, double>& results,
                 const std::vector<std::string>& events, const std::vector<std::string>& hours) {
  int missed = 0;
  for (const std::string& name : events) {
    const auto few = results.find(name + "/100");
    const auto many = results.find(name + "/10000");
    if (few == results.end() || many == results.end()) {
      std::printf("MISSED  %-28s was not run\n", name.c_str());
      ++missed;
      continue;
    }
    const double times = many->second / few->second;
    const bool good = times <= kMostTimes;
    missed += !good;
    std::printf("%s  %-28s %8.0f ns at 100 clients, %8.0f ns at 10000: %.2f times, at most %.0f\n",
                good ? "ok    " : "MISSED", name.c_str(), few->second, many->second, times,
                kMostTimes);
  }
  for (const std::string& name : hours) {
    const auto hour = results.find(name + "/");
    const double seconds = hour == results.end() ? 1e9 : hour->second / 1e9;
    const bool good = seconds < kMostSeconds;
    missed += !good;
    std::printf("%s  %-28s %8.2f s for an hour of 1000 clients, less than %.0f\n",
                good ? "ok    " : "MISSED", name.c_str(), seconds, kMostSeconds);
  }
  return missed;
}

int check_depth(const std::map<std::string, double>& results,
                const std::vector<std::string>& events) {
  int missed = 0;
  for (const std::string& name : events) {
    for (const char* clients : {"/100", "/1000", "/10000"}) {
      const auto flat = results.find(name + clients);
      const auto deep = results.find(name + "_deep" + clients);
      const bool known = flat != results.end() && deep != results.end();
      const double times = known ? deep->second / flat->second : 1e9;
      const bool good = times <= kMostDeep;
      missed += !good;
      std::printf("%s  %-28s %.2f times as long at depth 4, at most %.1f\n",
                  good ? "ok    " : "MISSED", (name + clients).c_str(), times, kMostDeep);
    }
  }
  return missed;
}

}  // namespace nvshare::bench
