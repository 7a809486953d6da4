#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/units.h"
#include "daemon/http/http_server.h"

namespace nvshare::daemon {

// The status as GET /v1/status answers it.
struct StatusText {
  std::string body;
  std::string essence;  // of it, without what changes with each look: the time, ages
};

// Tells streams of the status: at once, on change, and as a heartbeat. Looks at the status once a
// turn, at most ten times a second, and only while there are listeners.
class StatusFeed {
 public:
  using Look = std::function<StatusText()>;
  using Send = std::function<void(HttpCall, const std::string& event)>;
  struct User {
    std::optional<std::uint32_t> uid{};  // none: all of TCP
    bool is_admin = false;
  };

  // Between two looks. A shorter time costs the loop more while leases come and go quickly.
  static constexpr Duration kShortest = 100ms;
  // Between two events. A longer time leaves a reader for longer with a dead connection.
  static constexpr Duration kHeartbeat = 5s;
  // One user has at most half of them, and a 16th is for administrators alone. Each change is sent
  // to all of them in one turn, in which no program gets its grant.
  static constexpr std::size_t kMostStreams = 64;

  explicit StatusFeed(Look look) : look_(std::move(look)) {}
  void set_send(Send send) { send_ = std::move(send); }
  // Another listener, called on each change; it is empty to end that.
  void on_change(std::function<void()> call) { on_change_ = std::move(call); }

  // The first event of a stream; none when there are too many.
  std::optional<std::string> open(HttpCall call, const User& user, Time now);
  // Nothing for a call that is no stream.
  void close(HttpCall call);
  std::size_t streams() const { return streams_.size(); }
  // The last thing of a turn, because everything before may have changed the status. When to look
  // again: now, after send().
  std::optional<Time> end_of_turn(Time now);

 private:
  bool has_room_for(const User& user) const;

  Look look_;
  Send send_ = [](HttpCall, const std::string&) {};
  std::function<void()> on_change_;
  std::map<HttpCall, std::optional<std::uint32_t>> streams_;  // by their user
  std::string essence_;                                       // at the last look
  Time looked_{};
  Time sent_{};  // the last event to all
};

// "event: status", with the text as its data.
std::string status_event(std::string_view body);

}  // namespace nvshare::daemon
