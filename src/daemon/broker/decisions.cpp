// What the core decides, and what is done about it.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "daemon/broker/broker.h"
#include "daemon/broker/metering.h"

namespace nvshare::daemon {
namespace {

constexpr Duration kShareOver = 4s;

// What comes most often, and leaves everybody as much memory as before.
bool is_about_turns(const core::Event& event) {
  return std::holds_alternative<core::WorkRequested>(event) ||
         std::holds_alternative<core::Released>(event) ||
         std::holds_alternative<core::Usage>(event) || std::holds_alternative<core::Tick>(event);
}

// One that runs free is not metered call by call, so short gaps in its work look like work. It is
// alone on the GPU: it has used no more of it than all have, as far as that was measured during its
// grant.
Duration most_used(const GpuRecord& gpu, const ClientRecord& client, Duration wall, Time now) {
  constexpr int kBusy = 95;  // percent; its meter is right, and lags behind the clock a little
  const bool fresh = gpu.measured_at >= client.grant->since + kMeasuredEvery &&
                     now - gpu.measured_at < 3 * kMeasuredEvery;
  if (client.watch != wire::Watch::Free || !fresh) return Duration::max();
  if (!gpu.utilisation || *gpu.utilisation >= kBusy) return Duration::max();
  return wall * *gpu.utilisation / 100;
}

}  // namespace

Result<core::Decisions> Broker::decide(const core::Event& event, Time now) {
  auto taken = core_.step(event, now);
  rooms_stale_ |= taken && !is_about_turns(event);
  return taken;
}

Result<void> Broker::step(const core::Event& event, Time now) {
  auto taken = decide(event, now);
  if (!taken) return taken.error();
  follow(std::move(*taken), now);
  if (!is_about_turns(event)) believe_more(now);
  return {};
}

// Following a decision can lead to another event and more decisions; those come behind the ones
// that were made before.
void Broker::follow(core::Decisions decisions, Time now) {
  for (core::Decision& one : decisions) decisions_.push_back(std::move(one));
  if (following_) return;
  following_ = true;
  while (!decisions_.empty() || !arrivals_.empty()) {
    if (decisions_.empty()) {
      const Arrival next = arrivals_.front();
      arrivals_.pop_front();
      act(next, now);
      continue;
    }
    const core::Decision next = std::move(decisions_.front());
    decisions_.pop_front();
    apply(next, now);
  }
  following_ = false;
  if (arena_stale_) fill_arena(now);
  show_rooms();
}

void Broker::apply(const core::Decision& decision, Time now) {
  std::visit([&](const auto& action) { act(action, decision.reason, now); }, decision.action);
}

void Broker::act(const core::Grant& grant, const core::Reason& why, Time now) {
  ClientRecord* client = find(grant.client);
  if (client == nullptr) return;
  client->grant = HeldGrant{next_grant_++, now, {}, {}};
  GpuRecord& gpu = gpus_.at(client->gpu);
  if (gpu.holders.empty()) gpu.read_at = now;
  gpu.holders.insert(client->id);
  auto message = wire::make<wire::Grant>();
  message.grant = client->grant->number;
  message.budget = static_cast<std::uint64_t>(grant.budget.value_or(Duration::zero()).count());
  client->page->scheduler.budget = message.budget;
  client->page->scheduler.grant = message.grant;
  outbox_.send(client->id, message.header);
  note(*client, "grant",
       {{"grant", message.grant}, {"budget", message.budget}, {"reason", core::to_text(why)}});
}

void Broker::act(const core::Drop& drop, const core::Reason& why, Time) {
  const ClientRecord* client = find(drop.client);
  if (client == nullptr || !client->grant) return;
  auto message = wire::make<wire::Drop>();
  message.grant = client->grant->number;
  outbox_.send(client->id, message.header);
  note(*client, "drop", {{"grant", message.grant}, {"reason", core::to_text(why)}});
}

void Broker::act(const core::Overdue& overdue, const core::Reason& why, Time) {
  const ClientRecord* client = find(overdue.client);
  if (client == nullptr) return;
  log_.warn("client_overdue", {{"client", client->id.value},
                               {"tenant", tenants_.at(client->tenant).is.name},
                               {"pid", client->pid},
                               {"reason", core::to_text(why)},
                               {"ended", overdue.end ? 1 : 0}});
  if (overdue.end) outbox_.end(client->id);
}

void Broker::act(const core::Sleeps& sleeps, const core::Reason& why, Time now) {
  ClientRecord* client = find(sleeps.client);
  if (client == nullptr) return;
  client->asleep = sleeps.asleep;
  client->slept |= sleeps.asleep;
  note(*client, sleeps.asleep ? "sleep" : "wake", {{"reason", core::to_text(why)}});
  fill_arena(now);
}

void Broker::act(const core::ReadMeter& order, const core::Reason&, Time now) {
  const ClientRecord* client = find(order.client);
  if (client != nullptr) read_meters(gpus_.at(client->gpu), now);
}

// All of a GPU's meters at once, for what they say overlaps. One that releases says what it has
// used in its message; the others' is in their pages.
void Broker::read_meters(GpuRecord& gpu, Time now, const ClientRecord* releases,
                         std::uint64_t released_used) {
  if (releases == nullptr && gpu.read_at == now) return;
  std::vector<ClientRecord*> holders;
  std::vector<Duration> measured;
  for (const ClientId id : gpu.holders) {
    ClientRecord& client = clients_.at(id);
    HeldGrant& grant = *client.grant;
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
    client.grant->billed += billed[i];
    if (&client == releases) continue;  // its Released says so
    // Refused when the core has billed more already, for lack of an answer: then that stands.
    (void)step(core::Usage{client.id, client.grant->billed}, now);
  }
}

// --- the scheduler itself ----------------------------------------------------------------------

void Broker::tick(Time now) {
  (void)step(core::Tick{}, now);  // is never refused
}

Result<void> Broker::set_config(const core::Config& config, Time now) {
  for (const auto& [id, gpu] : gpus_) revoke_all(id, now);
  return step(core::ConfigChanged{config}, now);
}

Result<void> Broker::set_scheduling(bool on, Time now) {
  if (scheduling_ == on) return {};
  const auto taken = step(core::SchedulingSwitched{on}, now);
  if (!taken) return taken;
  scheduling_ = on;
  log_.warn(on ? "scheduling_on" : "scheduling_off");
  return {};
}

void Broker::sample(Time now) {
  for (auto& [id, gpu] : gpus_) read_meters(gpu, now);
  settle(now);
  for (auto& [id, client] : clients_) client.page->scheduler.alive.fetch_add(1);
  sample_shares(now);
  forget_unused(now);
  fit_oversubscribed(now);
  arena_returned_.clear();
  tidy_shared(now);
  fill_arena(now);
  ask_for_arena(now);
  rooms_stale_ = true;  // what the host has left may have changed
  show_rooms();
}

std::map<TenantId, Duration> bills_of(const core::Snapshot& snapshot) {
  std::map<TenantId, Duration> all;
  for (const core::ShareView& share : snapshot.shares) all[share.tenant] += share.billed;
  return all;
}

// Over some seconds, as in one of them there are few turns. Who had nothing to do in the last one,
// or came to or left a GPU, begins afresh: what it then has is not to look like less, or more.
void Broker::sample_shares(Time now) {
  const core::Snapshot snapshot = core_.snapshot();
  std::map<TenantId, Duration> used = bills_of(snapshot);
  std::map<TenantId, Duration> debts;
  for (const core::ShareView& share : snapshot.shares) {
    debts[share.tenant] = std::max(debts[share.tenant], share.debt);
  }
  for (auto& [id, tenant] : tenants_) {
    tenant.debt = debts[id];
    auto& samples = tenant.samples;
    const ShareSample last = samples.back();
    if (now - last.at < 500ms) continue;
    const ShareSample next{now, used[id], wanted(tenant, now), gpus_used(tenant)};
    const bool afresh = next.wanted == last.wanted || next.gpus != last.gpus;
    if (afresh) samples = {last};
    const auto more = static_cast<double>((next.used - samples.front().used).count());
    const auto passed = static_cast<double>((now - samples.front().at).count());
    // What a meter that lags says late belongs to the time before.
    const double mean = 100 * more / passed / std::max(last.gpus, next.gpus);
    tenant.share_percent = std::clamp(mean, 0.0, 100.0);
    if (afresh) samples.clear();
    samples.push_back(next);
    while (samples.size() > 1 && now - samples[1].at >= kShareOver) samples.pop_front();
  }
}

// Its limit holds on each of them.
int Broker::gpus_used(const TenantRecord& tenant) const {
  std::set<GpuId> gpus;
  for (const ClientId id : tenant.clients) gpus.insert(clients_.at(id).gpu);
  return std::max(1, static_cast<int>(gpus.size()));
}

void Broker::restart_share(TenantRecord& tenant, Time now) {
  for (auto& [id, gpu] : gpus_) read_meters(gpu, now);
  tenant.samples = {
      {now, bills_of(core_.snapshot())[tenant.id], wanted(tenant, now), gpus_used(tenant)}};
  tenant.share_percent.reset();  // until there is one
}

// --- how clients are watched -------------------------------------------------------------------

wire::Watch watch_of(std::size_t clients_on_gpu, const core::Limits& limits, bool paused) {
  const bool free = clients_on_gpu == 1 && limits.core_percent == core::kNoCoreLimit && !paused;
  return free ? wire::Watch::Free : wire::Watch::Metered;
}

void Broker::update_watch(const GpuRecord& gpu, std::optional<ClientId> not_told) {
  for (const ClientId id : gpu.clients) {
    ClientRecord& client = clients_.at(id);
    const TenantRecord& tenant = tenants_.at(client.tenant);
    const wire::Watch watch = watch_of(gpu.clients.size(), tenant.limits, tenant.paused);
    client.page->scheduler.watch = static_cast<std::uint64_t>(watch);
    if (client.watch == watch) continue;
    client.watch = watch;
    if (id == not_told) continue;
    auto message = wire::make<wire::Mode>();
    message.watch = watch;
    outbox_.send(id, message.header);
  }
}

}  // namespace nvshare::daemon
