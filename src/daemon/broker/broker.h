#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "daemon/broker/accounts.h"
#include "daemon/broker/credit.h"
#include "daemon/broker/desk.h"
#include "daemon/broker/grants.h"
#include "daemon/broker/memory.h"
#include "daemon/broker/placement.h"
#include "daemon/broker/places.h"
#include "daemon/broker/tenants.h"

namespace nvshare::daemon {

// A process that says hello, as the kernel knows it.
struct Peer {
  int pid = 0;
  std::uint32_t uid = 0;
  // Its container or user: programs of one home share host memory. Empty: it shares with nobody.
  std::string home{};
};

// Between programs and the core: messages become events, decisions become messages. No sockets and
// no clock, so that all of it can be tried without a process. Believes nothing that a program says.
//
// The broker itself has the GPUs, and lets clients come and go. All else has an owner.
class Broker : private Follower {
 public:
  // `outbox` and `log` outlive the broker. `config` has no problems().
  Broker(const core::Config& config, Time now, Outbox& outbox, Log& log);

  // --- GPUs
  Result<GpuId> add_gpu(const Uuid& uuid, const std::string& name, Bytes total, Time now);
  const GpuRecord* find_gpu(const Uuid& uuid) const;
  // Without NVML nobody else knows the GPUs: one that a program names is taken as it describes it,
  // up to kMostClaimedGpus of them.
  void accept_claimed_gpus() { accept_claimed_ = true; }
  // Whether work of several programs can be on the GPU at the same time.
  void overlap_seen(GpuId gpu, bool possible, Time now);
  // What was measured from outside. With `overhead`, that replaces the estimated reserve.
  void gpu_measured(GpuId gpu, std::optional<int> utilisation, std::optional<Bytes> memory_used,
                    std::optional<Overhead> overhead, Time now);

  // --- tenants
  // The tenant of that name and kind, as a part of `parent`; made with these limits when there is
  // none. An error when there are too many.
  Result<TenantId> tenant_for(const TenantName& name, const core::Limits& limits, Time now,
                              std::optional<TenantId> parent = std::nullopt) {
    return tenants_.tenant_for(name, limits, now, parent);
  }
  // `nvshare run` makes a tenant, as a part of `parent`, and keeps it. The same user takes over a
  // run of this name that has lost its keeper; these limits hold then. An error when the name
  // cannot be had.
  Result<TenantId> begin_run(const TenantName& name, const core::Limits& limits, Time now,
                             wire::Backend backend = wire::Backend::Default,
                             bool oversubscribes = false,
                             std::optional<TenantId> parent = std::nullopt) {
    return tenants_.begin_run(name, limits, now, backend, oversubscribes, parent);
  }
  // Chooses GPUs for the run as it asks, and says so in `welcome` (RunPlacer).
  void place_run(TenantId tenant, const wire::RunBegin& begin, wire::Welcome& welcome) {
    run_placer_.place(tenant, begin, accept_claimed_, welcome);
  }
  // Its keeper is gone. An `occupied` run stays until set_vacant(): processes of it are left.
  void end_run(TenantId tenant, Time now, bool occupied = false) {
    tenants_.end_run(tenant, now, occupied);
  }
  void set_vacant(TenantId tenant, Time now) { tenants_.set_vacant(tenant, now); }
  const TenantRecord* find_tenant(std::string_view name) const {
    return tenants_.find_tenant(name);
  }
  // What all its processes, and those of its parts, together have there.
  Bytes allocated_by(const TenantRecord& tenant, GpuId gpu) const {
    return accounts_.allocated_by(tenant, gpu);
  }
  // What a program of the tenant sees of limits and of memory in use.
  Accounts::Shown memory_shown(TenantId tenant, GpuId gpu) const {
    return accounts_.shown_to(tenant, gpu);
  }
  // GPU time that each tenant has used so far, with all its parts.
  std::map<TenantId, Duration> bills() const { return tenants_.bills(); }
  // A reason for people.
  std::string text_of(const core::Reason& reason) const { return desk_.text_of(reason); }
  // An error for a limit above one of a level above the tenant.
  // `within_parents`: limits above those of a tenant around it are refused. They would not hold.
  Result<void> set_limits(TenantId tenant, const core::Limits& limits, Time now,
                          bool within_parents = true) {
    return tenants_.set_limits(tenant, limits, now, within_parents);
  }
  // While a service of the tenant holds a lease on the GPU, where the tenant has a client; none: no
  // longer (core::PriorityLent).
  Result<void> lend_priority(TenantId tenant, GpuId gpu, std::optional<int> priority, Time now) {
    return tenants_.lend_priority(tenant, gpu, priority, now);
  }
  // What the client has to do with leases on its GPU.
  void set_lease(ClientId client, core::ClientLease lease, Time now) {
    (void)desk_.step(core::ClientLeased{client, lease}, now);
  }
  // Whether the tenant stays without processes, because somebody has set its limits. No run does.
  void keep(TenantId tenant, bool kept) { tenants_.keep(tenant, kept); }
  Result<void> set_paused(TenantId tenant, bool paused, Time now) {
    return tenants_.set_paused(tenant, paused, now);
  }
  // Puts the tenant and its parts to sleep, or wakes them; `hold`: work does not wake them. False
  // when all of them sleep, or are awake, already. A sleeper can be held afterwards. Without
  // `hold` a tenant that has work stays awake: core().sleep_of() says.
  Result<bool> set_asleep(TenantId tenant, bool asleep, bool hold, Time now) {
    return tenants_.set_asleep(tenant, asleep, hold, now);
  }

  // --- clients
  // A process begins to use a GPU; `page` stays until leave(). `greet` sends the answer, with the
  // page: it is called once the client is known, before anything else goes to it.
  using Greet = std::function<void(const wire::Welcome&)>;
  Result<wire::Welcome> hello(const wire::Hello& hello, const Peer& peer, TenantId tenant,
                              wire::Page& page, Time now, const Greet& greet = {});
  // A packet as it came (looked at); null for one that lies about its length.
  void packet(ClientId client, const wire::Header* header, Time now);
  void leave(ClientId client, Time now);

  // --- memory
  // What becomes of the memory of programs that come from now on, unless their run says otherwise.
  void set_backend(wire::Backend backend) { backend_ = backend; }
  // Looks what clients have allocated without asking. Whoever wants to know exactly what they have
  // does this first.
  void settle(Time now) { credit_.settle(now); }
  // Host memory for what is swapped out.
  Places& places() { return places_; }
  const Places& places() const { return places_; }

  // --- the scheduler itself
  std::optional<Time> next_wakeup() const { return desk_.core().next_wakeup(); }
  void tick(Time now);
  // Brings the bills up to date.
  void read_meters(Time now) { grants_.read_all_meters(now); }
  // About once a second: reads the meters, reckons shares, forgets tenants that nobody uses.
  void sample(Time now);
  Result<void> set_config(const core::Config& config, Time now);
  Result<void> set_scheduling(bool on, Time now);
  bool scheduling() const { return scheduling_; }

  const core::Core& core() const { return desk_.core(); }
  const Trace& trace() const { return desk_.trace; }
  Trace& trace() { return desk_.trace; }
  const std::map<ClientId, ClientRecord>& clients() const { return desk_.clients; }
  const TenantMap& tenants() const { return desk_.tenants; }
  const std::map<GpuId, GpuRecord>& gpus() const { return desk_.gpus; }

  static constexpr int kMostClaimedGpus = 16;

 private:
  void act(const core::Decision& decision, Time now) override;
  void act(const core::Sleeps& sleeps, const core::Reason& why, Time now);
  bool catch_up(Time now) override;
  Result<GpuId> gpu_for(const wire::Hello& hello, Time now);
  ClientRecord& add_record(const wire::Hello& hello, const Peer& peer, TenantId tenant, GpuId gpu,
                           wire::Page& page);

  Desk desk_;
  Accounts accounts_{desk_};
  Credit credit_{desk_, accounts_};
  Places places_{desk_};
  Memory memory_{desk_, accounts_, credit_, places_};
  Grants grants_{desk_};
  Tenants tenants_{desk_, accounts_, credit_, grants_};
  RunPlacer run_placer_{desk_};
  wire::Backend backend_ = wire::Backend::Swap;
  bool scheduling_ = true;
  bool accept_claimed_ = false;
  int claimed_ = 0;
  std::uint64_t next_client_ = 1;
};

}  // namespace nvshare::daemon
