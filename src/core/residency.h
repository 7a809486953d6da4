#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/decision.h"
#include "core/host_pool.h"
#include "core/snapshot.h"
#include "core/state.h"

namespace nvshare::core {

// The quantum: how long a client keeps its room once its memory is in. Either the fixed time, or
// the time that `bytes` take at `per_second`, times the multiplier, within the bounds.
Duration switch_quantum(Bytes bytes, Bytes per_second, const Config& config);

// Decides whose memory is on one GPU. A client runs only when all it has allocated is there.
//
// A client that fits comes in at once. A client that does not fit stands in a queue, by priority
// and age. The plan makes room for the first of the queue, and no more room than it lacks. Three
// kinds of clients give room: those that wait behind it, idle ones, and those whose quantum is
// over. A client counts as idle when it had no work for longer than a move takes.
//
// Until that moment small clients may slip into free room. Their quantum ends at that moment, so
// they never delay it. So the first of the queue waits at most one quantum, and the time in which
// others stop and their bytes move. Once, it waits up to kHostPatience for host memory.
class Residency {
 public:
  Residency(const Config& config, Bytes total, HostPool& host);
  ~Residency() { host_.leave(*this); }
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // What clients can have on the GPU together; and what they are promised, whatever a client found
  // in its way a moment ago.
  Bytes safe_limit() const;
  Bytes promised_limit() const;
  Bytes free() const { return safe_limit() - resident_ - incoming_ - undone_ - rounded_; }
  Bytes resident() const { return resident_; }
  Bytes incoming() const { return incoming_; }
  Bytes link_per_second() const;
  std::size_t waiting() const { return queue_.size(); }

  void set_overhead(const OverheadMeasured& what) {
    overhead_ = what;
    measured_processes_ = measured_with(what);
    stale_ = true;
  }
  // safe_limit() after set_overhead(what).
  Bytes safe_limit_with(const OverheadMeasured& what) const {
    return std::min(promised_limit_with(what, measured_with(what)), total_ - what.found);
  }
  void config_changed() { stale_ = true; }
  void join() {
    ++processes_;
    stale_ = true;
  }
  void leave(Client& client);
  // The client has no work from now on, or may do none.
  static void idles(Client& client, Time now) { client.eviction.idle_since = now; }

  // Counts the client's memory for its tenant. Comes before change() and found(), because they
  // protect a client less when its tenant is above its memory limit.
  static void set_allocated(Client& client, Bytes allocated, Bytes beyond) {
    const Bytes more = allocated + beyond - client.memory.allocated();
    if (client.own_limit) client.share->of_tenant().allocated_under_own += more;
    for (Share* one = &client.share->of_tenant(); one != nullptr; one = one->parent) {
      one->allocated += more;
    }
    client.memory.beyond = beyond;
  }

  // Growth or shrinking that the core has checked. The answer to the client is put into `out`.
  void change(Client& client, const MemoryChanged& to, Time now, Decisions& out);
  // Memory that the client has brought with it.
  void found(Client& client, const MemoryFound& what, Time now, Decisions& out);
  // Progress of orders that the core has checked.
  void moved(Client& client, const MemoryMoved& how, Time now, Decisions& out);
  // Bytes that the client's memory takes in whole pages beyond its size.
  void set_rounding(Client& client, Bytes bytes);
  // The host memory for the client: bytes that are being made, and bytes that are ready.
  void host_memory(Client& client, Bytes coming, std::optional<Bytes> ready);
  // The client's tenant has gone over its memory limit, or is no longer.
  void limit_changed(Client& client, Time now);
  // The client's service holds a lease now, or holds none any more.
  void lease_changed(Client& client, Time now);
  // The client wants to run and its memory is not complete.
  void enqueue(Client& client, Time now, Decisions& out);
  void dequeue(Client& client);
  // Called when the client starts or stops wanting the GPU, and when it has stopped running.
  void update(Client& client, Time now, Decisions& out);
  // The client's tenant has fallen asleep, or is awake again. A client that wakes comes back before
  // it has work, into room that no other client waits for.
  void sleep_changed(Client& client, Time now);
  // Bytes that could be told to leave, now or when their host memory has been made.
  Bytes could_leave(const Client& client) const;

  // --- host memory (residency_host.cpp)
  // The memory of all clients that does not fit the GPU.
  Bytes shortage() const;
  // Host memory that clients of this GPU need or use: enough for the shortage, and for chunks to
  // pass each other.
  Bytes host_claim() const { return std::max(host_need(Bytes{}, Bytes{}), sums_.host_used); }
  Bytes host_used() const { return sums_.host_used; }
  // Whether there is host memory for the shortage when the client has `growth` more.
  bool host_fits(const Client& client, Bytes growth, bool movable) const;
  // What fits before host memory is made ahead of need. A client that is alone needs none.
  Bytes easy_room() const {
    return (processes_ > 1 ? fits_easily(safe_limit()) : safe_limit()) - sums_.demand;
  }
  // How much more movable memory the client could have, as far as host memory goes.
  Bytes host_room(const Client& client) const;
  // Host memory that the GPU needs with `more_demand`; and host memory that there can be.
  Bytes host_need(Bytes more_demand, Bytes more_movable) const;
  Bytes host_left() const { return host_.left_for(*this); }
  // Host memory that the client should have: places for what is away or leaves, and places that are
  // ready ahead of need.
  HostNeed host_need_of(const Client& client) const;
  // The host memory that there can be has changed.
  void host_changed() { stale_ = true; }
  // A client would go on if there were more host memory.
  bool waits_for_places() const { return waits_for_places_; }

  // The client does not stop, so that no plan may count on its memory.
  void give_up_on(Client& client);

  // Decides what moves. Clients that must stop first are put into `stop`. Each of them comes back
  // by update() when it has stopped.
  void plan(Time now, Decisions& out, std::vector<Client*>& stop);
  // The most that the client can have beside the pinned memory of others.
  Bytes room_for(const Client& client) const {
    return promised_limit() - pinned_ + client.memory.stuck();
  }
  // Whether all memory of the client would fit when others have `more` that cannot move.
  bool can_fit_beside(const Client& client, Bytes more) const {
    return client.memory.demand + client.memory.rounding + stuck_beside(client) + more <=
           safe_limit();
  }
  // Clients that have become complete since the last call, or wait for less memory.
  std::vector<Client*> take_changed() { return std::exchange(changed_, {}); }
  std::optional<Time> next_wakeup() const;
  Reason explain(const Client& client, Time now) const;

 private:
  using QueueKey = std::tuple<std::int64_t, std::uint64_t, Client*>;
  using EvictKey = std::tuple<Time, std::uint64_t, Client*>;
  struct Victims {
    std::vector<Client*> clients;
    Bytes enough;  // room that the clients can give, one after the other
    Bytes now;     // the part of `enough` that host memory has places for at once
    Time due{};    // when the last of the clients may be taken
  };

  static QueueKey key_of(Client& client) {
    constexpr auto kFirst = std::numeric_limits<std::int64_t>::min();
    return {client.quantum.kept ? kFirst : client.queue.key, client.queue.seq, &client};
  }
  // Memory of others that is pinned or stalled.
  Bytes stuck_beside(const Client& client) const {
    return pinned_ - client.memory.stuck() + stalled_ -
           (client.orders.stalled ? client.orders.stalled_bytes : Bytes{});
  }
  // Whether others could make room for all of the client. can_fit(): with the host memory there is.
  bool can_ever_fit(const Client& client) const { return can_fit_beside(client, Bytes{}); }
  bool can_fit(const Client& client) const { return can_fit_beside(client, rooted_beside(client)); }
  Duration move_time(Bytes bytes) const;

  void enter(Client& client, Bytes allocated, Bytes pinned, Bytes resident, Time now);
  void set_resident(Client& client, Bytes resident);
  void set_incoming(Client& client, Bytes incoming);
  void set_undone(Client& client, Bytes undone);
  void count_rounded(Client& client);
  Bytes over() const { return resident_ + incoming_ + rounded_ - leaving_ - safe_limit(); }
  void send_out(Client& client, Bytes bytes, const Reason& why, Time now, Decisions& out);
  void bring_in(Client& client, Bytes bytes, const Reason& why, Time now, Decisions& out);
  void watch(Client& client, Time now);
  void unwatch(Client& client);
  void trust_again(Client& client);
  int measured_with(const OverheadMeasured& what) const {
    return std::clamp(what.processes.value_or(processes_), 0, processes_);
  }
  Bytes promised_limit_with(const OverheadMeasured& what, int measured_processes) const;
  Bytes reserve_of_processes() const;
  Bytes estimated_overhead() const;
  void count_as_overhead_no_more(const Client& client, Bytes found);
  bool link_is_known() const;
  void measure_link(Bytes moved, Bytes spared, Duration took);
  bool needs_host(const Client& client, Bytes bytes, Time now) const;
  std::optional<Time> wait_for_host(Client& head, const Victims& victims, Bytes deficit, Time now);
  // Bytes of a client that can be away at once; and bytes that it can therefore be told to send
  // out.
  Bytes most_away(const Client& client) const;
  Bytes leaveable(const Client& client) const;
  void recount(Client& client);
  void count(Client& client, const Counted& as);
  void stop_waiting_for_host(Client& client);
  void add_fresh(Client& client, Bytes bytes);
  Bytes rooted_beside(const Client& client) const;
  Bytes host_places() const;
  Bytes chunk() const;
  // Bytes that an order to send out may move beyond its own, because whole chunks move.
  Bytes rounding() const { return chunk() - Bytes{1}; }
  void note_shortfall(Client& client, Time now);
  void forget_shortfall(Client& client);
  void doubt_shortfalls(Time now);
  void set_left(Client& client, Bytes out, Bytes in);
  void rest(Client& client, Time now);
  void rise(Client& client);
  void wake_the_rested(Time now);
  void bring_rest(Client& client, Time now, Decisions& out);
  void look_for_stalled(Time now, Decisions& out);
  void unlist(Client& client);
  void list(Client& client);
  Duration quantum_of(const Client& client) const;
  void protect(Client& client, Bytes bytes, Time now);
  void end_quantum(Client& client, Time now);
  void replace_guessed_quanta();
  void complete(Client& client, Time now, Decisions& out);
  void give(Client& client, Time now, Decisions& out);
  void withdraw(Client& client, Time now, Decisions& out);
  void admit(Client& client, Time protect_until, Why why, Time now, Decisions& out);
  std::int64_t queue_key(const Client& client, Time now) const;
  static bool gives_way(const Client& client, const Client& head);
  Victims find_victims(const Client* head, Bytes deficit) const;
  void take(const Victims& victims, Bytes deficit, Why why, Time now, Decisions& out,
            std::vector<Client*>& stop);
  void relieve_pressure(Time now, Decisions& out, std::vector<Client*>& stop);
  Bytes given_back_for_now(Time now) const;
  void fill_gaps(Client& head, Time now, Decisions& out);
  // Sleep: residency_sleep.cpp.
  void list_sleeper(Client& client);
  Bytes sends_out_asleep(const Client& client) const;
  void send_sleepers_out(Time now, Decisions& out);
  void bring_woken_back(Time now, Decisions& out);

  const Config& config_;
  Bytes total_;
  HostPool& host_;
  std::optional<OverheadMeasured> overhead_;
  int measured_processes_ = 0;  // clients that `overhead_` contains
  double link_bytes_ = 0;       // lately copied
  double link_seconds_ = 0;     // the time that `link_bytes_` took
  Duration link_skipped_{};     // the time of the last copy that was too small to count
  Bytes link_guess_{};          // by moves that copied nothing, until a copy counts
  int processes_ = 0;
  Bytes resident_;
  Bytes incoming_;
  Bytes leaving_;  // outgoing and planned
  Bytes undone_;
  Bytes rounded_;
  Bytes pinned_;       // with what is promised
  Bytes stalled_;      // held by or promised to clients that do not move it
  Counted sums_;       // of all clients
  bool stale_ = true;  // something has changed since the last plan
  std::set<QueueKey> queue_;
  std::set<QueueKey> queued_resident_;  // clients of the queue with memory that could leave
  std::set<EvictKey> evictable_;        // clients outside the queue with memory that could leave
  ClientOrder sleepers_;                // clients asleep with memory that could leave
  ClientOrder woken_;                   // clients that may come back before they have work
  std::uint64_t next_queue_seq_ = 1;
  std::optional<Time> rotation_at_;
  bool waits_for_host_ = false;  // the rotation waits for host memory alone
  bool waits_for_places_ = false;
  std::set<EvictKey> moving_;   // by when there must be progress
  std::set<EvictKey> resting_;  // by when an order may be tried again
  std::set<EvictKey> short_;    // by when a larger order may be tried again
  std::vector<Client*> changed_;
};

}  // namespace nvshare::core
