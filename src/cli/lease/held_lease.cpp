#include "cli/lease/held_lease.h"

#include <algorithm>
#include <utility>

#include "cli/show/lease_answers.h"
#include "cli/show/lease_text.h"
#include "cli/talk/scheduler_socket.h"

namespace nvshare::cli {
namespace {

// A scheduler answers within milliseconds. A larger number leaves less time for another try.
constexpr Duration kAnswerWithin = 5s;
// Between two tries of a renewal. Larger numbers find a scheduler that is back later
// (LeaseRun.ALeaseThatCannotBeRenewedIsToldOnce).
constexpr Duration kSoonest = 200ms;
constexpr Duration kLatest = 1s;
// A program's end waits for it.
constexpr Duration kReleaseWithin = 2s;

}  // namespace

HeldLease::HeldLease(RunDirectory directory, std::string id, Duration hold,
                     Clock::time_point granted)
    : directory_(std::move(directory)),
      id_(std::move(id)),
      hold_(hold),
      ends_(granted + hold),
      renew_at_(granted + hold / 2) {}

HeldLease::News HeldLease::look(Clock::time_point now) {
  if (!renewal_ && now < renew_at_) return News::None;
  if (!renewal_) {
    auto begun = HttpExchange::begin(directory_, {"POST", path() + "/renew", "{}"}, 0ns);
    if (!begun) return fail(now, begun.error().message);
    renewal_ = std::move(*begun);
    renewal_began_ = now;
  }
  const auto done = renewal_->go_on();
  if (!done) return fail(now, done.error().message);
  if (*done) return read_answer(HttpAnswer(renewal_->answer()), now);
  return now < due() ? News::None : fail(now, scheduler_is_silent().message);
}

HeldLease::News HeldLease::read_answer(const HttpAnswer& answer, Clock::time_point now) {
  renewal_.reset();
  if (answer.status == 404 || answer.status == 410) {
    why_ = taken_away_text(read_reason(answer.body));
    return News::Gone;
  }
  if (answer.status != 200) return fail(now, refusal_text(answer.body));
  ends_ = renewal_began_ + hold_;
  renew_at_ = renewal_began_ + hold_ / 2;
  return std::exchange(unrenewed_, false) ? News::Renewed : News::None;
}

HeldLease::News HeldLease::fail(Clock::time_point now, const std::string& why) {
  renewal_.reset();
  renew_at_ = now + std::clamp<Duration>((ends_ - now) / 2, kSoonest, kLatest);
  why_ = why;
  return std::exchange(unrenewed_, true) ? News::None : News::Unrenewed;
}

pollfd HeldLease::waiting() const {
  if (!renewal_) return {-1, 0, 0};
  return {renewal_->socket(), renewal_->events(), 0};
}

HeldLease::Clock::time_point HeldLease::due() const {
  return renewal_ ? renewal_began_ + kAnswerWithin : renew_at_;
}

void HeldLease::release() {
  renewal_.reset();
  (void)ask_http(directory_, {"DELETE", path(), ""}, kReleaseWithin);
}

}  // namespace nvshare::cli
