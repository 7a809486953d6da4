#include "daemon/lease/status_push.h"

#include <algorithm>
#include <utility>

namespace nvshare::daemon {

// --- when ----------------------------------------------------------------------------------------

void PushPlan::began(Time now) {
  began_ = now;
  under_way_ = true;
  changed_ = false;
}

void PushPlan::ended(Time now, bool good) {
  ended_ = now;
  under_way_ = false;
  failures_ = good ? 0 : failures_ + 1;
}

Duration PushPlan::pause() const {
  constexpr int kDoublings = 10;  // beyond the longest pause
  if (failures_ == 0) return {};
  return std::min(kLongestPause, kFirstPause * (1 << std::min(failures_ - 1, kDoublings)));
}

std::optional<Time> PushPlan::due() const {
  if (under_way_) return std::nullopt;
  if (failures_ > 0) return ended_ + pause();
  return changed_ ? ended_ : began_ + interval_;
}

// --- how -----------------------------------------------------------------------------------------

StatusPush::StatusPush(Reactor& reactor, Log& log, Body body)
    : reactor_(reactor),
      log_(log),
      body_(std::move(body)),
      post_(reactor, [this](const Result<void>& how) { done(how); }) {}

void StatusPush::follow(const std::string& url, Duration interval) {
  if (url != std::exchange(url_, url)) {
    post_.cancel();
    to_.reset();
    if (const auto to = receiver_url(url)) to_ = *to;
    plan_ = {};
    counts_ = {};
  }
  plan_.set_interval(interval);
}

std::optional<PushCounts> StatusPush::counts() const {
  return to_ ? std::optional(counts_) : std::nullopt;
}

// The URL's path may be a secret, and is in no log.
void StatusPush::done(const Result<void>& how) {
  const bool good = static_cast<bool>(how);
  plan_.ended(reactor_.now(), good);
  ++(good ? counts_.delivered : counts_.failed);
  const bool was_failing = std::exchange(counts_.failing, !good);
  if (good && was_failing) {
    log_.info("status_push_works", {{"to", to_->host}, {"failed", counts_.failed}});
  } else if (!good && !was_failing) {
    log_.warn("status_push_fails",
              {{"to", to_->host},
               {"reason", how.error().message},
               {"effect", "it is tried again, with longer and longer pauses"}});
  }
}

std::optional<Time> StatusPush::end_of_turn() {
  if (!to_) return std::nullopt;
  const auto ends = post_.end_of_turn();
  if (ends) return ends;
  const Time now = reactor_.now();
  if (plan_.due() && *plan_.due() <= now) {
    plan_.began(now);
    const auto begun = post_.begin(*to_, body_());
    if (begun) return post_.end_of_turn();
    done(begun);
  }
  return plan_.due();
}

}  // namespace nvshare::daemon
