// How the window policies follow tenants that are parts of one another, and what parts leave when
// they end.

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "core/window_engine.h"

namespace nvshare::core {
namespace {

Fixed used_by(const LeftAccount& left) {
  return left.window.used;
}

}  // namespace

void WindowEngine::attach(Share& share, Time now) {
  catch_up(now);
  share.window.window = window_no_;
  share.window.mark = clock_;
  take_over(share);
}

void WindowEngine::detach(Share& share) {
  unindex(share);
  throttled_.erase({share.seq, &share});
  running_shares_.erase({share.seq, &share});
  newly_exhausted_.erase({share.seq, &share});
  wanting_.erase({share.seq, &share});
  leave_account(share);
}

// --- parts that end ----------------------------------------------------------------------------

// Brings what ended parts have used into the present window, and drops what is forgiven by then.
void WindowEngine::enter_window(std::vector<LeftAccount>& left) const {
  for (LeftAccount& one : left) enter_window(one.window, quota_at(one.limit));
  std::erase_if(left, [](const LeftAccount& one) { return one.window.used <= 0; });
}

// A part that comes anew goes on with what one that has ended had used. An account that the tenant
// around the part does not have may be with one further out.
void WindowEngine::take_over(Share& share) {
  if (!share.limited()) return;
  for (Share* around = share.parent; around != nullptr; around = around->parent) {
    std::vector<LeftAccount>& left = around->family().left;
    enter_window(left);
    const auto most = std::ranges::max_element(left, {}, used_by);
    if (most == left.end()) continue;
    share.window.used = most->window.used;
    left.erase(most);
    return;
  }
}

// With those of its own parts, because the tenant around them may come anew as well.
void WindowEngine::leave_account(const Share& share) const {
  if (share.parent == nullptr) return;
  std::vector<LeftAccount>& left = share.parent->family().left;
  left.insert(left.end(), share.family().left.begin(), share.family().left.end());
  if (share.limited() && share.window.used > 0) {
    left.push_back({.limit = share.limit, .window = share.window});
  }
  if (left.size() > kMostLeft) enter_window(left);
  if (left.size() <= kMostLeft) return;
  std::ranges::sort(left, std::greater(), used_by);
  left.resize(kMostLeft);
}

// --- limits ------------------------------------------------------------------------------------

void WindowEngine::become_parent(Share& share, Time now) {
  catch_up(now);
  wanting_.erase({share.seq, &share});
  if (share.family().own->wanting > 0)
    wanting_.emplace(share.family().own->seq, share.family().own.get());
  if (share.family().own->running > 0)
    running_shares_.emplace(share.family().own->seq, share.family().own.get());
}

void WindowEngine::before_limits_change(Share& share, Time now) {
  catch_up(now);
  settle(share);
  const bool alone = share.parent == nullptr && !share.has_parts;
  if (alone && share.wanting > 0) load_changed_.limit_sum -= share.limit;
}

void WindowEngine::after_limits_change(Share& share, bool, Time) {
  const bool alone = share.parent == nullptr && !share.has_parts;
  if (alone && share.wanting > 0) load_changed_.limit_sum += share.limit;
  if (!alone) parts_changed_ = true;
  if (share.window.throttled) unthrottle_if_possible(share);
  index(share);
}

// The outermost limit on the way up; the share itself where there is none.
Share& WindowEngine::top_of(Share& share) {
  Share* top = &share;
  each_level(share, [&](Share& one) {
    if (one.limited()) top = &one;
  });
  return *top;
}

// Parts count as the limit that holds for all of them.
void WindowEngine::add_up_limits() {
  std::set<const Share*> tops;
  int sum = 0;
  for (const auto& [seq, share] : wanting_) {
    const Share& top = top_of(*share);
    if (tops.insert(&top).second) sum += top.limit;
  }
  load_changed_.limit_sum += sum - std::exchange(parts_sum_, sum);
}

void WindowEngine::wanting_changed(Share& share, int before) {
  const bool wants = share.wanting > 0;
  if (wants == (before > 0)) return;
  if (share.parent == nullptr) {
    load_changed_.limit_sum += wants ? share.limit : -share.limit;
    return;
  }
  if (wants) {
    wanting_.emplace(share.seq, &share);
  } else {
    wanting_.erase({share.seq, &share});
  }
  const Share& top = top_of(share);
  if (top.wanting > share.wanting) return;  // others of its parts want the GPU as well
  const int change = wants ? top.limit : -top.limit;
  parts_sum_ += change;
  load_changed_.limit_sum += change;
}

}  // namespace nvshare::core
