#include "daemon/broker/shared_arena.h"

#include <algorithm>
#include <bit>

#include "wire/messages.h"

namespace nvshare::daemon {
namespace {

constexpr Bytes kSlab{static_cast<std::int64_t>(wire::kSlabBytes)};

int count_slabs(Bytes bytes) {
  return static_cast<int>((bytes.count + kSlab.count - 1) / kSlab.count);
}

Slabs all_slabs(Bytes bytes) {
  const int count = count_slabs(bytes);
  return count >= 64 ? ~Slabs{0} : (Slabs{1} << count) - 1;
}

}  // namespace

Bytes SharedArena::bytes_of(const Segment& segment, Slabs slabs) {
  const int last = count_slabs(segment.bytes) - 1;
  Bytes sum = kSlab * std::popcount(slabs);
  if ((slabs >> last & 1) != 0) sum -= kSlab * (last + 1) - segment.bytes;
  return sum;
}

Slabs SharedArena::orphaned(const Segment& segment) {
  Slabs all = 0;
  for (const auto& [pid, orphan] : segment.orphans) all |= orphan.all();
  return all;
}

Slabs SharedArena::add(SegmentId id, const std::string& home, Bytes bytes, ClientId owner) {
  Segment& segment = segments_[id];
  segment.home = home;
  segment.bytes = bytes;
  const Slabs all = all_slabs(bytes);
  segment.members[owner] = Member{.owned = all, .told = all};
  owned_[owner] += bytes;
  return all;
}

SharedArena::Member* SharedArena::find(ClientId client, SegmentId id) {
  const auto at = segments_.find(id);
  if (at == segments_.end()) return nullptr;
  const auto member = at->second.members.find(client);
  return member == at->second.members.end() ? nullptr : &member->second;
}

// --- what clients say --------------------------------------------------------------------------

bool SharedArena::taken(ClientId client, SegmentId id, Slabs slabs) {
  Member* member = find(client, id);
  // It may have been told to close some of them meanwhile.
  if (member == nullptr || (slabs & ~(member->told | member->closing)) != 0) return false;
  member->mapped |= slabs & member->told;
  member->told = 0;
  return true;
}

Bytes SharedArena::pass(ClientId client, SegmentId id, Slabs slabs, Time now) {
  Member* member = find(client, id);
  if (member == nullptr || slabs == 0 || (slabs & ~member->owned) != 0) return {};
  Segment& segment = segments_.at(id);
  member->owned &= ~slabs;
  if (segment.free == 0) segment.free_since = now;
  segment.free |= slabs;
  const Bytes bytes = bytes_of(segment, slabs);
  owned_[client] -= bytes;
  unowned_ += bytes;
  return bytes;
}

bool SharedArena::closed(ClientId client, SegmentId id, Slabs slabs) {
  Member* member = find(client, id);
  if (member == nullptr || (slabs & ~member->closing) != 0) return false;
  member->closing &= ~slabs;
  return true;
}

// --- free slabs --------------------------------------------------------------------------------

// Slabs that the client has mapped go before those that it is still mapping.
std::vector<SlabRange> SharedArena::give(ClientId client, const std::string& home, Bytes most) {
  std::vector<SlabRange> given;
  for (const bool mapped : {true, false}) {
    for (auto& [id, segment] : segments_) {
      if (most <= Bytes{}) return given;
      if (segment.free == 0 || segment.home != home) continue;
      const auto at = segment.members.find(client);
      if (at == segment.members.end()) continue;
      Slabs can = segment.free & (mapped ? at->second.mapped : at->second.told);
      SlabRange range{.segment = id};
      for (; can != 0 && range.bytes < most; can &= can - 1) {
        range.slabs |= can & ~(can - 1);
        range.bytes = bytes_of(segment, range.slabs);
      }
      if (range.slabs == 0) continue;
      if (mapped) range.mapped = range.bytes;
      segment.free &= ~range.slabs;
      at->second.owned |= range.slabs;
      owned_[client] += range.bytes;
      unowned_ -= range.bytes;
      most -= range.bytes;
      given.push_back(range);
    }
  }
  return given;
}

SlabOffer SharedArena::offer(ClientId client, const std::string& home, bool free_only) {
  SlabOffer best;
  int most_free = -1;
  int most = 0;
  for (const auto& [id, segment] : segments_) {
    if (segment.home != home || segment.members.contains(client)) continue;
    Slabs there = segment.free;
    for (const auto& [other, member] : segment.members) there |= member.owned;
    const int free = std::popcount(segment.free);
    if (there == 0 || (free_only && free == 0)) continue;
    if (std::pair(free, std::popcount(there)) <= std::pair(most_free, most)) continue;
    most_free = free;
    most = std::popcount(there);
    best = {id, segment.bytes, there};
  }
  if (best.segment != 0) segments_.at(best.segment).members[client].told = best.there;
  return best;
}

void SharedArena::withdraw(ClientId client, SegmentId id) {
  if (Member* member = find(client, id)) member->told = 0;
}

// Whoever may have mapped the slabs is told, and answers once they are unmapped.
void SharedArena::close(SegmentId id, Segment& segment, Slabs slabs,
                        std::vector<SlabClosing>& tell) {
  segment.free &= ~slabs;
  segment.closing |= slabs;
  for (auto& [client, member] : segment.members) {
    const Slabs has = slabs & (member.told | member.mapped);
    if (has == 0) continue;
    member.told &= ~has;
    member.mapped &= ~has;
    member.closing |= has;
    tell.push_back({client, id, has});
  }
}

std::vector<SlabClosing> SharedArena::close_others(const std::string& home, Bytes most) {
  std::vector<SlabClosing> tell;
  for (auto& [id, segment] : segments_) {
    if (segment.home == home || segment.free == 0) continue;
    Slabs slabs = 0;
    for (Slabs left = segment.free; left != 0 && most > Bytes{}; left &= left - 1) {
      slabs |= left & ~(left - 1);
      most -= kSlab;
    }
    if (slabs != 0) close(id, segment, slabs, tell);
  }
  return tell;
}

std::vector<SlabClosing> SharedArena::close_idle(Time since) {
  std::vector<SlabClosing> tell;
  for (auto& [id, segment] : segments_) {
    if (segment.free != 0 && segment.free_since <= since) close(id, segment, segment.free, tell);
  }
  return tell;
}

std::vector<SlabRange> SharedArena::take_closed() {
  std::vector<SlabRange> gone;
  for (auto at = segments_.begin(); at != segments_.end();) {
    Segment& segment = at->second;
    Slabs ready = segment.closing & ~orphaned(segment);
    Slabs owned = 0;
    for (const auto& [client, member] : segment.members) {
      ready &= ~member.closing;
      owned |= member.owned;
    }
    if (ready != 0) {
      segment.closing &= ~ready;
      const Bytes bytes = bytes_of(segment, ready);
      unowned_ -= bytes;
      gone.push_back({at->first, ready, bytes, {}});
    }
    const bool over = (owned | segment.free | segment.closing) == 0;
    at = over ? segments_.erase(at) : std::next(at);
  }
  return gone;
}

// --- clients that are gone ---------------------------------------------------------------------

std::vector<SlabClosing> SharedArena::leave(ClientId client, int pid, Time now) {
  std::vector<SlabClosing> tell;
  for (auto& [id, segment] : segments_) {
    const auto at = segment.members.find(client);
    if (at == segment.members.end()) continue;
    const Member member = at->second;
    segment.members.erase(at);
    const Slabs mapped = member.told | member.mapped | member.closing;
    if ((member.owned | mapped) == 0) continue;
    Orphan& orphan = segment.orphans[pid];
    orphan.owned |= member.owned;
    orphan.unmapping |= mapped & ~member.owned;
    orphan.since = now;
    if (member.owned == 0) continue;
    orphaned_[pid] += bytes_of(segment, member.owned);
    close(id, segment, member.owned, tell);
  }
  owned_.erase(client);
  return tell;
}

std::set<int> SharedArena::orphans() const {
  std::set<int> pids;
  for (const auto& [id, segment] : segments_) {
    for (const auto& [pid, orphan] : segment.orphans) pids.insert(pid);
  }
  return pids;
}

// Slabs that the process owned are closing like others then.
void SharedArena::drop_orphan(Segment& segment, int pid, Slabs slabs) {
  const auto at = segment.orphans.find(pid);
  if (at == segment.orphans.end()) return;
  const Bytes owned = bytes_of(segment, at->second.owned & slabs);
  unowned_ += owned;
  if (owned > Bytes{} && (orphaned_[pid] -= owned) == Bytes{}) orphaned_.erase(pid);
  at->second.owned &= ~slabs;
  at->second.unmapping &= ~slabs;
  if (at->second.all() == 0) segment.orphans.erase(at);
}

void SharedArena::process_ended(int pid) {
  for (auto& [id, segment] : segments_) drop_orphan(segment, pid, ~Slabs{0});
}

std::vector<SegmentId> SharedArena::orphaned_segments() const {
  std::vector<SegmentId> found;
  for (const auto& [id, segment] : segments_) {
    if (!segment.orphans.empty()) found.push_back(id);
  }
  return found;
}

void SharedArena::let_go(SegmentId id, Slabs slabs) {
  Segment& segment = segments_.at(id);
  const std::map<int, Orphan> orphans = segment.orphans;
  for (const auto& [pid, orphan] : orphans) drop_orphan(segment, pid, slabs);
}

void SharedArena::forget_unmapping(Time since) {
  for (auto& [id, segment] : segments_) {
    for (auto& [pid, orphan] : segment.orphans) {
      if (orphan.since <= since) orphan.unmapping = 0;
    }
    std::erase_if(segment.orphans, [](const auto& one) { return one.second.all() == 0; });
  }
}

// --- sums --------------------------------------------------------------------------------------

Bytes SharedArena::size_of(SegmentId id, Slabs slabs) const {
  const auto at = segments_.find(id);
  return at == segments_.end() ? Bytes{} : bytes_of(at->second, slabs);
}

Bytes SharedArena::owned_by(ClientId client) const {
  const auto at = owned_.find(client);
  return at == owned_.end() ? Bytes{} : at->second;
}

Bytes SharedArena::spare_of(ClientId client, const std::string& home) const {
  Bytes sum{};
  for (const auto& [id, segment] : segments_) {
    if (segment.home != home) continue;
    const auto at = segment.members.find(client);
    if (at == segment.members.end()) continue;
    const Member& member = at->second;
    sum += bytes_of(segment, (member.told | member.mapped) & ~member.owned);
  }
  return sum;
}

}  // namespace nvshare::daemon
