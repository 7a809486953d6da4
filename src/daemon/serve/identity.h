#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/serve/held_process.h"
#include "daemon/tenant_names.h"

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

// What of the machine tells whose a process is, beside /proc. Handed in, so that tests need no such
// machine.
struct Ownership {
  IsOfAUser is_of_a_user{};
  // The user that a subordinate number belongs to; every other number is its own. An error when
  // that cannot be told now.
  std::function<Result<std::uint32_t>(std::uint32_t uid)> user_of{};
  std::vector<std::string> cgroups{};  // declared ones, by their paths: each is a tenant
};

// The process table, or a test's picture of it.
class Processes {
 public:
  explicit Processes(std::string proc = "/proc", Ownership ownership = {},
                     ProcessCalls calls = ProcessCalls::of_kernel())
      : proc_(std::move(proc)), ownership_(std::move(ownership)), calls_(std::move(calls)) {}

  Result<HeldProcess> hold_peer(int socket, int pid) const {
    return daemon::hold_peer(calls_, socket, pid);
  }
  Result<HeldProcess> hold(int pid) const { return hold_process(calls_, pid); }

  // The first answer of `run_at` to the process and those above it. A bounded walk; an error when
  // it ends before the answer is known, or a process that lives cannot be read.
  using RunAt = std::function<std::optional<TenantId>(const ProcessKey&)>;
  Result<std::optional<TenantId>> run_above(int pid, const RunAt& run_at) const;
  // Nothing when the process is gone.
  std::optional<ProcessKey> key_of(int pid) const;
  std::optional<std::string> group_of(int pid) const;
  // The user as which the process runs.
  std::optional<std::uint32_t> user_of(int pid) const;
  // The tenants of a process that is under no run, the outermost first: a declared cgroup, its pod
  // and its container; or else its user. At least one. An error for a process that lives and that
  // cannot be read, or whose user cannot be told now.
  Result<std::vector<TenantName>> tenants_of(int pid, std::uint32_t uid) const;
  // The same for a process with this text in /proc/PID/cgroup.
  Result<std::vector<TenantName>> tenants_in(std::string_view cgroup, std::uint32_t uid) const;
  // The same for a run that an earlier scheduler knew, by its process or (pid 0) by its group in
  // the cgroup2 hierarchy. Where that cannot be told now, the parent that the run had.
  Result<std::vector<TenantName>> tenants_around(int pid, const std::string& group,
                                                 std::uint32_t uid,
                                                 const std::string& parent) const;
  // The names of the pods and containers of all processes; nothing when that cannot be told. Reads
  // one file for each process of the machine.
  std::optional<std::set<std::string>> boxes() const;
  // What only programs have in common that may read each other's memory: the user, the container,
  // and the namespaces of users and processes. Empty when the kernel does not say.
  std::string home_of(int pid, std::uint32_t uid) const;
  // The name the kernel has for it; "?" when it is gone.
  std::string name_of(int pid) const;

  // Files that have been read, ever: each takes the kernel some microseconds.
  std::uint64_t reads() const { return reads_; }

 private:
  struct Stat {
    int parent = 0;
    std::uint64_t started = 0;
  };
  // Nothing when the process is gone.
  Result<std::optional<Stat>> stat_of(int pid) const;
  std::optional<std::string> read(int pid, std::string_view file) const;
  std::string proc_;
  Ownership ownership_;
  ProcessCalls calls_;
  mutable std::uint64_t reads_ = 0;
};

}  // namespace nvshare::daemon
