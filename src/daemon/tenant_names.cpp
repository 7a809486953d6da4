#include "daemon/tenant_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/run_name.h"

namespace nvshare::daemon {
namespace {

constexpr std::string_view kSlice = ".slice";
constexpr std::string_view kScope = ".scope";

// Only 0-9 and a-f.
bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == text.npos;
}

bool is_container_id(std::string_view text) {
  return text.size() == kIdLength && is_hex(text);
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

std::string_view without_end(std::string_view text, std::string_view end) {
  return text.ends_with(end) ? text.substr(0, text.size() - end.size()) : text;
}

// The letters that a tenant's name may have.
std::string as_name(std::string_view text) {
  std::string name(text);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !is_name_letter(c); }, '_');
  return name;
}

// A pod's UID, in the one way of writing it: systemd's slices have '_' for '-'. Static pods have 32
// letters without a '-'.
std::optional<std::string> pod_uid(std::string_view text) {
  constexpr std::size_t kLength = 36;
  constexpr std::size_t kStaticLength = 32;
  if (text.size() == kStaticLength && is_hex(text)) return std::string(text);
  if (text.size() != kLength) return std::nullopt;
  std::string uid(text);
  for (std::size_t i = 0; i < kLength; ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash && uid[i] == '_') uid[i] = '-';
    if (dash ? uid[i] != '-' : !is_hex(std::string_view(&uid[i], 1))) return std::nullopt;
  }
  return uid;
}

// docker-ID.scope, libpod-ID.scope, crio-ID.scope, cri-containerd-ID.scope, or the ID alone.
std::optional<std::string> id_in(std::string_view folder) {
  folder = without_end(folder, kScope);
  const std::size_t dash = folder.rfind('-');
  if (dash != folder.npos) folder.remove_prefix(dash + 1);
  return is_container_id(folder) ? std::optional(std::string(folder)) : std::nullopt;
}

// podUID, or kubepods-burstable-podUID.slice.
std::optional<std::string> pod_in(std::string_view folder) {
  constexpr std::string_view kPod = "pod";
  folder = without_end(folder, kSlice);
  const std::size_t at = folder.rfind(kPod);
  if (at == folder.npos || (at > 0 && folder[at - 1] != '-')) return std::nullopt;
  return pod_uid(folder.substr(at + kPod.size()));
}

// user-1000.slice, or user@1000.service.
bool is_of_user_named(std::string_view folder) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kKinds{
      {{"user-", kSlice}, {"user@", ".service"}}};
  for (const auto& [begin, end] : kKinds) {
    if (folder.size() <= begin.size() + end.size()) continue;
    if (!folder.starts_with(begin) || !folder.ends_with(end)) continue;
    folder.remove_prefix(begin.size());
    folder.remove_suffix(end.size());
    return std::all_of(folder.begin(), folder.end(), [](char c) { return c >= '0' && c <= '9'; });
  }
  return false;
}

// The name of a container under LXC, which `folder` begins.
std::optional<std::string> lxc_name(std::string_view folder, std::string_view next) {
  constexpr std::string_view kLxc = "lxc.payload.";
  if (folder.size() > kLxc.size() && folder.starts_with(kLxc)) {
    return std::string(folder.substr(kLxc.size()));
  }
  if (folder == "lxc" && !next.empty()) return std::string(next);
  return std::nullopt;
}

FoundInCgroup found_in_path(std::string_view path, const IsOfAUser& is_of_a_user) {
  FoundInCgroup found;
  const auto folders = split(path, '/');
  std::string around = "/";  // the group that the folder lies in
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const std::string_view folder = folders[i];
    if (folder.empty()) continue;
    // What is below was made by that user, who gives it any name: systemd-run --user --unit=...
    if (is_of_user_named(folder)) return found;
    // The scheduler made the group, but the user chose the run's name: "pod" and 32 letters, say.
    if (folder.starts_with(kRunGroupPrefix)) return found;
    auto pod = found.pod ? std::nullopt : pod_in(folder);
    auto id = pod ? std::nullopt : id_in(folder);
    if (!pod && !id) id = lxc_name(folder, i + 1 < folders.size() ? folders[i + 1] : "");
    if ((pod || id) && is_of_a_user && is_of_a_user(around)) return found;
    if (pod) found.pod = std::move(pod);
    if (id) {
      found.container = std::move(id);
      return found;
    }
    around += (around.size() == 1 ? "" : "/") + std::string(folder);
  }
  return found;
}

}  // namespace

TenantName user_tenant(std::uint32_t uid) {
  return {TenantKind::User, fmt::format("{}{}", kUserPrefix, uid), uid};
}

TenantName container_tenant(std::string_view id, std::uint32_t uid) {
  const std::size_t longest =
      is_container_id(id) ? kShownIdLength : kLongestName - kContainerPrefix.size();
  return {TenantKind::Container, std::string(kContainerPrefix) + as_name(id.substr(0, longest)),
          uid};
}

TenantName pod_tenant(std::string_view pod, std::uint32_t uid) {
  return {TenantKind::Pod, std::string(kPodPrefix) + std::string(pod), uid};
}

TenantName cgroup_tenant(std::string_view path, std::uint32_t uid) {
  const std::size_t longest = kLongestName - kCgroupPrefix.size();
  path.remove_prefix(std::min<std::size_t>(path.size(), path.starts_with('/') ? 1 : 0));
  if (path.size() > longest) path.remove_prefix(path.size() - longest);
  std::string name(path);
  std::replace(name.begin(), name.end(), '/', '-');
  return {TenantKind::Cgroup, std::string(kCgroupPrefix) + as_name(name), uid};
}

std::optional<TenantName> tenant_called(const std::string& name, std::uint32_t uid) {
  if (name.starts_with(kContainerPrefix)) return TenantName{TenantKind::Container, name, uid};
  if (name.starts_with(kPodPrefix)) return TenantName{TenantKind::Pod, name, uid};
  if (name.starts_with(kCgroupPrefix)) return TenantName{TenantKind::Cgroup, name, uid};
  if (!name.starts_with(kUserPrefix)) return std::nullopt;
  // The largest number stands for nobody.
  const auto number = parse_integer(name.substr(kUserPrefix.size()), 0, UINT32_MAX - 1);
  if (!number) return std::nullopt;
  TenantName user = user_tenant(static_cast<std::uint32_t>(*number));
  return user.name == name ? std::optional(std::move(user)) : std::nullopt;
}

// --- as people write them ----------------------------------------------------------------------

Result<TenantName> container_named(const std::string& text) {
  const std::string id =
      text.starts_with(kContainerPrefix) ? text.substr(kContainerPrefix.size()) : text;
  if (id.empty()) return Error{"the container's id is missing"};
  const bool only_hex = id.find_first_not_of("0123456789abcdefABCDEF") == id.npos;
  const bool looks_like_id = (only_hex && id.size() >= kShownIdLength) || id.size() == kIdLength;
  const bool is_short = id.size() == kShownIdLength && is_hex(id);
  if (looks_like_id && !is_short && !is_container_id(id)) {
    return Error{fmt::format(
        "is no container's id: that has {} letters of 0-9 and a-f; its first {} will do", kIdLength,
        kShownIdLength)};
  }
  return container_tenant(id);
}

Result<TenantName> pod_named(const std::string& text) {
  const auto uid = pod_uid(text.starts_with(kPodPrefix) ? text.substr(kPodPrefix.size())
                                                        : std::string_view(text));
  if (!uid) {
    return Error{
        "is no pod's UID, such as 0b1d2c3a-1111-2222-3333-444455556666: "
        "`kubectl get pod NAME -o jsonpath={.metadata.uid}` shows it"};
  }
  return pod_tenant(*uid);
}

Result<TenantName> cgroup_named(const std::string& path) {
  const bool whole = path.size() > 1 && path.front() == '/' && path.back() != '/' &&
                     path.find("//") == path.npos && path.find("/.") == path.npos;
  if (!whole) return Error{"is no path of a cgroup, such as /system.slice/jupyter.service"};
  const FoundInCgroup found = found_in_path(path, {});
  if (found.container) return Error{"is a container's: it has a table in [containers]"};
  if (found.pod) return Error{"is a pod's: it has a table in [pods]"};
  for (const std::string_view folder : split(path, '/')) {
    if (is_of_user_named(folder)) return Error{"is a user's: it has a table in [users]"};
  }
  return cgroup_tenant(path);
}

// --- as the kernel writes them -----------------------------------------------------------------

FoundInCgroup found_in_cgroup(std::string_view text, const IsOfAUser& is_of_a_user) {
  for (const std::string_view line : split(text, '\n')) {
    const auto parts = split(line, ':');  // "0::/path", or "12:memory:/path" of the older kind
    if (parts.size() < 3) continue;
    const std::string_view path = line.substr(parts[0].size() + parts[1].size() + 2);
    // Of the older hierarchies users own nothing, unless an administrator gives it to them.
    const bool second = parts[0] == "0" && parts[1].empty();
    auto found = found_in_path(path, second ? is_of_a_user : IsOfAUser{});
    if (found.pod || found.container) return found;
  }
  return {};
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

}  // namespace nvshare::daemon
