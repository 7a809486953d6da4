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

#include "base/run_name.h"
#include "base/unique_fd.h"

namespace nvshare::daemon {
namespace {

constexpr std::size_t kIdLength = 64;     // of every container runtime but LXC
constexpr std::size_t kShownLength = 12;  // of an id in a name, as the runtimes show it
constexpr int kDeepest = 128;             // processes above one another that are looked at

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

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
  if (folder.size() != kIdLength || !std::all_of(folder.begin(), folder.end(), is_hex)) {
    return std::nullopt;
  }
  return std::string(folder);
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

Result<std::optional<int>> Processes::parent_of(int pid) const {
  errno = 0;
  const auto stat = read(pid, "stat");
  if (!stat && (errno == ENOENT || errno == ESRCH)) return std::optional<int>{};
  const auto parent = stat ? parent_in_stat(*stat) : std::nullopt;
  if (!parent) return Error{fmt::format("the scheduler cannot tell what is above process {}", pid)};
  return parent;
}

Result<std::optional<TenantId>> Processes::run_above(int pid,
                                                     const std::map<int, TenantId>& runs) const {
  constexpr std::optional<TenantId> kNone;
  if (runs.empty()) return kNone;
  const int first = pid;
  int missing = 0;
  for (int looked = 0; looked < kDeepest; ++looked) {
    if (pid <= 0) return kNone;
    if (const auto run = runs.find(pid); run != runs.end()) return std::optional(run->second);
    const auto parent = parent_of(pid);
    if (!parent) return parent.error();
    if (*parent) {
      pid = **parent;
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
  auto container = cgroup ? container_in_cgroup(*cgroup) : std::nullopt;
  if (!container) return {TenantKind::User, fmt::format("user-{}", uid), uid};
  const bool is_id = container->size() == kIdLength;
  container->resize(std::min(container->size(), is_id ? kShownLength : kLongestName - 10));
  for (char& c : *container) {
    if (!is_name_letter(c)) c = '_';
  }
  return {TenantKind::Container, "container-" + *container, uid};
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
