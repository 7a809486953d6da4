#pragma once

// Leases on a GPU from nvshare's arbiter, over the scheduler's Unix socket. C++17 or later, POSIX,
// and nothing else. No function throws but for want of memory.
//
//   nvshare::LeaseClient client;
//   auto got = client.acquire({.task_class = "ASR", .max_wait = 500ms});
//   if (got.lease) {
//     transcribe();           // the lease ends with got.lease, or with this process
//   } else if (got.outcome == nvshare::LeaseOutcome::FallbackCpu) {
//     transcribe_on_the_cpu();
//   } else {
//     try_again_after(got.retry_after);
//   }

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "nvshare/lease_wire.hpp"

namespace nvshare {

enum class LeaseOutcome {
  Acquired,
  Timeout,      // the request has waited in vain
  Skipped,      // the class, or the request, does not wait
  FallbackCpu,  // the same, and the work is meant to be done on the CPU
  QueueFull,    // too many requests wait
  Refused,      // the request is wrong; the reason says what
  Failed,       // there is no answer, or none that makes sense; the reason says why
};

enum class BusyPolicy { OfClass, Skip, FallbackCpu };

// What is not said is the class's.
struct LeaseRequest {
  std::string task_class{};
  std::optional<std::chrono::milliseconds> max_wait{};
  std::optional<std::chrono::milliseconds> hold_max{};
  std::string gpu{};  // index or UUID; empty: the GPU with most room
  BusyPolicy busy_policy = BusyPolicy::OfClass;
  std::optional<std::chrono::milliseconds> estimated_audio{};
  std::optional<std::chrono::milliseconds> estimated_gpu_hold{};
  std::string trace{};  // comes back in the scheduler's lists; at most 256 bytes
};

// How long to wait for a scheduler that does not answer.
struct LeasePatience {
  std::chrono::milliseconds answer = std::chrono::seconds(5);   // beyond the request's own wait
  std::chrono::milliseconds release = std::chrono::seconds(2);  // a destructor may take this long
};

struct LeaseRenewal {
  enum class Kind { Renewed, Gone, Failed };
  Kind kind = Kind::Failed;
  std::string reason{};  // OVERDUE, OWNER_GONE, or a line for people

  explicit operator bool() const { return kind == Kind::Renewed; }
};

// A lease, until its end. Its process owns it: the scheduler takes it back when the process ends.
// A child of fork() does not own it. One thread at a time.
class Lease {
 public:
  ~Lease() { release(); }
  Lease(Lease&& other) noexcept : now_(std::move(other.now_)) { other.now_.held = false; }
  Lease& operator=(Lease&& other) noexcept {
    if (this == &other) return *this;
    release();
    now_ = std::move(other.now_);
    other.now_.held = false;
    return *this;
  }

  const std::string& id() const { return now_.id; }
  int gpu() const { return now_.gpu; }
  const std::string& gpu_key() const { return now_.gpu_key; }
  // The scheduler takes the lease away then.
  std::chrono::system_clock::time_point expires_at() const { return now_.expires; }

  // Holds it for this long from now on, or for as long as at first.
  LeaseRenewal renew(std::optional<std::chrono::milliseconds> hold = std::nullopt) {
    using Kind = LeaseRenewal::Kind;
    if (!is_ours()) return {Kind::Gone, "this process does not hold the lease"};
    const std::string body =
        hold ? "{\"holdMaxMs\":" + std::to_string(hold->count()) + "}" : std::string("{}");
    const auto answer =
        lease_detail::ask(now_.socket, "POST", path() + "/renew", body, now_.patience.answer);
    if (answer.status == 404 || answer.status == 410) {
      now_.held = false;
      return {Kind::Gone, lease_detail::line_of(answer)};
    }
    const auto said = lease_detail::JsonObject::parse(answer.body);
    const std::string* until = said ? said->text("expiresAt") : nullptr;
    const auto time = until != nullptr ? lease_detail::parse_time(*until) : std::nullopt;
    if (answer.status != 200 || !time) return {Kind::Failed, lease_detail::line_of(answer)};
    now_.expires = *time;
    return {Kind::Renewed, ""};
  }

  // Gives it back. False when the scheduler has not said that it has it; it has it at the latest
  // when the lease expires.
  bool release() {
    if (!is_ours()) return false;
    now_.held = false;
    return lease_detail::ask(now_.socket, "DELETE", path(), "", now_.patience.release).status ==
           204;
  }

 private:
  friend class LeaseClient;
  struct Now {
    std::string socket{};
    LeasePatience patience{};
    std::string id{};
    int gpu = 0;
    std::string gpu_key{};
    std::chrono::system_clock::time_point expires{};
    bool held = true;
    pid_t owner = ::getpid();
  };
  explicit Lease(Now now) : now_(std::move(now)) {}

  bool is_ours() const { return now_.held && now_.owner == ::getpid(); }
  std::string path() const { return "/v1/leases/" + now_.id; }

  Now now_;
};

struct LeaseAnswer {
  LeaseOutcome outcome = LeaseOutcome::Failed;
  std::optional<Lease> lease{};              // of an acquired one
  std::string reason{};                      // GPU_BUSY, GPU_USAGE_HIGH, ... or a line for people
  std::chrono::milliseconds queue_wait{};    // how long the request has waited
  std::chrono::milliseconds retry_after{0};  // when a slot is expected; 0: not known
};

// Asks for leases. Any number of threads may use it at once.
class LeaseClient {
 public:
  // The scheduler of NVSHARE_RUN_DIR, or the machine's.
  LeaseClient() : LeaseClient(default_socket()) {}
  explicit LeaseClient(std::string socket, LeasePatience patience = {})
      : socket_(std::move(socket)), patience_(patience) {}

  static std::string default_socket() {
    const char* folder = std::getenv("NVSHARE_RUN_DIR");
    const bool said = folder != nullptr && *folder != '\0';
    return std::string(said ? folder : "/run/nvshare") + "/api.sock";
  }

  // Comes back with the lease, or when the arbiter refuses it.
  LeaseAnswer acquire(const LeaseRequest& request) const {
    // No class waits for longer.
    constexpr std::chrono::milliseconds kLongestWait = std::chrono::minutes(10);
    const auto within = lease_detail::bounded(request.max_wait.value_or(kLongestWait)) +
                        lease_detail::bounded(patience_.answer);
    return read(lease_detail::ask(socket_, "POST", "/v1/leases", body_of(request), within));
  }

 private:
  static std::string body_of(const LeaseRequest& request) {
    std::string body = "{\"taskType\":" + lease_detail::json_text(request.task_class);
    const auto add = [](std::string& to, const char* key,
                        const std::optional<std::chrono::milliseconds>& time) {
      if (!time) return;
      if (to.back() != '{') to += ',';
      to += lease_detail::json_text(key) + ':' + std::to_string(time->count());
    };
    add(body, "maxWaitMs", request.max_wait);
    add(body, "holdMaxMs", request.hold_max);
    if (!request.gpu.empty()) body += ",\"gpuKey\":" + lease_detail::json_text(request.gpu);
    if (request.busy_policy == BusyPolicy::Skip) body += ",\"busyPolicy\":\"SKIP\"";
    if (request.busy_policy == BusyPolicy::FallbackCpu) body += ",\"busyPolicy\":\"FALLBACK_CPU\"";
    std::string hint = "{";
    add(hint, "estimatedAudioMs", request.estimated_audio);
    add(hint, "estimatedGpuHoldMs", request.estimated_gpu_hold);
    if (hint != "{") body += ",\"hint\":" + hint + "}";
    if (!request.trace.empty()) body += ",\"trace\":" + lease_detail::json_text(request.trace);
    return body + "}";
  }

  LeaseAnswer read(const lease_detail::HttpAnswer& answer) const {
    const auto said = lease_detail::JsonObject::parse(answer.body);
    const std::string* result = said && answer.status != 0 ? said->text("result") : nullptr;
    LeaseAnswer got;
    got.reason = lease_detail::line_of(answer);
    if (result == nullptr) {
      const bool refused = answer.status >= 400 && answer.status < 500;
      if (refused && said && said->text("error") != nullptr) got.outcome = LeaseOutcome::Refused;
      return got;
    }
    got.queue_wait = std::chrono::milliseconds(said->number("queueWaitMs").value_or(0));
    if (*result == "ACQUIRED" && answer.status == 201) {
      take_lease(*said, got);
      return got;
    }
    static constexpr std::pair<std::string_view, LeaseOutcome> kRefusals[] = {
        {"TIMEOUT", LeaseOutcome::Timeout},
        {"SKIPPED", LeaseOutcome::Skipped},
        {"FALLBACK_CPU", LeaseOutcome::FallbackCpu},
        {"QUEUE_FULL", LeaseOutcome::QueueFull},
    };
    for (const auto& [name, outcome] : kRefusals) {
      if (*result == name) got.outcome = outcome;
    }
    got.retry_after = std::chrono::milliseconds(said->number("retryAfterMs").value_or(0));
    return got;
  }

  // The answer stays Failed when something is missing.
  void take_lease(const lease_detail::JsonObject& said, LeaseAnswer& got) const {
    const std::string* id = said.text("leaseId");
    const std::string* expires = said.text("expiresAt");
    const std::string* gpu_key = said.text("gpuKey");
    const auto gpu = said.number("gpu");
    const auto time = expires != nullptr ? lease_detail::parse_time(*expires) : std::nullopt;
    // The id becomes part of a request's first line.
    const auto is_plain = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
    };
    if (id == nullptr || id->empty() || !std::all_of(id->begin(), id->end(), is_plain)) return;
    if (gpu_key == nullptr || !gpu || *gpu < 0 || *gpu > 65535 || !time) return;
    Lease::Now now{socket_, patience_, *id, static_cast<int>(*gpu), *gpu_key, *time};
    got.lease = Lease(std::move(now));
    got.outcome = LeaseOutcome::Acquired;
    got.reason.clear();
  }

  std::string socket_;
  LeasePatience patience_;
};

}  // namespace nvshare
