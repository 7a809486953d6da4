#include "daemon/broker/grants.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "daemon/broker/metering.h"

namespace nvshare::daemon {
namespace {

// One that runs free is not metered call by call, so short gaps in its work look like work. It is
// alone on the GPU: it has used no more of it than all have, as far as that was measured during its
// grant.
Duration most_used(const GpuRecord& gpu, const ClientRecord& client, Duration wall, Time now) {
  constexpr int kBusy = 95;  // percent; its meter is right, and lags behind the clock a little
  const bool fresh = gpu.measured_at >= client.turn.grant->since + kMeasuredOver &&
                     now - gpu.measured_at < 3 * kMeasuredOver;
  if (client.turn.watch != wire::Watch::Free || !fresh) return Duration::max();
  if (!gpu.utilisation || *gpu.utilisation >= kBusy) return Duration::max();
  return wall * *gpu.utilisation / 100;
}

}  // namespace

void Grants::set_wants(ClientRecord& client, bool wants, Time now) {
  if (client.turn.wants == wants) return;
  client.turn.wants = wants;
  for_each_level(tenants_, client.tenant, [&](TenantRecord& tenant) {
    if (wants && tenant.wanting++ == 0) tenant.wanting_since = now;
    if (!wants && --tenant.wanting == 0) tenant.wanted += now - tenant.wanting_since;
  });
}

void Grants::take(ClientRecord& client, const wire::RequestGrant&, Time now) {
  set_wants(client, true, now);
  const auto taken = step(core::WorkRequested{client.id}, now);
  if (!taken) disconnect(client, taken.error().message);
}

void Grants::take(ClientRecord& client, const wire::Released& message, Time now) {
  if (!client.turn.grant || client.turn.grant->number != message.grant) {
    return disconnect(client,
                      fmt::format("released grant {}, which it does not hold", message.grant));
  }
  GpuRecord& gpu = gpus_.at(client.gpu);
  read_meters(gpu, now, &client, message.used);
  const Duration used = client.turn.grant->billed;
  note(client, "released",
       {{"grant", message.grant},
        {"held", (now - client.turn.grant->since).count()},
        {"used", message.used},
        {"billed", used.count()},
        {"gaps", std::chrono::nanoseconds(std::chrono::microseconds(message.gaps)).count()},
        {"more", message.more_work != 0 ? 1 : 0}});
  client.turn.used_before += used;
  client.turn.grant.reset();
  client.page->scheduler.grant = 0;
  gpu.holders.erase(client.id);
  const bool more = message.more_work != 0;
  set_wants(client, more, now);
  const std::chrono::microseconds gaps{message.gaps};
  const auto taken = step(core::Released{client.id, used, more, gaps}, now);
  if (!taken) disconnect(client, taken.error().message);
}

void Grants::act(const core::Grant& grant, const core::Reason& why, Time now) {
  ClientRecord* client = find(grant.client);
  if (client == nullptr) return;
  client->turn.grant = HeldGrant{next_grant_++, now, {}, {}};
  GpuRecord& gpu = gpus_.at(client->gpu);
  if (gpu.holders.empty()) gpu.read_at = now;
  gpu.holders.insert(client->id);
  auto message = wire::make<wire::Grant>();
  message.grant = client->turn.grant->number;
  message.budget = static_cast<std::uint64_t>(grant.budget.value_or(Duration::zero()).count());
  client->page->scheduler.budget = message.budget;
  client->page->scheduler.grant = message.grant;
  outbox_.send(client->id, message.header);
  note(*client, "grant",
       {{"grant", message.grant}, {"budget", message.budget}, {"reason", desk_.text_of(why)}});
}

void Grants::act(const core::Drop& drop, const core::Reason& why) {
  const ClientRecord* client = find(drop.client);
  if (client == nullptr || !client->turn.grant) return;
  auto message = wire::make<wire::Drop>();
  message.grant = client->turn.grant->number;
  outbox_.send(client->id, message.header);
  note(*client, "drop", {{"grant", message.grant}, {"reason", desk_.text_of(why)}});
}

void Grants::act(const core::Overdue& overdue, const core::Reason& why) {
  const ClientRecord* client = find(overdue.client);
  if (client == nullptr) return;
  log_.warn("client_overdue", {{"client", client->id.value},
                               {"tenant", tenants_.at(client->tenant).is.name},
                               {"pid", client->pid},
                               {"reason", desk_.text_of(why)},
                               {"ended", overdue.end ? 1 : 0}});
  if (overdue.end) outbox_.end(client->id);
}

void Grants::act(const core::ReadMeter& order, Time now) {
  const ClientRecord* client = find(order.client);
  if (client != nullptr) read_meters(gpus_.at(client->gpu), now);
}

// All of a GPU's meters at once, for what they say overlaps. One that releases says what it has
// used in its message; the others' is in their pages.
void Grants::read_meters(GpuRecord& gpu, Time now, const ClientRecord* releases,
                         std::uint64_t released_used) {
  if (releases == nullptr && gpu.read_at == now) return;
  std::vector<ClientRecord*> holders;
  std::vector<Duration> measured;
  for (const ClientId id : gpu.holders) {
    ClientRecord& client = clients_.at(id);
    HeldGrant& grant = *client.turn.grant;
    const wire::Page::FromProgram& page = client.page->program;
    std::uint64_t said = static_cast<std::uint64_t>(grant.read.count());
    if (&client == releases) {
      said = released_used;
    } else if (page.grant.load() == grant.number) {
      said = page.used.load();
    }
    const Duration read = believable(said, grant.read, now - grant.since);
    holders.push_back(&client);
    measured.push_back(read - grant.read);
    grant.read = read;
  }
  // What one alone says needs no sharing out; and its meter may lag behind the clock a little,
  // which would then be lost.
  const Duration wall = now - std::exchange(gpu.read_at, now);
  if (holders.size() == 1) {
    measured[0] = std::min(measured[0], most_used(gpu, *holders[0], wall, now));
  }
  const auto billed = holders.size() == 1 ? measured : share_out(measured, wall);
  for (std::size_t i = 0; i < holders.size(); ++i) {
    ClientRecord& client = *holders[i];
    client.turn.grant->billed += billed[i];
    if (&client == releases) continue;  // its Released says so
    // Refused when the core has billed more already, for lack of an answer: then that stands.
    (void)step(core::Usage{client.id, client.turn.grant->billed}, now);
  }
}

void Grants::read_all_meters(Time now) {
  for (auto& [id, gpu] : gpus_) read_meters(gpu, now);
}

// --- how clients are watched -------------------------------------------------------------------

wire::Watch watch_of(std::size_t clients_on_gpu, const core::Limits& limits, bool paused) {
  const bool free = clients_on_gpu == 1 && limits.core_percent == core::kNoCoreLimit && !paused;
  return free ? wire::Watch::Free : wire::Watch::Metered;
}

void Grants::update_watch(const GpuRecord& gpu, std::optional<ClientId> not_told) {
  for (const ClientId id : gpu.clients) {
    ClientRecord& client = clients_.at(id);
    const wire::Watch watch = watch_of(gpu.clients.size(), tightest_limits(tenants_, client.tenant),
                                       is_paused(tenants_, client.tenant));
    client.page->scheduler.watch = static_cast<std::uint64_t>(watch);
    if (client.turn.watch == watch) continue;
    client.turn.watch = watch;
    if (id == not_told) continue;
    auto message = wire::make<wire::Mode>();
    message.watch = watch;
    outbox_.send(id, message.header);
  }
}

void Grants::update_watch() {
  for (const auto& [id, gpu] : gpus_) update_watch(gpu);
}

}  // namespace nvshare::daemon
