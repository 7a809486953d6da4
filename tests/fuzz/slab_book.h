#pragma once

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/broker/host_arena.h"
#include "wire/messages.h"

namespace nvshare::daemon {

inline void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

// Slabs that a process has emptied after its client left.
inline Slabs emptied(SegmentId segment) {
  return segment;
}

// Shared slabs, as the clients know of them.
class SlabBook {
 public:
  struct Known {
    Slabs owned = 0;
    Slabs told = 0;  // the client has not answered yet
    Slabs mapped = 0;
    Slabs closing = 0;
  };
  struct Segment {
    Bytes bytes{};
    Slabs there = 0;
  };

  void hear(ClientId client, const wire::Header* header) {
    if (const auto* shared = wire::as<wire::ArenaShared>(header)) {
      must(!of[client].contains(shared->segment), "one offer of a segment to a client");
      if (!segments.contains(shared->segment)) {
        segments[shared->segment] = {Bytes{static_cast<std::int64_t>(shared->bytes)},
                                     shared->owned};
      }
      const Slabs there = segments[shared->segment].there;
      must((shared->there & ~there) == 0 && (shared->owned & ~shared->there) == 0,
           "only slabs that are there are offered");
      of[client][shared->segment].told = shared->there;
      own(client, shared->segment, shared->owned);
    }
    if (const auto* yours = wire::as<wire::ArenaYours>(header)) {
      own(client, yours->segment, yours->slabs);
    }
    if (const auto* close = wire::as<wire::ArenaClose>(header)) {
      Known& known = of[client][close->segment];
      must((close->slabs & known.owned) == 0, "a client keeps the slabs that it owns");
      must((close->slabs & ~(known.told | known.mapped)) == 0, "a client closes what it has");
      known.told &= ~close->slabs;
      known.mapped &= ~close->slabs;
      known.closing |= close->slabs;
    }
  }
  void own(ClientId client, SegmentId segment, Slabs slabs) {
    for (const auto& [other, book] : of) {
      const auto at = book.find(segment);
      must(at == book.end() || (at->second.owned & slabs) == 0, "a slab has one owner");
    }
    Known& known = of[client][segment];
    must((slabs & ~(known.told | known.mapped)) == 0, "a client owns what it was offered");
    known.owned |= slabs;
  }

  // What cannot be changes nothing: the client is disconnected.
  void say(ClientId client, const wire::Header* header) {
    if (const auto* taken = wire::as<wire::ArenaTaken>(header)) {
      Known unknown;
      Known& known = find(client, taken->segment, unknown);
      if ((taken->slabs & ~(known.told | known.closing)) != 0) return;
      known.mapped |= known.told & taken->slabs;
      known.told = 0;
    }
    if (const auto* passed = wire::as<wire::ArenaPassed>(header)) {
      Known unknown;
      Known& known = find(client, passed->segment, unknown);
      if ((passed->slabs & ~known.owned) == 0) known.owned &= ~passed->slabs;
    }
    if (const auto* closed = wire::as<wire::ArenaClosed>(header)) {
      Known unknown;
      Known& known = find(client, closed->segment, unknown);
      if ((closed->slabs & ~known.closing) == 0) known.closing &= ~closed->slabs;
    }
  }
  Known& find(ClientId client, SegmentId segment, Known& otherwise) {
    const auto at = of[client].find(segment);
    return at == of[client].end() ? otherwise : at->second;
  }
  void leave(ClientId client, int pid) {
    for (const auto& [segment, known] : of[client]) {
      orphans[pid][segment] = known.owned & ~emptied(segment);
    }
    of.erase(client);
  }

  void release(SegmentId id, Slabs slabs) {
    Segment& segment = segments.at(id);
    must((slabs & ~segment.there) == 0, "a slab goes once");
    segment.there &= ~slabs;
    for (auto& [client, book] : of) {
      const auto at = book.find(id);
      if (at == book.end()) continue;
      const Known& known = at->second;
      must((slabs & (known.owned | known.told | known.mapped | known.closing)) == 0,
           "a slab stays while a client has it");
    }
    for (auto& [pid, book] : orphans) must((book[id] & slabs) == 0, "or a process");
  }
  Bytes there() const {
    Bytes sum{};
    for (const auto& [id, segment] : segments) {
      for (Slabs left = segment.there; left != 0; left &= left - 1) {
        const Bytes before = kSlab * std::countr_zero(left);
        sum += std::min(kSlab, segment.bytes - before);
      }
    }
    return sum;
  }

  static constexpr Bytes kSlab{static_cast<std::int64_t>(wire::kSlabBytes)};
  std::map<SegmentId, Segment> segments;
  std::map<ClientId, std::map<SegmentId, Known>> of;
  std::map<int, std::map<SegmentId, Slabs>> orphans;  // of processes that live on
};

// Host memory that is there at the next turn, or is not.
class Pieces final : public HostArena {
 public:
  explicit Pieces(SlabBook& book) : slabs(book) {}
  Bytes most() const override { return limit; }
  std::string_view limited_by() const override { return "arena_limit"; }
  const std::map<int, Bytes>& held() const override { return held_by; }
  void make(ClientId client, Bytes bytes) override {
    for (; bytes > Bytes{}; bytes -= std::min(bytes, gib(1))) {
      wanted.emplace_back(client, std::min(bytes, gib(1)));
    }
  }
  void share(SegmentId) override {}
  UniqueFd reopen(SegmentId segment) override {
    return segment % 8 == 0 ? UniqueFd() : UniqueFd(dup(2));
  }
  void release(SegmentId segment, Slabs gone) override { slabs.release(segment, gone); }
  bool lives(int pid) override { return slabs.orphans.contains(pid); }
  Slabs let_go(SegmentId segment) override { return emptied(segment); }

  SlabBook& slabs;
  Bytes limit = gib(16);
  std::map<int, Bytes> held_by;
  std::vector<std::pair<ClientId, Bytes>> wanted;
};

}  // namespace nvshare::daemon
