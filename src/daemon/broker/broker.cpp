#include "daemon/broker/broker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

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
  if (hello.allocated > kMost) return Error{"more memory allocated than any GPU has"};
  if (hello.pinned > hello.resident || hello.resident > hello.allocated) {
    return Error{"more memory on the GPU than it has allocated"};
  }
  return std::nullopt;
}

template <typename... Actions>
struct Overloaded : Actions... {
  using Actions::operator()...;
};

Bytes to_bytes(std::uint64_t count) {
  return Bytes{static_cast<std::int64_t>(count)};
}

}  // namespace

Broker::Broker(const core::Config& config, Time now, Outbox& outbox, Log& log)
    : desk_(config, now, outbox, log, *this) {
  places_.measure_host(now);  // nothing, until there is an arena
}

// --- GPUs --------------------------------------------------------------------------------------

Result<GpuId> Broker::add_gpu(const Uuid& uuid, const std::string& name, Bytes total, Time now) {
  const GpuId id{desk_.gpus.size()};
  if (const auto added = desk_.step(core::GpuAdded{id, total}, now); !added) return added.error();
  GpuRecord& gpu = desk_.gpus[id];
  gpu.id = id;
  gpu.uuid = uuid;
  gpu.name = name;
  gpu.total = total;
  gpu.read_at = now;
  desk_.log.info(
      "gpu_added",
      {{"gpu", id.value}, {"uuid", to_text(uuid)}, {"name", name}, {"memory", total.count}});
  return id;
}

const GpuRecord* Broker::find_gpu(const Uuid& uuid) const {
  for (const auto& [id, gpu] : desk_.gpus) {
    if (gpu.uuid == uuid) return &gpu;
  }
  return nullptr;
}

void Broker::gpu_measured(GpuId id, std::optional<int> utilisation,
                          std::optional<Bytes> memory_used, std::optional<Overhead> overhead,
                          Time now) {
  const auto at = desk_.gpus.find(id);
  if (at == desk_.gpus.end()) return;
  GpuRecord& gpu = at->second;
  gpu.utilisation = utilisation;
  gpu.measured_at = now;
  gpu.memory_used = memory_used;
  if (overhead && !overhead->at_most) gpu.overhead = overhead->bytes;
  const bool forgets = gpu.overhead_found > Bytes{} && now - gpu.overhead_found_at >= kFoundCounts;
  if (forgets) gpu.overhead_found = {};
  if (!overhead && !forgets) return;
  // Without a new measurement the last one holds.
  const Overhead known =
      overhead.value_or(Overhead{.bytes = gpu.total - *core().promised_limit(id),
                                 .clients = static_cast<int>(gpu.clients.size())});
  memory_.set_overhead(gpu, {known.bytes, known.clients, known.at_most, gpu.overhead_found}, now);
}

void Broker::overlap_seen(GpuId id, bool possible, Time now) {
  const auto at = desk_.gpus.find(id);
  if (at == desk_.gpus.end() || at->second.overlap == possible) return;
  at->second.overlap = possible;
  desk_.log.info(possible ? "mps_seen" : "mps_gone", {{"gpu", id.value}});
  const auto taken = desk_.step(core::OverlapSeen{id, possible}, now);
  if (!taken) desk_.log.error("overlap_not_taken", {{"reason", taken.error().message}});
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

// --- clients -----------------------------------------------------------------------------------

ClientRecord& Broker::add_record(const wire::Hello& hello, const Peer& peer, TenantId tenant_id,
                                 GpuId gpu, wire::Page& page) {
  const ClientId id{next_client_++};
  TenantRecord& tenant = desk_.tenants.at(tenant_id);
  ClientRecord& client = desk_.clients[id];
  client.id = id;
  client.tenant = tenant_id;
  client.gpu = gpu;
  client.pid = peer.pid;
  client.uid = peer.uid;
  client.home = peer.home;
  client.minor = hello.minor;
  client.program = printable(hello.program, sizeof hello.program);
  client.page = &page;
  client.asleep = core().sleep_of(tenant_id).has_value();
  client.backend = tenant.backend == wire::Backend::Default ? backend_ : tenant.backend;
  client.has_own_limit = hello.memory_limit != 0;
  client.oversubscribes = tenant.oversubscribes && client.backend == wire::Backend::Managed;
  const core::MemoryClaim claim{to_bytes(hello.allocated), to_bytes(hello.pinned),
                                to_bytes(hello.resident)};
  // What is not on the GPU is in host memory that it was given before.
  const bool ours = client.backend == wire::Backend::Swap;
  client.arena.given = client.arena.made =
      ours ? std::clamp(claim.allocated - claim.resident, Bytes{}, desk_.gpus.at(gpu).total)
           : Bytes{};
  if (ours) client.arena.claimed = client.arena.brought = client.arena.given;
  tenant.clients.insert(id);
  for_each_level(desk_.tenants, tenant.id,
                 [](TenantRecord& level) { level.placed.awaited = false; });
  desk_.gpus.at(gpu).clients.insert(id);
  const Bytes total = desk_.gpus.at(gpu).total;
  client.memory = {claim, total, client.oversubscribes ? core().memory_room(id)->gpu : total};
  page.magic = wire::kPageMagic;
  page.version = wire::kMajor;
  const core::Limits limits = tightest_limits(desk_.tenants, tenant_id);
  page.scheduler.core_limit = static_cast<std::uint64_t>(limits.core_percent);
  page.scheduler.memory_limit =
      static_cast<std::uint64_t>(limits.memory ? limits.memory->count : 0);
  return client;
}

Result<wire::Welcome> Broker::hello(const wire::Hello& hello, const Peer& peer, TenantId tenant,
                                    wire::Page& page, Time now, const Greet& greet) {
  if (auto bad = bad_hello(hello)) return *bad;
  if (!desk_.tenants.contains(tenant)) return Error{"there is no such tenant"};
  const auto gpu = gpu_for(hello, now);
  if (!gpu) return gpu.error();
  if (hello.pinned > static_cast<std::uint64_t>(desk_.gpus.at(*gpu).total.count)) {
    return Error{"more memory pinned than the GPU has"};
  }
  // There is less room with one more, and its tenant may have others.
  credit_.revoke_all(*gpu, now);
  std::optional<Bytes> own_limit;
  if (hello.memory_limit != 0) own_limit = to_bytes(std::min(hello.memory_limit, kMost));
  const auto added =
      desk_.step(core::ClientAdded{ClientId{next_client_}, tenant, *gpu, own_limit}, now);
  if (!added) return added.error();
  ClientRecord& client = add_record(hello, peer, tenant, *gpu, page);
  grants_.update_watch(desk_.gpus.at(*gpu), client.id);
  const TenantRecord& of = desk_.tenants.at(tenant);
  desk_.log.info("client_registered", {{"client", client.id.value},
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
  welcome.watch = client.turn.watch;
  welcome.backend = client.backend;
  wire::put_text(welcome.tenant, sizeof welcome.tenant, of.is.name.c_str());
  if (greet) greet(welcome);
  // From here on it may be told to move what it has: after a scheduler before this one that can be
  // more than there is room for.
  places_.tell_what_comes(client, now);
  accounts_.take_claim(client, now);
  accounts_.show_allocated(tenant, *gpu);
  desk_.due.rooms = true;  // not in its page yet
  places_.fill(now);
  return welcome;
}

void Broker::leave(ClientId id, Time now) {
  ClientRecord* client = desk_.find(id);
  if (client == nullptr) return;
  grants_.set_wants(*client, false, now);
  const TenantId tenant_id = client->tenant;
  GpuRecord& gpu = desk_.gpus.at(client->gpu);
  TenantRecord& tenant = desk_.tenants.at(tenant_id);
  desk_.log.info("client_gone", {{"client", id.value},
                                 {"tenant", tenant.is.name},
                                 {"pid", client->pid},
                                 {"held_grant", client->turn.grant ? 1 : 0}});
  gpu.clients.erase(id);
  gpu.holders.erase(id);
  gpu.doubted.erase(id);
  tenant.clients.erase(id);
  places_.leave(*client, now);
  desk_.clients.erase(id);
  if (const auto gone = desk_.step(core::ClientGone{id}, now); !gone) {
    desk_.log.error("client_not_forgotten",
                    {{"client", id.value}, {"reason", gone.error().message}});
  }
  places_.fill(now);  // its places are free
  accounts_.show_allocated(tenant_id, gpu.id);
  grants_.update_watch(gpu);
  tenants_.left(tenant, now);
}

void Broker::packet(ClientId id, const wire::Header* header, Time now) {
  ClientRecord* client = desk_.find(id);
  if (client == nullptr) return;
  if (header == nullptr) return desk_.disconnect(*client, "a packet with a wrong length");
  ++client->messages;
  credit_.settle(*client, now);
  switch (static_cast<wire::Type>(header->type)) {
    case wire::Type::RequestGrant:
      return grants_.take(*client, *wire::as<wire::RequestGrant>(header), now);
    case wire::Type::Released:
      return grants_.take(*client, *wire::as<wire::Released>(header), now);
    case wire::Type::MemoryRequest:
      return memory_.take(*client, *wire::as<wire::MemoryRequest>(header), now);
    case wire::Type::MemoryFreed:
      return memory_.take(*client, *wire::as<wire::MemoryFreed>(header), now);
    case wire::Type::MemoryPinned:
      return memory_.take(*client, *wire::as<wire::MemoryPinned>(header), now);
    case wire::Type::MemoryMoved:
      return memory_.take(*client, *wire::as<wire::MemoryMoved>(header), now);
    case wire::Type::ArenaReturned:
      return places_.take(*client, *wire::as<wire::ArenaReturned>(header), now);
    case wire::Type::ArenaKept:
      return places_.take(*client, *wire::as<wire::ArenaKept>(header), now);
    case wire::Type::ArenaMissing:
      return places_.take(*client, *wire::as<wire::ArenaMissing>(header), now);
    case wire::Type::ArenaTaken:
      return places_.take(*client, *wire::as<wire::ArenaTaken>(header), now);
    case wire::Type::ArenaPassed:
      return places_.take(*client, *wire::as<wire::ArenaPassed>(header), now);
    case wire::Type::ArenaClosed:
      return places_.take(*client, *wire::as<wire::ArenaClosed>(header), now);
    case wire::Type::Hello:
    case wire::Type::RunBegin:
      return desk_.disconnect(*client, "a second hello");
    default:
      break;
  }
  if (wire::size_of(static_cast<wire::Type>(header->type)) != 0) {
    desk_.disconnect(*client,
                     fmt::format("a message of the scheduler's own, type {}", header->type));
  }
}

// --- decisions ---------------------------------------------------------------------------------

void Broker::act(const core::Decision& decision, Time now) {
  const core::Reason& why = decision.reason;
  std::visit(Overloaded{
                 [&](const core::Grant& d) { grants_.act(d, why, now); },
                 [&](const core::Drop& d) { grants_.act(d, why); },
                 [&](const core::Overdue& d) { grants_.act(d, why); },
                 [&](const core::ReadMeter& d) { grants_.act(d, now); },
                 [&](const core::SendOut& d) { memory_.order(d.client, true, d.bytes, why, now); },
                 [&](const core::BringIn& d) { memory_.order(d.client, false, d.bytes, why, now); },
                 [&](const core::MemoryGiven& d) { memory_.act(d); },
                 [&](const core::MemoryWithdrawn& d) { memory_.act(d, why); },
                 [&](const core::Sleeps& d) { act(d, why, now); },
                 // The answer to a request has told these (Memory::grow).
                 [](const core::WaitForMemory&) {},
                 [](const core::MemoryAvailable&) {},
                 [](const core::MemoryRefused&) {},
                 // A client is on the GPU that its hello names; its run was placed before
                 // (RunPlacer).
                 [](const core::Place&) {},
             },
             decision.action);
}

// Claims come before host memory, because a claim that is believed needs no place there.
bool Broker::catch_up(Time now) {
  if (memory_.take_arrival(now)) return true;
  if (std::exchange(desk_.due.claims, false)) {
    accounts_.believe_more(now);
    return true;
  }
  if (places_.catch_up(now)) return true;
  accounts_.show_rooms();
  return false;
}

void Broker::act(const core::Sleeps& sleeps, const core::Reason& why, Time now) {
  ClientRecord* client = desk_.find(sleeps.client);
  if (client == nullptr) return;
  client->asleep = sleeps.asleep;
  client->slept |= sleeps.asleep;
  desk_.note(*client, sleeps.asleep ? "sleep" : "wake", {{"reason", desk_.text_of(why)}});
  places_.fill(now);
}

// --- the scheduler itself ----------------------------------------------------------------------

void Broker::tick(Time now) {
  (void)desk_.step(core::Tick{}, now);  // is never refused
}

Result<void> Broker::set_config(const core::Config& config, Time now) {
  for (const auto& [id, gpu] : desk_.gpus) credit_.revoke_all(id, now);
  return desk_.step(core::ConfigChanged{config}, now);
}

Result<void> Broker::set_scheduling(bool on, Time now) {
  if (scheduling_ == on) return {};
  const auto taken = desk_.step(core::SchedulingSwitched{on}, now);
  if (!taken) return taken;
  scheduling_ = on;
  desk_.log.warn(on ? "scheduling_on" : "scheduling_off");
  return {};
}

void Broker::sample(Time now) {
  grants_.read_all_meters(now);
  credit_.settle(now);
  for (auto& [id, client] : desk_.clients) client.page->scheduler.alive.fetch_add(1);
  tenants_.sample(now);
  accounts_.fit_oversubscribed(now);
  desk_.due.rooms = true;  // what the host has left may have changed
  places_.sample(now);
}

}  // namespace nvshare::daemon
