#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "cli/run/limits.h"

// What is said on the control socket (docs/protocol.md), as plain data. Fields that an answer lacks
// keep their defaults, so that a scheduler of another minor version can still be read.
namespace nvshare::cli {

// Host memory for what is swapped out, of all GPUs.
struct ArenaInfo {
  Bytes needed;            // for what does not fit the GPUs
  Bytes used;              // by clients now
  Bytes limit;             // possible now
  std::string limited_by;  // arena_limit, cgroup or machine; empty: not known
};

struct SchedulerInfo {
  std::string version;
  long pid = 0;
  Duration uptime{};
  bool is_private = false;
  std::string policy;
  bool scheduling = true;
  std::string run_directory;
  ArenaInfo arena;
};

// What the arbiter says of a GPU on which leases are, or were asked for.
struct GpuLeasesInfo {
  std::string state;
  std::optional<double> usage;  // percent
  double high = 0;
  double low = 0;
  long active = 0;
  long slots = 0;
  long waiting = 0;
};

struct GpuInfo {
  long index = 0;
  std::string uuid;
  std::string name;
  Bytes memory;
  std::optional<Bytes> memory_used;   // by everyone, where NVML tells
  std::optional<double> utilisation;  // percent
  long clients = 0;
  long running = 0;
  Bytes swapped;
  Bytes incoming;  // on its way from the host
  Bytes outgoing;  // and to it
  std::optional<GpuLeasesInfo> leases{};
};

struct ProcessInfo {
  long pid = 0;
  std::string program;
  long gpu = 0;
  std::string state;
  Bytes allocated;
  Bytes resident;
  Duration used{};
  Duration held{};
  long holds = 0;
  Bytes swapped;
  Bytes pinned;
  Bytes incoming;
  Bytes outgoing;
  Bytes beyond{};  // of what is swapped: too much for the GPU, and never asked to be there
};

// Bytes that ever moved, of which so many were copied.
struct MovesInfo {
  Bytes out;
  Bytes in;
  Bytes copied;
};

// What it has and gets is with all its parts, but for the processes.
struct TenantInfo {
  std::string name;
  std::string kind;
  std::string parent;  // empty: at the top
  int cores = 100;
  std::optional<Bytes> memory;  // the limit
  int priority = 0;
  std::optional<long> lent;  // priority, by a lease
  bool paused = false;
  bool asleep = false;
  bool hold = false;            // only `wake` wakes it
  Bytes to_leave;               // of a sleeper: still to move out
  std::optional<double> share;  // percent
  Duration used{};
  std::optional<Bytes> fullest;  // allocated, on the GPU with most of it; none: by the processes
  Bytes resident;
  Bytes pinned;
  Bytes swapped{};
  Bytes beyond{};
  Bytes incoming{};
  Bytes outgoing{};
  MovesInfo moves;
  std::vector<long> placed;  // GPUs of a run; none: it was not placed
  std::string placed_why;    // which and why, as `why` tells it
  std::vector<ProcessInfo> processes;
};

struct ForeignInfo {
  long pid = 0;
  long gpu = 0;
  std::optional<Bytes> memory;
  std::string program;
};

struct Status {
  SchedulerInfo scheduler;
  std::vector<GpuInfo> gpus;
  std::vector<TenantInfo> tenants;
  std::vector<ForeignInfo> foreign;
  std::vector<std::string> declared{};  // users and containers of the file that are not there
};

struct WhyProcess {
  std::string tenant;  // the one asked for, or a part of it
  long pid = 0;
  long gpu = 0;
  std::string program;
  std::string text;
};

// A lease or a request of the tenant, or of a part of it.
struct WhyLease {
  std::string id;
  std::string tenant;
  std::string task_class;
  long gpu = 0;
  bool active = false;  // or the request waits
  std::optional<long> pid;
  std::string text;
};

// Limits, and for each the source that says it: docs/scheduler.md has the sources.
struct LimitsInfo {
  int cores = 100;
  std::optional<Bytes> memory;
  int priority = 0;
  std::string cores_from;
  std::string memory_from;
  std::string priority_from;
};

struct WhyInfo {
  std::string placed;  // on which GPU and why; empty: the tenant was not placed
  std::vector<WhyProcess> processes;
  std::optional<ArenaInfo> arena;  // where it is a part of the answer
  std::vector<WhyLease> leases{};  // the first ones
  long leases_total = 0;
  std::optional<LimitsInfo> limits{};
  bool declared = false;          // it is not there, and has limits all the same
  std::optional<long> expires{};  // seconds without a process after which these are forgotten
};

struct TracePart {
  std::vector<std::string> lines;
  long next = 0;  // where to go on
  long end = 0;   // where there is no more yet
  long lost = 0;  // lines that were not kept for so long
};

struct SettingInfo {
  std::string name;
  std::string value;
  std::string default_value;
  std::string range;
  std::string help;
  bool changeable = true;
};

// Each reads an answer that was accepted; an error when it is none of its kind.
Result<Status> read_status(const std::string& json);
Result<TenantInfo> read_tenant(const std::string& json);
// Whether a request has changed anything; true where the answer does not say.
bool read_changed(const std::string& json);
// Whether a change outlasts a restart of the scheduler; true where the answer does not say.
bool read_kept(const std::string& json);
Result<WhyInfo> read_why(const std::string& json);
Result<TracePart> read_trace(const std::string& json);
Result<std::vector<SettingInfo>> read_settings(const std::string& json);

// The answer without the envelope ("ok"), in the order it came; on one line, or indented.
std::string bare_answer(const std::string& json, bool one_line);

// Requests, without the end of the line.
std::string status_request();
std::string why_request(const std::string& name);
// Of one tenant, or (empty) of all; `from`: none to begin with what there is.
std::string trace_request(const std::string& name, std::optional<long> from);
std::string limit_request(const std::string& name, const LimitWish& wish);
std::string reset_request(const std::string& name);
std::string pause_request(const std::string& name, bool paused);
std::string sleep_request(const std::string& name, bool hold);
std::string wake_request(const std::string& name);
std::string config_request();
std::string set_request(const std::string& key, const std::string& value);
std::string scheduling_request(bool on);

}  // namespace nvshare::cli
