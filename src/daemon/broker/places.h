#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "daemon/broker/desk.h"
#include "daemon/broker/host_arena.h"
#include "daemon/broker/shared_arena.h"

namespace nvshare::daemon {

// Host memory for what is swapped out: who needs how much of it (arena.cpp), and what clients of
// one home share (passing.cpp).
class Places : private Owner {
 public:
  explicit Places(Desk& desk) : Owner(desk) {}

  // Without one there is no host memory to swap out to. `arena` outlives this.
  void set_arena(HostArena& arena) { arena_ = &arena; }
  const HostArena* arena() const { return arena_; }
  // A piece is there; the descriptor stays the caller's.
  void ready(ClientId client, int descriptor, Bytes bytes, Time now, SegmentId segment = 0);
  void failed(ClientId client, Bytes bytes, std::string_view why, Time now);

  // --- sums
  // What clients have of the arena, with what is being made.
  Bytes used() const;
  Bytes given() const;    // without
  Bytes brought() const;  // of that, from a scheduler before this one, as clients say
  // Of the arena, what processes still have and no client is counted with. It is in the two above.
  Bytes lingering() const;

  // --- what clients say
  void take(ClientRecord& client, const wire::ArenaReturned& message, Time now);
  void take(ClientRecord& client, const wire::ArenaKept& message, Time now);
  void take(ClientRecord& client, const wire::ArenaMissing& message, Time now);
  void take(ClientRecord& client, const wire::ArenaTaken& message, Time now);
  void take(ClientRecord& client, const wire::ArenaPassed& message, Time now);
  void take(ClientRecord& client, const wire::ArenaClosed& message, Time now);

  // --- when
  // Tells the core what the host can spare.
  void measure_host(Time now);
  // Clients need more or less than before: hands out what there is, at the latest before the broker
  // returns.
  void fill(Time now);
  // Does that. Whether it did anything.
  bool catch_up(Time now);
  void tell_what_comes(ClientRecord& client, Time now);
  // About once a second.
  void sample(Time now);
  // The client is gone; its record is still there.
  void leave(const ClientRecord& client, Time now);

  static constexpr Duration kNoticed = 1s;   // so soon a program says that it has a piece
  static constexpr Duration kTaken = 60s;    // so soon it has pinned the piece, or never does
  static constexpr Duration kLingers = 10s;  // so long a client keeps what it does not need
  // The same of a client that has slept: when it sleeps again, only what it has changed is copied.
  static constexpr Duration kSleptLingers = 10min;
  // How long a program is given none that did not have the last; twice as long each time.
  static constexpr Duration kShortWait = 1s;
  static constexpr Duration kLongWait = 64s;

 private:
  void hand_out(Time now);
  Bytes make(ClientRecord& client, Bytes need, Bytes left, bool in_part, Time now);
  void reclaim(Bytes lacking, Time now);
  Bytes worth_making(ClientRecord& client, Bytes more, Time now) const;
  void ask_back(Time now);
  void tell_need(ClientRecord& client, Bytes bytes);
  Bytes own_places(const ClientRecord& client) const;
  void lose(ClientRecord& client, Bytes bytes);
  void miss(ClientRecord& client, Bytes bytes, Time now);
  // Shared: passing.cpp.
  static bool shares(const ClientRecord& client);
  void hand_over_shared(ClientRecord& client, SegmentId segment, Bytes bytes, int descriptor);
  Bytes give_shared(ClientRecord& client, Bytes need, Time now);
  bool offer_shared(ClientRecord& client, bool free_only);
  void offer_ahead(ClientRecord& client, Bytes need);
  void close_shared(const std::vector<SlabClosing>& closing);
  void release_closed();
  void tidy_shared(Time now);

  HostArena* arena_ = nullptr;
  std::optional<Bytes> host_told_;  // how much the host can spare, as the core knows
  std::map<int, Bytes> returned_;   // by process, since the arena was last looked at
  SharedArena shared_;
  int rounds_ = 0;  // of handing out, one after the other
};

}  // namespace nvshare::daemon
