#pragma once

#include <string>
#include <vector>

namespace nvshare::conformance {

// How a child process ended, and what it wrote to its standard output.
struct Outcome {
  std::string output;
  int exit_code = -1;  // -1: ended by `signal`
  int signal = 0;
  bool timed_out = false;
};

// Runs the command for at most `seconds`; a child that takes longer is killed.
Outcome run_process(const std::vector<std::string>& command, int seconds);

}  // namespace nvshare::conformance
