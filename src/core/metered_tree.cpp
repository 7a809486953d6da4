// How shares of the metered policy stand in domains, and what parts leave when they end.

#include <algorithm>
#include <cstddef>
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
  Share* parent = share.parent;
  if (parent != nullptr && !share.limited() && !parent->limited()) {
    return *bundle_of(*parent, share.priority).meter.inner;
  }
  for (; parent != nullptr; parent = parent->parent) {
    if (parent->meter.inner != nullptr) return *parent->meter.inner;
  }
  return whole_;
}

// Made when it is not there yet. It stands where a tenant without a limit and without parts would.
Share& MeteredEngine::bundle_of(Share& tenant, int priority) {
  std::unique_ptr<Share>& made = tenant.family().bundles[priority];
  if (made) return *made;
  made = std::make_unique<Share>();
  Share& bundle = *made;
  bundle.tenant = tenant.tenant;
  bundle.parent = tenant.parent;
  bundle.priority = priority;
  bundle.seq = next_bundle_++;
  bundle.has_parts = true;
  bundle.meter.idle_since = bundle.meter.unlimited_since = now_;
  bundle.meter.domain = &domain_for(bundle);
  open_domain(bundle);
  return bundle;
}

// Nothing in them is active: their parts have left.
void MeteredEngine::close_bundles(Share& share) {
  if (!share.has_parts) return;
  for (auto& [priority, bundle] : share.family().bundles) close_domain(*bundle);
  share.family().bundles.clear();
}

// What competes with limits for the share: itself, or the outermost bundle around it.
const Share& MeteredEngine::best_effort_of(const Share& share) {
  const Share* one = &share;
  while (one->meter.domain->is_bundle()) one = one->meter.domain->owner;
  return *one;
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
// With those of its own parts, because the tenant around them may come anew as well.
void MeteredEngine::leave_account(const Share& share) {
  if (share.parent == nullptr) return;
  const MeterAccount& account = share.meter;
  std::vector<LeftAccount>& left = share.parent->family().left;
  left.insert(left.end(), share.family().left.begin(), share.family().left.end());
  if (share.limited() && !account.fresh) {
    left.push_back({account.allowance, share.limit, account.idle_since, {}});
  }
  if (left.size() > kMostLeft) drop_refilled(left);
  if (left.size() > kMostLeft) {
    const auto most = left.begin() + static_cast<std::ptrdiff_t>(kMostLeft);
    std::ranges::nth_element(left, most, {},
                             [&](const LeftAccount& one) { return allowance_of(one, now_); });
    left.erase(most, left.end());
  }
  if (!share.limited()) leave_place(share);
  for (const auto& [priority, bundle] : share.family().bundles) leave_place(*bundle);
}

void MeteredEngine::leave_place(const Share& share) {
  if (share.meter.fresh) return;
  std::vector<LeftPlace>& places = share.parent->family().left_places;
  const auto passed = [&](const LeftPlace& place) {
    const auto domain = domains_.find(place.queue);
    return domain == domains_.end() ||
           place.vtime <= domain->second.level(place.level).floor[kBestEffort];
  };
  std::erase_if(places, passed);
  const LeftPlace own{share.meter.vtime, share.meter.queue, share.meter.level};
  if (!passed(own) && places.size() < kMostLeft) places.push_back(own);
}

// A part that comes anew goes on with the account of one that has ended, as long as that has less
// than a new one would begin with. Otherwise a loop of short runs would have no limit at all. An
// account that the tenant around the part does not have may be with one further out.
void MeteredEngine::take_over(Share& share, Time now) {
  if (!share.limited()) return;
  for (Share* around = share.parent; around != nullptr; around = around->parent) {
    std::vector<LeftAccount>& left = around->family().left;
    drop_refilled(left);
    const auto least = std::ranges::min_element(
        left, {}, [&](const LeftAccount& one) { return allowance_of(one, now); });
    if (least == left.end()) continue;
    share.meter.allowance = allowance_of(*least, now);
    share.meter.fresh = false;
    left.erase(least);
    return;
  }
}

// The same for a part without a limit: it stands where one that has ended stood, so that a loop of
// short runs does not go before the other parts each time.
void MeteredEngine::take_place(Share& share) {
  if (share.parent == nullptr || share.limited()) return;
  std::vector<LeftPlace>& places = share.parent->family().left_places;
  const auto here = [&](const LeftPlace& place) {
    return place.queue == share.meter.queue && place.level == share.meter.level;
  };
  auto last = places.end();
  for (auto place = places.begin(); place != places.end(); ++place) {
    if (here(*place) && (last == places.end() || place->vtime > last->vtime)) last = place;
  }
  if (last == places.end()) return;
  share.meter.vtime = std::max(share.meter.vtime, last->vtime);
  places.erase(last);
}

}  // namespace nvshare::core
