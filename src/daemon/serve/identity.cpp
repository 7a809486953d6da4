#include "daemon/serve/identity.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/tenant_names.h"

namespace nvshare::daemon {
namespace {

constexpr int kDeepest = 128;  // processes above one another that are looked at

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(by);
    parts.push_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

// docker-ID.scope, libpod-ID.scope, crio-ID.scope, cri-containerd-ID.scope, or the ID alone.
std::optional<std::string> id_in(std::string_view folder) {
  constexpr std::string_view kScope = ".scope";
  if (folder.size() > kScope.size() && folder.substr(folder.size() - kScope.size()) == kScope) {
    folder.remove_suffix(kScope.size());
  }
  const std::size_t dash = folder.rfind('-');
  if (dash != folder.npos) folder.remove_prefix(dash + 1);
  return is_container_id(folder) ? std::optional(std::string(folder)) : std::nullopt;
}

// user-1000.slice, or user@1000.service.
bool is_of_a_user(std::string_view folder) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kKinds{
      {{"user-", ".slice"}, {"user@", ".service"}}};
  for (const auto& [begin, end] : kKinds) {
    if (folder.size() <= begin.size() + end.size()) continue;
    if (folder.substr(0, begin.size()) != begin) continue;
    if (folder.substr(folder.size() - end.size()) != end) continue;
    folder.remove_prefix(begin.size());
    folder.remove_suffix(end.size());
    return std::all_of(folder.begin(), folder.end(), [](char c) { return c >= '0' && c <= '9'; });
  }
  return false;
}

std::optional<std::string> container_in_path(std::string_view path) {
  constexpr std::string_view kLxc = "lxc.payload.";
  const auto folders = split(path, '/');
  for (std::size_t i = 0; i < folders.size(); ++i) {
    // What is below was made by that user, who gives it any name: systemd-run --user --unit=...
    if (is_of_a_user(folders[i])) return std::nullopt;
    if (auto id = id_in(folders[i])) return id;
    if (folders[i].rfind(kLxc, 0) == 0 && folders[i].size() > kLxc.size()) {
      return std::string(folders[i].substr(kLxc.size()));
    }
    if (folders[i] == "lxc" && i + 1 < folders.size() && !folders[i + 1].empty()) {
      return std::string(folders[i + 1]);
    }
  }
  return std::nullopt;
}

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

std::optional<std::string> group_in_cgroup(std::string_view text) {
  constexpr std::string_view kSecond = "0::/";  // cgroup2, also beside the older hierarchies
  for (const std::string_view line : split(text, '\n')) {
    if (line.substr(0, kSecond.size()) == kSecond) {
      return std::string(line.substr(kSecond.size() - 1));
    }
  }
  return std::nullopt;
}

std::optional<std::string> container_in_cgroup(std::string_view text) {
  for (const std::string_view line : split(text, '\n')) {
    const auto parts = split(line, ':');  // "0::/path", or "12:memory:/path" of the older kind
    if (parts.size() < 3) continue;
    const std::size_t path = parts[0].size() + parts[1].size() + 2;
    if (auto id = container_in_path(line.substr(path))) return id;
  }
  return std::nullopt;
}

std::optional<std::string> Processes::read(int pid, std::string_view file) const {
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

TenantName Processes::tenant_of(int pid, std::uint32_t uid) const {
  const auto cgroup = pid > 0 ? read(pid, "cgroup") : std::nullopt;
  const auto container = cgroup ? container_in_cgroup(*cgroup) : std::nullopt;
  return container ? container_tenant(*container, uid) : user_tenant(uid);
}

std::string Processes::home_of(int pid, std::uint32_t uid) const {
  if (pid <= 0 || !read(pid, "cgroup")) return {};
  const TenantName tenant = tenant_of(pid, uid);
  std::string home = fmt::format("{}/{}/{}", uid, daemon::name_of(tenant.kind), tenant.name);
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
