#include <sys/mman.h>
#include <unistd.h>

#include "interposer/gate/records.h"
#include "interposer/moving/swap/state.h"

// Host memory that several programs of a user have mapped and pinned at the same time. Its slabs
// change hands by a message alone: to unpin, clear and pin them again takes ten times as long as to
// copy to them. A slab that is not ours is hidden, so that no stray write of the program gets
// there; the GPU needs no access of the processor's.
namespace nvshare::interposer::moving::swap {
namespace {

constexpr uint64_t bit(size_t n) {
  return uint64_t{1} << n;
}

// --- with the arena's mutex held

SharedSegment* find_shared(const Arena& arena, uint64_t connection, uint64_t id)
    REQUIRES(arena.mutex) {
  for (SharedSegment* one = arena.shared; one != nullptr; one = one->next) {
    if (one->id == id && one->connection == connection && !one->forgotten) return one;
  }
  return nullptr;
}

uint64_t mapped_slabs(const SharedSegment& segment) {
  uint64_t mapped = 0;
  for (size_t n = 0; n < wire::kMostSlabs; ++n) {
    if (segment.slabs[n] != nullptr) mapped |= bit(n);
  }
  return mapped;
}

void begin_to_use(Arena& arena, Slab& slab) REQUIRES(arena.mutex) {
  hide_slab(slab, false);
  arena.bytes += slab.bytes;
  arena.extents.add_range(arena.extent_pool, reinterpret_cast<uint64_t>(slab.memory), slab.bytes);
}

// Nobody else knows of it: it is as if it had been given to us alone.
void make_private(SharedSegment& segment, size_t n) {
  segment.slabs[n]->shared = nullptr;
  segment.slabs[n] = nullptr;
  segment.owned &= ~bit(n);
}

void drop_if_empty(Arena& arena, SharedSegment* segment) REQUIRES(arena.mutex) {
  if (segment->arriving || mapped_slabs(*segment) != 0) return;
  SharedSegment** at = &arena.shared;
  while (*at != segment) at = &(*at)->next;
  *at = segment->next;
  arena.shared_pool.give(segment);
}

SwapSlabs slabs_of(const SharedSegment& segment, uint64_t slabs) {
  return {segment.connection, segment.id, slabs, swap_slab_bytes(segment.bytes, slabs)};
}

// --- without

void tell(Space& space, SlabNews news, const SwapSlabs& which) {
  SwapTellSlabs tell = nullptr;
  {
    const Lock lock(space.arena.mutex);
    tell = space.arena.tell_slabs;
  }
  const bool says_nothing = which.slabs == 0 && news != SlabNews::kTaken;
  if (tell != nullptr && !says_nothing) tell(*space.gate, news, which);
}

void return_if_there_is_any(Space& space) {
  {
    const Lock lock(space.arena.mutex);
    if (!arena_returns(space.arena)) return;
  }
  arena_start_returning(space);
}

Slab* next_closing(Arena& arena) {
  const Lock lock(arena.mutex);
  for (SharedSegment* segment = arena.shared; segment != nullptr; segment = segment->next) {
    if (segment->arriving) continue;
    for (size_t n = 0; n < wire::kMostSlabs; ++n) {
      if ((segment->closing & bit(n)) != 0 && segment->slabs[n] != nullptr)
        return segment->slabs[n];
    }
  }
  return nullptr;
}

}  // namespace

uint64_t swap_slab_bytes(uint64_t segment_bytes, uint64_t slabs) {
  uint64_t sum = 0;
  for (uint64_t n = 0; n < wire::kMostSlabs && n * kSlabBytes < segment_bytes; ++n) {
    const uint64_t left = segment_bytes - n * kSlabBytes;
    if ((slabs & bit(n)) != 0) sum += left < kSlabBytes ? left : kSlabBytes;
  }
  return sum;
}

void hide_slab(const Slab& slab, bool hide) {
  const KeepErrno keep;
  mprotect(slab.memory, slab.bytes, hide ? PROT_NONE : PROT_READ | PROT_WRITE);
}

bool has_closing(const Arena& arena) {
  for (const SharedSegment* one = arena.shared; one != nullptr; one = one->next) {
    if (!one->arriving && (one->closing & mapped_slabs(*one)) != 0) return true;
  }
  return false;
}

// --- a segment arrives -------------------------------------------------------------------------

void swap_add_shared(gate::Gate& gate, int descriptor, const SwapSharedSegment& about,
                     SwapTellUntaken tell_untaken, SwapTellMissing tell_missing,
                     SwapTellSlabs tell_slabs) {
  const KeepErrno keep;
  Space* space = make_space(gate);
  auto* segment = static_cast<Segment*>(map_memory(sizeof(Segment)));
  SharedSegment* shared = nullptr;
  if (space != nullptr && segment != nullptr) {
    const Lock lock(space->arena.mutex);
    space->arena.tell_untaken = tell_untaken;
    space->arena.tell_slabs = tell_slabs;
    shared = space->arena.shared_pool.take();
    if (shared != nullptr) {
      shared->connection = about.connection;
      shared->id = about.id;
      shared->bytes = about.bytes;
      shared->owned = about.owned;
      shared->pending = about.there;
      shared->next = space->arena.shared;
      space->arena.shared = shared;
    }
  }
  if (shared == nullptr) {
    if (segment != nullptr) unmap_memory(segment, sizeof(Segment));
    if (descriptor >= 0) close(descriptor);
    const uint64_t bytes = swap_slab_bytes(about.bytes, about.owned);
    tell_slabs(gate, SlabNews::kTaken, {about.connection, about.id, 0, 0});
    if (about.owned == 0) return;
    tell_slabs(gate, SlabNews::kMissing, {about.connection, about.id, about.owned, bytes});
    return;
  }
  *segment = {descriptor, about.bytes, tell_missing, shared, nullptr};
  arena_note_untaken(*space, swap_slab_bytes(about.bytes, about.owned), 0);
  arena_add_segment(*space, *segment);
}

bool shared_is_wanted(Arena& arena, SharedSegment& segment, size_t n) {
  const Lock lock(arena.mutex);
  const uint64_t gone = segment.forgotten ? ~segment.owned : segment.closing;
  const uint64_t wanted = segment.pending & ~gone & bit(n);
  segment.pending &= wanted | ~bit(n);
  return wanted != 0;
}

bool shared_is_mapped(Arena& arena, SharedSegment& segment, size_t n, Slab* slab) {
  const Lock lock(arena.mutex);
  segment.pending &= ~bit(n);
  const bool ours = (segment.owned & bit(n)) != 0;
  if (slab == nullptr) return ours;
  segment.slabs[n] = slab;
  if (ours) {
    begin_to_use(arena, *slab);
    if (segment.forgotten) make_private(segment, n);
  } else {
    hide_slab(*slab, true);
    if (segment.forgotten) segment.closing |= bit(n);
  }
  return ours;
}

void shared_is_taken(Space& space, SharedSegment& segment, bool mapped_any) {
  Arena& arena = space.arena;
  SwapSlabs taken;
  SwapSlabs missing;
  SwapSlabs closed;
  {
    const Lock lock(arena.mutex);
    segment.pending = 0;
    const uint64_t mapped = mapped_slabs(segment);
    taken = slabs_of(segment, mapped);
    missing = slabs_of(segment, segment.owned & ~mapped);
    closed = slabs_of(segment, segment.closing & ~mapped);
    segment.owned &= mapped;
    segment.closing &= mapped;
  }
  if (!mapped_any) arena_note_untaken(space, 0, missing.bytes);
  if (missing.slabs != 0) arena_warn_missing();
  tell(space, SlabNews::kTaken, taken);
  tell(space, SlabNews::kMissing, missing);
  tell(space, SlabNews::kClosed, closed);
  {
    // Slabs are closed from now on, because the scheduler does not expect closed slabs in kTaken.
    const Lock lock(arena.mutex);
    segment.arriving = false;
    drop_if_empty(arena, &segment);
  }
  return_if_there_is_any(space);
}

// --- slabs change hands ------------------------------------------------------------------------

uint64_t swap_slabs_given(gate::Gate& gate, uint64_t connection, uint64_t id, uint64_t slabs) {
  Space* space = space_of(gate);
  if (space == nullptr) return 0;
  Arena& arena = space->arena;
  SwapSlabs missing{connection, id, slabs, 0};
  uint64_t bytes = 0;
  uint64_t later = 0;
  {
    const Lock lock(arena.mutex);
    if (SharedSegment* segment = find_shared(arena, connection, id)) {
      const uint64_t mapped = mapped_slabs(*segment) & slabs;
      later = swap_slab_bytes(segment->bytes, segment->pending & slabs);
      bytes = swap_slab_bytes(segment->bytes, slabs);
      missing = slabs_of(*segment, slabs & ~mapped & ~segment->pending);
      segment->owned |= slabs & (mapped | segment->pending);
      for (size_t n = 0; n < wire::kMostSlabs; ++n) {
        if ((mapped & bit(n)) != 0) begin_to_use(arena, *segment->slabs[n]);
      }
    }
  }
  if (later > 0) arena_note_untaken(*space, later, 0);
  tell(*space, SlabNews::kMissing, missing);
  return bytes;
}

// All that can go of one segment goes together.
bool pass_slabs(Space& space) {
  Arena& arena = space.arena;
  SwapSlabs passed;
  {
    const Lock pinning(arena.pinning);
    const Lock lock(arena.mutex);
    SharedSegment* of = nullptr;
    for (Slab* slab = arena.slabs; slab != nullptr; slab = slab->next) {
      if (slab->shared == nullptr || (of != nullptr && slab->shared != of)) continue;
      if (!arena_can_spare(arena, *slab)) continue;
      const auto address = reinterpret_cast<uint64_t>(slab->memory);
      if (!arena.extents.remove_free_range(arena.extent_pool, address, slab->bytes)) continue;
      of = slab->shared;
      arena.bytes -= slab->bytes;
      of->owned &= ~bit(slab->index);
      hide_slab(*slab, true);
      passed.slabs |= bit(slab->index);
    }
    if (of == nullptr) return false;
    passed = slabs_of(*of, passed.slabs);
  }
  tell(space, SlabNews::kPassed, passed);
  return true;
}

// --- slabs go ----------------------------------------------------------------------------------

void swap_slabs_close(gate::Gate& gate, uint64_t connection, uint64_t id, uint64_t slabs) {
  Space* space = space_of(gate);
  if (space == nullptr) return;
  SwapSlabs closed{connection, id, slabs, 0};
  {
    const Lock lock(space->arena.mutex);
    if (SharedSegment* segment = find_shared(space->arena, connection, id)) {
      segment->closing |= slabs & ~segment->owned;
      closed.slabs = slabs & ~segment->owned & ~segment->pending & ~mapped_slabs(*segment);
      segment->closing &= ~closed.slabs;
    }
  }
  tell(*space, SlabNews::kClosed, closed);
  return_if_there_is_any(*space);
}

bool close_slab(Space& space) {
  Arena& arena = space.arena;
  SwapSlabs closed;
  {
    const Lock pinning(arena.pinning);
    Slab* slab = gate::stopped_looking() ? nullptr : next_closing(arena);
    if (slab == nullptr) return false;
    const bool gone = unpin_slab(*slab) && munmap(slab->memory, slab->bytes) == 0;
    const Lock lock(arena.mutex);
    SharedSegment* segment = slab->shared;
    segment->closing &= ~bit(slab->index);
    if (!gone) return true;  // it stays until the process ends
    closed = slabs_of(*segment, bit(slab->index));
    segment->slabs[slab->index] = nullptr;
    slab->pinned_in = nullptr;
    slab->memory = nullptr;
    slab->shared = nullptr;
    drop_if_empty(arena, segment);
  }
  tell(space, SlabNews::kClosed, closed);
  return true;
}

void swap_forget_shared(gate::Gate& gate) {
  Space* space = space_of(gate);
  if (space == nullptr) return;
  {
    const Lock lock(space->arena.mutex);
    for (SharedSegment* one = space->arena.shared; one != nullptr;) {
      SharedSegment* next = one->next;
      one->forgotten = true;
      for (size_t n = 0; n < wire::kMostSlabs; ++n) {
        if (one->slabs[n] == nullptr) continue;
        if ((one->owned & bit(n)) != 0) {
          make_private(*one, n);
        } else {
          one->closing |= bit(n);
        }
      }
      drop_if_empty(space->arena, one);
      one = next;
    }
  }
  return_if_there_is_any(*space);
}

}  // namespace nvshare::interposer::moving::swap
