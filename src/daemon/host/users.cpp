#include "daemon/host/users.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>

namespace nvshare::daemon {
namespace {

// Every other number is one of the many that stand for "there is none".
bool could_not_ask(int error) {
  constexpr std::array<int, 9> kErrors{EINTR,  EIO,    EMFILE,    ENFILE,      ENOMEM,
                                       EAGAIN, ERANGE, ETIMEDOUT, ECONNREFUSED};
  return std::ranges::find(kErrors, error) != kErrors.end();
}

}  // namespace

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

std::optional<std::vector<std::uint32_t>> groups_of_user(std::uint32_t uid) {
  errno = 0;
  const passwd* user = getpwuid(uid);
  if (user == nullptr) {
    if (could_not_ask(errno)) return std::nullopt;
    return std::vector<std::uint32_t>{};
  }
  const std::string name = user->pw_name;
  const gid_t own = user->pw_gid;
  std::vector<gid_t> groups(64);
  int count = static_cast<int>(groups.size());
  if (getgrouplist(name.c_str(), own, groups.data(), &count) < 0) {
    groups.resize(static_cast<std::size_t>(std::max(count, 0)));
    if (getgrouplist(name.c_str(), own, groups.data(), &count) < 0) return std::nullopt;
  }
  groups.resize(static_cast<std::size_t>(count));
  return std::vector<std::uint32_t>(groups.begin(), groups.end());
}

void SubordinateUsers::read_again() {
  ranges_.clear();
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {  // alice:100000:65536
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const auto begin = parse_integer(line.substr(first + 1, second - first - 1), 0, UINT32_MAX);
    const auto count = parse_integer(line.substr(second + 1), 0, UINT32_MAX);
    if (!begin || !count) continue;
    ranges_.push_back({static_cast<std::uint32_t>(*begin), static_cast<std::uint32_t>(*count),
                       line.substr(0, first)});
  }
}

// Asked for once after each change of the file, and until there is an answer.
std::optional<std::uint32_t> SubordinateUsers::owner_of(Range& range) {
  if (const auto number = parse_integer(range.user, 0, UINT32_MAX - 1)) {
    return static_cast<std::uint32_t>(*number);
  }
  const auto known = known_.find(range.user);
  const auto last = known == known_.end() ? std::nullopt : std::optional(known->second);
  if (range.asked) return last;
  const auto later = ask_again_.find(range.user);
  if (later != ask_again_.end() && now_() < later->second) return last;
  const auto found = find_user_(range.user);
  if (!found) {
    ask_again_[range.user] = now_() + kAskAgain;
    return last;
  }
  range.asked = true;
  known_[range.user] = *found;
  return found;
}

Result<std::uint32_t> SubordinateUsers::user_of(std::uint32_t uid) {
  struct stat about {};
  if (stat(path_.c_str(), &about) != 0) return uid;
  const timespec& now = about.st_mtim;
  if (!changed_ || changed_->tv_sec != now.tv_sec || changed_->tv_nsec != now.tv_nsec) {
    changed_ = now;
    read_again();
  }
  for (Range& range : ranges_) {
    if (uid < range.first || uid - range.first >= range.count) continue;
    if (const auto owner = owner_of(range)) return *owner;
    return Error{fmt::format("{} gives the user number {} to '{}', which the machine does not know",
                             path_, uid, range.user)};
  }
  return uid;
}

}  // namespace nvshare::daemon
