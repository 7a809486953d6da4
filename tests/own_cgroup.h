#pragma once

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <string>

namespace nvshare {

// Where this process's cgroup lies as a folder; empty without cgroup2.
inline std::string own_cgroup_folder() {
  std::string mount;
  std::string root;
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    if (line.find(" - cgroup2 ") == line.npos) continue;
    std::istringstream words(line);
    std::string number, parent, device;
    words >> number >> parent >> device >> root >> mount;
    break;
  }
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; !mount.empty() && std::getline(groups, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    const std::string group = line.substr(3);
    if (root == "/") return mount + group;
    return group.rfind(root, 0) == 0 ? mount + group.substr(root.size()) : "";
  }
  return "";
}

// Whether this machine lets a scheduler make a group below a run's, and move the run into it: tried
// without the scheduler, so that a scheduler that does not do it fails its tests.
inline bool cgroups_can_be_made() {
  const std::string own = own_cgroup_folder();
  if (own.empty() || geteuid() != 0) return false;
  const std::string made = own + "/nvshare-can-" + std::to_string(getpid());
  if (::mkdir(made.c_str(), 0755) != 0) return false;
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  bool moved = false;
  {
    std::ofstream file(made + "/cgroup.procs");
    file << child << std::flush;
    moved = file.good();
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (int i = 0; ::rmdir(made.c_str()) != 0 && i < 200; ++i) usleep(10'000);
  return moved;
}

}  // namespace nvshare
