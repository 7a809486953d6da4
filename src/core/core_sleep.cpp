// Tenants that sleep: by order, by idle_out, and until their work or a person wakes them.

#include <fmt/format.h>

#include <algorithm>

#include "core/core_impl.h"

namespace nvshare::core {

bool Core::Impl::asks(const Tenant& tenant) const {
  return !tenant.is_paused && std::any_of(gpus_.begin(), gpus_.end(), [&](const auto& one) {
    return one.second.is_asked_by(tenant.id);
  });
}

void Core::Impl::set_sleep(Tenant& tenant, std::optional<SleepView> sleep, const Reason& why,
                           Time now, Decisions& out) {
  tenant.sleep = sleep;
  for (auto& [id, gpu] : gpus_) {
    gpu.sleep_changed(tenant.id, why, now, out);
    finish(gpu, now, out);
  }
  follow_idleness(tenant, true, now);
}

void Core::Impl::wake_by_work(Tenant& tenant, Time now, Decisions& out) {
  if (!tenant.sleep || tenant.sleep->hold || tenant.is_paused) return;
  set_sleep(tenant, std::nullopt, {.why = Why::WokenByWork}, now, out);
}

// `active`: the tenant has just done something, so that its time without work begins anew.
void Core::Impl::follow_idleness(Tenant& tenant, bool active, Time now) {
  const bool idle = tenant.clients > 0 && !tenant.sleep &&
                    ((tenant.wanting == 0 && tenant.leased == 0) || tenant.is_paused);
  if (idle && tenant.idle && !active) return;
  if (tenant.idle) idle_.erase({tenant.idle_since, tenant.id});
  tenant.idle = idle;
  tenant.idle_since = now;
  if (idle) idle_.emplace(now, tenant.id);
}

std::optional<Time> Core::Impl::next_sleep() const {
  if (config_.idle_out == Duration::zero() || idle_.empty()) return std::nullopt;
  return idle_.begin()->first + config_.idle_out;
}

void Core::Impl::send_idle_to_sleep(Time now, Decisions& out) {
  while (next_sleep().value_or(Time::max()) <= now) {
    Tenant& tenant = tenants_.at(idle_.begin()->second);
    if (asks(tenant)) {  // it waits for memory that cannot move
      follow_idleness(tenant, true, now);
      continue;
    }
    const Reason why{.why = Why::IdleTooLong, .quota = config_.idle_out};
    set_sleep(tenant, SleepView{.hold = false, .since = now}, why, now, out);
  }
}

// Without `hold` a tenant that has work would wake at once, so that it stays awake. What its
// running clients have to do is known when they have stopped.
Result<void> Core::Impl::take(const TenantSleeps& e, Time now, Decisions& out) {
  Tenant* tenant = find_tenant(e.tenant);
  if (tenant == nullptr) return unknown("tenant", e.tenant.value);
  const bool same = e.asleep ? tenant->sleep && tenant->sleep->hold == e.hold : !tenant->sleep;
  if (same) {
    return Error{
        fmt::format("tenant {} {} already", e.tenant.value, e.asleep ? "sleeps" : "is awake")};
  }
  if (!e.asleep) {
    set_sleep(*tenant, std::nullopt, {.why = Why::Woken}, now, out);
    return {};
  }
  const Time since = tenant->sleep ? tenant->sleep->since : now;
  const bool wakes = !e.hold && asks(*tenant);
  if (!wakes) {
    set_sleep(*tenant, SleepView{e.hold, since}, {.why = Why::PutToSleep}, now, out);
  } else if (tenant->sleep) {
    set_sleep(*tenant, std::nullopt, {.why = Why::WokenByWork}, now, out);
  }
  return {};
}

}  // namespace nvshare::core
