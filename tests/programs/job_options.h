#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace nvshare::programs {

enum class Pattern { Saturate, Bursty, Sync, Graph, Copy, Memset, Train, Infer };

// What gpu-job is asked to do; job_help() says what each means.
struct JobOptions {
  Duration length = 5s;
  std::int64_t launches = 0;  // of each thread; 0: as many as fit into the time
  Duration kernel = 1ms;
  Bytes memory;
  Bytes piece = mib(64);  // that memory is taken in
  Bytes workspace{};      // from the device's pool, for each batch
  Pattern pattern = Pattern::Saturate;
  Duration busy = 60ms;
  Duration idle = 40ms;
  int device = 0;
  int streams = 1;
  int threads = 1;
  int queue = 8;
  bool per_thread_stream = false;
  bool expandable = false;
  bool fill = false;
  bool check = false;
  bool quiet = false;
  bool help = false;
  std::optional<Duration> progress;
};

// An error is one line that says what to do.
Result<JobOptions> parse_job(const std::vector<std::string>& words);

std::string job_help();

}  // namespace nvshare::programs
