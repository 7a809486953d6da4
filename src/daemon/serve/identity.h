#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "daemon/broker/records.h"

// Who a process belongs to, from what the kernel says about it.
namespace nvshare::daemon {

// One process, ever: the kernel gives a number again, but not with the same start time.
struct ProcessKey {
  int pid = 0;
  std::uint64_t started = 0;  // in ticks since the machine's start
  friend auto operator<=>(const ProcessKey&, const ProcessKey&) = default;
};

// The parent's pid, from the text of /proc/PID/stat. Nothing when the text is no such thing.
std::optional<int> parent_in_stat(std::string_view text);
// The process's start time, from the same text.
std::optional<std::uint64_t> start_in_stat(std::string_view text);

// The process's group in the cgroup2 hierarchy, from the text of /proc/PID/cgroup.
std::optional<std::string> group_in_cgroup(std::string_view text);

// The container's id, or its name under LXC, from the text of /proc/PID/cgroup. Of containers in a
// container it is the outer one: what is inside was made by whoever is inside. What is inside a
// user's own slice or service manager was made by that user, and is none.
std::optional<std::string> container_in_cgroup(std::string_view text);

// The process table, or a test's picture of it.
class Processes {
 public:
  explicit Processes(std::string proc = "/proc") : proc_(std::move(proc)) {}

  // The first answer of `run_at` to the process and those above it. A bounded walk; an error when
  // it ends before the answer is known, or a process that lives cannot be read.
  using RunAt = std::function<std::optional<TenantId>(const ProcessKey&)>;
  Result<std::optional<TenantId>> run_above(int pid, const RunAt& run_at) const;
  // Nothing when the process is gone.
  std::optional<ProcessKey> key_of(int pid) const;
  std::optional<std::string> group_of(int pid) const;
  // The tenant of a process that is under no run: its container, or else its user.
  TenantName tenant_of(int pid, std::uint32_t uid) const;
  // What only programs have in common that may read each other's memory: the user, the container,
  // and the namespaces of users and processes. Empty when the kernel does not say.
  std::string home_of(int pid, std::uint32_t uid) const;
  // The name the kernel has for it; "?" when it is gone.
  std::string name_of(int pid) const;

 private:
  struct Stat {
    int parent = 0;
    std::uint64_t started = 0;
  };
  // Nothing when the process is gone.
  Result<std::optional<Stat>> stat_of(int pid) const;
  std::optional<std::string> read(int pid, std::string_view file) const;
  std::string proc_;
};

}  // namespace nvshare::daemon
