#include "core/core.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/core_impl.h"

namespace nvshare::core {
namespace {

constexpr std::size_t kLongestName = 253;

std::optional<Error> bad_memory_limit(const std::optional<Bytes>& limit) {
  if (!limit || limit->count > 0) return std::nullopt;
  return Error{fmt::format("memory limit {} is not above 0", limit->count)};
}

std::optional<Error> bad_priority(int priority) {
  if (priority >= kLowestPriority && priority <= kHighestPriority) return std::nullopt;
  return Error{
      fmt::format("priority {} is not from {} to {}", priority, kLowestPriority, kHighestPriority)};
}

std::optional<Error> bad_limits(const Limits& limits) {
  if (limits.core_percent < 1 || limits.core_percent > 100) {
    return Error{fmt::format("core limit {} is not from 1 to 100", limits.core_percent)};
  }
  if (auto bad = bad_memory_limit(limits.memory)) return bad;
  return bad_priority(limits.priority);
}

}  // namespace

Error unknown(const char* what, std::uint64_t id) {
  return Error{fmt::format("{} {} is not known", what, id)};
}

Result<Decisions> Core::Impl::step(const Event& event, Time now) {
  if (now < now_) {
    return Error{fmt::format("time goes back by {}", to_text(now_ - now))};
  }
  Decisions out;
  const Result<void> taken = std::visit([&](const auto& e) { return take(e, now, out); }, event);
  if (!taken) return taken.error();
  now_ = now;
  return out;
}

void Core::Impl::finish(Gpu& gpu, Time now, Decisions& out) {
  gpu.finish(now, out);
  // What this GPU does not need of the host's memory is there for the others.
  if (!host_.most()) return;
  for (auto& [id, other] : gpus_) {
    if (&other == &gpu || !other.residency().waits_for_places()) continue;
    other.host_changed();
    other.finish(now, out);
  }
}

Gpu* Core::Impl::first_to_wake() {
  Gpu* first = nullptr;
  for (auto& [id, gpu] : gpus_) {
    const auto& next = gpu.next_wakeup();
    if (next && (first == nullptr || *next < *first->next_wakeup())) first = &gpu;
  }
  return first;
}

void Core::Impl::finish_all(Time now, Decisions& out) {
  for (auto& [id, gpu] : gpus_) finish(gpu, now, out);
}

// --- GPUs --------------------------------------------------------------------------------------

Result<void> Core::Impl::take(const GpuAdded& e, Time now, Decisions&) {
  if (gpus_.contains(e.gpu)) return Error{fmt::format("gpu {} is there already", e.gpu.value)};
  if (e.total.count <= 0) return Error{fmt::format("gpu {} has no memory", e.gpu.value)};
  if (e.total > kMostMemory) return Error{"a GPU has at most " + to_text(kMostMemory)};
  gpus_.try_emplace(e.gpu, e.gpu, e.total, config_, host_, now);
  Decisions none;
  gpus_.at(e.gpu).switch_scheduling(scheduling_, now, none);
  return {};
}

Result<void> Core::Impl::take(const GpuRemoved& e, Time now, Decisions&) {
  Gpu* gpu = find_gpu(e.gpu);
  if (gpu == nullptr) return unknown("gpu", e.gpu.value);
  while (!gpu->clients().empty()) {
    Client& client = *gpu->clients().begin()->second;
    Tenant& tenant = *client.tenant;
    gpu->remove(client, now);
    --tenant.clients;
    clients_.erase(client.id);
    follow_idleness(tenant, false, now);
  }
  gpus_.erase(e.gpu);
  return {};
}

Result<void> Core::Impl::take(const OverheadMeasured& e, Time now, Decisions& out) {
  Gpu* gpu = find_gpu(e.gpu);
  if (gpu == nullptr) return unknown("gpu", e.gpu.value);
  if (e.overhead.count < 0 || e.overhead > gpu->total()) {
    return Error{fmt::format("overhead {} is not from 0 to the GPU's {}", to_text(e.overhead),
                             to_text(gpu->total()))};
  }
  if (e.found.count < 0 || e.found > gpu->total()) return Error{"more was found than the GPU has"};
  gpu->overhead_measured(e);
  finish(*gpu, now, out);
  return {};
}

Result<void> Core::Impl::take(const OverlapSeen& e, Time now, Decisions& out) {
  Gpu* gpu = find_gpu(e.gpu);
  if (gpu == nullptr) return unknown("gpu", e.gpu.value);
  gpu->set_overlap(e.possible);
  finish(*gpu, now, out);
  return {};
}

// --- tenants -----------------------------------------------------------------------------------

Result<void> Core::Impl::take(const TenantAdded& e, Time, Decisions&) {
  if (tenants_.contains(e.tenant)) {
    return Error{fmt::format("tenant {} is there already", e.tenant.value)};
  }
  if (e.name.size() > kLongestName) {
    return Error{fmt::format("a name has at most {} characters", kLongestName)};
  }
  if (auto bad = bad_limits(e.limits)) return *bad;
  Tenant* parent = e.parent ? find_tenant(*e.parent) : nullptr;
  if (e.parent && parent == nullptr) return unknown("parent tenant", e.parent->value);
  if (parent != nullptr && parent->depth == kDeepestTenant) {
    return Error{fmt::format("tenants are in one another {} deep at most", kDeepestTenant)};
  }
  Tenant& tenant =
      tenants_.emplace(e.tenant, Tenant{.id = e.tenant, .limits = e.limits, .name = e.name})
          .first->second;
  if (parent == nullptr) return {};
  tenant.parent = parent;
  tenant.is_paused = parent->is_paused;
  if (parent->sleep && parent->sleep->hold) tenant.sleep = parent->sleep;
  tenant.depth = parent->depth + 1;
  ++parent->parts;
  return {};
}

Result<void> Core::Impl::take(const TenantRemoved& e, Time now, Decisions&) {
  const Tenant* tenant = find_tenant(e.tenant);
  if (tenant == nullptr) return unknown("tenant", e.tenant.value);
  if (tenant->clients > 0) {
    return Error{fmt::format("tenant {} still has {} clients", e.tenant.value, tenant->clients)};
  }
  if (tenant->parts > 0) {
    return Error{fmt::format("tenant {} still has {} parts", e.tenant.value, tenant->parts)};
  }
  for (auto& [id, gpu] : gpus_) {
    (void)gpu.lend(e.tenant, std::nullopt, now);  // tenants around it no longer go as it did
    gpu.forget(e.tenant);
  }
  if (tenant->parent != nullptr) --tenant->parent->parts;
  tenants_.erase(e.tenant);  // not idle_: it had no clients
  return {};
}

Result<void> Core::Impl::take(const LimitsChanged& e, Time now, Decisions& out) {
  Tenant* tenant = find_tenant(e.tenant);
  if (tenant == nullptr) return unknown("tenant", e.tenant.value);
  if (auto bad = bad_limits(e.limits)) return *bad;
  if (tenant->limits == e.limits) return {};
  const int cores_before = tenant->limits.core_percent;
  for (auto& [id, gpu] : gpus_) gpu.limits_will_change(e.tenant, now);
  tenant->limits = e.limits;
  const bool restart = cores_before != e.limits.core_percent;
  for (auto& [id, gpu] : gpus_) gpu.limits_have_changed(restart, now);
  finish_all(now, out);
  return {};
}

Result<void> Core::Impl::take(const PriorityLent& e, Time now, Decisions& out) {
  if (find_tenant(e.tenant) == nullptr) return unknown("tenant", e.tenant.value);
  Gpu* gpu = find_gpu(e.gpu);
  if (gpu == nullptr) return unknown("gpu", e.gpu.value);
  if (e.priority) {
    if (auto bad = bad_priority(*e.priority)) return *bad;
  }
  if (const auto lent = gpu->lend(e.tenant, e.priority, now); !lent) return lent;
  finish(*gpu, now, out);
  return {};
}

Result<void> Core::Impl::take(const ClientLeased& e, Time now, Decisions& out) {
  Client* client = find_client(e.client);
  if (client == nullptr) return unknown("client", e.client.value);
  Gpu& gpu = gpus_.at(client->gpu);
  gpu.lease_changed(*client, e.lease, now, out);
  if (e.lease == ClientLease::Held) wake_by_work(*client->tenant, now, out);
  follow_idleness(*client->tenant, true, now);
  finish(gpu, now, out);
  return {};
}

Result<void> Core::Impl::take(const TenantPaused& e, Time now, Decisions& out) {
  Tenant* tenant = find_tenant(e.tenant);
  if (tenant == nullptr) return unknown("tenant", e.tenant.value);
  if (tenant->paused == e.paused) {
    return Error{
        fmt::format("tenant {} is {} already", e.tenant.value, e.paused ? "paused" : "not paused")};
  }
  tenant->paused = e.paused;
  const std::vector<Tenant*> all = with_parts(*tenant);
  for (Tenant* one : all) {
    one->is_paused = one->paused || (one->parent != nullptr && one->parent->is_paused);
  }
  for (auto& [id, gpu] : gpus_) {
    gpu.pause_changed(*tenant, now, out);
    finish(gpu, now, out);
  }
  for (Tenant* one : all) {
    if (asks(*one)) wake_by_work(*one, now, out);
    follow_idleness(*one, true, now);
  }
  return {};
}

std::vector<Tenant*> Core::Impl::with_parts(Tenant& tenant) {
  std::vector<Tenant*> all{&tenant};
  if (tenant.parts == 0) return all;
  for (auto& [id, other] : tenants_) {
    if (&other != &tenant && other.is_within(tenant)) all.push_back(&other);
  }
  std::ranges::sort(all, {}, [](const Tenant* one) { return std::pair(one->depth, one->id); });
  return all;
}

// --- clients -----------------------------------------------------------------------------------

Result<void> Core::Impl::take(const ClientAdded& e, Time now, Decisions& out) {
  if (clients_.contains(e.client)) {
    return Error{fmt::format("client {} is there already", e.client.value)};
  }
  Tenant* tenant = find_tenant(e.tenant);
  if (tenant == nullptr) return unknown("tenant", e.tenant.value);
  if (gpus_.empty()) return Error{"there is no GPU"};
  Placement placed{e.gpu.value_or(GpuId{}), {.why = Why::Asked}};
  if (!e.gpu) placed = *place({.memory = e.memory_limit ? e.memory_limit : tenant->limits.memory});
  Gpu* gpu = find_gpu(placed.gpu);
  if (gpu == nullptr) return unknown("gpu", placed.gpu.value);
  if (auto bad = bad_memory_limit(e.memory_limit)) return *bad;
  Client& client = clients_[e.client];
  client.id = e.client;
  client.own_limit = e.memory_limit;
  client.seq = next_client_++;
  client.tenant = tenant;
  ++tenant->clients;
  gpu->add(client, now);
  out.push_back({Place{client.id, placed.gpu}, placed.reason});
  follow_idleness(*tenant, true, now);
  finish(*gpu, now, out);
  return {};
}

Result<void> Core::Impl::take(const ClientGone& e, Time now, Decisions& out) {
  Client* client = find_client(e.client);
  if (client == nullptr) return unknown("client", e.client.value);
  Gpu& gpu = gpus_.at(client->gpu);
  Tenant& tenant = *client->tenant;
  gpu.remove(*client, now);
  --tenant.clients;
  clients_.erase(e.client);
  follow_idleness(tenant, false, now);
  finish(gpu, now, out);
  return {};
}

Result<void> Core::Impl::take(const WorkRequested& e, Time now, Decisions& out) {
  Client* client = find_client(e.client);
  if (client == nullptr) return unknown("client", e.client.value);
  if (client->wants_work) {
    return Error{fmt::format("client {} has asked already", e.client.value)};
  }
  Gpu& gpu = gpus_.at(client->gpu);
  gpu.work_requested(*client, now, out);
  wake_by_work(*client->tenant, now, out);
  follow_idleness(*client->tenant, true, now);
  finish(gpu, now, out);
  return {};
}

Result<void> Core::Impl::take(const Released& e, Time now, Decisions& out) {
  Client* client = find_client(e.client);
  if (client == nullptr) return unknown("client", e.client.value);
  if (client->run.phase == Phase::Off || client->run.phase == Phase::Ready) {
    return Error{fmt::format("client {} holds no grant", e.client.value)};
  }
  if (e.used < Duration::zero() || e.gaps < Duration::zero()) return Error{"used time is negative"};
  Gpu& gpu = gpus_.at(client->gpu);
  gpu.released(*client, e, now, out);
  const bool asks = e.more_work || client->lease == ClientLease::Held;
  if (asks) wake_by_work(*client->tenant, now, out);
  follow_idleness(*client->tenant, true, now);
  finish(gpu, now, out);
  return {};
}

Result<void> Core::Impl::take(const Usage& e, Time now, Decisions& out) {
  Client* client = find_client(e.client);
  if (client == nullptr) return unknown("client", e.client.value);
  if (client->run.phase == Phase::Off || client->run.phase == Phase::Ready) {
    return Error{fmt::format("client {} holds no grant", e.client.value)};
  }
  if (e.used < client->meter.reported) {
    return Error{fmt::format("client {}'s meter goes back", e.client.value)};
  }
  Gpu& gpu = gpus_.at(client->gpu);
  gpu.usage(*client, e.used, now);
  finish(gpu, now, out);
  return {};
}

// --- memory ------------------------------------------------------------------------------------

// Every bound on the client's memory.
MemoryRoom Core::Impl::room_of(const Client& client) const {
  const Residency& residency = gpus_.at(client.gpu).residency();
  MemoryRoom room{.limit = kMostMemory,
                  .gpu = residency.room_for(client) - client.memory.demand - client.memory.rounding,
                  .easily = residency.easy_room(),
                  .host = residency.host_room(client)};
  const Share& own = client.share->of_tenant();
  for (const Share* one = &own; one != nullptr; one = one->parent) {
    const auto& limit = one->tenant->limits.memory;
    if (!limit || *limit - one->allocated >= room.limit) continue;
    room.limit = *limit - one->allocated;
    room.level = one->tenant->id;
  }
  // The clients of a tenant that brought limits of their own have them together. Of two that leave
  // the same it is the one to tell of: to raise the tenant's would not help.
  if (client.own_limit && *client.own_limit - own.allocated_under_own <= room.limit) {
    room.limit = *client.own_limit - own.allocated_under_own;
    room.level.reset();
    room.own_limit = true;
  }
  return room;
}

Bytes Core::Impl::claim_room(const Client& client) const {
  const Gpu& gpu = gpus_.at(client.gpu);
  const Bytes room = gpu.total() - gpu.residency().resident() - gpu.residency().incoming();
  Bytes most = room;
  for (const Tenant* tenant = client.tenant; tenant != nullptr; tenant = tenant->parent) {
    if (!tenant->limits.memory) continue;
    Bytes left = *tenant->limits.memory;
    for (const auto& [id, other] : gpu.clients()) {
      if (other->tenant->is_within(*tenant)) left -= other->memory.resident;
    }
    most = std::min(most, left);
  }
  return most;
}

// Growth that cannot be given, and why. Nobody else compares memory with a limit.
std::optional<Decision> Core::Impl::refuse(const MemoryChanged& e, const Client& client) const {
  const Gpu& gpu = gpus_.at(client.gpu);
  const Residency& residency = gpu.residency();
  const MemoryRoom room = room_of(client);
  const Bytes growth = e.allocated - client.memory.demand;
  const auto refused = [&](Why why, Bytes asked, Bytes most, Bytes allowed) {
    return Decision{
        MemoryRefused{e.client, e.allocated, client.memory.demand + std::max(Bytes{}, allowed)},
        {.why = why, .bytes = asked, .free = std::max(Bytes{}, most)}};
  };
  const Bytes most = residency.room_for(client);
  const bool grows = growth > Bytes{};  // otherwise all of it is beyond the GPU
  if (grows && growth > room.gpu + client.memory.rounding) {
    const bool alone = most == residency.promised_limit();
    return refused(alone ? Why::LargerThanGpu : Why::MemoryCannotFit, e.allocated, most,
                   most - client.memory.demand);
  }
  if (grows && growth > room.gpu) {
    return refused(Why::LargerInPages, e.allocated + client.memory.rounding, most, room.gpu);
  }
  if (const Bytes asked = e.allocated + e.beyond - client.memory.allocated(); asked > room.limit) {
    Decision no = refused(room.own_limit ? Why::OwnLimitExceeded : Why::LimitExceeded, asked,
                          room.limit, room.limit);
    if (room.level && room.limit < Bytes{}) {
      const Bytes limit = *tenants_.at(*room.level).limits.memory;
      no = refused(Why::OverMemoryLimit, limit - room.limit, limit, Bytes{});
    }
    if (room.level && *room.level != client.tenant->id) no.reason.level = room.level;
    return no;
  }
  if (!grows) return std::nullopt;
  const bool movable = e.may_wait && !e.pins;
  const bool has_places = residency.host_fits(client, growth, movable);
  if (movable && !has_places) {
    const Bytes leaves = client.leaves_to_host() ? growth : Bytes{};
    return refused(Why::NoHostMemory, residency.host_need(growth, leaves), residency.host_left(),
                   room.host);
  }
  if (movable) return std::nullopt;
  // Others make room for what waits, and can do so only when they have a place to go to. A client
  // that waits already goes on to.
  const bool waits = e.may_wait && (has_places || client.memory.awaits > Bytes{});
  if (!waits && growth > residency.free()) {
    return refused(Why::NoRoom, growth, residency.free(), residency.free());
  }
  const Bytes promised = gpu.pinned_room(client, growth);
  if (growth > promised) return refused(Why::RoomPromised, growth, promised, promised);
  return std::nullopt;
}

Result<void> Core::Impl::take(const MemoryChanged& e, Time now, Decisions& out) {
  Client* client = find_client(e.client);
  if (client == nullptr) return unknown("client", e.client.value);
  Gpu& gpu = gpus_.at(client->gpu);
  const bool ordered = e.resident.count >= 0 && e.resident <= e.allocated && e.beyond.count >= 0;
  if (ordered && e.allocated + e.beyond > kMostMemory) return Error{"more than any GPU has"};
  const Bytes growth = ordered ? e.allocated - client->memory.demand : Bytes{};
  const bool asks = ordered && e.allocated + e.beyond > client->memory.allocated();
  const Bytes pinned_now = e.may_wait && !e.pins ? Bytes{} : std::max(Bytes{}, growth);
  const bool awaited = ordered && e.allocated - e.resident >= client->memory.awaits;
  if (!awaited || e.pinned.count < 0 || e.pinned - pinned_now > e.resident) {
    return Error{
        fmt::format("client {} reports pinned {} <= resident {} <= allocated {}, which is "
                    "not so",
                    e.client.value, e.pinned.count, e.resident.count, e.allocated.count)};
  }
  if (e.resident > client->memory.resident) {
    return Error{
        fmt::format("client {} has more memory on the GPU than it was given", e.client.value)};
  }
  if (growth.count > 0 && e.resident != client->memory.resident) {
    return Error{fmt::format("client {} grows and shrinks at once", e.client.value)};
  }
  if (asks) {
    if (auto refused = refuse(e, *client)) {
      out.push_back(std::move(*refused));
      return {};
    }
  }
  gpu.memory_changed(*client, e, now, out);
  if (asks) {
    wake_by_work(*client->tenant, now, out);
    follow_idleness(*client->tenant, true, now);
  }
  finish(gpu, now, out);
  return {};
}

Result<void> Core::Impl::take(const MemoryFound& e, Time now, Decisions& out) {
  Client* client = find_client(e.client);
  if (client == nullptr) return unknown("client", e.client.value);
  Gpu& gpu = gpus_.at(client->gpu);
  if (e.pinned.count < 0 || e.resident < e.pinned || e.allocated < e.resident ||
      e.beyond.count < 0 || e.beyond > kMostMemory || e.allocated > gpu.total() ||
      e.allocated - e.resident < client->memory.awaits) {
    return Error{fmt::format("client {} cannot have {} of which {} on the GPU and {} pinned",
                             e.client.value, e.allocated.count, e.resident.count, e.pinned.count)};
  }
  gpu.memory_found(*client, e, now, out);
  finish(gpu, now, out);
  return {};
}

Result<void> Core::Impl::take(const MemoryMoved& e, Time now, Decisions& out) {
  Client* client = find_client(e.client);
  if (client == nullptr) return unknown("client", e.client.value);
  const Bytes most = std::min(client->memory.demand - client->memory.awaits,
                              client->memory.resident + client->orders.in);
  const bool possible = e.resident <= most && e.resident >= client->memory.pinned;
  const auto within = [](Bytes left, Bytes told) { return left.count >= 0 && left <= told; };
  const bool left = within(e.out_left, client->orders.out) && within(e.in_left, client->orders.in);
  const bool counted =
      e.kept.count >= 0 && e.missing.count >= 0 && e.spared.count >= 0 && e.fresh.count >= 0;
  if (!possible || !left || !counted || e.took.count() < 0) {
    return Error{fmt::format("client {} moved memory it was not told to move", e.client.value)};
  }
  Gpu& gpu = gpus_.at(client->gpu);
  gpu.memory_moved(*client, e, now, out);
  finish(gpu, now, out);
  return {};
}

Result<void> Core::Impl::take(const MemoryRounded& e, Time now, Decisions& out) {
  Client* client = find_client(e.client);
  if (client == nullptr) return unknown("client", e.client.value);
  Gpu& gpu = gpus_.at(client->gpu);
  if (e.bytes.count < 0 || e.bytes > gpu.total()) return Error{"no such amount of memory in pages"};
  gpu.memory_rounded(*client, e.bytes);
  finish(gpu, now, out);
  return {};
}

Result<void> Core::Impl::take(const HostMeasured& e, Time now, Decisions& out) {
  if (e.most && (e.most->count < 0 || *e.most > kMostMemory)) {
    return Error{"no such amount of host memory"};
  }
  if (e.most == host_.most()) return {};
  const bool other_rule = e.most.has_value() != host_.most().has_value();
  host_.set_most(e.most);
  for (auto& [id, gpu] : gpus_) {
    gpu.host_changed();
    if (!other_rule) continue;
    for (const auto& [client_id, client] : gpu.clients()) {
      gpu.host_memory(*client, client->host.coming, client->host.ready);
    }
  }
  finish_all(now, out);
  return {};
}

Result<void> Core::Impl::take(const HostMemoryComing& e, Time now, Decisions& out) {
  Client* client = find_client(e.client);
  if (client == nullptr) return unknown("client", e.client.value);
  const auto possible = [](Bytes bytes) { return bytes.count >= 0 && bytes <= kMostMemory; };
  if (!possible(e.bytes) || !possible(e.ready.value_or(Bytes{})))
    return Error{"no such amount of host memory"};
  Gpu& gpu = gpus_.at(client->gpu);
  gpu.host_memory(*client, e.bytes, e.ready);
  finish(gpu, now, out);
  return {};
}

// --- the scheduler itself ----------------------------------------------------------------------

Result<void> Core::Impl::take(const SchedulingSwitched& e, Time now, Decisions& out) {
  if (scheduling_ == e.on) {
    return Error{fmt::format("scheduling is {} already", e.on ? "on" : "off")};
  }
  scheduling_ = e.on;
  for (auto& [id, gpu] : gpus_) {
    gpu.switch_scheduling(e.on, now, out);
    finish(gpu, now, out);
  }
  return {};
}

Result<void> Core::Impl::take(const ConfigChanged& e, Time now, Decisions& out) {
  const auto found = problems(e.config);
  if (!found.empty()) return Error{found.front()};
  if (e.config.policy != config_.policy || e.config.window != config_.window) {
    return Error{"the compute policy and its window cannot change while the scheduler runs"};
  }
  config_ = e.config;
  for (auto& [id, gpu] : gpus_) gpu.config_changed();
  finish_all(now, out);
  return {};
}

Result<void> Core::Impl::take(const Tick&, Time now, Decisions& out) {
  send_idle_to_sleep(now, out);
  for (Gpu* gpu = first_to_wake(); gpu != nullptr && *gpu->next_wakeup() <= now;
       gpu = first_to_wake()) {
    finish(*gpu, now, out);
    gpu->wake_after(now);  // once a tick is enough
  }
  return {};
}

Core::Core(const Config& config, Time now) : impl_(std::make_unique<Impl>(config, now)) {}
Core::~Core() = default;
Core::Core(Core&&) noexcept = default;
Core& Core::operator=(Core&&) noexcept = default;
Result<Decisions> Core::step(const Event& event, Time now) {
  return impl_->step(event, now);
}
std::optional<Time> Core::next_wakeup() const {
  return impl_->next_wakeup();
}

}  // namespace nvshare::core
