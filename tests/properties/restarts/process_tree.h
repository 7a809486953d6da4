#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/serve/testing.h"

namespace nvshare::properties {

// Processes with their parents and cgroups, as the kernel keeps them. Drawn where the scheduler
// looks.
class ProcessTree {
 public:
  struct Process {
    int parent = 1;
    std::string group = "/";
    std::uint64_t started = 0;
    bool keeps = false;  // a keeper: processes below it that lose their parents become its children
  };

  ProcessTree();

  // A program that `parent` has forked, in the cgroup of its parent.
  int fork(int parent);
  // The same, for a keeper. The kernel knows its number, because the scheduler asks for a
  // descriptor of it. At most kMostKeepers at a time.
  int fork_keeper(int parent);
  void move(int pid, const std::string& group);
  void end(int pid);
  const Process& at(int pid) const { return all_.at(pid); }
  daemon::ProcessKey key_of(int pid) const { return {pid, at(pid).started}; }

  bool is_populated(const std::string& group) const;
  // Draws these groups and no others.
  void draw(const std::set<std::string>& groups);
  const daemon::Picture& picture() const { return picture_; }

  static constexpr int kMostKeepers = 10;

 private:
  int add(int pid, int parent, bool keeps);
  void draw(int pid);

  daemon::Picture picture_;
  std::map<int, Process> all_;
  std::vector<int> free_keepers_;
  std::uint64_t started_ = 100;  // of the next process
  int next_ = 50'000'000;        // no process of this machine has such a number
};

}  // namespace nvshare::properties
