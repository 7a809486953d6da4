#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nvshare::daemon {

// A cgroup for each run: a process that was started in a run stays in the run's group, whatever
// becomes of its parents. Groups are made below the group in which the run begins, so that limits
// of systemd, Slurm or a container hold as before. A group counts as a scheduler's by its name and
// its owner. All others are left alone.
//
// A *group* is named as in /proc/PID/cgroup: a path in the cgroup2 hierarchy that begins with "/".
class RunGroups {
 public:
  // cgroup2 as the text of /proc/self/mountinfo has it; nothing where it is not mounted.
  static std::optional<RunGroups> find(std::string_view mountinfo);

  // Makes a group for the run below `present`, the group of the process, and moves the process
  // into it. A process that is in such a group of the same name already stays there, if a scheduler
  // has made that group.
  Result<std::string> make(const std::string& present, const std::string& name, int pid) const;
  // Moves the process into the group. Nothing happens to a process that comes from elsewhere than
  // the group around it: it would leave limits behind.
  Result<void> move(const std::string& present, const std::string& group, int pid) const;
  // A process is in the group, or in one below it. False when the group is gone; true where that
  // cannot be told, because the run's limits would be lost with it.
  bool is_populated(const std::string& group) const;
  // A process in the group itself, other than that one where there is another; 0: none can be seen.
  int process_in(const std::string& group, int other_than) const;
  // Removes the group with those of runs below it. False when processes or groups of others are in
  // it. True also when there is no such group of a scheduler.
  bool remove(const std::string& group) const;
  // Removes groups of runs that an earlier scheduler has left behind. Returns those that are not
  // empty: they may be of runs that nobody knows any more.
  std::vector<std::string> remove_leftovers() const;

  // Another user than root owns the group, and can make groups below it. False for a group that
  // cannot be seen from here.
  bool is_of_a_user(const std::string& group) const;

  const std::string& folder() const { return folder_; }

 private:
  RunGroups(std::string folder, std::string root)
      : folder_(std::move(folder)), root_(std::move(root)) {}
  // Where the group's files are. Nothing for a group that cannot be seen from here.
  std::optional<std::string> folder_of(const std::string& group) const;

  std::string folder_;  // where cgroup2 is mounted
  std::string root_;    // the group that is mounted there
};

// Whether `group` is `outer`, or below it.
bool is_inside(std::string_view group, std::string_view outer);

}  // namespace nvshare::daemon
