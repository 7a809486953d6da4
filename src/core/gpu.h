#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/compute_engine.h"
#include "core/residency.h"
#include "core/snapshot.h"
#include "core/state.h"

namespace nvshare::core {

// One GPU: its memory, its compute time, and the clients on it. Ties the two together: a client is
// offered to the compute engine when it has work, is not paused, and its memory is complete.
// Every call is followed by finish() at the same time.
class Gpu {
 public:
  Gpu(GpuId id, Bytes total, const Config& config, HostPool& host, Time now);

  GpuId id() const { return id_; }
  Bytes total() const { return total_; }
  const Residency& residency() const { return residency_; }
  const std::map<ClientId, Client*>& clients() const { return clients_; }
  const std::unordered_map<TenantId, Share>& shares() const { return shares_; }
  int wanting() const { return wanting_; }

  void add(Client& client, Time now);
  void remove(Client& client, Time now);
  void work_requested(Client& client, Time now, Decisions& out);
  void released(Client& client, const Released& how, Time now, Decisions& out);
  // The tenant is gone for good; it has no clients.
  void forget(TenantId tenant);
  void usage(Client& client, Duration used, Time now);
  void memory_changed(Client& client, const MemoryChanged& to, Time now, Decisions& out);
  void memory_found(Client& client, const MemoryFound& what, Time now, Decisions& out);
  void memory_moved(Client& client, const MemoryMoved& how, Time now, Decisions& out);
  void memory_rounded(Client& client, Bytes bytes) { residency_.set_rounding(client, bytes); }
  void host_memory(Client& client, Bytes coming, std::optional<Bytes> ready) {
    residency_.host_memory(client, coming, ready);
  }
  void config_changed() { residency_.config_changed(); }
  void host_changed() { residency_.host_changed(); }
  void overhead_measured(const OverheadMeasured& what) { residency_.set_overhead(what); }
  void set_overlap(bool possible) { engine_->set_overlap(possible); }
  void limits_will_change(TenantId tenant, Time now);
  // The limits of the tenant of the last limits_will_change() have.
  void limits_have_changed(bool cores_changed, Time now);
  // Lends the priority to the tenant, which has or had a client here.
  Result<void> lend(TenantId tenant, std::optional<int> priority, Time now);
  void set_lease(Client& client, ClientLease lease);
  void lease_changed(Client& client, ClientLease lease, Time now, Decisions& out);
  void pause_changed(const Tenant& tenant, Time now, Decisions& out);
  void sleep_changed(TenantId tenant, const Reason& why, Time now, Decisions& out);
  // Whether a client of the tenant asks for the GPU.
  bool is_asked_by(TenantId tenant) const;
  void switch_scheduling(bool on, Time now, Decisions& out);

  void finish(Time now, Decisions& out);
  // As of the last finish(); none before.
  const std::optional<Time>& next_wakeup() const { return wakeup_; }
  void wake_after(Time now) {
    if (wakeup_) wakeup_ = std::max(*wakeup_, now + Duration{1});
  }
  Reason explain(const Client& client, Time now) const;

  // How much more the client may have that never leaves the GPU, so that everyone else can still
  // have what was promised to it; `asked` at most.
  Bytes pinned_room(const Client& client, Bytes asked) const;

 private:
  // Of the tenant and, before it, of all that it is a part of (share_tree.cpp).
  Share& share_of(Tenant& tenant, Time now);
  Share& make_own(Share& of_tenant);
  Share& share_for_clients(Tenant& tenant, Time now);
  void become_parent(Share& share, Time now);
  void move_clients(Share& from, Share& to);
  static void follow_limits(Share& share);
  void limits_will_change(Share& highest, Time now);

  void set_allocated(Client& client, Bytes allocated, Bytes beyond, Time now);
  void memory_limit_may_bind(const Share& share, Time now);
  void place(Client& client, Time now, Decisions& out);
  void park(Client& client, bool parked, Time now);
  void want(Client& client, bool wants, Time now);
  void make_room(Time now, Decisions& out);
  void note_drops();
  void look_for_overdue(Time now, Decisions& out);

  GpuId id_;
  Bytes total_;
  const Config& config_;
  Residency residency_;
  std::unique_ptr<ComputeEngine> engine_;
  bool scheduling_ = true;
  int wanting_ = 0;
  std::uint64_t next_share_ = 1;
  std::optional<Time> wakeup_;
  std::map<ClientId, Client*> clients_;
  std::unordered_map<TenantId, Share> shares_;
  // Shares whose limits change, each behind what it is a part of.
  std::vector<Share*> changing_;
  std::set<std::tuple<Time, std::uint64_t, Client*>> stopping_;  // by when the drop was sent
};

}  // namespace nvshare::core
