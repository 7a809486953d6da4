#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"

// What is said about leases over HTTP (docs/arbiter.md), as plain data. Fields that an answer
// lacks keep their defaults.
namespace nvshare::cli {

// The time of the day, as both ends of the API have it.
using WallTime = std::chrono::sys_time<std::chrono::milliseconds>;
// "2026-11-19T19:07:00.250Z"; nothing for any other text.
std::optional<WallTime> read_wall_time(std::string_view text);

struct LeaseInfo {
  std::string id;  // empty: not told, because the lease is somebody else's
  std::string task_class;
  long priority = 0;
  long gpu = 0;
  bool active = false;  // or the request waits
  std::optional<WallTime> asked;
  std::optional<WallTime> acquired;
  std::optional<WallTime> ends;  // an active lease by its deadline; a waiting request gives up then
  std::optional<long> uid;
  std::optional<long> pid;
  std::string trace;
  std::string why{};  // of one lease that was asked for: how it stands, or why it waits
};

struct LeaseCountsInfo {
  long acquired = 0;
  long timed_out = 0;
  long skipped = 0;
  long fell_back = 0;
  long queue_full = 0;
  long revoked = 0;
  long released = 0;
  Duration waited{};  // of the acquired leases, together
};

struct ClassInfo {
  std::string name;
  long priority = 0;
  Duration max_wait{};
  Duration hold_max{};
  std::string busy;
  std::string pressure;
  std::optional<long> slots;
};

struct LeaseGpuInfo {
  long gpu = 0;
  std::string state;
  std::optional<double> usage;  // percent
  std::optional<Duration> age;  // of the usage
  long waiting = 0;
  long active = 0;
  long slots = 0;
  double high = 0;
  double low = 0;
  std::optional<WallTime> raised_until;
};

struct LeaseStatus {
  std::optional<WallTime> time;
  std::vector<LeaseGpuInfo> gpus;
  std::vector<std::pair<std::string, LeaseCountsInfo>> classes;
};

// The answer to a request for a lease.
struct LeaseAnswer {
  std::string result;  // "ACQUIRED", "TIMEOUT", "SKIPPED", "FALLBACK_CPU", "QUEUE_FULL"
  std::string id;
  Duration hold{};  // from the grant to the deadline
  std::string reason;
  Duration waited{};
  std::optional<Duration> retry_after;
  std::string gpu{};  // of the lease: its UUID
};

// What a request for a lease says. What is not said is the class's.
struct LeaseWish {
  std::string task_class;
  std::string gpu;  // empty: any
  std::optional<Duration> max_wait;
  std::optional<Duration> hold_max;
  std::string busy;  // "WAIT", "SKIP", "FALLBACK_CPU"; empty: the class's
  std::optional<Duration> audio;
  std::optional<Duration> gpu_hold;
};

// Each reads a body; an error when it is none of its kind.
Result<std::vector<LeaseInfo>> read_leases(const std::string& json);
Result<LeaseInfo> read_lease(const std::string& json);
Result<std::vector<ClassInfo>> read_classes(const std::string& json);
Result<LeaseStatus> read_lease_status(const std::string& json);
Result<LeaseAnswer> read_lease_answer(const std::string& json);
// 32 digits of hexadecimal.
bool is_lease_id(std::string_view text);

// Why a request was refused, in one line, with the reason and the classes where the body has them.
std::string refusal_text(const std::string& json, std::string_view task_class = {});
// The body's "reason"; empty where it has none.
std::string read_reason(const std::string& json);

std::string lease_request(const LeaseWish& wish);

}  // namespace nvshare::cli
