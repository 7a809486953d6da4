#pragma once

// A picture of the process table and of cgroups, for tests.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/serve/identity.h"
#include "daemon/serve/run_groups.h"

namespace nvshare::daemon {

class Picture {
 public:
  static constexpr std::uint64_t kStarted = 7;  // where it does not matter

  Picture() { std::filesystem::create_directories(proc()); }
  ~Picture() { std::filesystem::remove_all(root_); }
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;

  // The process is there from now on, or has changed. `group`: in the cgroup2 hierarchy.
  ProcessKey process(int pid, int parent, const std::string& group,
                     std::uint64_t started = kStarted) {
    const std::string folder = folder_of(pid);
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/stat")
        << pid << " (x) y) S " << parent << " 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 "
        << started << " 23";
    std::ofstream(folder + "/cgroup") << "0::" << group << "\n";
    std::ofstream(folder + "/comm") << "pro\x01gram\n";
    return {pid, started};
  }
  void gone(int pid) { std::filesystem::remove_all(folder_of(pid)); }

  // The group is there, with processes in it or without.
  void group(const std::string& name, bool populated) {
    std::filesystem::create_directories(cgroups() + name);
    std::ofstream(cgroups() + name + "/cgroup.events")
        << (populated ? "populated 1\n" : "populated 0\n");
  }
  void remove_groups() { std::filesystem::remove_all(cgroups()); }

  std::string folder_of(int pid) const { return proc() + "/" + std::to_string(pid); }
  Processes processes(Ownership ownership = {},
                      ProcessCalls calls = ProcessCalls::of_kernel()) const {
    return Processes(proc(), std::move(ownership), std::move(calls));
  }
  RunGroups groups() const {
    return *RunGroups::find("30 23 0:26 / " + cgroups() + " rw - cgroup2 cgroup2 rw\n");
  }

 private:
  // In memory where that can be: property tests draw thousands of processes.
  static std::string new_folder() {
    char in_memory[] = "/dev/shm/nvshare-picture-XXXXXX";
    if (const char* made = mkdtemp(in_memory)) return made;
    char on_disk[] = "/tmp/nvshare-picture-XXXXXX";
    return mkdtemp(on_disk);
  }
  std::string proc() const { return root_ + "/proc"; }
  std::string cgroups() const { return root_ + "/cgroups"; }

  std::string root_ = new_folder();
};

}  // namespace nvshare::daemon
