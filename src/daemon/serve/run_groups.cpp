#include "daemon/serve/run_groups.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/run_name.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "daemon/tenant_names.h"

namespace nvshare::daemon {
namespace {

constexpr std::size_t kLongestPath = 2048;
constexpr int kMostOfOneName = 16;  // groups of one name side by side: of several schedulers
constexpr int kDeepest = 64;        // groups in one another that are looked through

std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> all;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), &::closedir);
  if (!open) return all;
  while (const dirent* entry = ::readdir(open.get())) {
    const std::string name = entry->d_name;
    if (entry->d_type == DT_DIR && name != "." && name != "..") all.push_back(name);
  }
  return all;
}

bool has_processes(const std::string& folder) {
  const UniqueFd file(::open((folder + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 256> text;
  const auto length = file ? ::read(file.get(), text.data(), text.size()) : -1;
  if (length <= 0) return length < 0 && errno != ENOENT && errno != ENODEV && errno != ENOTDIR;
  return std::string_view(text.data(), static_cast<std::size_t>(length)).find("populated 1") !=
         std::string_view::npos;
}

// Whether make() gives a group such a name.
bool is_name_of_a_run_group(std::string_view name) {
  if (!name.starts_with(kRunGroupPrefix)) return false;
  name.remove_prefix(kRunGroupPrefix.size());
  if (const std::size_t plus = name.rfind('+'); plus != name.npos) {
    if (!parse_integer(name.substr(plus + 1), 2, kMostOfOneName)) return false;
    name = name.substr(0, plus);
  }
  return static_cast<bool>(check_run_name(name));
}

// Whether a scheduler has made the group. Users make groups of any name in the groups they own.
bool is_of_a_scheduler(const std::string& folder) {
  struct stat about {};
  return is_name_of_a_run_group(std::string_view(folder).substr(folder.rfind('/') + 1)) &&
         ::lstat(folder.c_str(), &about) == 0 && about.st_uid == geteuid();
}

// Removes the group of a run with those of the runs in it. A group that somebody else has made
// stays, and so do the groups around it.
bool remove_runs(const std::string& folder, int depth = 0) {
  if (!is_of_a_scheduler(folder)) return false;
  if (depth < kDeepest) {
    for (const std::string& one : folders_in(folder)) remove_runs(folder + "/" + one, depth + 1);
  }
  return ::rmdir(folder.c_str()) == 0 || errno == ENOENT;
}

// Adds the folders of runs that cannot be removed now, those inside before those around them.
void remove_empty_runs(const std::string& folder, std::vector<std::string>& used, int depth = 0) {
  if (depth == kDeepest) return;
  for (const std::string& one : folders_in(folder)) {
    const std::string inner = folder + "/" + one;
    const bool of_a_run = is_of_a_scheduler(inner);
    if (of_a_run && !has_processes(inner) && remove_runs(inner)) continue;
    remove_empty_runs(inner, used, depth + 1);
    if (of_a_run) used.push_back(inner);
  }
}

Error failed(std::string_view what, const std::string& folder) {
  return Error{fmt::format("{} {}: {}", what, folder, std::strerror(errno))};
}

std::string_view parent_of(std::string_view group) {
  const std::size_t slash = group.rfind('/');
  return slash == 0 || slash == group.npos ? "/" : group.substr(0, slash);
}

std::string below(const std::string& group, const std::string& name) {
  return group == "/" ? "/" + name : group + "/" + name;
}

}  // namespace

bool is_inside(std::string_view group, std::string_view outer) {
  if (outer.empty() || group.substr(0, outer.size()) != outer) return false;
  return group.size() == outer.size() || outer == "/" || group[outer.size()] == '/';
}

// "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
std::optional<RunGroups> RunGroups::find(std::string_view mountinfo) {
  std::istringstream lines{std::string(mountinfo)};
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" - cgroup2 ") == line.npos) continue;
    std::istringstream words(line);
    std::string number, parent, device, root, folder;
    if (words >> number >> parent >> device >> root >> folder) return RunGroups(folder, root);
  }
  return std::nullopt;
}

std::optional<std::string> RunGroups::folder_of(const std::string& group) const {
  if (group.find("/..") != group.npos || !is_inside(group, root_)) return std::nullopt;
  return folder_ + (root_ == "/" ? group : group.substr(root_.size()));
}

Result<void> RunGroups::move(const std::string& present, const std::string& group, int pid) const {
  if (is_inside(present, group)) return {};
  const auto folder = folder_of(group);
  if (!folder || present != parent_of(group)) {
    return Error{
        fmt::format("process {} is in {}, not in the group around {}", pid, present, group)};
  }
  const UniqueFd file(::open((*folder + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  const std::string number = std::to_string(pid);
  if (!file || ::write(file.get(), number.data(), number.size()) < 0) {
    return failed("cannot move a process to", *folder);
  }
  return {};
}

Result<std::string> RunGroups::make(const std::string& present, const std::string& name,
                                    int pid) const {
  // Anybody may give a group any bytes for a name, and the state file has text of a bounded length.
  const bool tame =
      present.size() <= kLongestPath &&
      std::all_of(present.begin(), present.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!tame) return Error{"the group around it has a name that is too long or not plain"};
  const std::string own = std::string(kRunGroupPrefix) + name;
  const std::string_view last = std::string_view(present).substr(present.rfind('/') + 1);
  const std::string_view rest = last.substr(std::min(last.size(), own.size()));
  const bool same = last.substr(0, own.size()) == own && (rest.empty() || rest[0] == '+');
  const auto around = folder_of(present);
  if (same && around && is_of_a_scheduler(*around)) return present;
  for (int i = 1; i <= kMostOfOneName; ++i) {
    const std::string group = below(present, i == 1 ? own : fmt::format("{}+{}", own, i));
    const auto folder = folder_of(group);
    if (!folder) return Error{fmt::format("the group {} cannot be seen", present)};
    if (::mkdir(folder->c_str(), 0755) != 0) {
      if (errno == EEXIST) continue;
      return failed("cannot make", *folder);
    }
    // Whatever the scheduler's umask is: programs of the run read their group's memory.max.
    (void)::chmod(folder->c_str(), 0755);
    const auto moved = move(present, group, pid);
    if (moved) return group;
    (void)::rmdir(folder->c_str());
    return moved.error();
  }
  return Error{fmt::format("too many groups '{}' in {}", own, present)};
}

bool RunGroups::is_of_a_user(const std::string& group) const {
  const auto folder = folder_of(group);
  struct stat about {};
  return folder && ::stat(folder->c_str(), &about) == 0 && about.st_uid != 0;
}

bool RunGroups::is_populated(const std::string& group) const {
  const auto folder = folder_of(group);
  return folder && has_processes(*folder);
}

int RunGroups::process_in(const std::string& group, int other_than) const {
  const auto folder = folder_of(group);
  if (!folder) return 0;
  std::ifstream file(*folder + "/cgroup.procs");
  int found = 0;
  for (int pid = 0; (found == 0 || found == other_than) && file >> pid;) found = pid;
  return found;
}

bool RunGroups::remove(const std::string& group) const {
  const auto folder = folder_of(group);
  if (!folder || !is_of_a_scheduler(*folder)) return true;
  return !has_processes(*folder) && remove_runs(*folder);
}

std::vector<std::string> RunGroups::remove_leftovers() const {
  std::vector<std::string> used;
  remove_empty_runs(folder_, used);
  for (std::string& one : used) one.replace(0, folder_.size(), root_ == "/" ? "" : root_);
  return used;
}

}  // namespace nvshare::daemon
