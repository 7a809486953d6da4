#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"

namespace nvshare::cli::testing {

// How a program ended: what it wrote to both streams, and its status as waitpid gives it.
struct Outcome {
  std::string output;
  int status = -1;
  int code() const;    // -1 when a signal ended it
  int signal() const;  // 0 when none did
};

// A program that a test started; gone when this is.
class Process {
 public:
  // `variables` are put into the environment, "NAME=VALUE".
  Process(const std::vector<std::string>& words, const std::vector<std::string>& variables);
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;

  pid_t pid() const { return pid_; }
  // True when `text` was written before the time is over.
  bool wait_for_output(const std::string& text, Duration within = 30s);
  const std::string& output() const { return output_; }
  // Waits for the end, at most this long; then it is killed.
  Outcome wait(Duration within = 30s);

 private:
  bool read_some(Duration within);
  pid_t pid_ = -1;
  UniqueFd reading_;
  std::string output_;
};

// A process's state as `ps` has it, 'Z' for one that nobody has collected; '?' when it is gone.
char state_of(pid_t pid);
// The whole file, as far as it can be read; empty when there is none.
std::string contents(const std::string& path);
// True once `done` answers true.
bool eventually(const std::function<bool()>& done, Duration within = 30s);

}  // namespace nvshare::cli::testing
