// Host memory that clients of one home share: slabs pass from one to the other.

#include <fmt/format.h>

#include <algorithm>

#include "daemon/broker/places.h"

namespace nvshare::daemon {
namespace {

// At once: a client whose socket is full is taken for one that does not read.
constexpr int kMostOffers = 16;

template <typename Message>
Message slab_message(SegmentId segment, Slabs slabs) {
  auto message = wire::make<Message>();
  message.segment = segment;
  message.slabs = slabs;
  return message;
}

}  // namespace

// Programs of another user or container must never see what a program had.
bool Places::shares(const ClientRecord& client) {
  return !client.home.empty() && client.pid > 0 && client.minor >= wire::kMinorSharedArena;
}

void Places::hand_over_shared(ClientRecord& client, SegmentId segment, Bytes bytes,
                              int descriptor) {
  arena_->share(segment);
  auto message = wire::make<wire::ArenaShared>();
  message.segment = segment;
  message.bytes = static_cast<std::uint64_t>(bytes.count);
  message.owned = message.there = shared_.add(segment, client.home, bytes, client.id);
  outbox_.hand_over(client.id, message.header, descriptor);
}

// Until the client has `need`, or nothing of its home is free. What it has not mapped yet is like
// memory that was just handed over.
Bytes Places::give_shared(ClientRecord& client, Bytes need, Time now) {
  if (!shares(client) || client.arena.wait != Duration{}) return {};
  Bytes sum{};
  do {
    const auto given = shared_.give(client.id, client.home, need - client.arena.made);
    for (const SlabRange& range : given) {
      if (client.arena.told) tell_need(client, *client.arena.told + range.bytes);
      due_.rooms = true;
      client.arena.given += range.bytes;
      client.arena.made += range.bytes;
      sum += range.bytes;
      if (range.mapped < range.bytes) client.arena.handed_over.push_back({now, range.bytes});
      const auto yours = slab_message<wire::ArenaYours>(range.segment, range.slabs);
      outbox_.send(client.id, yours.header);
    }
  } while (need > client.arena.made && offer_shared(client, true));
  return sum;
}

// False when there is no segment that it could be offered.
bool Places::offer_shared(ClientRecord& client, bool free_only) {
  const SlabOffer offer = shared_.offer(client.id, client.home, free_only);
  if (offer.segment == 0) return false;
  const UniqueFd descriptor = arena_->reopen(offer.segment);
  if (!descriptor) {
    shared_.withdraw(client.id, offer.segment);
    return true;
  }
  auto message = wire::make<wire::ArenaShared>();
  message.segment = offer.segment;
  message.bytes = static_cast<std::uint64_t>(offer.bytes.count);
  message.there = offer.there;
  outbox_.hand_over(client.id, message.header, descriptor.get());
  return true;
}

// The client will need more than the machine has for it: it maps and pins what others of its home
// have now, so that their slabs need only be passed to it.
void Places::offer_ahead(ClientRecord& client, Bytes need) {
  if (!shares(client) || client.arena.wait != Duration{} || need <= client.arena.made) return;
  for (int offers = 0; offers < kMostOffers; ++offers) {
    const Bytes spare = shared_.spare_of(client.id, client.home);
    if (need <= client.arena.made + spare || !offer_shared(client, false)) return;
  }
}

void Places::take(ClientRecord& client, const wire::ArenaTaken& message, Time) {
  if (!shared_.taken(client.id, message.segment, message.slabs)) {
    disconnect(client,
               fmt::format("mapped host memory {} that it was not told of", message.segment));
  }
}

void Places::take(ClientRecord& client, const wire::ArenaPassed& message, Time now) {
  const Bytes asked = message.missing != 0 ? client.arena.given : client.arena.returnable;
  const Bytes most = std::min(client.arena.given, asked);
  if (shared_.size_of(message.segment, message.slabs) > most) {
    return disconnect(client, "passed more host memory on than it was asked for");
  }
  const Bytes bytes = shared_.pass(client.id, message.segment, message.slabs, now);
  if (bytes == Bytes{}) {
    return disconnect(client, fmt::format("passed slabs of host memory {} on that are not its own",
                                          message.segment));
  }
  lose(client, bytes);
  if (message.missing != 0) return miss(client, bytes, now);
  client.arena.returnable -= bytes;
  note(client, "host_memory_passed", {{"bytes", bytes.count}, {"left", client.arena.given.count}});
  fill(now);
}

void Places::take(ClientRecord& client, const wire::ArenaClosed& message, Time now) {
  if (!shared_.closed(client.id, message.segment, message.slabs)) {
    return disconnect(
        client, fmt::format("unmapped host memory {} that it was not told to", message.segment));
  }
  release_closed();
  fill(now);
}

// Free slabs go back to the machine after a while; those of a client that is gone, once its process
// has ended.
void Places::tidy_shared(Time now) {
  if (shared_.empty()) return;
  for (const int pid : shared_.orphans()) {
    if (!arena_->lives(pid)) shared_.process_ended(pid);
  }
  for (const SegmentId segment : shared_.orphaned_segments()) {
    shared_.let_go(segment, arena_->let_go(segment));
  }
  shared_.forget_unmapping(now - kLingers);
  close_shared(shared_.close_idle(now - kLingers));
}

void Places::close_shared(const std::vector<SlabClosing>& closing) {
  for (const SlabClosing& one : closing) {
    outbox_.send(one.client, slab_message<wire::ArenaClose>(one.segment, one.slabs).header);
  }
  if (!shared_.empty()) release_closed();
}

void Places::release_closed() {
  for (const SlabRange& range : shared_.take_closed()) {
    due_.rooms = true;
    arena_->release(range.segment, range.slabs);
  }
}

}  // namespace nvshare::daemon
