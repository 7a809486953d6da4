#include "daemon/broker/broker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace nvshare::daemon {
namespace {

constexpr Bytes kSmallestGpu = mib(1);
constexpr Bytes kLargestGpu = gib(1024);
constexpr Duration kFoundCounts = 30s;
constexpr auto kMost = static_cast<std::uint64_t>(core::kMostMemory.count);

std::optional<Error> bad_hello(const wire::Hello& hello) {
  if (hello.magic != wire::kMagic) return Error{"this is no program of nvshare"};
  if (hello.major != wire::kMajor) {
    return Error{
        fmt::format("the program speaks protocol {}.{} and the scheduler {}.{}: use the "
                    "libnvshare.so that came with the scheduler",
                    hello.major, hello.minor, wire::kMajor, wire::kMinor)};
  }
  if (hello.allocated > kMost) {
    return Error{"more memory allocated than any GPU has"};
  }
  if (hello.pinned > hello.resident || hello.resident > hello.allocated) {
    return Error{"more memory on the GPU than it has allocated"};
  }
  return std::nullopt;
}

Bytes to_bytes(std::uint64_t count) {
  return Bytes{static_cast<std::int64_t>(count)};
}

}  // namespace

std::string_view name_of(TenantKind kind) {
  switch (kind) {
    case TenantKind::Run:
      return "run";
    case TenantKind::Container:
      return "container";
    case TenantKind::User:
      return "user";
  }
  return "?";
}

std::string to_text(const Uuid& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

std::optional<Uuid> parse_uuid(std::string_view text) {
  if (text.rfind("GPU-", 0) != 0) return std::nullopt;
  Uuid uuid{};
  std::size_t digits = 0;
  for (const char c : text.substr(4)) {
    if (c == '-') continue;
    const int value = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (value < 0 || digits == 2 * uuid.size()) return std::nullopt;
    uuid[digits / 2] = static_cast<std::uint8_t>(uuid[digits / 2] << 4 | value);
    ++digits;
  }
  return digits == 2 * uuid.size() ? std::optional(uuid) : std::nullopt;
}

std::string printable(const char* field, std::size_t size) {
  std::string text(field, wire::text_length(field, size));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

Broker::Broker(const core::Config& config, Time now, Outbox& outbox, Log& log)
    : core_(config, now), outbox_(outbox), log_(log) {
  measure_host(now);  // nothing, until there is an arena
}

void Broker::note(const ClientRecord& client, std::string_view event,
                  std::initializer_list<Field> fields) {
  trace_.add(event, tenants_.at(client.tenant).is.name, client.id.value, fields);
}

ClientRecord* Broker::find(ClientId client) {
  const auto at = clients_.find(client);
  return at == clients_.end() ? nullptr : &at->second;
}

// --- GPUs --------------------------------------------------------------------------------------

Result<GpuId> Broker::add_gpu(const Uuid& uuid, const std::string& name, Bytes total, Time now) {
  const GpuId id{gpus_.size()};
  if (const auto added = step(core::GpuAdded{id, total}, now); !added) return added.error();
  GpuRecord& gpu = gpus_[id];
  gpu.id = id;
  gpu.uuid = uuid;
  gpu.name = name;
  gpu.total = total;
  gpu.read_at = now;
  log_.info("gpu_added",
            {{"gpu", id.value}, {"uuid", to_text(uuid)}, {"name", name}, {"memory", total.count}});
  return id;
}

const GpuRecord* Broker::find_gpu(const Uuid& uuid) const {
  for (const auto& [id, gpu] : gpus_) {
    if (gpu.uuid == uuid) return &gpu;
  }
  return nullptr;
}

void Broker::gpu_measured(GpuId id, std::optional<int> utilisation,
                          std::optional<Bytes> memory_used, std::optional<Overhead> overhead,
                          Time now) {
  const auto at = gpus_.find(id);
  if (at == gpus_.end()) return;
  GpuRecord& gpu = at->second;
  gpu.utilisation = utilisation;
  gpu.measured_at = now;
  gpu.memory_used = memory_used;
  if (!overhead) return;
  if (!overhead->at_most) gpu.overhead = overhead->bytes;
  const bool recent = now - gpu.overhead_found_at < kFoundCounts;
  const Bytes found = recent ? gpu.overhead_found : Bytes{};
  set_overhead(gpu, {overhead->bytes, overhead->clients, overhead->at_most, found}, now);
}

void Broker::overlap_seen(GpuId id, bool possible, Time now) {
  const auto at = gpus_.find(id);
  if (at == gpus_.end() || at->second.overlap == possible) return;
  at->second.overlap = possible;
  log_.info(possible ? "mps_seen" : "mps_gone", {{"gpu", id.value}});
  const auto taken = step(core::OverlapSeen{id, possible}, now);
  if (!taken) log_.error("overlap_not_taken", {{"reason", taken.error().message}});
}

void Broker::set_overhead(GpuRecord& gpu, const Overhead& overhead, Time now) {
  const Bytes possible = std::clamp(overhead.bytes, Bytes{0}, gpu.total);
  const core::OverheadMeasured event{gpu.id, possible, overhead.clients, overhead.at_most,
                                     overhead.found};
  const Bytes safe = core_.safe_limit_with(event).value_or(gpu.total);
  const bool newcomers = static_cast<int>(gpu.clients.size()) > overhead.clients;
  const bool may_sink = safe < core_.safe_limit(gpu.id).value_or(gpu.total);
  if (newcomers || may_sink) revoke_all(gpu.id, now);
  const auto taken = step(event, now);
  if (taken) return;
  log_.warn("overhead_not_taken", {{"gpu", gpu.id.value}, {"reason", taken.error().message}});
}

// The books say that there is room, and a client found none: more is used beside them than was
// measured. Believed for a while, as measuring takes time, and within bounds: it is a client's
// word.
void Broker::note_no_room(GpuRecord& gpu, Time now) {
  revoke_all(gpu.id, now);
  Bytes resident{};
  for (const ClientId id : gpu.clients) {
    const core::ClientView view = *core_.view(id);
    resident += view.resident + view.rounded;
  }
  const Bytes least = gpu.total - core_.safe_limit(gpu.id).value_or(gpu.total);
  const Bytes most = std::max(least, gpu.overhead.value_or(Bytes{}) + Bytes{gpu.total.count / 20});
  gpu.overhead_found = std::clamp(gpu.total - resident, least, most);
  gpu.overhead_found_at = now;
  log_.info("no_room_found", {{"gpu", gpu.id.value}, {"overhead", gpu.overhead_found.count}});
  // Without measurements nobody will say what it really was.
  const bool measured = gpu.overhead || gpu.memory_used;
  set_overhead(gpu,
               {.bytes = measured ? gpu.total - *core_.promised_limit(gpu.id) : gpu.overhead_found,
                .clients = static_cast<int>(gpu.clients.size()),
                .found = gpu.overhead_found},
               now);
}

Result<GpuId> Broker::gpu_for(const wire::Hello& hello, Time now) {
  Uuid uuid;
  std::memcpy(uuid.data(), hello.gpu, uuid.size());
  if (const GpuRecord* known = find_gpu(uuid)) return known->id;
  if (!accept_claimed_) {
    return Error{fmt::format("the scheduler does not know {}", to_text(uuid))};
  }
  if (claimed_ == kMostClaimedGpus) {
    return Error{"too many GPUs named by programs: the scheduler needs NVML to know better"};
  }
  if (hello.gpu_memory < static_cast<std::uint64_t>(kSmallestGpu.count) ||
      hello.gpu_memory > static_cast<std::uint64_t>(kLargestGpu.count)) {
    return Error{"no GPU has that much memory"};
  }
  const auto added =
      add_gpu(uuid, "unknown", Bytes{static_cast<std::int64_t>(hello.gpu_memory)}, now);
  if (added) ++claimed_;
  return added;
}

// --- tenants -----------------------------------------------------------------------------------

const TenantRecord* Broker::find_tenant(std::string_view name) const {
  for (const auto& [id, tenant] : tenants_) {
    if (tenant.is.name == name) return &tenant;
  }
  return nullptr;
}

Result<TenantId> Broker::add_tenant(const TenantName& name, const core::Limits& limits, Time now) {
  if (tenants_.size() >= kMostTenants && !make_room(now)) {
    return Error{"the scheduler serves too many tenants"};
  }
  const TenantId id{next_tenant_};
  const auto added = step(core::TenantAdded{id, name.name, limits}, now);
  if (!added) return added.error();
  ++next_tenant_;
  TenantRecord& tenant = tenants_[id];
  tenant.id = id;
  tenant.is = name;
  tenant.limits = limits;
  tenant.since = tenant.empty_since = now;
  tenant.samples = {{.at = now}};
  log_.info("tenant_added", {{"tenant", name.name},
                             {"kind", name_of(name.kind)},
                             {"cores", limits.core_percent},
                             {"memory", limits.memory ? limits.memory->count : 0},
                             {"uid", name.uid}});
  return id;
}

Result<TenantId> Broker::tenant_for(const TenantName& name, const core::Limits& limits, Time now) {
  if (const TenantRecord* known = find_tenant(name.name)) {
    if (known->is.kind == name.kind) return known->id;
    return Error{fmt::format("the name '{}' is taken", name.name)};
  }
  return add_tenant(name, limits, now);
}

Result<TenantId> Broker::begin_run(const TenantName& name, const core::Limits& limits, Time now,
                                   wire::Backend backend, bool oversubscribes) {
  if (find_tenant(name.name) != nullptr) {
    return Error{fmt::format(
        "the name '{}' is taken by another tenant that runs now: give another with --name",
        name.name)};
  }
  const auto id = add_tenant(name, limits, now);
  if (!id) return id;
  tenants_.at(*id).open = true;
  tenants_.at(*id).backend = backend;
  tenants_.at(*id).oversubscribes = oversubscribes;
  return id;
}

void Broker::end_run(TenantId id, Time now) {
  const auto at = tenants_.find(id);
  if (at == tenants_.end()) return;
  at->second.open = false;
  if (at->second.clients.empty()) remove(at->second, now);
}

void Broker::remove(const TenantRecord& tenant, Time now) {
  const TenantId id = tenant.id;
  if (const auto removed = step(core::TenantRemoved{id}, now); !removed) {
    log_.error("tenant_not_removed",
               {{"tenant", tenant.is.name}, {"reason", removed.error().message}});
    return;
  }
  log_.info("tenant_removed", {{"tenant", tenant.is.name}});
  tenants_.erase(id);
}

// Somebody has said that it is not to run: paused, or asleep until it is woken.
bool Broker::is_held(const TenantRecord& tenant) const {
  const auto sleep = core_.sleep_of(tenant.id);
  return tenant.paused || (sleep && sleep->hold);
}

bool Broker::in_use(const TenantRecord& tenant, Time now) const {
  if (!tenant.clients.empty() || tenant.open || tenant.kept || is_held(tenant)) return true;
  const Duration pays_off = tenant.debt * 100 / tenant.limits.core_percent;
  return tenant.is.kind != TenantKind::Run &&
         now - tenant.empty_since < std::max(kTenantLingers, pays_off);
}

// Of the tenants that nobody uses now, the one that has been so longest goes, whatever it owes; but
// none that somebody has limited or paused, for whoever makes many tenants would undo that.
bool Broker::make_room(Time now) {
  const TenantRecord* oldest = nullptr;
  for (const auto& [id, tenant] : tenants_) {
    if (!tenant.clients.empty() || tenant.open || tenant.kept || is_held(tenant)) continue;
    if (oldest == nullptr || tenant.empty_since < oldest->empty_since) oldest = &tenant;
  }
  if (oldest == nullptr) return false;
  remove(*oldest, now);
  return true;
}

void Broker::forget_unused(Time now) {
  for (auto at = tenants_.begin(); at != tenants_.end();) {
    const TenantRecord& tenant = (at++)->second;
    if (!in_use(tenant, now)) remove(tenant, now);
  }
}

Result<void> Broker::set_limits(TenantId id, const core::Limits& limits, Time now) {
  const auto at = tenants_.find(id);
  if (at == tenants_.end()) return Error{"there is no such tenant"};
  TenantRecord& tenant = at->second;
  for (const ClientId client : tenant.clients) revoke(clients_.at(client), now);
  if (limits.core_percent != tenant.limits.core_percent) restart_share(tenant, now);
  if (const auto taken = step(core::LimitsChanged{id, limits}, now); !taken) return taken.error();
  if (limits.memory != tenant.limits.memory) tenant.shortage_told = false;
  tenant.limits = limits;
  tenant.kept = tenant.is.kind != TenantKind::Run;
  log_.info("limits_changed", {{"tenant", tenant.is.name},
                               {"cores", limits.core_percent},
                               {"memory", limits.memory ? limits.memory->count : 0},
                               {"priority", limits.priority}});
  show_limits(tenant);
  believe_more(now);
  for (const auto& [gpu_id, gpu] : gpus_) update_watch(gpu);
  return {};
}

Result<void> Broker::set_paused(TenantId id, bool paused, Time now) {
  const auto at = tenants_.find(id);
  if (at == tenants_.end()) return Error{"there is no such tenant"};
  if (at->second.paused == paused) return {};
  if (const auto taken = step(core::TenantPaused{id, paused}, now); !taken) return taken.error();
  at->second.paused = paused;
  restart_share(at->second, now);
  log_.info(paused ? "tenant_paused" : "tenant_resumed", {{"tenant", at->second.is.name}});
  for (const auto& [gpu_id, gpu] : gpus_) update_watch(gpu);
  return {};
}

Result<bool> Broker::set_asleep(TenantId id, bool asleep, bool hold, Time now) {
  const auto at = tenants_.find(id);
  if (at == tenants_.end()) return Error{"there is no such tenant"};
  // What has been allocated without asking would wake it when it is noticed.
  for (const ClientId client : at->second.clients) revoke(clients_.at(client), now);
  const auto sleep = core_.sleep_of(id);
  const bool same = asleep ? sleep && (sleep->hold || !hold) : !sleep;
  if (same) return false;
  const auto taken = step(core::TenantSleeps{id, asleep, hold}, now);
  if (!taken) return taken.error();
  log_.info(asleep ? "tenant_put_to_sleep" : "tenant_woken",
            {{"tenant", at->second.is.name}, {"hold", hold ? 1 : 0}});
  return true;
}

void Broker::show_limits(const TenantRecord& tenant) {
  auto message = wire::make<wire::Limits>();
  const std::int64_t memory = tenant.limits.memory ? tenant.limits.memory->count : 0;
  message.memory_limit = static_cast<std::uint64_t>(memory);
  message.core_limit = tenant.limits.core_percent;
  message.priority = tenant.limits.priority;
  for (const ClientId id : tenant.clients) {
    wire::Page::FromScheduler& page = clients_.at(id).page->scheduler;
    page.memory_limit = message.memory_limit;
    page.core_limit = static_cast<std::uint64_t>(message.core_limit);
    outbox_.send(id, message.header);
  }
}

// --- clients -----------------------------------------------------------------------------------

ClientRecord& Broker::add_record(const wire::Hello& hello, const Peer& peer, TenantId tenant_id,
                                 GpuId gpu, wire::Page& page) {
  const ClientId id{next_client_++};
  TenantRecord& tenant = tenants_.at(tenant_id);
  ClientRecord& client = clients_[id];
  client.id = id;
  client.tenant = tenant_id;
  client.gpu = gpu;
  client.pid = peer.pid;
  client.uid = peer.uid;
  client.home = peer.home;
  client.minor = hello.minor;
  client.program = printable(hello.program, sizeof hello.program);
  client.page = &page;
  client.asleep = core_.sleep_of(tenant_id).has_value();
  client.backend = tenant.backend == wire::Backend::Default ? backend_ : tenant.backend;
  client.oversubscribes = tenant.oversubscribes && client.backend == wire::Backend::Managed;
  const core::MemoryClaim claim{to_bytes(hello.allocated), to_bytes(hello.pinned),
                                to_bytes(hello.resident)};
  // What is not on the GPU is in host memory that it was given before.
  const bool ours = client.backend == wire::Backend::Swap;
  client.arena = client.arena_made =
      ours ? std::clamp(claim.allocated - claim.resident, Bytes{}, gpus_.at(gpu).total) : Bytes{};
  if (ours) client.arena_claimed = client.arena_brought = client.arena;
  tenant.clients.insert(id);
  gpus_.at(gpu).clients.insert(id);
  const Bytes total = gpus_.at(gpu).total;
  client.memory = {claim, total, client.oversubscribes ? core_.memory_room(id)->gpu : total};
  page.magic = wire::kPageMagic;
  page.version = wire::kMajor;
  page.scheduler.core_limit = static_cast<std::uint64_t>(tenant.limits.core_percent);
  page.scheduler.memory_limit =
      static_cast<std::uint64_t>(tenant.limits.memory ? tenant.limits.memory->count : 0);
  return client;
}

Result<wire::Welcome> Broker::hello(const wire::Hello& hello, const Peer& peer, TenantId tenant,
                                    wire::Page& page, Time now, const Greet& greet) {
  if (auto bad = bad_hello(hello)) return *bad;
  if (!tenants_.contains(tenant)) return Error{"there is no such tenant"};
  const auto gpu = gpu_for(hello, now);
  if (!gpu) return gpu.error();
  if (hello.pinned > static_cast<std::uint64_t>(gpus_.at(*gpu).total.count)) {
    return Error{"more memory pinned than the GPU has"};
  }
  revoke_all(*gpu, now);  // there is less room with one more, and its tenant may have others
  std::optional<Bytes> own_limit;
  if (hello.memory_limit != 0) own_limit = to_bytes(std::min(hello.memory_limit, kMost));
  const auto added = step(core::ClientAdded{ClientId{next_client_}, tenant, *gpu, own_limit}, now);
  if (!added) return added.error();
  ClientRecord& client = add_record(hello, peer, tenant, *gpu, page);
  update_watch(gpus_.at(*gpu), client.id);
  const TenantRecord& of = tenants_.at(tenant);
  log_.info("client_registered", {{"client", client.id.value},
                                  {"tenant", of.is.name},
                                  {"pid", client.pid},
                                  {"uid", client.uid},
                                  {"gpu", gpu->value},
                                  {"program", client.program},
                                  {"allocated", client.memory.allocated().count},
                                  {"resident", client.memory.resident().count}});
  auto welcome = wire::make<wire::Welcome>();
  welcome.magic = wire::kMagic;
  welcome.major = wire::kMajor;
  welcome.minor = wire::kMinor;
  welcome.client = client.id.value;
  welcome.watch = client.watch;
  welcome.backend = client.backend;
  wire::put_text(welcome.tenant, sizeof welcome.tenant, of.is.name.c_str());
  if (greet) greet(welcome);
  // From here on it may be told to move what it has: after a scheduler before this one that can be
  // more than there is room for.
  tell_what_comes(client, now);
  take_claim(client, now);
  show_allocated(tenant, *gpu);
  fill_arena(now);
  rooms_stale_ = true;  // not in its page yet
  show_rooms();
  return welcome;
}

// All that the client has counts, whatever its limit and the room. What is not believed to be on
// the GPU counts as absent.
void Broker::take_claim(ClientRecord& client, Time now) {
  const core::MemoryAccount& memory = client.memory;
  if (memory.allocated() == Bytes{}) return;
  GpuRecord& gpu = gpus_.at(client.gpu);
  const TenantRecord& tenant = tenants_.at(client.tenant);
  gpu.doubted.insert(client.id);
  believe(client, now);
  if (core_.view(client.id)->allocated != memory.counted()) book(client, now, true);
  if (!memory.is_doubted()) gpu.doubted.erase(client.id);
  if (memory.doubted() > Bytes{}) {
    log_.warn("memory_doubted", {{"client", client.id.value},
                                 {"tenant", tenant.is.name},
                                 {"resident", memory.resident().count},
                                 {"counted", memory.counted_resident().count}});
  }
  const Bytes left = core_.memory_room(client.id)->limit;
  if (left >= Bytes{}) return;
  log_.warn("client_over_limit", {{"client", client.id.value},
                                  {"tenant", tenant.is.name},
                                  {"allocated", memory.allocated().count},
                                  {"over", -left.count}});
}

void Broker::leave(ClientId id, Time now) {
  ClientRecord* client = find(id);
  if (client == nullptr) return;
  set_wants(*client, false, now);
  const TenantId tenant_id = client->tenant;
  GpuRecord& gpu = gpus_.at(client->gpu);
  TenantRecord& tenant = tenants_.at(tenant_id);
  log_.info("client_gone", {{"client", id.value},
                            {"tenant", tenant.is.name},
                            {"pid", client->pid},
                            {"held_grant", client->grant ? 1 : 0}});
  gpu.clients.erase(id);
  gpu.holders.erase(id);
  gpu.doubted.erase(id);
  tenant.clients.erase(id);
  tenant.empty_since = now;
  const auto closing = shared_.leave(id, client->pid);
  clients_.erase(id);
  close_shared(closing);
  if (const auto gone = step(core::ClientGone{id}, now); !gone) {
    log_.error("client_not_forgotten", {{"client", id.value}, {"reason", gone.error().message}});
  }
  fill_arena(now);  // its places are free
  show_allocated(tenant_id, gpu.id);
  update_watch(gpu);
  if (tenant.is.kind == TenantKind::Run && !tenant.open && tenant.clients.empty()) {
    remove(tenant, now);
  }
}

}  // namespace nvshare::daemon
