#include "interposer/moving/swap/arena.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "interposer/moving/swap/state.h"

namespace nvshare::interposer::moving::swap {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers do not have

// Asks the kernel for the pages, a little at a time: while it makes them, what changes the address
// space must wait, and what waits behind that, such as pinning, keeps the program from the GPU. A
// kernel that cannot be asked lets them come when they are pinned; to write to them here would end
// the process if there were none.
bool populate(char* memory, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kHugePage) {
    const uint64_t step = bytes - at < kHugePage ? bytes - at : kHugePage;
    if (madvise(memory + at, step, kPopulateWrite) != 0) return errno == EINVAL;
  }
  return true;
}

// --- segments

char* map_segment(const Segment& segment) {
  // Not by fstat, which old C libraries do not have.
  const off_t size = lseek(segment.descriptor, 0, SEEK_END);
  if (size < 0 || static_cast<uint64_t>(size) < segment.bytes) return nullptr;
  void* memory =
      mmap(nullptr, segment.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment.descriptor, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, segment.bytes, MADV_HUGEPAGE);
  madvise(memory, segment.bytes, MADV_DONTFORK);
  return static_cast<char*>(memory);
}

// Known before it is pinned, so that it is unpinned with its context; used afterwards.
Slab* list_slab(Arena& arena, char* memory, uint64_t bytes, SharedSegment* shared, size_t index) {
  const Lock lock(arena.mutex);
  Slab* slab = arena.slabs;
  while (slab != nullptr && slab->memory != nullptr) slab = slab->next;
  if (slab == nullptr) {
    slab = arena.slab_pool.take();
    if (slab == nullptr) return nullptr;
    slab->next = arena.slabs;
    arena.slabs = slab;
  }
  slab->memory = memory;
  slab->bytes = bytes;
  slab->shared = shared;
  slab->index = static_cast<uint32_t>(index);
  if (shared == nullptr) arena.bytes += bytes;
  return slab;
}

// What others may have is not given back to the machine.
void unmap_unused(char* memory, uint64_t bytes, const SharedSegment* shared) {
  if (shared == nullptr) {
    unmap_slab(memory, bytes);
  } else {
    munmap(memory, bytes);
  }
}

struct NewSlab {
  bool there = false;  // otherwise it cannot be used, and is not mapped any more
  bool ours = true;
};

NewSlab add_slab(Space& space, char* memory, uint64_t bytes, SharedSegment* shared, size_t n) {
  Arena& arena = space.arena;
  if (shared != nullptr && !shared_is_wanted(arena, *shared, n)) {
    munmap(memory, bytes);
    return {true, false};
  }
  Slab* slab = populate(memory, bytes) ? list_slab(arena, memory, bytes, shared, n) : nullptr;
  if (slab == nullptr) {
    unmap_unused(memory, bytes, shared);
    return {false, shared == nullptr || shared_is_mapped(arena, *shared, n, nullptr)};
  }
  arena_pin(space, *slab);
  if (shared != nullptr) return {true, shared_is_mapped(arena, *shared, n, slab)};
  const Lock lock(arena.mutex);
  arena.extents.add_range(arena.extent_pool, reinterpret_cast<uint64_t>(memory), bytes);
  return {true, true};
}

// Pinning keeps the program from the GPU: while it runs, and unless somebody waits for the memory,
// the program gets some time in between. Answers how much cannot be used.
uint64_t add_slabs(Space& space, char* memory, const Segment& segment) {
  uint64_t missing = 0;
  const uint64_t bytes = segment.bytes;
  for (uint64_t at = 0; at < bytes; at += kSlabBytes) {
    const uint64_t begin = now_ns();
    const uint64_t slab = bytes - at < kSlabBytes ? bytes - at : kSlabBytes;
    const NewSlab added = add_slab(space, memory + at, slab, segment.shared, at / kSlabBytes);
    if (!added.there) missing += slab;
    if (added.ours) arena_note_untaken(space, 0, slab);
    const bool runs = space.gate->state.load() != gate::kClosed;
    if (runs && !space.arena.hurry.load()) sleep_ns((now_ns() - begin) / 4);
  }
  return missing;
}

// It is not to count for the program for ever.
void say_missing(gate::Gate& gate, SwapTellMissing tell, uint64_t bytes) {
  arena_warn_missing();
  if (tell != nullptr) tell(gate, bytes);
}

// It stays where it is until it is done with: a child of a fork finds its descriptor there.
Segment* next_segment(Arena& arena) {
  const Lock lock(arena.mutex);
  if (arena.incoming == nullptr) arena.taking = false;
  return arena.incoming;
}

void drop_first_segment(Arena& arena) {
  Segment* segment = nullptr;
  {
    const Lock lock(arena.mutex);
    segment = std::exchange(arena.incoming, arena.incoming->next);
  }
  unmap_memory(segment, sizeof(Segment));
}

// One thread: while it makes pages nobody pins, and waits with the driver's lock for the address
// space to be free.
void* take_segments(void* argument) {
  Space& space = *static_cast<Space*>(argument);
  while (Segment* segment = next_segment(space.arena)) {
    char* memory = map_segment(*segment);
    close(std::exchange(segment->descriptor, -1));
    SharedSegment* shared = segment->shared;
    uint64_t missing = segment->bytes;
    if (memory != nullptr) {
      missing = add_slabs(space, memory, *segment);
    } else if (shared == nullptr) {
      arena_note_untaken(space, 0, segment->bytes);
    }
    if (shared == nullptr && missing > 0) {
      say_missing(*space.gate, segment->tell_missing, missing);
    }
    drop_first_segment(space.arena);
    if (shared != nullptr) shared_is_taken(space, *shared, memory != nullptr);
    // Not only behind the last one: the card fills up meanwhile. The contexts may have changed,
    // too.
    arena_prepare_later(space);
    space.arena.pending.fetch_sub(1);
    futex_wake(space.arena.pending, kEveryone);
  }
  space.arena.preparing.fetch_sub(1);
  return nullptr;
}

// False when there is who takes them in already.
bool add_segment(Arena& arena, Segment& segment) {
  const Lock lock(arena.mutex);
  Segment** last = &arena.incoming;
  while (*last != nullptr) last = &(*last)->next;
  *last = &segment;
  arena.pending.fetch_add(1);
  return !std::exchange(arena.taking, true);
}

void give_pieces(Arena& arena, Extent* pieces) REQUIRES(arena.mutex) {
  while (pieces != nullptr) {
    Extent* next = pieces->next;
    arena.extents.give(arena.extent_pool, pieces);
    pieces = next;
  }
}

}  // namespace

bool arena_take(Arena& arena, uint64_t bytes, HostCopy& copy) {
  const Lock lock(arena.mutex);
  if (arena.extents.free_bytes() < bytes) return false;
  Extent* pieces = nullptr;
  for (uint64_t left = bytes; left > 0;) {
    const uint64_t largest = arena.extents.largest();
    Extent* piece = arena.extents.take(arena.extent_pool, largest < left ? largest : left);
    if (piece == nullptr) {
      give_pieces(arena, pieces);
      return false;
    }
    left -= piece->bytes;
    piece->next = pieces;
    pieces = piece;
  }
  copy = {};
  copy.pieces = pieces;
  copy.bytes = bytes;
  return true;
}

void arena_give(Arena& arena, HostCopy& copy) {
  if (copy.pieces != nullptr) {
    const Lock lock(arena.mutex);
    give_pieces(arena, copy.pieces);
  }
  copy = {};
}

uint64_t arena_free(Arena& arena) {
  const Lock lock(arena.mutex);
  return arena.extents.free_bytes();
}

void arena_close_incoming(const Arena& arena) {
  for (const Segment* segment = arena.incoming; segment != nullptr; segment = segment->next) {
    if (segment->descriptor >= 0) close(segment->descriptor);
  }
}

void arena_warn_missing() {
  warn_once(
      "host memory that the scheduler gave could not be mapped: this program may not be swapped "
      "out in time (is its address space limited, or are too many files open? see ulimit -a)");
}

// The scheduler sees how much is not ready to be used yet.
void arena_note_untaken(Space& space, uint64_t more, uint64_t less) {
  Arena& arena = space.arena;
  const Lock lock(arena.mutex);
  arena.untaken += more - less;
  if (arena.tell_untaken != nullptr) arena.tell_untaken(*space.gate, arena.untaken);
}

void arena_add_segment(Space& space, Segment& segment) {
  if (!add_segment(space.arena, segment)) return;
  space.arena.preparing.fetch_add(1);
  // Without a thread it is done here, however long that takes.
  if (!start_thread(take_segments, &space, "nvshare-arena")) take_segments(&space);
}

void swap_add_arena(gate::Gate& gate, int descriptor, uint64_t bytes, SwapTellUntaken tell,
                    SwapTellMissing tell_missing) {
  const KeepErrno keep;
  bytes = bytes / kPage * kPage;
  Space* space = make_space(gate);
  auto* segment = static_cast<Segment*>(map_memory(sizeof(Segment)));
  if (space == nullptr || segment == nullptr) {
    if (segment != nullptr) unmap_memory(segment, sizeof(Segment));
    close(descriptor);
    return say_missing(gate, tell_missing, bytes);
  }
  *segment = {descriptor, bytes, tell_missing, nullptr, nullptr};
  {
    const Lock lock(space->arena.mutex);
    space->arena.tell_untaken = tell;
  }
  arena_note_untaken(*space, bytes, 0);
  arena_add_segment(*space, *segment);
}

}  // namespace nvshare::interposer::moving::swap
