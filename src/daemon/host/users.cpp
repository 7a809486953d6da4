#include "daemon/host/users.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>

namespace nvshare::daemon {

NameLookup system_names() {
  NameLookup lookup;
  lookup.user = [](const std::string& name) -> std::optional<std::uint32_t> {
    const passwd* found = getpwnam(name.c_str());
    return found == nullptr ? std::nullopt : std::optional<std::uint32_t>(found->pw_uid);
  };
  lookup.group = [](const std::string& name) -> std::optional<std::uint32_t> {
    const group* found = getgrnam(name.c_str());
    return found == nullptr ? std::nullopt : std::optional<std::uint32_t>(found->gr_gid);
  };
  return lookup;
}

std::vector<std::uint32_t> groups_of_user(std::uint32_t uid) {
  const passwd* user = getpwuid(uid);
  if (user == nullptr) return {};
  const std::string name = user->pw_name;
  const gid_t own = user->pw_gid;
  std::vector<gid_t> groups(64);
  int count = static_cast<int>(groups.size());
  if (getgrouplist(name.c_str(), own, groups.data(), &count) < 0) {
    groups.resize(static_cast<std::size_t>(std::max(count, 0)));
    if (getgrouplist(name.c_str(), own, groups.data(), &count) < 0) return {own};
  }
  groups.resize(static_cast<std::size_t>(count));
  return {groups.begin(), groups.end()};
}

}  // namespace nvshare::daemon
