// What people and tests see of a Core. Nothing here changes it.

#include <algorithm>

#include "core/core_impl.h"

namespace nvshare::core {

std::string_view name_of(ClientState state) {
  switch (state) {
    case ClientState::Idle:
      return "idle";
    case ClientState::Waiting:
      return "waiting";
    case ClientState::Running:
      return "running";
    case ClientState::Stopping:
      return "stopping";
    case ClientState::Overdue:
      return "overdue";
  }
  return "?";
}

namespace {

ClientState state_of(const Client& client) {
  switch (client.run.phase) {
    case Phase::Off:
      return client.waits_for_memory() ? ClientState::Waiting : ClientState::Idle;
    case Phase::Ready:
      return ClientState::Waiting;
    case Phase::Running:
      return ClientState::Running;
    case Phase::Stopping:
      return ClientState::Stopping;
    case Phase::Overdue:
      return ClientState::Overdue;
  }
  return ClientState::Idle;
}

// Of the tenant or one that it is a part of.
std::optional<Time> first_throttle(const Share& share) {
  std::optional<Time> first = share.first_throttle;
  for (const Share* one = share.parent; one != nullptr; one = one->parent) {
    if (one->first_throttle) first = std::min(first.value_or(Time::max()), *one->first_throttle);
  }
  return first;
}

ClientView view_of(const Client& client, const Residency& residency) {
  return {client.id,
          client.tenant->id,
          client.gpu,
          state_of(client),
          client.memory.demand,
          client.memory.resident,
          client.memory.pinned,
          client.memory.awaits,
          client.memory.incoming,
          client.memory.outgoing,
          residency.could_leave(client),
          first_throttle(*client.share),
          client.memory.rounded};
}

}  // namespace

Result<Reason> Core::Impl::reason(ClientId id, Time now) const {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return unknown("client", id.value);
  const Client& client = it->second;
  return gpus_.at(client.gpu).explain(client, std::max(now, now_));
}

std::string Core::Impl::text_of(const Reason& reason) const {
  const auto level = reason.level ? tenants_.find(*reason.level) : tenants_.end();
  if (level == tenants_.end()) return to_text(reason);
  const std::string& name = level->second.name;
  if (reason.why == Why::Paused) return name + " is paused; resume " + name + " to let it run";
  return to_text(reason) + " (the limit is of " + name + ")";
}

std::optional<ClientView> Core::Impl::view(ClientId id) const {
  const Client* client = nullptr;
  const Residency* residency = residency_of(id, client);
  if (residency == nullptr) return std::nullopt;
  return view_of(*client, *residency);
}

namespace {

// With what ended parts have left, which the share pays off at their limit and not at its own.
Duration debt_of(const Share& share) {
  Duration least = std::min(Duration::zero(), share.meter.allowance);
  for (const LeftAccount& left : share.family().left) {
    least = std::min(least, left.allowance * share.limit / std::max(left.limit, 1));
  }
  return -least;
}

}  // namespace

Snapshot Core::Impl::snapshot() const {
  Snapshot view;
  for (const auto& [id, tenant] : tenants_) {
    view.tenants.push_back(
        {id, tenant.name, tenant.limits, tenant.paused, tenant.sleep,
         tenant.parent != nullptr ? std::optional(tenant.parent->id) : std::nullopt});
  }
  std::ranges::sort(view.tenants, {}, &TenantView::id);
  for (const auto& [id, gpu] : gpus_) {
    GpuView seen{.id = id,
                 .total = gpu.total(),
                 .safe_limit = gpu.residency().safe_limit(),
                 .resident = gpu.residency().resident() + gpu.residency().incoming(),
                 .shortage = gpu.residency().shortage(),
                 .host_claim = gpu.residency().host_claim(),
                 .host_used = gpu.residency().host_used(),
                 .clients = static_cast<int>(gpu.clients().size()),
                 .waiting_for_memory = static_cast<int>(gpu.residency().waiting())};
    for (const auto& [tenant, share] : gpu.shares()) {
      view.shares.push_back({tenant, id, share.parent != nullptr, share.priority,
                             from_fixed(share.billed), debt_of(share)});
    }
    const auto own = static_cast<std::ptrdiff_t>(gpu.shares().size());
    std::ranges::sort(view.shares.end() - own, view.shares.end(), {}, &ShareView::tenant);
    for (const auto& [client_id, client] : gpu.clients()) {
      seen.running += client->run.phase == Phase::Running;
      view.clients.push_back(view_of(*client, gpu.residency()));
    }
    view.gpus.push_back(seen);
  }
  return view;
}

Result<Reason> Core::reason(ClientId client, Time now) const {
  return impl_->reason(client, now);
}
Result<std::string> Core::explain(ClientId client, Time now) const {
  const auto found = reason(client, now);
  if (!found) return found.error();
  return impl_->text_of(*found);
}
std::string Core::text_of(const Reason& reason) const {
  return impl_->text_of(reason);
}
std::optional<ClientView> Core::view(ClientId client) const {
  return impl_->view(client);
}
std::optional<SleepView> Core::sleep_of(TenantId tenant) const {
  return impl_->sleep_of(tenant);
}
std::optional<Bytes> Core::safe_limit(GpuId gpu) const {
  return impl_->safe_limit(gpu);
}
std::optional<Bytes> Core::promised_limit(GpuId gpu) const {
  return impl_->promised_limit(gpu);
}
std::optional<Bytes> Core::safe_limit_with(const OverheadMeasured& what) const {
  return impl_->safe_limit_with(what);
}
std::optional<MemoryRoom> Core::memory_room(ClientId client) const {
  return impl_->memory_room(client);
}
Bytes Core::claim_room(ClientId client) const {
  return impl_->claim_room(client);
}
HostNeed Core::host_need(ClientId id) const {
  const Client* client = nullptr;
  const Residency* residency = impl_->residency_of(id, client);
  return residency == nullptr ? HostNeed{} : residency->host_need_of(*client);
}
Snapshot Core::snapshot() const {
  return impl_->snapshot();
}
const Config& Core::config() const {
  return impl_->config();
}

}  // namespace nvshare::core
