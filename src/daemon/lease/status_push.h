#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "daemon/http/http_post.h"
#include "daemon/log.h"

namespace nvshare::daemon {

struct PushCounts {
  std::uint64_t delivered = 0;
  std::uint64_t failed = 0;
  bool failing = false;  // the last one has failed
};

// When the status is pushed: on change, after the interval, and with growing pauses while the
// receiver fails.
class PushPlan {
 public:
  // After the first failure; each further one doubles it, up to the longest. A longer one leaves a
  // receiver that is back for longer without a status.
  static constexpr Duration kFirstPause = 1s;
  static constexpr Duration kLongestPause = 30s;

  void set_interval(Duration interval) { interval_ = interval; }
  void changed() { changed_ = true; }
  void began(Time now);
  void ended(Time now, bool good);
  // Of the next one; none while one is under way.
  std::optional<Time> due() const;
  Duration pause() const;  // zero after a success

 private:
  Duration interval_{};
  bool changed_ = true;  // since the last one began
  bool under_way_ = false;
  int failures_ = 0;  // since the last success
  Time began_{};
  Time ended_{};
};

// Pushes the status to a URL. One request at a time, with the status of the moment in which it
// begins; a receiver that fails is logged once.
class StatusPush {
 public:
  using Body = std::function<std::string()>;

  StatusPush(Reactor& reactor, Log& log, Body body);
  // `url` is as in the settings: "off" for none.
  void follow(const std::string& url, Duration interval);
  bool on() const { return to_.has_value(); }
  void changed() { plan_.changed(); }
  // None while it is off.
  std::optional<PushCounts> counts() const;
  std::optional<Time> end_of_turn();

 private:
  void done(const Result<void>& how);

  Reactor& reactor_;
  Log& log_;
  Body body_;
  std::string url_ = "off";
  std::optional<ReceiverUrl> to_;
  PushPlan plan_;
  PushCounts counts_;
  HttpPost post_;
};

}  // namespace nvshare::daemon
