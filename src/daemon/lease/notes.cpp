#include "daemon/lease/notes.h"

#include "daemon/tenant_names.h"

namespace nvshare::daemon {

LeaseNotes::LeaseNotes(Leases& leases, Trace& trace, TenantOf tenant_of)
    : leases_(leases), trace_(trace), tenant_of_(std::move(tenant_of)) {
  leases.on_event(
      [this](const LeaseRecord& lease, const LeaseEvent& event) { note(lease, event); });
}

std::string LeaseNotes::find_tenant(const LeaseRecord& lease) {
  if (!lease.ask.uid) return "";
  const auto holder = leases_.holder_of(lease.id);
  if (!holder) return user_tenant(*lease.ask.uid).name;
  const auto [found, is_new] = of_process_.try_emplace(holder->process);
  if (is_new) found->second = tenant_of_(holder->process.pid, *lease.ask.uid);
  return found->second;
}

std::string LeaseNotes::tenant_of(LeaseId lease) const {
  const auto found = of_lease_.find(lease);
  return found == of_lease_.end() ? "" : found->second;
}

void LeaseNotes::note(const LeaseRecord& lease, const LeaseEvent& event) {
  auto known = of_lease_.find(lease.id);
  if (known == of_lease_.end()) known = of_lease_.emplace(lease.id, find_tenant(lease)).first;
  const core::LeaseRequest& request = lease.ask.request;
  std::string fields;
  append_fields(
      fields,
      {{"lease", lease.id.value}, {"class", request.task_class}, {"gpu", request.gpu.value}});
  if (!event.outcome.empty()) append_fields(fields, {{"outcome", event.outcome}});
  if (!event.reason.empty()) append_fields(fields, {{"reason", event.reason}});
  if (event.waited) append_fields(fields, {{"waited", event.waited->count()}});
  trace_.add_lease(event.name, known->second, fields);
  if (event.ends) of_lease_.erase(known);
}

LeaseFacts::Leases LeaseNotes::facts(const LeaseFacts::IsWanted& is_wanted, Time now) const {
  LeaseFacts::Leases all;
  for (const core::LeaseView& view : leases_.arbiter().leases()) {
    const LeaseRecord* record = leases_.find(view.lease);
    const std::string tenant = tenant_of(view.lease);
    if (record == nullptr || tenant.empty() || !is_wanted(tenant)) continue;
    if (++all.total > LeaseFacts::kMost) continue;
    const auto why = leases_.arbiter().explain(view.lease, now);
    all.first.push_back({record->name, tenant, view, record->ask.owner,
                         why ? core::text_of(*why, now) : std::string()});
  }
  return all;
}

}  // namespace nvshare::daemon
