#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/units.h"

namespace nvshare::daemon {

// Bytes, or so much of the memory that the machine has to spare.
struct ArenaLimit {
  int percent = 0;  // 0: bytes
  Bytes bytes{};

  Bytes of(Bytes available) const {
    return percent > 0 ? Bytes{available.count / 100 * percent} : bytes;
  }
};

// The files in which control groups tell of their memory.
struct GroupFiles {
  const char* most;
  const char* used;
  const char* files;  // a line of memory.stat: of what is used, files that could be dropped
};

// What this machine, and the control groups that the scheduler is in, have left of host memory.
class HostMemory {
 public:
  // `root` is where /proc and /sys are; another one for tests.
  explicit HostMemory(std::string root = "") : root_(std::move(root)) {}

  // What could be had without anything being swapped or ended, as the kernel reckons it.
  Bytes available() const;
  // How much of that may be taken: some stays for everyone else.
  struct Left {
    Bytes bytes{};
    bool by_group = false;  // a control group allows less than the machine has
  };
  Left left() const;

 private:
  std::string read(const std::string& path) const;
  std::optional<Bytes> left_in_groups() const;
  std::optional<Bytes> left_below(const std::string& mount, std::string_view path,
                                  const GroupFiles& names) const;

  std::string root_;
};

// A line "MemAvailable:   1234 kB" of /proc/meminfo; nothing when it is not there.
std::optional<Bytes> meminfo_line(std::string_view text, std::string_view name);

}  // namespace nvshare::daemon
