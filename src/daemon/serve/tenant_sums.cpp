#include "daemon/serve/tenant_sums.h"

#include <algorithm>
#include <map>

namespace nvshare::daemon {

TenantSums sums_of(const Broker& broker, const TenantRecord& tenant) {
  TenantSums sums;
  std::map<GpuId, Bytes> on_gpu;
  for (const ClientId id : clients_below(broker.tenants(), tenant.id)) {
    const ClientRecord& client = broker.clients().at(id);
    sums.allocated += client.memory.allocated();
    sums.fullest = std::max(sums.fullest, on_gpu[client.gpu] += client.memory.allocated());
    const auto view = broker.core().view(id);
    if (!view) continue;
    sums.resident += view->resident;
    sums.swapped += view->allocated - view->resident + client.memory.beyond();
    sums.beyond += client.memory.beyond();
    sums.pinned += view->pinned;
    sums.incoming += view->incoming;
    sums.outgoing += view->outgoing;
    if (broker.core().sleep_of(client.tenant)) sums.to_leave += view->outgoing + view->leaveable;
  }
  return sums;
}

std::optional<core::SleepView> sleep_of(const Broker& broker, const TenantRecord& tenant) {
  std::optional<core::SleepView> all;
  for (const TenantId id : tenants_below(broker.tenants(), tenant.id)) {
    const TenantRecord& one = broker.tenants().at(id);
    if (one.clients.empty() && (id != tenant.id || !one.parts.empty())) continue;
    const auto sleep = broker.core().sleep_of(id);
    if (!sleep) return std::nullopt;
    all = all ? core::SleepView{all->hold && sleep->hold, std::max(all->since, sleep->since)}
              : *sleep;
  }
  return all;
}

}  // namespace nvshare::daemon
