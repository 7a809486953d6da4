#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/core.h"
#include "daemon/broker/host_arena.h"
#include "daemon/broker/records.h"
#include "daemon/broker/shared_arena.h"
#include "daemon/broker/trace.h"
#include "daemon/log.h"
#include "wire/messages.h"

namespace nvshare::daemon {

// What the broker has done to clients. None of these calls comes back into the broker: who cannot
// be reached, or is to be disconnected, is gone a little later, and Broker::leave() says so.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void send(ClientId client, const wire::Header& message) = 0;
  // With a descriptor, which stays the caller's.
  virtual void hand_over(ClientId client, const wire::Header& message, int descriptor) = 0;
  // To the `nvshare run` that holds the tenant, where there is one. Only for information.
  virtual void tell_run(TenantId tenant, const wire::Header& message) = 0;
  virtual void disconnect(ClientId client, std::string_view why) = 0;
  // The client's process ignores what it is told: end it.
  virtual void end(ClientId client) = 0;
};

// A process that says hello, as the kernel knows it.
struct Peer {
  int pid = 0;
  std::uint32_t uid = 0;
  // Its container or user: programs of one home share host memory. Empty: it shares with nobody.
  std::string home{};
};

// Between programs and the core: messages become events, decisions become messages. No sockets and
// no clock, so that all of it can be tried without a process. Believes nothing that a program says.
class Broker {
 public:
  // `outbox` and `log` outlive the broker. `config` has no problems().
  Broker(const core::Config& config, Time now, Outbox& outbox, Log& log);

  // --- GPUs
  Result<GpuId> add_gpu(const Uuid& uuid, const std::string& name, Bytes total, Time now);
  const GpuRecord* find_gpu(const Uuid& uuid) const;
  // Without NVML nobody else knows the GPUs: one that a program names is taken as it describes it,
  // up to kMostClaimedGpus of them.
  void accept_claimed_gpus() { accept_claimed_ = true; }
  // What was measured from outside. With `overhead`, that replaces the estimated reserve.
  // Whether work of several programs can be on the GPU at the same time.
  void overlap_seen(GpuId gpu, bool possible, Time now);
  void gpu_measured(GpuId gpu, std::optional<int> utilisation, std::optional<Bytes> memory_used,
                    std::optional<Overhead> overhead, Time now);

  // --- tenants
  // The tenant of that name and kind; made with these limits when there is none. An error when
  // there are too many.
  Result<TenantId> tenant_for(const TenantName& name, const core::Limits& limits, Time now);
  // `nvshare run` makes a tenant and keeps it. An error when the name cannot be had.
  Result<TenantId> begin_run(const TenantName& name, const core::Limits& limits, Time now,
                             wire::Backend backend = wire::Backend::Default,
                             bool oversubscribes = false);
  void end_run(TenantId tenant, Time now);
  const TenantRecord* find_tenant(std::string_view name) const;
  // What all its processes together have there.
  Bytes allocated_by(const TenantRecord& tenant, GpuId gpu) const;
  Result<void> set_limits(TenantId tenant, const core::Limits& limits, Time now);
  Result<void> set_paused(TenantId tenant, bool paused, Time now);
  // Puts the tenant to sleep, or wakes it; `hold`: its own work does not wake it. False when it
  // sleeps, or is awake, already. A sleeper can be held afterwards. Without `hold` a tenant that
  // has work stays awake: core().sleep_of() says.
  Result<bool> set_asleep(TenantId tenant, bool asleep, bool hold, Time now);

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
  // Without one there is no host memory to swap out to. `arena` outlives the broker.
  void set_arena(HostArena& arena) { arena_ = &arena; }
  // A piece is there; the descriptor stays the caller's.
  void arena_ready(ClientId client, int descriptor, Bytes bytes, Time now, SegmentId segment = 0);
  void arena_failed(ClientId client, Bytes bytes, std::string_view why, Time now);
  // Looks what clients have allocated without asking. Whoever wants to know exactly what they have
  // does this first.
  void settle(Time now);
  // What clients have of the arena, with what is being made.
  Bytes arena_used() const;
  Bytes arena_given() const;    // without
  Bytes arena_brought() const;  // of that, from a scheduler before this one, as clients say
  // Of the arena, what processes still have and no client is counted with. It is in the two above.
  Bytes arena_lingering() const;
  const HostArena* arena() const { return arena_; }

  // --- the scheduler itself
  std::optional<Time> next_wakeup() const { return core_.next_wakeup(); }
  void tick(Time now);
  // About once a second: reads the meters, reckons shares, forgets tenants that nobody uses.
  void sample(Time now);
  Result<void> set_config(const core::Config& config, Time now);
  Result<void> set_scheduling(bool on, Time now);
  bool scheduling() const { return scheduling_; }

  const core::Core& core() const { return core_; }
  const Trace& trace() const { return trace_; }
  const std::map<ClientId, ClientRecord>& clients() const { return clients_; }
  const std::map<TenantId, TenantRecord>& tenants() const { return tenants_; }
  const std::map<GpuId, GpuRecord>& gpus() const { return gpus_; }
  // How long the tenant has had work to do.
  static Duration wanted(const TenantRecord& tenant, Time now);

  static constexpr int kMostClaimedGpus = 16;
  static constexpr std::size_t kMostTenants = 4096;
  static constexpr Duration kArenaNoticed = 1s;   // by a program that it was given to
  static constexpr Duration kArenaTaken = 60s;    // in by it, at the latest
  static constexpr Duration kArenaLingers = 10s;  // that nobody needs
  // The same of a client that has slept: when it sleeps again, only what it has changed is copied.
  static constexpr Duration kSleptLingers = 10min;
  // How long a program is given none that did not have the last; twice as long each time.
  static constexpr Duration kArenaShortWait = 1s;
  static constexpr Duration kArenaLongWait = 64s;
  static constexpr Duration kTenantLingers = 60s;  // what it owes is not forgotten sooner

 private:
  // Programs.
  void take(ClientRecord& client, const wire::RequestGrant& message, Time now);
  void take(ClientRecord& client, const wire::Released& message, Time now);
  void take(ClientRecord& client, const wire::MemoryRequest& message, Time now);
  void take(ClientRecord& client, const wire::MemoryFreed& message, Time now);
  void take(ClientRecord& client, const wire::MemoryPinned& message, Time now);
  void take(ClientRecord& client, const wire::MemoryMoved& message, Time now);
  void take(ClientRecord& client, const wire::ArenaReturned& message, Time now);
  void take(ClientRecord& client, const wire::ArenaKept& message, Time now);
  void take(ClientRecord& client, const wire::ArenaMissing& message, Time now);
  void take(ClientRecord& client, const wire::ArenaTaken& message, Time now);
  void take(ClientRecord& client, const wire::ArenaPassed& message, Time now);
  void take(ClientRecord& client, const wire::ArenaClosed& message, Time now);

  // Memory.
  struct Refusal {
    Bytes allowed{};  // more than it has
    std::string why;
    bool by_own_limit = false;  // the client's, not its tenant's
    bool for_host = false;      // for want of host memory
  };
  void grow(ClientRecord& client, const wire::MemoryRequest& message, bool movable, Time now);
  void answer(const ClientRecord& client, const wire::MemoryRequest& message, bool fits);
  void refuse_memory(ClientRecord& client, const wire::MemoryRequest& message,
                     const Refusal& refusal);
  void tell_shortage(TenantRecord& tenant, GpuId gpu, std::uint64_t asked, const Refusal& refusal);
  void book(ClientRecord& client, Time now, bool from_before = false);
  void believe(ClientRecord& client, Time now);
  void believe_more(Time now);
  // Credit: credit.cpp.
  void settle(ClientRecord& client, Time now);
  void settle_rounding(ClientRecord& client, Time now);
  void note_credit(ClientRecord& client, bool movable, std::uint64_t left, Time now);
  void book_taken(ClientRecord& client, Bytes bytes, bool movable, Time now);
  void revoke(ClientRecord& client, Time now);
  void revoke_all(GpuId gpu, Time now);
  void revoke_if_near(ClientRecord& client, Bytes bytes, Time now);
  void lend(ClientRecord& client, bool movable);
  Bytes room_to_lend(const ClientRecord& client) const;
  bool may_have_credit(const ClientRecord& client) const;
  // Programs larger than their GPU: oversubscribe.cpp.
  Bytes beyond_with(const ClientRecord& client, Bytes more) const;
  void fit_oversubscribed(Time now);
  void note_no_room(GpuRecord& gpu, Time now);
  void set_overhead(GpuRecord& gpu, const Overhead& overhead, Time now);
  // Memory that was ordered in and is there already. Believed when all decisions are followed: the
  // core has told of orders that the account does not know before that.
  struct Arrival {
    ClientId client;
    std::uint64_t order = 0;
    Bytes bytes{};
  };
  void act(const Arrival& arrival, Time now);
  void order(ClientId client, bool out, Bytes bytes, const core::Reason& why, Time now);
  void measure_host(Time now);
  void fill_arena(Time now);
  void hand_out_arena(Time now);
  Bytes make_arena(ClientRecord& client, Bytes need, Bytes left, bool in_part, Time now);
  void reclaim_arena(Bytes lacking, Time now);
  Bytes worth_making(ClientRecord& client, Bytes more, Time now) const;
  void tell_what_comes(ClientRecord& client, Time now);
  void ask_for_arena(Time now);
  void tell_arena_need(ClientRecord& client, Bytes bytes);
  void lose_arena(ClientRecord& client, Bytes bytes);
  void miss_arena(ClientRecord& client, Bytes bytes, Time now);
  // Host memory that clients of one home share: passing.cpp.
  static bool shares(const ClientRecord& client);
  void hand_over_shared(ClientRecord& client, SegmentId segment, Bytes bytes, int descriptor);
  Bytes give_shared(ClientRecord& client, Bytes need, Time now);
  bool offer_shared(ClientRecord& client, bool free_only);
  void offer_ahead(ClientRecord& client, Bytes need);
  void close_shared(const std::vector<SlabClosing>& closing);
  void release_closed();
  void tidy_shared(Time now);
  void disconnect(const ClientRecord& client, std::string_view why);

  // Decisions.
  // The one door to the core. Whoever does not follow() what was decided at once uses this.
  Result<core::Decisions> decide(const core::Event& event, Time now);
  Result<void> step(const core::Event& event, Time now);
  void follow(core::Decisions decisions, Time now);
  void apply(const core::Decision& decision, Time now);
  void act(const core::Place&, const core::Reason&, Time) {}
  void act(const core::Grant& grant, const core::Reason& why, Time now);
  void act(const core::Drop& drop, const core::Reason& why, Time now);
  void act(const core::SendOut& d, const core::Reason& why, Time now) {
    order(d.client, true, d.bytes, why, now);
  }
  void act(const core::BringIn& d, const core::Reason& why, Time now) {
    order(d.client, false, d.bytes, why, now);
  }
  void act(const core::WaitForMemory&, const core::Reason&, Time) {}
  void act(const core::MemoryAvailable&, const core::Reason&, Time) {}
  void act(const core::MemoryGiven& given, const core::Reason&, Time);
  void act(const core::MemoryWithdrawn& withdrawn, const core::Reason& why, Time);
  void act(const core::MemoryRefused&, const core::Reason&, Time) {}
  void act(const core::Overdue& overdue, const core::Reason& why, Time now);
  void act(const core::Sleeps& sleeps, const core::Reason& why, Time now);
  void act(const core::ReadMeter& order, const core::Reason& why, Time now);
  void read_meters(GpuRecord& gpu, Time now, const ClientRecord* releases = nullptr,
                   std::uint64_t released_used = 0);

  // Records.
  ClientRecord* find(ClientId client);
  void set_wants(ClientRecord& client, bool wants, Time now);
  void show_limits(const TenantRecord& tenant);
  void show_allocated(TenantId tenant, GpuId gpu);
  void show_rooms();
  void update_watch(const GpuRecord& gpu, std::optional<ClientId> not_told = {});
  Result<GpuId> gpu_for(const wire::Hello& hello, Time now);
  ClientRecord& add_record(const wire::Hello& hello, const Peer& peer, TenantId tenant, GpuId gpu,
                           wire::Page& page);
  Result<TenantId> add_tenant(const TenantName& name, const core::Limits& limits, Time now);
  bool is_held(const TenantRecord& tenant) const;
  void take_claim(ClientRecord& client, Time now);
  bool in_use(const TenantRecord& tenant, Time now) const;
  void remove(const TenantRecord& tenant, Time now);
  bool make_room(Time now);
  void forget_unused(Time now);
  void sample_shares(Time now);
  void note(const ClientRecord& client, std::string_view event,
            std::initializer_list<Field> fields);
  int gpus_used(const TenantRecord& tenant) const;
  // Whose limit changes, or who is stopped: what it had before does not count for its share now.
  void restart_share(TenantRecord& tenant, Time now);

  core::Core core_;
  Outbox& outbox_;
  Log& log_;
  Trace trace_;
  HostArena* arena_ = nullptr;
  wire::Backend backend_ = wire::Backend::Swap;
  std::uint64_t next_order_ = 1;
  bool scheduling_ = true;
  bool accept_claimed_ = false;
  int claimed_ = 0;
  std::uint64_t next_grant_ = 1;
  std::uint64_t next_client_ = 1;
  std::uint64_t next_tenant_ = 1;
  std::map<ClientId, ClientRecord> clients_;
  std::map<TenantId, TenantRecord> tenants_;
  std::map<GpuId, GpuRecord> gpus_;
  std::deque<core::Decision> decisions_;  // made, and not followed yet
  std::deque<Arrival> arrivals_;
  bool following_ = false;
  std::optional<Bytes> host_told_;       // how much the host can spare, as the core knows
  std::map<int, Bytes> arena_returned_;  // by process, since the arena was last looked at
  SharedArena shared_;
  bool filling_ = false;      // host memory is being handed out
  bool arena_stale_ = false;  // something has changed that host memory depends on
  bool rooms_stale_ = true;   // something has changed that the rooms in clients' pages depend on
};

// How a client is watched: freely when nobody else is on its GPU and no limit binds it.
wire::Watch watch_of(std::size_t clients_on_gpu, const core::Limits& limits, bool paused);

// GPU time that tenants have been billed so far, on all GPUs.
std::map<TenantId, Duration> bills_of(const core::Snapshot& snapshot);

// "GPU-01234567-...", as NVML and the driver write it; nothing when the text is no such thing.
std::string to_text(const Uuid& uuid);
std::optional<Uuid> parse_uuid(std::string_view text);

// A text field of a message, as far as it is printable.
std::string printable(const char* field, std::size_t size);

}  // namespace nvshare::daemon
