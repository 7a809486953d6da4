#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/run/job_signals.h"

namespace nvshare::cli {

struct Launch {
  std::vector<std::string> words;  // the program and its arguments
  // "NAME=VALUE", all of it. Asked for when the run has its tenant, and so its GPUs.
  std::function<std::vector<std::string>()> environment;
  // The program gets SIGTERM when this process ends, also when a signal kills it. Its own children
  // do not.
  bool ends_with_parent = false;
};

// Starts the program as a child, in the process group and session in which this process is now.
// `forked` hears the child's pid before the program begins, while the child still blocks the
// signals that this process blocks. Returns the pid, or a negative errno of exec.
pid_t start_program(const Launch& launch, const InheritedSignals& before,
                    const std::function<void(pid_t)>& forked);

// Makes this process the program. Returns only when that fails: the errno of exec.
int become_program(const std::vector<std::string>& words,
                   const std::vector<std::string>& environment);

}  // namespace nvshare::cli
