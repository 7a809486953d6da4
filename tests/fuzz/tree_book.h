#pragma once

#include <map>
#include <set>

#include "daemon/broker/broker.h"
#include "daemon/broker/tree.h"
#include "slab_book.h"

namespace nvshare::daemon {

// What must hold in the tree of tenants, whatever has happened. Reckoned from the records of
// clients alone, from the bottom up.
class TreeBook {
 public:
  explicit TreeBook(const Broker& broker) : broker_(broker), tenants_(broker.tenants()) {}

  void check() const {
    const core::Snapshot all = broker_.core().snapshot();
    check_shape(all);
    check_sums();
    check_bills(all);
    check_pauses();
  }

  // The client was given memory just now: no level has more than its limit.
  void check_given(ClientId id) const {
    const auto client = broker_.clients().find(id);
    if (client == broker_.clients().end()) return;
    for_each_level(tenants_, client->second.tenant, [&](const TenantRecord& level) {
      must(!level.limits.memory ||
               broker_.allocated_by(level, client->second.gpu) <= *level.limits.memory,
           "a level is given no more than its limit");
    });
  }

  // The client has credit: no other one could use up the same limit.
  void check_credit(const ClientRecord& client) const {
    const TenantRecord& highest = tenants_.at(limited_level(tenants_, client.tenant));
    if (!highest.limits.memory) return;
    for (const ClientId id : clients_below(tenants_, highest.id)) {
      const bool beside = id != client.id && broker_.clients().at(id).gpu == client.gpu;
      must(!beside, "credit for one of several under a limit");
    }
  }

 private:
  void check_shape(const core::Snapshot& all) const {
    std::map<TenantId, std::set<TenantId>> parts;
    std::map<TenantId, std::optional<TenantId>> in_core;
    for (const core::TenantView& view : all.tenants) {
      in_core[view.id] = view.parent;
    }
    must(in_core.size() == tenants_.size(), "the core knows all tenants and no others");
    for (const auto& [id, tenant] : tenants_) {
      must(in_core.contains(id) && in_core[id] == tenant.parent, "the core has the same tree");
      int depth = 0;
      for (auto at = tenant.parent; at; at = tenants_.at(*at).parent) {
        must(tenants_.contains(*at), "a parent is there");
        must(++depth < core::kDeepestTenant, "the tree has an end");
      }
      if (tenant.parent) parts[*tenant.parent].insert(id);
    }
    for (const auto& [id, tenant] : tenants_) {
      must(tenant.parts == parts[id], "parents know their parts");
      const bool used =
          tenant.open || tenant.occupied || !tenant.clients.empty() || !tenant.parts.empty();
      must(used || tenant.is.kind != TenantKind::Run, "a run without anything is gone");
    }
  }

  void check_sums() const {
    std::map<TenantId, std::map<GpuId, Bytes>> has;
    std::map<TenantId, int> wanting;
    for (const auto& [id, client] : broker_.clients()) {
      must(tenants_.at(client.tenant).clients.contains(id), "tenants know their clients");
      for_each_level(tenants_, client.tenant, [&, &one = client](const TenantRecord& level) {
        has[level.id][one.gpu] += one.memory.allocated();
        wanting[level.id] += one.turn.wants ? 1 : 0;
      });
    }
    for (const auto& [id, tenant] : tenants_) {
      must(tenant.wanting == wanting[id], "each level counts who wants the GPU");
      for (const auto& [gpu, record] : broker_.gpus()) {
        must(broker_.allocated_by(tenant, gpu) == has[id][gpu], "each level has what is below it");
      }
    }
  }

  // Parts that are gone count as well. Under a window policy a share's bill is brought up to date
  // only when something about that share happens: a part's may be ahead of its parent's until then.
  void check_bills(const core::Snapshot& all) const {
    if (broker_.core().config().policy != core::ComputePolicy::Metered) return;
    std::map<std::pair<TenantId, GpuId>, Duration> billed;
    for (const core::ShareView& share : all.shares) {
      billed[{share.tenant, share.gpu}] = share.billed;
    }
    std::map<std::pair<TenantId, GpuId>, Duration> of_parts;
    for (const auto& [key, time] : billed) {
      if (const auto parent = tenants_.at(key.first).parent)
        of_parts[{*parent, key.second}] += time;
    }
    for (const auto& [key, time] : of_parts) {
      // Each is rounded down by itself.
      must(time <= billed[key] + Duration{1}, "each level pays for what is below it");
    }
  }

  void check_pauses() const {
    if (!broker_.scheduling()) return;
    for (const auto& [id, client] : broker_.clients()) {
      const bool runs = broker_.core().view(id)->state == core::ClientState::Running;
      must(!runs || !is_paused(tenants_, client.tenant), "nobody runs on in a pause of a level");
    }
  }

  const Broker& broker_;
  const TenantMap& tenants_;
};

}  // namespace nvshare::daemon
