#include "daemon/serve/identity.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/unique_fd.h"
#include "daemon/serve/run_groups.h"

namespace nvshare::daemon {
namespace {

constexpr int kDeepest = 128;  // processes above one another that are looked at

}  // namespace

std::optional<int> parent_in_stat(std::string_view text) {
  // "PID (NAME) STATE PPID ...", where the name may hold anything, parentheses too.
  const std::size_t end = text.rfind(')');
  if (end == text.npos || text.size() < end + 5) return std::nullopt;
  const std::string_view rest = text.substr(end + 4);
  int parent = 0;
  const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), parent);
  if (error != std::errc{} || parent < 0) return std::nullopt;
  return parent;
}

std::optional<std::uint64_t> start_in_stat(std::string_view text) {
  constexpr int kBehindTheName = 20;  // fields: the name is the second, this is the 22nd
  const std::size_t end = text.rfind(')');
  if (end == text.npos) return std::nullopt;
  text.remove_prefix(end + 1);
  for (int i = 0; i < kBehindTheName; ++i) {
    const std::size_t space = text.find(' ');
    if (space == text.npos) return std::nullopt;
    text.remove_prefix(space + 1);
  }
  std::uint64_t started = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), started);
  if (error != std::errc{}) return std::nullopt;
  return started;
}

std::optional<std::string> Processes::read(int pid, std::string_view file) const {
  ++reads_;
  const UniqueFd fd(
      ::open(fmt::format("{}/{}/{}", proc_, pid, file).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  std::array<char, 8192> buffer;
  const auto length = ::read(fd.get(), buffer.data(), buffer.size());
  if (length < 0) return std::nullopt;
  return std::string(buffer.data(), static_cast<std::size_t>(length));
}

Result<std::optional<Processes::Stat>> Processes::stat_of(int pid) const {
  errno = 0;
  const auto text = read(pid, "stat");
  if (!text && (errno == ENOENT || errno == ESRCH)) return std::optional<Stat>{};
  const auto parent = text ? parent_in_stat(*text) : std::nullopt;
  const auto started = text ? start_in_stat(*text) : std::nullopt;
  if (!parent || !started) {
    return Error{fmt::format("the scheduler cannot tell what is above process {}", pid)};
  }
  return std::optional(Stat{*parent, *started});
}

std::optional<ProcessKey> Processes::key_of(int pid) const {
  const auto stat = stat_of(pid);
  if (!stat || !*stat) return std::nullopt;
  return ProcessKey{pid, (*stat)->started};
}

std::optional<std::uint32_t> Processes::user_of(int pid) const {
  struct stat folder {};
  if (pid <= 0 || ::stat(fmt::format("{}/{}", proc_, pid).c_str(), &folder) != 0) {
    return std::nullopt;
  }
  return folder.st_uid;
}

std::optional<std::string> Processes::group_of(int pid) const {
  const auto cgroup = pid > 0 ? read(pid, "cgroup") : std::nullopt;
  return cgroup ? group_in_cgroup(*cgroup) : std::nullopt;
}

Result<std::optional<TenantId>> Processes::run_above(int pid, const RunAt& run_at) const {
  constexpr std::optional<TenantId> kNone;
  const int first = pid;
  int missing = 0;
  for (int looked = 0; looked < kDeepest; ++looked) {
    if (pid <= 0) return kNone;
    const auto stat = stat_of(pid);
    if (!stat) return stat.error();
    if (*stat) {
      if (const auto run = run_at({pid, (*stat)->started})) return run;
      pid = (*stat)->parent;
    } else if (pid == first || pid == missing) {
      return kNone;  // gone; or, still said to be a parent, of somebody whom we cannot see
    } else {
      missing = pid;  // has just ended, and its children have another parent now
      pid = first;
    }
  }
  return Error{fmt::format("more than {} processes are above process {}", kDeepest, first)};
}

Result<std::vector<TenantName>> Processes::tenants_in(std::string_view cgroup,
                                                      std::uint32_t uid) const {
  std::vector<TenantName> levels;
  const std::string group = group_in_cgroup(cgroup).value_or("");
  const std::string* declared = nullptr;
  for (const std::string& one : ownership_.cgroups) {
    const bool longer = declared == nullptr || one.size() > declared->size();
    if (longer && is_inside(group, one)) declared = &one;
  }
  if (declared != nullptr) levels.push_back(cgroup_tenant(*declared, uid));
  const FoundInCgroup found = found_in_cgroup(cgroup, ownership_.is_of_a_user);
  if (found.pod) levels.push_back(pod_tenant(*found.pod, uid));
  if (found.container) levels.push_back(container_tenant(*found.container, uid));
  if (!levels.empty()) return levels;
  const Result<std::uint32_t> user = ownership_.user_of ? ownership_.user_of(uid) : uid;
  if (!user) return user.error();
  levels.push_back(user_tenant(*user));
  return levels;
}

Result<std::vector<TenantName>> Processes::tenants_of(int pid, std::uint32_t uid) const {
  errno = 0;
  const auto cgroup = pid > 0 ? read(pid, "cgroup") : std::nullopt;
  if (pid > 0 && !cgroup && errno != ENOENT && errno != ESRCH) {
    return Error{fmt::format("the scheduler cannot tell in which container process {} is", pid)};
  }
  return tenants_in(cgroup.value_or(""), uid);
}

// Without the parent the run would leave the limits of its user.
Result<std::vector<TenantName>> Processes::tenants_around(int pid, const std::string& group,
                                                          std::uint32_t uid,
                                                          const std::string& parent) const {
  auto levels = tenants_of(pid, uid);
  if (!levels || (pid == 0 && !group.empty())) levels = tenants_in("0::" + group, uid);
  const auto kept = levels ? std::nullopt : tenant_called(parent);
  return kept ? std::vector{*kept} : levels;
}

std::optional<std::set<std::string>> Processes::boxes() const {
  std::set<std::string> texts;  // processes of one cgroup have the same
  std::error_code failed;
  std::filesystem::directory_iterator at(proc_, failed);
  for (; !failed && at != std::filesystem::directory_iterator(); at.increment(failed)) {
    const std::string name = at->path().filename();
    int pid = 0;
    const auto [end, wrong] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (wrong != std::errc{} || end != name.data() + name.size()) continue;
    if (auto text = read(pid, "cgroup")) texts.insert(std::move(*text));
  }
  if (failed) return std::nullopt;
  std::set<std::string> names;
  for (const std::string& text : texts) {
    const FoundInCgroup found = found_in_cgroup(text, ownership_.is_of_a_user);
    if (found.pod) names.insert(pod_tenant(*found.pod).name);
    if (found.container) names.insert(container_tenant(*found.container).name);
  }
  return names;
}

std::string Processes::home_of(int pid, std::uint32_t uid) const {
  const auto cgroup = pid > 0 ? read(pid, "cgroup") : std::nullopt;
  if (!cgroup) return {};
  std::string home = std::to_string(uid);
  const auto levels = tenants_in(*cgroup, uid);
  if (!levels) return {};
  for (const TenantName& level : *levels) home += "/" + level.name;
  for (const char* name : {"user", "pid"}) {
    struct stat about {};
    const std::string path = fmt::format("{}/{}/ns/{}", proc_, pid, name);
    if (stat(path.c_str(), &about) != 0) return {};
    home += fmt::format("/{}", about.st_ino);
  }
  return home;
}

std::string Processes::name_of(int pid) const {
  auto name = read(pid, "comm");
  if (!name || name->empty()) return "?";
  if (name->back() == '\n') name->pop_back();
  for (char& c : *name) {
    if (c < ' ' || c > '~') c = '?';
  }
  return *name;
}

}  // namespace nvshare::daemon
