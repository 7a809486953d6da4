#include "core/gpu.h"

#include <algorithm>

namespace nvshare::core {

Gpu::Gpu(GpuId id, Bytes total, const Config& config, HostPool& host, Time now)
    : id_(id),
      total_(total),
      config_(config),
      residency_(config, total, host),
      engine_(make_engine(config, now)) {}

void Gpu::add(Client& client, Time now) {
  Share& share = share_for_clients(*client.tenant, now);
  ++share.clients;
  client.gpu = id_;
  client.share = &share;
  clients_.emplace(client.id, &client);
  residency_.join();
  residency_.idles(client, now);
}

void Gpu::remove(Client& client, Time now) {
  Share& share = *client.share;
  want(client, false, now);
  set_lease(client, ClientLease::None);
  stopping_.erase({client.run.dropped_at, client.seq, &client});
  park(client, false, now);
  if (client.run.phase == Phase::Ready) {
    engine_->make_unready(client, now);
  } else if (client.run.phase != Phase::Off) {
    // It took its last reading with it: all of the time since the one before may have been used.
    engine_->release(client, client.meter.reported + client.unread(now), Duration::zero(), now);
  }
  residency_.leave(client);
  clients_.erase(client.id);
  --share.clients;  // the account stays: a new process does not start with a clean slate
}

void Gpu::want(Client& client, bool wants, Time now) {
  if (client.wants_work == wants) return;
  client.wants_work = wants;
  wanting_ += wants ? 1 : -1;
  client.tenant->wanting += wants ? 1 : -1;
  if (!wants) residency_.idles(client, now);
}

void Gpu::park(Client& client, bool parked, Time now) {
  if (client.parked == parked) return;
  client.parked = parked;
  engine_->park(client, parked, now);
}

// Puts a client where it belongs, after anything about it has changed.
void Gpu::place(Client& client, Time now, Decisions& out) {
  residency_.update(client, now, out);
  const bool should_run = client.is_busy();
  const bool can_run = should_run && client.memory.complete();
  switch (client.run.phase) {
    case Phase::Running:
      if (client.tenant->is_paused) {
        engine_->stop(client, {.why = Why::Paused}, now, out);
      } else if (client.tenant->sleep) {
        engine_->stop(client, {.why = Why::PutToSleep}, now, out);
      } else if (client.lease == ClientLease::Over) {
        engine_->stop(client, {.why = Why::LeaseOver}, now, out);
      } else if (!client.memory.complete()) {
        engine_->stop(client,
                      {.why = Why::Grew, .bytes = client.memory.demand - client.memory.resident},
                      now, out);
      }
      return;
    case Phase::Stopping:
    case Phase::Overdue:
      return;
    case Phase::Ready:
      if (!can_run) engine_->make_unready(client, now);
      break;
    case Phase::Off:
      if (can_run) {
        park(client, false, now);
        engine_->make_ready(client, now);
      }
      break;
  }
  park(client, should_run && !client.memory.complete(), now);
  if (client.run.phase == Phase::Ready && !scheduling_) {
    engine_->grant_now(client, {.why = Why::SchedulingOff}, now, out);
    return;
  }
  // What the orders of one that was let in leave undone is known when the last of them is over.
  const bool comes = client.memory.resident + client.memory.incoming == client.memory.demand ||
                     (client.queue.admitted && client.memory.incoming.count > 0);
  const bool on_its_way = client.memory.outgoing.count == 0 && comes;
  const bool should_have_all = client.waits_for_memory() && client.may_run();
  if (should_have_all && !client.memory.complete() && !on_its_way) {
    residency_.enqueue(client, now, out);
  } else if (!should_have_all) {
    residency_.dequeue(client);
    residency_.update(client, now, out);
  }
}

void Gpu::work_requested(Client& client, Time now, Decisions& out) {
  want(client, true, now);
  place(client, now, out);
}

void Gpu::released(Client& client, const Released& how, Time now, Decisions& out) {
  stopping_.erase({client.run.dropped_at, client.seq, &client});
  engine_->release(client, how.used, how.gaps, now);
  want(client, how.more_work, now);
  place(client, now, out);
}

void Gpu::forget(TenantId tenant) {
  const auto it = shares_.find(tenant);
  if (it == shares_.end()) return;
  Share& share = it->second;
  if (share.has_parts && share.family().own) engine_->detach(*share.family().own);
  engine_->detach(share);
  if (Share* parent = share.parent) std::erase(parent->family().parts, &share);
  shares_.erase(it);
}

void Gpu::usage(Client& client, Duration used, Time now) {
  engine_->read_meter(client, used, now);
}

void Gpu::memory_changed(Client& client, const MemoryChanged& to, Time now, Decisions& out) {
  set_allocated(client, to.allocated, to.beyond, now);
  residency_.change(client, to, now, out);
  place(client, now, out);
}

void Gpu::memory_found(Client& client, const MemoryFound& what, Time now, Decisions& out) {
  set_allocated(client, what.allocated, what.beyond, now);
  residency_.found(client, what, now, out);
  place(client, now, out);
}

void Gpu::memory_moved(Client& client, const MemoryMoved& how, Time now, Decisions& out) {
  residency_.moved(client, how, now, out);
  place(client, now, out);
}

void Gpu::set_allocated(Client& client, Bytes allocated, Bytes beyond, Time now) {
  static_assert(kDeepestTenant < 32);
  std::uint32_t over_before = 0;  // a bit for each level
  const auto each_level = [&](auto call) {
    std::uint32_t level = 1;
    for (Share* one = client.share; one != nullptr; one = one->parent, level <<= 1)
      call(*one, level);
  };
  each_level([&](const Share& one, std::uint32_t level) {
    if (one.over_its_memory_limit()) over_before |= level;
  });
  residency_.set_allocated(client, allocated, beyond);
  Share* binds = nullptr;  // the outermost share that goes over its limit by this
  each_level([&](Share& one, std::uint32_t level) {
    if (one.over_its_memory_limit() && (over_before & level) == 0) binds = &one;
  });
  if (binds != nullptr) memory_limit_may_bind(*binds, now);
}

void Gpu::memory_limit_may_bind(const Share& share, Time now) {
  if (!share.over_memory_limit()) return;
  for (const auto& [id, client] : clients_) {
    if (client->share->is_within(share)) residency_.limit_changed(*client, now);
  }
}

Bytes Gpu::pinned_room(const Client& client, Bytes asked) const {
  Bytes room = asked;
  for (const auto& [id, other] : clients_) {
    if (other == &client || !residency_.can_fit_beside(*other, Bytes{})) continue;
    if (residency_.can_fit_beside(*other, room)) continue;
    room =
        std::min(room, residency_.room_for(*other) - other->memory.demand - other->memory.rounding);
  }
  return std::max(Bytes{}, room);
}

void Gpu::set_lease(Client& client, ClientLease lease) {
  if (client.lease == ClientLease::Held) --client.tenant->leased;
  if (lease == ClientLease::Held) ++client.tenant->leased;
  client.lease = lease;
}

void Gpu::lease_changed(Client& client, ClientLease lease, Time now, Decisions& out) {
  if (client.lease == lease) return;
  set_lease(client, lease);
  if (lease != ClientLease::Held) residency_.idles(client, now);
  residency_.lease_changed(client, now);
  place(client, now, out);
}

void Gpu::pause_changed(const Tenant& tenant, Time now, Decisions& out) {
  for (const auto& [id, client] : clients_) {
    if (!client->tenant->is_within(tenant)) continue;
    if (client->tenant->is_paused) residency_.idles(*client, now);
    place(*client, now, out);
  }
}

void Gpu::sleep_changed(TenantId tenant, const Reason& why, Time now, Decisions& out) {
  for (const auto& [id, client] : clients_) {
    if (client->tenant->id != tenant) continue;
    out.push_back({Sleeps{id, client->tenant->sleep.has_value()}, why});
    residency_.sleep_changed(*client, now);
    place(*client, now, out);
  }
}

bool Gpu::is_asked_by(TenantId tenant) const {
  return std::any_of(clients_.begin(), clients_.end(), [&](const auto& one) {
    return one.second->tenant->id == tenant && one.second->asks();
  });
}

// What ran without rules stops, and comes back under them. What it has used until then is free.
void Gpu::switch_scheduling(bool on, Time now, Decisions& out) {
  const bool was_on = std::exchange(scheduling_, on);
  if (on == was_on) return;
  for (const auto& [id, client] : clients_) {
    const bool holds = client->run.phase != Phase::Off && client->run.phase != Phase::Ready;
    if (on && holds) engine_->read_meter(*client, now - client->run.granted_at, now);
  }
  engine_->set_billing(on, now);
  for (const auto& [id, client] : clients_) {
    if (on && client->run.phase == Phase::Running) {
      engine_->stop(*client, {.why = Why::ModeChanged}, now, out);
    } else if (!on && client->run.phase == Phase::Ready) {
      engine_->grant_now(*client, {.why = Why::SchedulingOff}, now, out);
    }
  }
}

void Gpu::make_room(Time now, Decisions& out) {
  std::vector<Client*> stop;
  residency_.plan(now, out, stop);
  for (Client* client : stop) {
    if (client->run.phase == Phase::Running) {
      engine_->stop(*client, {.why = Why::Rotation, .bytes = client->memory.planned}, now, out);
    } else if (client->run.phase == Phase::Ready) {
      engine_->make_unready(*client, now);
      place(*client, now, out);
    }
  }
  for (Client* client : residency_.take_changed()) place(*client, now, out);
}

void Gpu::look_for_overdue(Time now, Decisions& out) {
  while (!stopping_.empty() && std::get<0>(*stopping_.begin()) + config_.drop_timeout <= now) {
    Client& client = *std::get<2>(*stopping_.begin());
    stopping_.erase(stopping_.begin());
    engine_->mark_overdue(client, now);
    residency_.give_up_on(client);
    out.push_back({Overdue{client.id, config_.end_overdue},
                   {.why = Why::DropIgnored, .used = now - client.run.dropped_at}});
  }
}

void Gpu::note_drops() {
  for (Client* client : engine_->take_stopped()) {
    stopping_.emplace(client->run.dropped_at, client->seq, client);
  }
}

void Gpu::finish(Time now, Decisions& out) {
  note_drops();
  look_for_overdue(now, out);
  make_room(now, out);
  if (scheduling_) engine_->decide(now, out);
  note_drops();
  wakeup_ = residency_.next_wakeup();
  if (scheduling_) {
    if (const auto due = engine_->next_wakeup()) bring_forward(wakeup_, *due);
  }
  if (stopping_.empty()) return;
  bring_forward(wakeup_, std::get<0>(*stopping_.begin()) + config_.drop_timeout);
}

Reason Gpu::explain(const Client& client, Time now) const {
  if (client.run.phase == Phase::Stopping) return {.why = Why::Stopping};
  if (client.run.phase == Phase::Overdue) {
    return {.why = Why::Overdue, .used = now - client.run.dropped_at};
  }
  if (!scheduling_ && client.run.phase == Phase::Running) return {.why = Why::SchedulingOff};
  if (client.run.phase != Phase::Off) {
    Reason reason = engine_->explain(client, now);
    // Who waits for its memory is unknown to the engine.
    if (reason.why == Why::RunningAlone && residency_.waiting() > 0) reason.why = Why::Running;
    return reason;
  }
  if (client.tenant->is_paused) {
    Reason paused{.why = Why::Paused};
    for (const Tenant* one = client.tenant->parent; one != nullptr; one = one->parent) {
      if (one->paused) paused.level = one->id;
    }
    return paused;
  }
  const Bytes to_move = std::max(client.memory.outgoing, client.memory.incoming);
  if (client.orders.stalled && to_move > Bytes{}) {  // it waits for itself, whatever it lacks
    return {.why = Why::MoveIgnored, .bytes = to_move};
  }
  if (const auto& sleep = client.tenant->sleep) {
    return {.why = sleep->hold ? Why::HeldAsleep : Why::Asleep, .used = now - sleep->since};
  }
  if (client.lease == ClientLease::Over && client.wants_work) return {.why = Why::LeaseOver};
  if (!client.waits_for_memory()) return {.why = Why::NoWork};
  return residency_.explain(client, now);
}

}  // namespace nvshare::core
