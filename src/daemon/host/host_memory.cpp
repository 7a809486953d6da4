#include "daemon/host/host_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "core/config.h"

namespace nvshare::daemon {
namespace {

constexpr Bytes kLeastMargin = mib(256);
constexpr int kMarginPercent = 5;  // of the machine's memory

// Of a group of version 1, "total_" is with the groups below it, as the usage is.
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

// A number at the beginning, in units of `unit`; nothing for "max", and for more than any
// machine has, which is version 1's word for it.
std::optional<Bytes> number(std::string_view text, std::int64_t unit = 1) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto value = parse_integer(text.substr(0, digits), 0, core::kMostMemory.count);
  if (!value) return std::nullopt;
  return Bytes{std::min(*value, core::kMostMemory.count / unit) * unit};
}

// What stands behind `name` and blanks, at the beginning of a line.
std::optional<std::string_view> behind(std::string_view text, std::string_view name) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.substr(0, name.size()) != name) continue;
    line.remove_prefix(name.size());
    const std::size_t blanks = line.find_first_not_of(" \t");
    if (blanks == line.npos || blanks == 0) continue;
    return line.substr(blanks);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Bytes> meminfo_line(std::string_view text, std::string_view name) {
  const auto value = behind(text, std::string(name) + ":");
  return value ? number(*value, 1024) : std::nullopt;
}

std::string HostMemory::read(const std::string& path) const {
  std::ifstream file(root_ + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Bytes HostMemory::available() const {
  return meminfo_line(read("/proc/meminfo"), "MemAvailable").value_or(Bytes{});
}

// The tightest of a group and all groups above it. Files that could be dropped are not counted as
// used. Folders that are not there are skipped: a container may see its own group alone.
std::optional<Bytes> HostMemory::left_below(const std::string& mount, std::string_view path,
                                            const GroupFiles& names) const {
  std::optional<Bytes> least;
  for (;;) {
    const std::string folder = mount + std::string(path) + "/";
    const auto most = number(read(folder + names.most));
    const auto used = number(read(folder + names.used));
    if (most && used) {
      const std::string parts = read(folder + "memory.stat");
      const auto files = behind(parts, names.files);
      const Bytes dropped = files ? number(*files).value_or(Bytes{}) : Bytes{};
      const Bytes left = *most - (*used - std::min(*used, dropped));
      least = std::min(least.value_or(left), left);
    }
    if (path.empty()) return least;
    path = path.substr(0, path.rfind('/'));
  }
}

// Lines are "0::/path" of version 2 and "5:memory:/path" of version 1. Where both are mounted, the
// memory controller is in one of them, and the other one has no such files.
std::optional<Bytes> HostMemory::left_in_groups() const {
  std::istringstream groups(read("/proc/self/cgroup"));
  std::optional<Bytes> least;
  const auto look = [&](const char* mount, std::string_view path, const GroupFiles& names) {
    const auto left = left_below(mount, path, names);
    if (left) least = std::min(least.value_or(*left), *left);
  };
  for (std::string line; std::getline(groups, line);) {
    const std::size_t slash = line.find(":/");
    if (slash == line.npos) continue;
    const std::string_view path = std::string_view(line).substr(slash + 1);
    // With a comma on either side, as every controller of version 1 then has.
    const std::string controllers =
        "," + line.substr(line.find(':') + 1, slash - line.find(':') - 1) + ",";
    if (line.starts_with("0::")) {
      look("/sys/fs/cgroup", path, kVersion2);
      look("/sys/fs/cgroup/unified", path, kVersion2);
    } else if (controllers.find(",memory,") != controllers.npos) {
      look("/sys/fs/cgroup/memory", path, kVersion1);
    }
  }
  return least;
}

HostMemory::Left HostMemory::left() const {
  const std::string text = read("/proc/meminfo");
  const Bytes total = meminfo_line(text, "MemTotal").value_or(Bytes{});
  const Bytes margin = std::max(kLeastMargin, Bytes{total.count / 100 * kMarginPercent});
  const Bytes machine = meminfo_line(text, "MemAvailable").value_or(Bytes{}) - margin;
  const Bytes groups = left_in_groups().value_or(core::kMostMemory) - kLeastMargin;
  return {std::max(Bytes{}, std::min(machine, groups)), groups < machine};
}

}  // namespace nvshare::daemon
