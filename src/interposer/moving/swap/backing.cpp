#include "interposer/moving/swap/backing.h"

// Memory that the program made itself: what it is, where it is mapped, and its end.
namespace nvshare::interposer::moving::swap {

constinit Maps g_maps{};
std::atomic<uint64_t> g_place_count{0};

Backing* find_backing(CUmemGenericAllocationHandle handle) {
  Backing wanted;
  wanted.number = handle;
  Backing* found = g_maps.backings.at_or_before(wanted);
  return found != nullptr && found->number == handle && found->references > 0 ? found : nullptr;
}

Place* first_place(CUdeviceptr address, uint64_t bytes) {
  Place wanted;
  wanted.address = address;
  Place* before = g_maps.places.at_or_before(wanted);
  if (before != nullptr && address - before->address < before->bytes) return before;
  Place* after = g_maps.places.at_or_after(wanted);
  return after != nullptr && after->address - address < bytes ? after : nullptr;
}

Place* place_after(const Place& place, CUdeviceptr end) {
  const CUdeviceptr from = place.address + place.bytes;
  return from < end ? first_place(from, end - from) : nullptr;
}

void hold(Chunk& chunk) {
  const Lock lock(chunk.region->space->mutex);
  wait_until_still(*chunk.region);
  chunk.held = true;
}

void let_go(Chunk& chunk) {
  Space& space = *chunk.region->space;
  const Lock lock(space.mutex);
  chunk.held = false;
  wake_waiters(space);
}

void Holds::add(Backing& backing) {
  if (chunk_of(backing).held) return;
  hold(chunk_of(backing));
  backing.next = first_;
  first_ = &backing;
}

void Holds::end(Backing*& gone) REQUIRES(g_maps.mutex) {
  while (Backing* one = first_) {
    first_ = one->next;
    let_go(chunk_of(*one));
    collect_if_unused(*one, gone);
  }
}

Holds::~Holds() {
  for (Backing* one = first_; one != nullptr; one = one->next) let_go(chunk_of(*one));
}

void drop_place(Place& place) {
  g_maps.places.remove(&place);
  g_place_count.fetch_sub(1);
  Place** at = &place.backing->places;
  while (*at != &place) at = &(*at)->next;
  *at = place.next;
  while (Right* right = place.rights) {
    place.rights = right->next;
    g_maps.right_pool.give(right);
  }
  g_maps.place_pool.give(&place);
}

void collect_if_unused(Backing& backing, Backing*& gone) {
  if (backing.references != 0 || backing.places != nullptr) return;
  g_maps.backings.remove(&backing);
  backing.next = gone;
  gone = &backing;
}

namespace {

// It does not count any more, and is not moved.
Freed forget(Region& region) {
  Space& space = *region.space;
  Chunk& chunk = *region.chunks;
  const Lock lock(space.mutex);
  wait_until_still(region);
  Freed freed;
  freed.ours = true;
  freed.gate = space.gate;
  const uint64_t counted = space.left ? 0 : chunk.asked;
  freed.bytes = counted;
  freed.resident = is_resident(chunk) ? counted : 0;
  freed.pinned = chunk.where == Where::kPinned ? counted : 0;
  remove_chunks(region);
  region.backing = nullptr;
  chunk.address = region.address;
  return freed;
}

}  // namespace

void release_gone(Backing* gone, SwapTellFreed tell) {
  while (gone != nullptr) {
    Backing* next = gone->next;
    Region& region = *gone->region;
    const Freed freed = forget(region);
    {
      const Lock lock(g_maps.mutex);
      g_maps.backing_pool.give(gone);
    }
    release_region(region);
    tell(freed);
    gone = next;
  }
}

void forget_backings() {
  g_maps.mutex.reset_after_fork();
  g_maps.backings = {};
  g_maps.places = {};
  g_maps.reserved = {};
  g_maps.backing_pool = {};
  g_maps.place_pool = {};
  g_maps.right_pool = {};
  g_maps.reserved_pool = {};
  g_place_count = 0;
}

}  // namespace nvshare::interposer::moving::swap
