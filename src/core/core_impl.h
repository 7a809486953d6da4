#pragma once

// What a Core consists of. Only core*.cpp and placement.cpp see it.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/core.h"
#include "core/gpu.h"
#include "core/state.h"

namespace nvshare::core {

// The refusal of an event about a `what` that the core does not have.
Error unknown(const char* what, std::uint64_t id);

class Core::Impl {
 public:
  Impl(const Config& config, Time now) : config_(config), now_(now) {}

  Result<Decisions> step(const Event& event, Time now);

  std::optional<Time> next_wakeup() const {
    std::optional<Time> next = next_sleep();
    for (const auto& [id, gpu] : gpus_) {
      if (gpu.next_wakeup()) bring_forward(next, *gpu.next_wakeup());
    }
    return next;
  }

  Result<Reason> reason(ClientId id, Time now) const;
  std::string text_of(const Reason& reason) const;
  std::optional<Placement> place(const PlaceWish& wish) const;  // placement.cpp

  std::optional<ClientView> view(ClientId id) const;
  Snapshot snapshot() const;
  std::optional<SleepView> sleep_of(TenantId id) const {
    const auto it = tenants_.find(id);
    return it == tenants_.end() ? std::nullopt : it->second.sleep;
  }
  std::optional<Bytes> safe_limit(GpuId id) const {
    const auto it = gpus_.find(id);
    return it == gpus_.end() ? std::nullopt : std::optional(it->second.residency().safe_limit());
  }
  std::optional<Bytes> promised_limit(GpuId id) const {
    const auto it = gpus_.find(id);
    if (it == gpus_.end()) return std::nullopt;
    return it->second.residency().promised_limit();
  }
  std::optional<Bytes> safe_limit_with(const OverheadMeasured& what) const {
    const auto it = gpus_.find(what.gpu);
    if (it == gpus_.end()) return std::nullopt;
    return it->second.residency().safe_limit_with(what);
  }
  std::optional<MemoryRoom> memory_room(ClientId id) const {
    const auto it = clients_.find(id);
    return it == clients_.end() ? std::nullopt : std::optional(room_of(it->second));
  }
  Bytes claim_room(ClientId id) const {
    const auto it = clients_.find(id);
    return it == clients_.end() ? Bytes{} : claim_room(it->second);
  }
  // Null when the client is not known.
  const Residency* residency_of(ClientId id, const Client*& client) const {
    const auto it = clients_.find(id);
    if (it == clients_.end()) return nullptr;
    client = &it->second;
    return &gpus_.at(client->gpu).residency();
  }
  const Config& config() const { return config_; }

 private:
  Result<void> take(const GpuAdded& e, Time now, Decisions& out);
  Result<void> take(const GpuRemoved& e, Time now, Decisions& out);
  Result<void> take(const OverheadMeasured& e, Time now, Decisions& out);
  Result<void> take(const OverlapSeen& e, Time now, Decisions& out);
  Result<void> take(const TenantAdded& e, Time now, Decisions& out);
  Result<void> take(const TenantRemoved& e, Time now, Decisions& out);
  Result<void> take(const LimitsChanged& e, Time now, Decisions& out);
  Result<void> take(const PriorityLent& e, Time now, Decisions& out);
  Result<void> take(const ClientLeased& e, Time now, Decisions& out);
  Result<void> take(const TenantPaused& e, Time now, Decisions& out);
  Result<void> take(const TenantSleeps& e, Time now, Decisions& out);
  Result<void> take(const ClientAdded& e, Time now, Decisions& out);
  Result<void> take(const ClientGone& e, Time now, Decisions& out);
  Result<void> take(const WorkRequested& e, Time now, Decisions& out);
  Result<void> take(const Released& e, Time now, Decisions& out);
  Result<void> take(const Usage& e, Time now, Decisions& out);
  Result<void> take(const MemoryChanged& e, Time now, Decisions& out);
  Result<void> take(const MemoryFound& e, Time now, Decisions& out);
  MemoryRoom room_of(const Client& client) const;
  Bytes claim_room(const Client& client) const;
  std::optional<Decision> refuse(const MemoryChanged& e, const Client& client) const;
  Result<void> take(const MemoryMoved& e, Time now, Decisions& out);
  Result<void> take(const MemoryRounded& e, Time now, Decisions& out);
  Result<void> take(const HostMeasured& e, Time now, Decisions& out);
  Result<void> take(const HostMemoryComing& e, Time now, Decisions& out);
  Result<void> take(const SchedulingSwitched& e, Time now, Decisions& out);
  Result<void> take(const ConfigChanged& e, Time now, Decisions& out);
  Result<void> take(const Tick& e, Time now, Decisions& out);

  Gpu* find_gpu(GpuId id) { return find(gpus_, id); }
  Client* find_client(ClientId id) { return find(clients_, id); }
  Tenant* find_tenant(TenantId id) { return find(tenants_, id); }
  template <typename Map, typename Id>
  static typename Map::mapped_type* find(Map& map, Id id) {
    const auto it = map.find(id);
    return it == map.end() ? nullptr : &it->second;
  }
  // The tenant first, then its parts in the order of their ids.
  std::vector<Tenant*> with_parts(Tenant& tenant);
  void finish(Gpu& gpu, Time now, Decisions& out);
  void finish_all(Time now, Decisions& out);
  bool asks(const Tenant& tenant) const;
  void set_sleep(Tenant& tenant, std::optional<SleepView> sleep, const Reason& why, Time now,
                 Decisions& out);
  void wake_by_work(Tenant& tenant, Time now, Decisions& out);
  void follow_idleness(Tenant& tenant, bool active, Time now);
  std::optional<Time> next_sleep() const;
  void send_idle_to_sleep(Time now, Decisions& out);
  // The GPU that wakes up first, by its number where several do; null when none does.
  Gpu* first_to_wake();

  Config config_;
  Time now_;
  bool scheduling_ = true;
  std::uint64_t next_client_ = 1;
  HostPool host_;
  std::map<GpuId, Gpu> gpus_;
  std::unordered_map<TenantId, Tenant> tenants_;
  std::unordered_map<ClientId, Client> clients_;
  std::set<std::pair<Time, TenantId>> idle_;  // tenants by since when they have had no work
};

}  // namespace nvshare::core
