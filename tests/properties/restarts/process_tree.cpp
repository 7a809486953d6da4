#include "process_tree.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "daemon/serve/run_groups.h"

namespace nvshare::properties {
namespace {

// Processes that do nothing until the test ends.
class Sleepers {
 public:
  Sleepers() {
    for (int i = 0; i < ProcessTree::kMostKeepers; ++i) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
      }
      if (pid > 0) pids.push_back(pid);
    }
  }
  ~Sleepers() {
    for (const int pid : pids) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  std::vector<int> pids;
};

}  // namespace

ProcessTree::ProcessTree() {
  static const Sleepers sleepers;
  free_keepers_ = sleepers.pids;
  all_[1] = {.parent = 0, .group = "/"};
  draw(1);
}

int ProcessTree::add(int pid, int parent, bool keeps) {
  all_[pid] = {parent, at(parent).group, started_++, keeps};
  draw(pid);
  return pid;
}

int ProcessTree::fork(int parent) {
  return add(next_++, parent, false);
}

int ProcessTree::fork_keeper(int parent) {
  const int pid = free_keepers_.front();
  free_keepers_.erase(free_keepers_.begin());
  return add(pid, parent, true);
}

void ProcessTree::move(int pid, const std::string& group) {
  all_.at(pid).group = group;
  draw(pid);
}

void ProcessTree::end(int pid) {
  if (at(pid).keeps) free_keepers_.push_back(pid);
  int heir = at(pid).parent;
  while (heir != 1 && !at(heir).keeps) heir = at(heir).parent;
  all_.erase(pid);
  picture_.gone(pid);
  for (auto& [child, process] : all_) {
    if (process.parent != pid) continue;
    process.parent = heir;
    draw(child);
  }
}

bool ProcessTree::is_populated(const std::string& group) const {
  return std::any_of(all_.begin(), all_.end(),
                     [&](const auto& one) { return daemon::is_inside(one.second.group, group); });
}

void ProcessTree::draw(int pid) {
  const Process& process = at(pid);
  picture_.process(pid, process.parent, process.group, process.started);
}

void ProcessTree::draw(const std::set<std::string>& groups) {
  picture_.remove_groups();
  for (const std::string& group : groups) picture_.group(group, is_populated(group));
}

}  // namespace nvshare::properties
