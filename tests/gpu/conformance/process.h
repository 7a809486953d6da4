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

// Runs the command. It is killed when it has neither ended nor, where there is a progress file, got
// any further in it, for `seconds`; and in any case after `most` seconds.
Outcome run_process(const std::vector<std::string>& command, int seconds, int progress = -1,
                    int most = 120);

// The number of the call under way, as a child notes it in its progress file; 0 for none yet.
unsigned progress_in(int file);

// A child that is there as long as this object.
class Companion {
 public:
  // Waits until the child has printed something, or `seconds` have passed.
  Companion(const std::vector<std::string>& command, int seconds);
  ~Companion();
  Companion(const Companion&) = delete;
  Companion& operator=(const Companion&) = delete;

 private:
  int pid_;
};

}  // namespace nvshare::conformance
