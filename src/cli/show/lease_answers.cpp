#include "cli/show/lease_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "base/suggest.h"
#include "cli/show/fields.h"
#include "cli/show/table.h"

namespace nvshare::cli {
namespace {

using namespace fields;
using std::chrono::milliseconds;

constexpr std::size_t kLongestReason = 300;

// Nanoseconds between two times of these years fit 63 bits.
constexpr int kFirstYear = 1970;
constexpr int kLastYear = 2200;

// Longer than any wait or lease; a larger number of milliseconds would overflow nanoseconds.
constexpr std::int64_t kMostMilliseconds = INT64_MAX / 1'000'000;

Duration time_of(long count) {
  return milliseconds(std::clamp<std::int64_t>(count, 0, kMostMilliseconds));
}

Duration time(const Json& object, const char* key) {
  return time_of(whole(object, key));
}

std::optional<Duration> some_time(const Json& object, const char* key) {
  const auto count = some_whole(object, key);
  return count ? std::optional(time_of(*count)) : std::nullopt;
}

std::optional<WallTime> wall_time(const Json& object, const char* key) {
  return read_wall_time(text(object, key));
}

LeaseInfo lease_of(const Json& json) {
  LeaseInfo lease;
  lease.id = text(json, "leaseId");
  lease.task_class = text(json, "taskType");
  lease.priority = whole(json, "priority");
  lease.gpu = whole(json, "gpu");
  lease.active = text(json, "state") == "ACTIVE";
  lease.asked = wall_time(json, "askedAt");
  lease.acquired = wall_time(json, "acquiredAt");
  lease.ends = wall_time(json, lease.active ? "expiresAt" : "givesUpAt");
  lease.uid = some_whole(json, "uid");
  lease.pid = some_whole(json, "pid");
  lease.trace = text(json, "trace");
  return lease;
}

ClassInfo class_of(const Json& json) {
  return {text(json, "taskType"),   whole(json, "priority"), time(json, "maxWaitMs"),
          time(json, "holdMaxMs"),  text(json, "busy"),      text(json, "pressure"),
          some_whole(json, "slots")};
}

LeaseCountsInfo counts_of(const Json& json) {
  return {whole(json, "acquired"), whole(json, "timedOut"),       whole(json, "skipped"),
          whole(json, "fellBack"), whole(json, "queueFull"),      whole(json, "revoked"),
          whole(json, "released"), time(json, "queueWaitMsTotal")};
}

LeaseGpuInfo gpu_of(const Json& json) {
  return {whole(json, "gpu"),
          text(json, "gpu_admission_state"),
          number(json, "gpu_usage"),
          some_time(json, "gpu_usage_cache_age_ms"),
          whole(json, "gpu_queue_len"),
          whole(json, "active_leases"),
          whole(json, "lease_slots"),
          number(json, "high_water").value_or(0),
          number(json, "low_water").value_or(0),
          wall_time(json, "raised_until")};
}

// The number that these digits are.
int digits(std::string_view text) {
  int value = 0;
  for (const char c : text) value = 10 * value + (c - '0');
  return value;
}

// Up to the next millisecond: a wait that is too short would be asked for as none.
std::int64_t milliseconds_of(Duration time) {
  return std::chrono::ceil<milliseconds>(time).count();
}

}  // namespace

std::optional<WallTime> read_wall_time(std::string_view text) {
  constexpr std::string_view kForm = "0000-00-00T00:00:00.000Z";
  if (text.size() != kForm.size()) return std::nullopt;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const bool is_digit = text[i] >= '0' && text[i] <= '9';
    if (kForm[i] == '0' ? !is_digit : text[i] != kForm[i]) return std::nullopt;
  }
  const auto part = [&](std::size_t at, std::size_t size) { return digits(text.substr(at, size)); };
  const std::chrono::year_month_day day{std::chrono::year(part(0, 4)),
                                        std::chrono::month(static_cast<unsigned>(part(5, 2))),
                                        std::chrono::day(static_cast<unsigned>(part(8, 2)))};
  if (part(0, 4) < kFirstYear || part(0, 4) > kLastYear) return std::nullopt;
  if (!day.ok() || part(11, 2) > 23 || part(14, 2) > 59 || part(17, 2) > 60) return std::nullopt;
  return std::chrono::sys_days(day) + std::chrono::hours(part(11, 2)) +
         std::chrono::minutes(part(14, 2)) + std::chrono::seconds(part(17, 2)) +
         milliseconds(part(20, 3));
}

Result<std::vector<LeaseInfo>> read_leases(const std::string& json) {
  const auto answer = answer_with(json, "leases");
  if (!answer) return answer.error();
  return list(*answer, "leases", lease_of);
}

Result<LeaseInfo> read_lease(const std::string& json) {
  const auto answer = answer_with(json, "taskType");
  if (!answer) return answer.error();
  LeaseInfo lease = lease_of(*answer);
  lease.why = text(*answer, "why");
  return lease;
}

Result<std::vector<ClassInfo>> read_classes(const std::string& json) {
  const auto answer = answer_with(json, "classes");
  if (!answer) return answer.error();
  return list(*answer, "classes", class_of);
}

Result<LeaseStatus> read_lease_status(const std::string& json) {
  const auto answer = answer_with(json, "gpus");
  if (!answer) return answer.error();
  LeaseStatus status;
  status.time = wall_time(*answer, "time");
  status.gpus = list(*answer, "gpus", gpu_of);
  if (const Json* classes = find(*answer, "classes"); classes != nullptr && classes->is_object()) {
    for (const auto& [name, one] : classes->items()) {
      const Json* counts = find(one, "counts");
      if (counts != nullptr) status.classes.emplace_back(name, counts_of(*counts));
    }
  }
  return status;
}

Result<LeaseAnswer> read_lease_answer(const std::string& json) {
  const auto read = answer_with(json, "result");
  if (!read) return read.error();
  LeaseAnswer answer;
  answer.result = text(*read, "result");
  answer.id = text(*read, "leaseId");
  answer.gpu = text(*read, "gpuKey");
  answer.reason = text(*read, "reason");
  answer.waited = time(*read, "queueWaitMs");
  answer.retry_after = some_time(*read, "retryAfterMs");
  if (answer.result != "ACQUIRED") return answer;
  const auto from = wall_time(*read, "acquiredAt");
  const auto until = wall_time(*read, "expiresAt");
  if (!is_lease_id(answer.id) || !from || !until || *until <= *from) {
    return Error{"the scheduler's answer has no lease: is it of another version?"};
  }
  answer.hold = *until - *from;
  return answer;
}

bool is_lease_id(std::string_view text) {
  return text.size() == 32 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c); });
}

std::string refusal_text(const std::string& json, std::string_view task_class) {
  const Json answer = Json::parse(json, nullptr, false);
  std::string said = short_text(text(answer, "error"), kLongestReason);
  if (said.empty()) return "refused by the scheduler";
  std::vector<std::string> names = list<std::string>(answer, "classes", text_of);
  if (names.empty()) return said;
  const std::vector<std::string_view> classes(names.begin(), names.end());
  const std::string meant = did_you_mean(task_class, classes);
  return said + (meant.empty() ? fmt::format(" (classes: {})", join(classes)) : meant);
}

std::string read_reason(const std::string& json) {
  return text(Json::parse(json, nullptr, false), "reason");
}

std::string lease_request(const LeaseWish& wish) {
  // The program is below the owner.
  Json request{{"taskType", wish.task_class}, {"withChildren", true}};
  if (!wish.gpu.empty()) request["gpuKey"] = wish.gpu;
  if (wish.max_wait) request["maxWaitMs"] = milliseconds_of(*wish.max_wait);
  if (wish.hold_max) request["holdMaxMs"] = milliseconds_of(*wish.hold_max);
  if (!wish.busy.empty()) request["busyPolicy"] = wish.busy;
  if (wish.audio) request["hint"]["estimatedAudioMs"] = milliseconds_of(*wish.audio);
  if (wish.gpu_hold) request["hint"]["estimatedGpuHoldMs"] = milliseconds_of(*wish.gpu_hold);
  return line(request);
}

}  // namespace nvshare::cli
