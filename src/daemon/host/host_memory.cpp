#include "daemon/host/host_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "core/config.h"

namespace nvshare::daemon {
namespace {

constexpr Bytes kLeastMargin = mib(256);
constexpr int kMarginPercent = 5;  // of the machine's memory

// A number at the beginning, in units of `unit`; nothing for "max" and the like.
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

// The tightest of the groups that it is in. Files that could be dropped are not counted as used.
std::optional<Bytes> HostMemory::left_in_groups() const {
  const std::string groups = read("/proc/self/cgroup");
  const std::size_t at = groups.rfind("0::/");
  if (at == groups.npos) return std::nullopt;
  std::string path = groups.substr(at + 3, groups.find('\n', at) - at - 3);
  std::optional<Bytes> least;
  for (;;) {
    const std::string folder = "/sys/fs/cgroup" + path;
    const auto most = number(read(folder + "/memory.max"));
    const auto used = number(read(folder + "/memory.current"));
    if (most && used) {
      const std::string parts = read(folder + "/memory.stat");
      const auto files = behind(parts, "inactive_file");
      const Bytes dropped = files ? number(*files).value_or(Bytes{}) : Bytes{};
      const Bytes left = *most - (*used - std::min(*used, dropped));
      least = std::min(least.value_or(left), left);
    }
    const std::size_t slash = path.rfind('/');
    if (path.size() <= 1 || slash == path.npos) return least;
    path.resize(slash);
  }
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
