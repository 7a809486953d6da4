#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/show/answers.h"

namespace nvshare::cli {

enum class Level { Good, Warning, Problem };

// One thing that the doctor looked at.
struct Finding {
  Level level = Level::Good;
  std::string what;
  std::string advice;  // what to do; empty when nothing is to be done
};

// One line each, and what it comes to.
std::string findings_text(const std::vector<Finding>& findings, bool colour);
std::string findings_json(const std::vector<Finding>& findings);
bool has_problem(const std::vector<Finding>& findings);

// What a process finds that uses the GPU (doctor_probe.cpp): written by the one, read by the other.
struct Probe {
  std::string library_version;  // empty: libnvshare.so is not in the process
  std::string failed;           // the driver's function that failed; empty: none
  int error = 0;                // what it answered
  int driver_version = 0;       // 13000 is 13.0
  int devices = 0;
};
std::string write_probe(const Probe& probe);
Result<Probe> read_probe(const std::string& line);

// How much host memory can be spared for swapping, and by what it is limited: a warning where it is
// less than half of the largest GPU.
Finding host_memory_finding(const Status& status);

// What NVSHARE_GPU_MEMORY_LIMIT has for a value, and whether it is understood. None: it is not set.
std::optional<Finding> own_limit_finding(const char* value);

// Looks at everything there is. Starts a private scheduler where there is none, as `run` does.
std::vector<Finding> examine();

}  // namespace nvshare::cli
