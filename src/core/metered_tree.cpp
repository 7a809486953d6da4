// How shares of the metered policy stand in domains, and what parts leave when they end.

#include <algorithm>
#include <utility>

#include "core/metered_engine.h"

namespace nvshare::core {
namespace {

// What the account of an ended part would be by now. Nothing is saved up in it.
Duration allowance_of(const LeftAccount& left, Time now) {
  return left.allowance + Duration{static_cast<Duration::rep>(
                              static_cast<Fixed>((now - left.since).count()) * left.limit / 100)};
}

}  // namespace

MeterDomain& MeteredEngine::domain_for(const Share& share) {
  for (Share* around = share.parent; around != nullptr; around = around->parent) {
    if (around->meter.inner != nullptr) return *around->meter.inner;
  }
  return whole_;
}

// The entity of the share's way up that stands in the domain; null when its way is another.
const Share* MeteredEngine::share_in(const MeterDomain& domain, const Share& share) {
  for (const Share* one = &share; one != nullptr; one = one->meter.domain->owner) {
    if (one->meter.domain == &domain) return one;
  }
  return nullptr;
}

// A share with parts has a domain for them while it has a limit.
void MeteredEngine::enter_domain(Share& share) {
  share.meter.domain = &domain_for(share);
  if (share.meter.inner != nullptr && !share.limited()) close_domain(share);
  if (share.meter.inner != nullptr) share.meter.inner->enter_outer(now_);
  if (share.meter.inner == nullptr && share.has_parts && share.limited()) open_domain(share);
}

// Nothing in the share's own domain is active. Until the share enters one again it stands in none
// that could be closed meanwhile.
void MeteredEngine::leave_domain(Share& share) {
  if (share.meter.inner != nullptr) share.meter.inner->leave_outer(now_);
  share.meter.domain = &whole_;
}

void MeteredEngine::open_domain(Share& share) {
  const std::uint64_t id = next_domain_++;
  share.meter.inner = &domains_.try_emplace(id, id, &share, now_).first->second;
}

void MeteredEngine::close_domain(Share& share) {
  MeterDomain* inner = std::exchange(share.meter.inner, nullptr);
  if (inner == nullptr) return;
  inner->leave_outer(now_);
  std::erase(changed_, inner);
  domains_.erase(inner->id);
}

// --- parts that end ----------------------------------------------------------------------------

void MeteredEngine::drop_refilled(std::vector<LeftAccount>& left) const {
  std::erase_if(left, [&](const LeftAccount& one) {
    return allowance_of(one, now_) >= worth_coming_back(true);
  });
}

// Of too many the one with most left goes: many runs that end do not wipe out a debt.
void MeteredEngine::leave_account(const Share& share) {
  const MeterAccount& account = share.meter;
  if (share.parent == nullptr || !share.limited() || account.fresh) return;
  std::vector<LeftAccount>& left = share.parent->left;
  left.push_back({account.allowance, share.limit, account.idle_since, {}});
  if (left.size() > kMostLeft) drop_refilled(left);
  if (left.size() <= kMostLeft) return;
  left.erase(std::ranges::max_element(
      left, {}, [&](const LeftAccount& one) { return allowance_of(one, now_); }));
}

// A part that comes anew goes on with the account of one that has ended, as long as that has less
// than a new one would begin with. Otherwise a loop of short runs would have no limit at all.
void MeteredEngine::take_over(Share& share, Time now) {
  if (share.parent == nullptr || !share.limited()) return;
  std::vector<LeftAccount>& left = share.parent->left;
  drop_refilled(left);
  const auto least = std::ranges::min_element(
      left, {}, [&](const LeftAccount& one) { return allowance_of(one, now); });
  if (least == left.end()) return;
  share.meter.allowance = allowance_of(*least, now);
  share.meter.fresh = false;
  left.erase(least);
}

}  // namespace nvshare::core
