#include "daemon/lease/status_feed.h"

#include <fmt/format.h>

#include <algorithm>

namespace nvshare::daemon {

std::string status_event(std::string_view body) {
  if (body.ends_with('\n')) body.remove_suffix(1);
  return fmt::format("event: status\ndata: {}\n\n", body);
}

bool StatusFeed::has_room_for(const User& user) const {
  constexpr std::size_t kKeptFree = 16;  // one part in so many
  if (user.is_admin) return streams_.size() < kMostStreams;
  if (streams_.size() >= kMostStreams - kMostStreams / kKeptFree) return false;
  const auto theirs =
      std::ranges::count_if(streams_, [&](const auto& one) { return one.second == user.uid; });
  return static_cast<std::size_t>(theirs) < kMostStreams / 2;
}

std::optional<std::string> StatusFeed::open(HttpCall call, const User& user, Time now) {
  if (!has_room_for(user)) return std::nullopt;
  StatusText text = look_();
  if (streams_.empty()) {
    sent_ = now;
    // A listener beside the streams has not heard of the changes since the last look.
    if (!on_change_) essence_ = std::move(text.essence);
  }
  streams_.emplace(call, user.uid);
  return status_event(text.body);
}

void StatusFeed::close(HttpCall call) {
  streams_.erase(call);
}

std::optional<Time> StatusFeed::end_of_turn(Time now) {
  if (streams_.empty() && !on_change_) return std::nullopt;
  const bool beats = !streams_.empty() && now >= sent_ + kHeartbeat;
  if (!beats && now < looked_ + kShortest) {
    // This turn may have changed something.
    const Time again = looked_ + kShortest;
    return streams_.empty() ? again : std::min(again, sent_ + kHeartbeat);
  }
  looked_ = now;
  StatusText text = look_();
  const bool changed = text.essence != essence_;
  essence_ = std::move(text.essence);
  if (changed && on_change_) on_change_();
  if (streams_.empty()) return std::nullopt;
  if (!changed && !beats) return sent_ + kHeartbeat;
  sent_ = now;
  const std::string event = status_event(text.body);
  for (const auto& [call, user] : streams_) send_(call, event);
  return now;
}

}  // namespace nvshare::daemon
