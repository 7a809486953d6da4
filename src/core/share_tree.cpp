// Shares of tenants that are parts of one another, on one GPU.

#include <algorithm>
#include <utility>

#include "core/gpu.h"

namespace nvshare::core {

namespace {

// The highest priority that is lent to the tenant or to a part of it.
std::optional<int> lent_within(const Share& share) {
  std::optional<int> highest = share.lent;
  for (const Share* part : share.family().parts) {
    if (!part->is_own) highest = std::max(highest, lent_within(*part));
  }
  return highest;
}

}  // namespace

// A part never goes before what its parent goes behind, unless a priority is lent to it. Clients
// beside parts go like a part that asks for no limit. They have the tenant's priority, as they had
// it before its first part came. Parts of a tenant with a limit compete behind that tenant, which
// therefore goes as what is lent to any of them.
void Gpu::follow_limits(Share& share) {
  const Share& tenant = share.of_tenant();
  share.limit = share.is_own ? kNoCoreLimit : share.tenant->limits.core_percent;
  share.priority = share.tenant->limits.priority;
  for (const Share* one = tenant.parent; one != nullptr; one = one->parent) {
    share.priority = std::min(share.priority, one->tenant->limits.priority);
  }
  const bool behind = !share.is_own && share.limit < kNoCoreLimit;
  const std::optional<int> lent = behind ? lent_within(share) : tenant.lent;
  if (lent) share.priority = std::max(share.priority, *lent);
}

Share& Gpu::share_of(Tenant& tenant, Time now) {
  if (const auto known = shares_.find(tenant.id); known != shares_.end()) return known->second;
  Share* parent = tenant.parent == nullptr ? nullptr : &share_of(*tenant.parent, now);
  if (parent != nullptr && !parent->has_parts) become_parent(*parent, now);
  Share& share = shares_[tenant.id];
  share.tenant = &tenant;
  share.parent = parent;
  share.seq = next_share_++;
  follow_limits(share);
  if (parent != nullptr) parent->family().parts.push_back(&share);
  engine_->attach(share, now);
  return share;
}

Share& Gpu::make_own(Share& of_tenant) {
  of_tenant.family().own = std::make_unique<Share>();
  Share& own = *of_tenant.family().own;
  own.tenant = of_tenant.tenant;
  own.parent = &of_tenant;
  own.is_own = true;
  own.seq = next_share_++;
  follow_limits(own);
  of_tenant.family().parts.push_back(&own);
  return own;
}

Share& Gpu::share_for_clients(Tenant& tenant, Time now) {
  Share& share = share_of(tenant, now);
  if (!share.has_parts) return share;
  if (!share.family().own) engine_->attach(make_own(share), now);
  return *share.family().own;
}

void Gpu::move_clients(Share& from, Share& to) {
  for (const auto& [id, client] : clients_) {
    if (client->share == &from) client->share = &to;
  }
  to.clients = std::exchange(from.clients, 0);
  to.wanting = from.wanting;
  to.running = from.running;
  to.stopping = from.stopping;
  to.overdue = from.overdue;
  to.meter.parked = from.meter.parked;
  to.meter.least_had = from.meter.least_had;
  to.ready = std::exchange(from.ready, {});
  to.held = std::exchange(from.held, {});
}

// From now on the share's clients compete with its parts. What they have used stays with it.
void Gpu::become_parent(Share& share, Time now) {
  engine_->before_limits_change(share, now);
  share.has_parts = true;
  Share* own = share.clients > 0 ? &make_own(share) : nullptr;
  if (own != nullptr) move_clients(share, *own);
  engine_->after_limits_change(share, false, now);
  if (own == nullptr) return;
  engine_->attach(*own, now);
  engine_->become_parent(share, now);
  engine_->after_limits_change(*own, false, now);
}

Result<void> Gpu::lend(TenantId tenant, std::optional<int> priority, Time now) {
  const auto it = shares_.find(tenant);
  if (it == shares_.end()) return Error{"this tenant has never had a client on this GPU"};
  Share* highest = &it->second;
  if (std::exchange(highest->lent, priority) == priority) return {};
  for (Share* one = highest; one != nullptr; one = one->parent) {
    const int before = one->priority;
    follow_limits(*one);
    if (std::exchange(one->priority, before) != before) highest = one;
  }
  limits_will_change(*highest, now);
  limits_have_changed(false, now);
  return {};
}

void Gpu::limits_will_change(TenantId tenant, Time now) {
  const auto it = shares_.find(tenant);
  if (it != shares_.end()) limits_will_change(it->second, now);
}

void Gpu::limits_will_change(Share& highest, Time now) {
  changing_.push_back(&highest);
  for (std::size_t i = 0; i < changing_.size(); ++i) {
    if (!changing_[i]->has_parts) continue;
    for (Share* part : changing_[i]->family().parts) changing_.push_back(part);
  }
  for (auto one = changing_.rbegin(); one != changing_.rend(); ++one) {
    engine_->before_limits_change(**one, now);
  }
}

void Gpu::limits_have_changed(bool cores_changed, Time now) {
  if (changing_.empty()) return;
  for (Share* share : changing_) follow_limits(*share);
  for (Share* share : changing_) engine_->after_limits_change(*share, cores_changed, now);
  memory_limit_may_bind(*changing_.front(), now);
  changing_.clear();
}

}  // namespace nvshare::core
