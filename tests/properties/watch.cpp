#include "watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "text.h"

namespace nvshare::properties {
namespace {

using namespace core;

constexpr Bytes kNothing{0};

const char* name_of(Rule rule) {
  switch (rule) {
    case Rule::Memory:
      return "memory";
    case Rule::Grants:
      return "grants";
    case Rule::Serial:
      return "serial";
    case Rule::Books:
      return "books";
    case Rule::Bills:
      return "bills";
    case Rule::Wakeups:
      return "wakeups";
    case Rule::Explains:
      return "explains";
    case Rule::Refused:
      return "refused";
    case Rule::Sleep:
      return "sleep";
  }
  return "?";
}

bool one_at_a_time(const Config& config) {
  return config.policy == ComputePolicy::Coordinated || config.policy == ComputePolicy::Fair ||
         (config.policy == ComputePolicy::Metered && config.share_mode == ShareMode::Turns);
}

Held held_in(ClientState state) {
  switch (state) {
    case ClientState::Running:
      return Held::Yes;
    case ClientState::Stopping:
      return Held::Told;
    case ClientState::Overdue:
      return Held::Overdue;
    default:
      return Held::No;
  }
}

// Everything a client does once in silence, and what recurs: the ends of windows and samples.
Duration shortest_period(const Config& config) {
  return std::min(config.window, config.sample_interval);
}

}  // namespace

std::string to_lines(const std::vector<Broken>& broken) {
  std::string text;
  for (const Broken& b : broken) text += fmt::format("{}: {}\n", name_of(b.rule), b.what);
  return text;
}

Watch::Watch(const Config& config, Time begin)
    : config_(config), bills_(config), quiet_since_(begin), shortest_(shortest_period(config)) {}

void Watch::fail(Rule rule, const std::string& what) {
  for (const Broken& b : broken_) {
    if (b.rule == rule) return;
  }
  broken_.push_back({rule, what});
}

// --- what happened ------------------------------------------------------------------------------

void Watch::forget(ClientId id, Time now) {
  ShadowClient& client = clients_.at(id);
  if (client.held != Held::No) {
    const Duration unread = now - std::max(client.granted_at, client.read_at);
    const bool pays_all = client.held == Held::Overdue;
    bills_.metered(client, pays_all ? now - client.granted_at : client.reported + unread, now);
    bills_.returned(client);
  }
  clients_.erase(id);
}

void Watch::note(const GpuRemoved& e, Time now) {
  std::vector<ClientId> there;
  for (const auto& [id, client] : clients_) {
    if (client.gpu == e.gpu) there.push_back(id);
  }
  for (ClientId id : there) forget(id, now);
  bills_.gpu_removed(e.gpu);
}

void Watch::note(const TenantAdded& e, Time) {
  bills_.tenant_added(e.tenant, e.parent);
}

void Watch::note(const TenantRemoved& e, Time) {
  bills_.tenant_removed(e.tenant);
}

void Watch::note(const ClientAdded& e, Time) {
  ShadowClient& client = clients_[e.client];
  client.id = e.client;
  client.tenant = e.tenant;
}

void Watch::note(const ClientGone& e, Time now) {
  forget(e.client, now);
}

void Watch::note(const ClientLeased& e, Time) {
  clients_.at(e.client).lease = e.lease;
}

void Watch::note(const WorkRequested& e, Time) {
  clients_.at(e.client).asked = true;
}

void Watch::note(const Released& e, Time now) {
  ShadowClient& client = clients_.at(e.client);
  const bool pays_all = client.held == Held::Overdue;
  bills_.metered(client, pays_all ? now - client.granted_at : e.used, now);
  bills_.returned(client);
  client.held = Held::No;
  client.asked = e.more_work;
}

void Watch::note(const Usage& e, Time now) {
  bills_.metered(clients_.at(e.client), e.used, now);
}

void Watch::note(const MemoryChanged& e, Time) {
  ShadowClient& client = clients_.at(e.client);
  const Bytes growth = std::max(kNothing, e.allocated - client.allocated);
  const Bytes awaited = e.may_wait && e.pins ? growth : kNothing;
  client.allocated = e.allocated;
  client.awaits += awaited;
  client.pinned = e.pinned - awaited;
  client.resident = e.resident + (e.may_wait ? kNothing : growth);
  client.incoming = std::min(client.incoming, client.absent());
  client.outgoing = std::min(client.outgoing, client.resident - client.pinned);
}

void Watch::note(const MemoryFound& e, Time) {
  ShadowClient& client = clients_.at(e.client);
  client.allocated = e.allocated;
  client.pinned = e.pinned;
  client.resident = e.resident;
  client.incoming = std::min(client.incoming, client.absent());
  client.outgoing = std::min(client.outgoing, client.resident - client.pinned);
}

void Watch::note(const MemoryMoved& e, Time) {
  ShadowClient& client = clients_.at(e.client);
  const Bytes in = std::max(kNothing, e.resident - client.resident);
  unreserved_ = std::max(kNothing, in - client.incoming);
  client.failed |= e.kept > kNothing || e.missing > kNothing;
  client.resident = e.resident;
  client.in_left = e.in_left;
  client.out_left = e.out_left;
  const Bytes incoming = std::max(kNothing, client.incoming - in);
  client.incoming = std::min({incoming, e.in_left, client.absent()});
  client.outgoing = std::min({client.outgoing, e.out_left, e.resident - client.pinned});
}

void Watch::note(const SchedulingSwitched& e, Time now) {
  scheduling_ = e.on;
  // What they used until now was used while nothing was billed.
  for (auto& [id, client] : clients_) {
    if (e.on && client.held != Held::No) bills_.metered(client, now - client.granted_at, now);
  }
  bills_.switched(e.on);
}

void Watch::note(const ConfigChanged& e, Time) {
  config_ = e.config;
  bills_.config_changed(config_);
}

// --- what was decided ---------------------------------------------------------------------------

const TenantView* Watch::tenant_of(core::TenantId id) const {
  const auto found = std::find_if(tenants_.begin(), tenants_.end(),
                                  [&](const TenantView& t) { return t.id == id; });
  return found == tenants_.end() ? nullptr : &*found;
}

// The tenant, or one that it is a part of.
bool Watch::is_paused(core::TenantId id) const {
  const TenantView* tenant = tenant_of(id);
  if (tenant == nullptr) return false;
  return tenant->paused || (tenant->parent && is_paused(*tenant->parent));
}

// The client was given memory: neither its tenant nor one that it is a part of has more than its
// limit by that.
void Watch::check_limits(const Snapshot& now, core::ClientId asked) {
  const auto client = clients_.find(asked);
  if (client == clients_.end()) return;
  const auto within = [&](core::TenantId id, core::TenantId of) {
    for (std::optional<core::TenantId> at = id; at; at = tenant_of(*at)->parent) {
      if (*at == of) return true;
    }
    return false;
  };
  for (const TenantView* level = tenant_of(client->second.tenant); level != nullptr;
       level = level->parent ? tenant_of(*level->parent) : nullptr) {
    if (!level->limits.memory) continue;
    Bytes sum{};
    for (const ClientView& view : now.clients) {
      if (view.gpu == client->second.gpu && within(view.tenant, level->id)) sum += view.allocated;
    }
    if (sum <= *level->limits.memory) continue;
    fail(Rule::Memory,
         fmt::format("client {} was given memory and tenant {} has {} of {}", asked.value,
                     level->id.value, sum.count, level->limits.memory->count));
  }
}

void Watch::obey(ShadowClient& client, const Grant& d, Time now) {
  const TenantView* tenant = tenant_of(client.tenant);
  const auto id = client.id.value;
  if (!client.asked) fail(Rule::Grants, fmt::format("client {} has not asked", id));
  if (client.held != Held::No) fail(Rule::Grants, fmt::format("client {} holds one", id));
  if (!client.complete()) {
    fail(Rule::Grants,
         fmt::format("client {} lacks memory: {} of {} there, {} leaving", id,
                     client.resident.count, client.allocated.count, client.outgoing.count));
  }
  if (is_paused(client.tenant)) {
    fail(Rule::Grants, fmt::format("client {} is paused", id));
  }
  if (client.lease == ClientLease::Over) {
    fail(Rule::Grants, fmt::format("client {} is granted behind the end of its lease", id));
  }
  if (tenant != nullptr && tenant->sleep) {
    fail(Rule::Sleep, fmt::format("client {} is granted and sleeps", id));
  }
  for (const auto& [other_id, other] : clients_) {
    const bool in_the_way = other_id != client.id && other.gpu == client.gpu &&
                            (other.held == Held::Yes || other.held == Held::Told);
    if (in_the_way && scheduling_ && one_at_a_time(config_)) {
      fail(Rule::Serial, fmt::format("client {} is granted beside {}", id, other_id.value));
    }
  }
  client.held = Held::Yes;
  client.budget = d.budget;
  client.granted_at = now;
  client.reported = Duration::zero();
  bills_.granted(client);
}

void Watch::obey(ShadowClient& client, const Place& d, Time) {
  client.gpu = d.gpu;
  bills_.joined(client);
}

void Watch::obey(ShadowClient& client, const Drop&, Time now) {
  if (client.held != Held::Yes) {
    fail(Rule::Grants, fmt::format("client {} is told to drop, holds nothing", client.id.value));
  }
  client.held = Held::Told;
  client.dropped_at = now;
}

void Watch::obey(ShadowClient& client, const Overdue&, Time now) {
  const bool moves = client.incoming.count > 0 || client.outgoing.count > 0;
  if (client.held == Held::No && moves) {  // it does not move its memory
    client.failed = true;
    return;
  }
  if (client.held != Held::Told || now < client.dropped_at + config_.drop_timeout) {
    fail(Rule::Grants, fmt::format("client {} is not overdue", client.id.value));
  }
  client.held = Held::Overdue;
  bills_.metered(client, now - client.granted_at, now);
}

void Watch::obey(ShadowClient& client, const Sleeps& d, Time) {
  const auto tenant = std::find_if(tenants_.begin(), tenants_.end(),
                                   [&](const TenantView& t) { return t.id == client.tenant; });
  // A client that is told that it sleeps may have woken by the same event.
  if (tenant != tenants_.end() && !d.asleep && tenant->sleep) {
    fail(Rule::Sleep, fmt::format("client {} is told that it is awake", client.id.value));
  }
}

void Watch::obey(ShadowClient& client, const ReadMeter&, Time) {
  if (client.held != Held::Yes) {
    fail(Rule::Grants, fmt::format("client {} does not run", client.id.value));
  }
}

void Watch::obey(ShadowClient& client, const SendOut& d, Time) {
  if (client.held != Held::No) {
    fail(Rule::Grants, fmt::format("client {} is to send out while it runs", client.id.value));
  }
  client.failed = false;
  client.outgoing += d.bytes;
  client.out_left += d.bytes;
  if (d.bytes <= kNothing || client.outgoing > client.resident - client.pinned) {
    fail(Rule::Books, fmt::format("client {} is to send out {}", client.id.value, d.bytes.count));
  }
}

void Watch::obey(ShadowClient& client, const BringIn& d, Time) {
  client.incoming += d.bytes;
  client.in_left += d.bytes;
  if (d.bytes <= kNothing || client.incoming > client.absent()) {
    fail(Rule::Books, fmt::format("client {} is to bring in {}", client.id.value, d.bytes.count));
  }
}

void Watch::obey(ShadowClient& client, const MemoryAvailable&, Time) {
  // An allocation that fits is there at once.
  if (asked_for_memory_ == client.id && client.incoming == kNothing) {
    client.resident = client.allocated - client.awaits;
  }
  if (!client.complete()) {
    fail(Rule::Books, fmt::format("client {}'s memory is not there", client.id.value));
  }
}

void Watch::obey(ShadowClient& client, const WaitForMemory& d, Time) {
  if (d.missing != client.allocated - client.resident) {
    fail(Rule::Books, fmt::format("client {} misses not {}", client.id.value, d.missing.count));
  }
}

void Watch::obey(ShadowClient& client, const MemoryGiven& d, Time) {
  if (d.bytes <= kNothing || d.bytes != client.awaits) {
    fail(Rule::Books, fmt::format("client {} is given {}", client.id.value, d.bytes.count));
  }
  client.awaits -= d.bytes;
  client.pinned += d.bytes;
  client.resident += d.bytes;
}

void Watch::obey(ShadowClient& client, const MemoryWithdrawn& d, Time) {
  if (d.bytes <= kNothing || d.bytes != client.awaits) {
    fail(Rule::Books, fmt::format("client {} does not get {}", client.id.value, d.bytes.count));
  }
  client.awaits -= d.bytes;
  client.allocated -= d.bytes;
}

void Watch::obey(ShadowClient& client, const MemoryRefused& d, Time) {
  if (asked_for_memory_ != client.id || d.allowed >= d.asked) {
    fail(Rule::Books, fmt::format("client {} is refused {}", client.id.value, d.asked.count));
  }
}

// --- what is shown ------------------------------------------------------------------------------

void Watch::check_client(const ClientView& view) {
  const auto it = clients_.find(view.id);
  if (it == clients_.end()) return fail(Rule::Books, "a client that has left is shown");
  const ShadowClient& client = it->second;
  const bool same = view.allocated == client.allocated && view.resident == client.resident &&
                    view.pinned == client.pinned && view.awaits == client.awaits &&
                    view.incoming == client.incoming && view.outgoing == client.outgoing &&
                    view.gpu == client.gpu && view.tenant == client.tenant;
  const bool possible = Bytes{} <= view.pinned && view.pinned <= view.resident &&
                        view.resident <= view.allocated && client.incoming >= kNothing &&
                        client.outgoing >= kNothing && client.incoming <= client.in_left &&
                        client.outgoing <= client.out_left;
  if (!possible) fail(Rule::Books, fmt::format("client {}: impossible", view.id.value));
  if (!same) {
    fail(Rule::Books,
         fmt::format("client {} is shown with {}/{}/{}, {} in, {} out, and has {}/{}/{}, {}, {}",
                     view.id.value, view.allocated.count, view.resident.count, view.pinned.count,
                     view.incoming.count, view.outgoing.count, client.allocated.count,
                     client.resident.count, client.pinned.count, client.incoming.count,
                     client.outgoing.count));
  }
  if (client.lease == ClientLease::Over && client.held == Held::Yes) {
    fail(Rule::Grants, fmt::format("client {} runs behind the end of its lease", view.id.value));
  }
  if (held_in(view.state) != client.held ||
      (view.state == ClientState::Waiting) != client.waits()) {
    fail(Rule::Grants,
         fmt::format("client {} is shown as {}", view.id.value, core::name_of(view.state)));
  }
}

// What is on the GPU or on its way there may exceed the safe limit only because the limit came
// down, and then it does not grow; or because a client freed what was to come in, whose room was
// given away, and then had something else that came in its place.
void Watch::check_memory(const Snapshot& now, const Event& event) {
  const bool found = std::holds_alternative<MemoryFound>(event);  // is counted whatever there is
  for (const GpuView& gpu : now.gpus) {
    Bytes counted{};
    for (const auto& [id, client] : clients_) {
      if (client.gpu == gpu.id) counted += client.resident + client.incoming;
    }
    if (counted != gpu.resident) {
      fail(Rule::Books, fmt::format("gpu {} shows {} and clients have {}", gpu.id.value,
                                    gpu.resident.count, counted.count));
    }
    const auto before = std::find_if(seen_.gpus.begin(), seen_.gpus.end(),
                                     [&](const GpuView& g) { return g.id == gpu.id; });
    const Bytes was = before == seen_.gpus.end() ? kNothing : before->resident;
    if (!found && gpu.resident > std::max(gpu.safe_limit, was) + unreserved_) {
      fail(Rule::Memory, fmt::format("gpu {}: {} grew to {} with a safe limit of {}", gpu.id.value,
                                     was.count, gpu.resident.count, gpu.safe_limit.count));
    }
  }
}

void Watch::check_waits(const Core& core, Time now) {
  if (clients_.empty()) return;
  next_to_explain_ = (next_to_explain_ + 1) % clients_.size();
  const ShadowClient& client =
      std::next(clients_.begin(), static_cast<std::ptrdiff_t>(next_to_explain_))->second;
  const auto why = core.explain(client.id, now);
  static const std::string no_work = to_text(Reason{.why = Why::NoWork});
  static const std::string runs = to_text(Reason{.why = Why::Running});
  if (!why || why->empty()) {
    return fail(Rule::Explains, fmt::format("client {} is not explained", client.id.value));
  }
  const bool says_waits = *why != no_work && why->rfind(runs, 0) != 0;
  if (client.waits() && !says_waits) {
    fail(Rule::Explains, fmt::format("client {} waits and '{}'", client.id.value, *why));
  }
}

// A sleeper that neither holds a grant nor is on its way in is told to send out what it can. Only a
// move that failed makes it wait, and the core tells nobody of that: so orders are looked for, and
// failures are remembered.
void Watch::check_sleepers(const Snapshot& now) {
  for (const ClientView& view : now.clients) {
    const auto tenant = std::find_if(now.tenants.begin(), now.tenants.end(),
                                     [&](const TenantView& t) { return t.id == view.tenant; });
    const auto it = clients_.find(view.id);
    if (tenant == now.tenants.end() || it == clients_.end() || !tenant->sleep) continue;
    const ShadowClient& client = it->second;
    const bool excused = client.held != Held::No || client.in_left > kNothing || client.failed;
    if (!excused && view.leaveable > kNothing) {
      fail(Rule::Sleep,
           fmt::format("client {} sleeps and keeps {}", view.id.value, view.leaveable.count));
    }
    if (tenant->sleep->hold || is_paused(tenant->id) || !client.waits()) continue;
    fail(Rule::Sleep, fmt::format("client {} asks, and its tenant sleeps", view.id.value));
  }
}

void Watch::check_state(const Core& core, const Snapshot& snapshot, const Event& event, Time now) {
  if (snapshot.clients.size() != clients_.size()) {
    fail(Rule::Books, "clients are missing from the snapshot");
  }
  for (const ClientView& view : snapshot.clients) check_client(view);
  check_memory(snapshot, event);
  check_sleepers(snapshot);
  const std::string wrong = bills_.compare(snapshot.shares);
  if (!wrong.empty()) fail(Rule::Bills, wrong);
  seen_ = snapshot;
  check_waits(core, now);
}

// In silence each client can be resumed, granted, dropped and found overdue once; what comes after
// that comes with the ends of windows or with samples.
void Watch::count_ticks(const Event& event, Time now, const Core& core) {
  const bool was_due = wakeup_ && *wakeup_ <= now;
  wakeup_ = core.next_wakeup();
  if (!std::holds_alternative<Tick>(event)) {
    ticks_ = 0;
    quiet_since_ = now;
    shortest_ = shortest_period(config_);
    return;
  }
  if (wakeup_ && *wakeup_ <= now) {
    fail(Rule::Wakeups, fmt::format("due again {} ago", to_text(now - *wakeup_)));
  }
  const auto periods = (now - quiet_since_) / shortest_;
  const auto most = 10 + 8 * static_cast<std::int64_t>(clients_.size()) +
                    2 * periods * static_cast<std::int64_t>(1 + seen_.gpus.size());
  if (was_due && ++ticks_ > most) {
    fail(Rule::Wakeups,
         fmt::format("{} ticks in {} of silence", ticks_, to_text(now - quiet_since_)));
  }
}

void Watch::must_be_unchanged(const Core& core) {
  if (to_lines(core.snapshot()) != to_lines(seen_)) {
    fail(Rule::Refused, "the snapshot has changed");
  }
  if (core.next_wakeup() != wakeup_) fail(Rule::Refused, "the next wake-up has changed");
}

void Watch::after(const Event& event, Time now, const Result<Decisions>& result, const Core& core) {
  if (!result) return must_be_unchanged(core);
  const bool refused = std::any_of(result->begin(), result->end(), [](const Decision& d) {
    return std::holds_alternative<MemoryRefused>(d.action);
  });
  const auto* memory = std::get_if<MemoryChanged>(&event);
  asked_for_memory_ = memory != nullptr ? std::optional(memory->client) : std::nullopt;
  unreserved_ = kNothing;
  bills_.advance(now);
  Bytes had{};
  if (memory != nullptr && clients_.contains(memory->client)) {
    had = clients_.at(memory->client).allocated;
  }
  if (!refused) std::visit([&](const auto& e) { note(e, now); }, event);
  const Snapshot snapshot = core.snapshot();
  tenants_ = snapshot.tenants;
  for (const Decision& decision : *result) {
    std::visit(
        [&](const auto& d) {
          const auto it = clients_.find(d.client);
          if (it == clients_.end()) return fail(Rule::Books, "a decision for nobody");
          obey(it->second, d, now);
        },
        decision.action);
  }
  if (memory != nullptr && !refused && memory->allocated > had) {
    check_limits(snapshot, memory->client);
  }
  check_state(core, snapshot, event, now);
  count_ticks(event, now, core);
}

}  // namespace nvshare::properties
