#include "daemon/identity.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
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

std::optional<std::string> container_in_path(std::string_view path) {
  constexpr std::string_view kLxc = "lxc.payload.";
  const auto folders = split(path, '/');
  for (std::size_t i = 0; i < folders.size(); ++i) {
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

std::optional<TenantId> Processes::run_above(int pid, const std::map<int, TenantId>& runs) const {
  if (runs.empty()) return std::nullopt;
  for (int depth = 0; depth < kDeepest && pid > 0; ++depth) {
    if (const auto run = runs.find(pid); run != runs.end()) return run->second;
    const auto stat = read(pid, "stat");
    const auto parent = stat ? parent_in_stat(*stat) : std::nullopt;
    if (!parent) return std::nullopt;
    pid = *parent;
  }
  return std::nullopt;
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
