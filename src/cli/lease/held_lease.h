#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>

#include "base/units.h"
#include "cli/run/run_directory.h"
#include "cli/talk/http_client.h"

namespace nvshare::cli {

// A lease of this process. Time is handed in.
class HeldLease {
 public:
  using Clock = std::chrono::steady_clock;

  // `hold`: how long the lease lasts from `granted` on, and from each renewal on.
  HeldLease(RunDirectory directory, std::string id, Duration hold, Clock::time_point granted);

  const std::string& id() const { return id_; }

  enum class News {
    None,
    Unrenewed,  // the scheduler did not renew it, for the first time: why() tells
    Renewed,    // after that
    Gone,       // the scheduler has taken it away: why() tells
  };
  // Does without waiting what is due at `now`. Renews at half of the time that is left. What fails
  // is tried again, also after the deadline, because a scheduler that comes back may know the
  // lease.
  News look(Clock::time_point now);
  const std::string& why() const { return why_; }

  // What the next look waits for: poll's entry, and the time.
  pollfd waiting() const;
  Clock::time_point due() const;

  // Gives it back. What fails is no matter: a lease ends with its owner.
  void release();

 private:
  News read_answer(const HttpAnswer& answer, Clock::time_point now);
  News fail(Clock::time_point now, const std::string& why);
  std::string path() const { return "/v1/leases/" + id_; }

  RunDirectory directory_;
  std::string id_;
  Duration hold_;
  Clock::time_point ends_;
  Clock::time_point renew_at_;
  std::optional<HttpExchange> renewal_;
  Clock::time_point renewal_began_{};
  bool unrenewed_ = false;
  std::string why_;
};

}  // namespace nvshare::cli
