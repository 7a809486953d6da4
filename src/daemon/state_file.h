#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/state.h"

namespace nvshare::daemon {

// Whether a file that was written outlasts a crash of the machine.
enum class Durable { No, Yes };

// The state on disk. Beside PATH lie PATH.old, the last durable file before it, and PATH.bad, what
// could not be read.
class StateFile {
 public:
  explicit StateFile(std::string path) : path_(std::move(path)) {}

  struct Found {
    State state;
    bool any = false;                   // false: a start without state
    std::vector<std::string> problems;  // one line each: what was set aside, and why
  };
  // The state of PATH, or else of PATH.old. A file that is bad, or that another user could have
  // written, is set aside.
  Found load() const;

  // Replaces the file as a whole: a reader finds the one before, or this one. After an error the
  // one before is still there. A write that is not durable does not wait for the disk.
  Result<void> save(const State& state, Durable durable);

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool durable_ = false;  // the file at PATH is
};

// The kernel's name for the time since the machine started; empty when it does not say.
std::string boot_id();

}  // namespace nvshare::daemon
