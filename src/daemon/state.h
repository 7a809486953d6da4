#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "base/uuid.h"
#include "daemon/declared.h"

// What outlasts a restart of the scheduler, as data and as text. No IO.
namespace nvshare::daemon {

// A run that was open when the state was written.
struct KeptRun {
  std::string name;
  std::uint32_t uid = 0;
  // The process that keeps the run open. A number alone may be another process's by now.
  int pid = 0;
  std::uint64_t started = 0;  // of that process, in ticks since the machine started
  std::string parent{};       // name of the tenant that the run is a part of
  std::string cgroup{};       // path of the run's own; empty: it has none
  core::Limits limits{};      // with which the run began
  wire::Backend backend = wire::Backend::Default;
  std::uint64_t flags = 0;  // of RunBegin

  friend bool operator==(const KeptRun&, const KeptRun&) = default;
};

// A lease that was active when the state was written. Its times are the machine's since its start.
struct KeptLease {
  std::string name;
  std::string task_class;
  Uuid gpu{};
  std::optional<std::uint32_t> uid{};
  int pid = 0;  // of the process that owns it; 0: none
  std::uint64_t started = 0;
  bool with_children = false;
  std::string trace{};
  std::optional<Duration> hold{};  // that it asked for; none: its class's
  Time acquired{};
  Time expires{};

  friend bool operator==(const KeptLease&, const KeptLease&) = default;
};

struct State {
  std::string boot{};  // of the machine: runs and leases do not outlast it
  bool scheduling = true;
  std::map<std::string, std::string> settings{};  // changed with `nvshare config`
  std::vector<LiveTenant> tenants{};
  std::vector<KeptRun> runs{};  // a part comes after its parent
  std::vector<KeptLease> leases{};
  int left_out = 0;  // records that made no sense, of a file that was read

  friend bool operator==(const State&, const State&) = default;
};

inline constexpr int kStateVersion = 1;
inline constexpr std::size_t kLongestState = 16 << 20;

// The whole file.
std::string to_text(const State& state);
// What to_text() has made; an error for any other text, a part of one and a later version. A record
// that makes no sense is left out, because the others are changes of other people.
Result<State> parse_state(std::string_view text);

// A file with this body and the right first line, whatever the body is.
std::string sealed(std::string_view body);

}  // namespace nvshare::daemon
