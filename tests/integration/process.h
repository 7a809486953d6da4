#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"

namespace nvshare::integration {

using Environment = std::map<std::string, std::string>;

// How a process ended: with an exit code, or by a signal (the other is -1).
struct Ending {
  int code = -1;
  int signal = -1;
};

// A program that a test started, in a process group of its own. What it says (both streams) goes to
// a file, so that it never waits for the test to read it. Killed, with its group, when this goes
// out of scope.
class Process {
 public:
  // `log` is the file. A program that cannot be started ends with code 127.
  Process(const std::vector<std::string>& words, const Environment& environment, std::string log);
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  pid_t pid() const { return pid_; }
  // Ended already, or still there.
  bool running();
  // Waits for its end; nothing when it has not ended by then.
  std::optional<Ending> wait(Duration limit);
  void signal(int number) const;
  // Writes a line to its standard input.
  void say(const std::string& line) const;

  std::string output() const;
  // Waits until `text` is in the output; false when it is not by then, or when it ended without.
  bool wait_for(const std::string& text, Duration limit);

 private:
  void kill_group();

  pid_t pid_ = -1;
  int input_ = -1;
  std::string log_;
  std::optional<Ending> ending_;
};

// Looks again and again until it holds; false when it does not by then.
template <typename Condition>
bool eventually(Condition condition, Duration limit);

// For eventually(): now, and a short sleep.
Duration now();
void nap();

template <typename Condition>
bool eventually(Condition condition, Duration limit) {
  const Duration end = now() + limit;
  while (!condition()) {
    if (now() >= end) return false;
    nap();
  }
  return true;
}

}  // namespace nvshare::integration
