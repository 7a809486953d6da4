#pragma once

#include <benchmark/benchmark.h>

#include <map>
#include <string>
#include <vector>

namespace nvshare::bench {

// Shows the results as usual and remembers the repetitions of each benchmark.
class Medians : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override;

  // Nanoseconds of processor time for one event, by "NAME/ARGUMENT": the median of the repetitions.
  // What was not run is not there.
  std::map<std::string, double> results() const;

 private:
  std::map<std::string, std::vector<double>> times_;
};

// The two limits that the core keeps, one line each on standard output:
//   one event at 10,000 clients costs at most 3 times what it costs at 100;
//   an hour of 1,000 clients is simulated in less than 10 seconds.
// How many are missed; a benchmark that was not run counts as missed.
int check_limits(const std::map<std::string, double>& results,
                 const std::vector<std::string>& events, const std::vector<std::string>& hours);
// An event of tenants that are parts of one another, NAME_deep, takes at most 1.5 times as long as
// NAME. How many are missed.
int check_depth(const std::map<std::string, double>& results,
                const std::vector<std::string>& events);

}  // namespace nvshare::bench
