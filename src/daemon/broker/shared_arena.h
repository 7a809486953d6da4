#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/units.h"
#include "core/ids.h"

namespace nvshare::daemon {

using core::ClientId;
using SegmentId = std::uint64_t;  // 0: none
using Slabs = std::uint64_t;      // a bit for each slab of a segment

// Slabs of one segment, and how many bytes they have.
struct SlabRange {
  SegmentId segment = 0;
  Slabs slabs = 0;
  Bytes bytes{};
  Bytes mapped{};  // of these, what the client has mapped already
};

// A client is to be told that slabs go.
struct SlabClosing {
  ClientId client;
  SegmentId segment = 0;
  Slabs slabs = 0;
};

// A client that gets the descriptor of a segment maps the slabs that are `there`.
struct SlabOffer {
  SegmentId segment = 0;
  Bytes bytes{};
  Slabs there = 0;
};

// The book of host memory that clients of one home (programs of a user, or of a container) have
// mapped and pinned at the same time. A slab is owned by one client, or free for any client of the
// home, or closing: it is unmapped everywhere, and its pages then go back to the machine.
//
// Slabs of a client that is gone are closing. Its process may live on and use them, and the GPU may
// still write to them while the kernel takes the process apart: their pages stay until it has
// ended.
class SharedArena {
 public:
  // A segment that was made for the client: all of its slabs are owned by that client.
  // Answers them.
  Slabs add(SegmentId segment, const std::string& home, Bytes bytes, ClientId owner);

  // --- what clients say. False when that cannot be; nothing has changed then.
  // Of the slabs that it was told of, the client has mapped these and no others.
  bool taken(ClientId client, SegmentId segment, Slabs slabs);
  // The client owns these slabs, and does not need them. Answers how many bytes; 0: it does not.
  Bytes pass(ClientId client, SegmentId segment, Slabs slabs, Time now);
  bool closed(ClientId client, SegmentId segment, Slabs slabs);

  // --- free slabs
  // Up to `most` bytes of free slabs become the client's: of segments that it has a descriptor of.
  std::vector<SlabRange> give(ClientId client, const std::string& home, Bytes most);
  // A segment of the home that the client has no descriptor of, and has one from now on. The one
  // with most free slabs; without any (`free_only`) none, otherwise the one with most slabs.
  SlabOffer offer(ClientId client, const std::string& home, bool free_only);
  // The offer could not be made.
  void withdraw(ClientId client, SegmentId segment);
  // Free slabs begin to close: those of other homes than `home`, up to `most` bytes, ...
  std::vector<SlabClosing> close_others(const std::string& home, Bytes most);
  // ... or those that have been free since before `since`.
  std::vector<SlabClosing> close_idle(Time since);
  // Slabs that are closing and that nobody has any more. They are forgotten by that.
  std::vector<SlabRange> take_closed();

  // --- clients that are gone
  std::vector<SlabClosing> leave(ClientId client, int pid, Time now);
  // Processes of clients that are gone, while they may have slabs; and that one has ended.
  std::set<int> orphans() const;
  void process_ended(int pid);
  // Segments that such processes may have; and slabs that none of these processes has any more.
  std::vector<SegmentId> orphaned_segments() const;
  void let_go(SegmentId segment, Slabs slabs);
  // A process that lives on has unmapped the slabs that its client did not own, when the client
  // left before `since`.
  void forget_unmapping(Time since);

  // --- sums
  // 0 when there is no such segment.
  Bytes size_of(SegmentId segment, Slabs slabs) const;
  Bytes owned_by(ClientId client) const;
  // Slabs that the client has mapped, or is mapping, and does not own.
  Bytes spare_of(ClientId client, const std::string& home) const;
  Bytes unowned() const { return unowned_; }  // free or closing, but for what dead clients owned
  const std::map<int, Bytes>& held_by_orphans() const { return orphaned_; }
  bool empty() const { return segments_.empty(); }

 private:
  struct Member {
    Slabs owned = 0;
    Slabs told = 0;     // may be mapped there: the client has not answered yet
    Slabs mapped = 0;   // by its own word
    Slabs closing = 0;  // it has not said yet that these are unmapped
  };
  // The process of a client that is gone. Slabs that it may have are not released.
  struct Orphan {
    Slabs owned = 0;      // by the client: these are closing, and count for the process
    Slabs unmapping = 0;  // the client had these mapped: its process may still have them pinned
    Time since{};
    Slabs all() const { return owned | unmapping; }
  };
  struct Segment {
    std::string home;
    Bytes bytes{};
    Slabs free = 0;
    Time free_since{};
    Slabs closing = 0;
    std::map<ClientId, Member> members;
    std::map<int, Orphan> orphans;  // by process
  };

  static Bytes bytes_of(const Segment& segment, Slabs slabs);
  Member* find(ClientId client, SegmentId segment);
  void close(SegmentId id, Segment& segment, Slabs slabs, std::vector<SlabClosing>& tell);
  static Slabs orphaned(const Segment& segment);
  void drop_orphan(Segment& segment, int pid, Slabs slabs);

  std::map<SegmentId, Segment> segments_;
  std::map<ClientId, Bytes> owned_;
  std::map<int, Bytes> orphaned_;
  Bytes unowned_{};
};

}  // namespace nvshare::daemon
