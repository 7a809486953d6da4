#include <errno.h>
#include <sys/mman.h>

#include "interposer/gate/records.h"
#include "interposer/moving/swap/state.h"

// Host memory that is not needed any more goes back, a slab at a time. Unpinning takes long and
// keeps the program from the GPU (measured: seven percent of its time, when it was done without
// haste but steadily), so a thread of its own does it, and while the program runs it rests most of
// the time.
namespace nvshare::interposer::moving::swap {
namespace {

constexpr uint64_t kRests = 9;                 // times as long as it works
constexpr uint64_t kLongestRest = 50'000'000;  // what takes longer has waited for others itself

// --- with the arena's mutex held

// There may be a little more than enough: only whole slabs go.
bool is_too_much(const Arena& arena) REQUIRES(arena.mutex) {
  if (!arena.enough_known || arena.bytes <= arena.enough) return false;
  for (const Slab* slab = arena.slabs; slab != nullptr; slab = slab->next) {
    if (arena_can_spare(arena, *slab)) return true;
  }
  return false;
}

// --- without

// One of ours alone that holds nothing and is not needed: from now on nobody gets any of it. Null
// when there is none.
Slab* take_idle_slab(Arena& arena) {
  const Lock lock(arena.mutex);
  for (Slab* slab = arena.slabs; slab != nullptr; slab = slab->next) {
    if (slab->shared != nullptr || !arena_can_spare(arena, *slab)) continue;
    const auto address = reinterpret_cast<uint64_t>(slab->memory);
    if (!arena.extents.remove_free_range(arena.extent_pool, address, slab->bytes)) continue;
    arena.bytes -= slab->bytes;
    return slab;
  }
  return nullptr;
}

// It stays after all.
void put_back(Arena& arena, Slab& slab, bool pinned) {
  const Lock lock(arena.mutex);
  if (!pinned) slab.pinned_in = nullptr;
  arena.bytes += slab.bytes;
  arena.extents.add_range(arena.extent_pool, reinterpret_cast<uint64_t>(slab.memory), slab.bytes);
}

// How much was given back; 0 when there is nothing to give.
uint64_t return_one(Arena& arena) {
  const Lock pinning(arena.pinning);
  Slab* slab = gate::stopped_looking() ? nullptr : take_idle_slab(arena);
  if (slab == nullptr) return 0;
  if (!unpin_slab(*slab)) {
    put_back(arena, *slab, true);
    return 0;
  }
  if (!unmap_slab(slab->memory, slab->bytes)) {
    put_back(arena, *slab, false);
    return 0;
  }
  const Lock lock(arena.mutex);
  slab->pinned_in = nullptr;
  slab->memory = nullptr;
  return slab->bytes;
}

bool has_too_much(Arena& arena) {
  const Lock lock(arena.mutex);
  return is_too_much(arena);
}

// What the host still has of chunks that are on the GPU only saves time when they leave. Of the
// next one that has any; false when none has.
bool drop_a_copy(Space& space) {
  const Lock lock(space.mutex);
  for (Chunk* chunk = space.here.last(); chunk != nullptr; chunk = chunk->before) {
    if (chunk->copy.pieces == nullptr || chunk->copy.in_doubt) continue;
    arena_give(space.arena, chunk->copy);
    return true;
  }
  return false;
}

// The last look, and that this thread is no more, are one: whoever wants more given back after it
// starts another.
bool has_ended(Arena& arena, bool nothing_left) {
  const Lock lock(arena.mutex);
  if (has_closing(arena) && !gate::stopped_looking()) return false;
  if (!nothing_left && is_too_much(arena)) return false;
  arena.returning = false;
  return true;
}

// What was unpinned has kept the program from the GPU.
void rest_since(const Space& space, uint64_t begin) {
  const uint64_t rest = (now_ns() - begin) * kRests;
  if (space.gate->state.load() != gate::kClosed)
    sleep_ns(rest < kLongestRest ? rest : kLongestRest);
}

void* give_back(void* argument) {
  Space& space = *static_cast<Space*>(argument);
  Arena& arena = space.arena;
  for (bool nothing_left = false; !has_ended(arena, nothing_left);) {
    const uint64_t begin = now_ns();
    if (!gate::stopped_looking() && pass_slabs(space)) continue;
    if (close_slab(space)) {
      rest_since(space, begin);
      continue;
    }
    const uint64_t bytes = return_one(arena);
    if (bytes == 0) {
      nothing_left = !has_too_much(arena) || gate::stopped_looking() || !drop_a_copy(space);
      continue;
    }
    SwapTellReturned tell;
    {
      const Lock lock(arena.mutex);
      tell = arena.tell_returned;
    }
    if (tell != nullptr) tell(*space.gate, bytes);
    rest_since(space, begin);
  }
  arena.preparing.fetch_sub(1);
  return nullptr;
}

}  // namespace

bool unmap_slab(char* memory, uint64_t bytes) {
  const KeepErrno keep;
  return madvise(memory, bytes, MADV_REMOVE) == 0 && munmap(memory, bytes) == 0;
}

bool arena_can_spare(const Arena& arena, const Slab& slab) {
  return slab.memory != nullptr && is_owned(slab) && arena.enough_known &&
         arena.bytes - slab.bytes >= arena.enough;
}

bool unpin_slab(const Slab& slab) {
  if (slab.pinned_in == nullptr) return true;
  const catching::Relaxed relaxed;
  const catching::Within within(slab.pinned_in);
  return within &&
         real<FunctionId::cuMemHostUnregister>(static_cast<void*>(slab.memory)) == CUDA_SUCCESS;
}

bool arena_has_any(Arena& arena) {
  const Lock lock(arena.mutex);
  return arena.bytes > 0 || arena.shared != nullptr;
}

bool arena_returns(Arena& arena) {
  if (arena.returning || !(is_too_much(arena) || has_closing(arena))) return false;
  arena.returning = true;
  return true;
}

void arena_start_returning(Space& space) {
  Arena& arena = space.arena;
  arena.preparing.fetch_add(1);
  if (start_thread(give_back, &space, "nvshare-arena")) return;
  arena.preparing.fetch_sub(1);
  const Lock lock(arena.mutex);
  arena.returning = false;
}

void swap_arena_need(gate::Gate& gate, uint64_t enough, SwapTellReturned tell) {
  Space* space = space_of(gate);
  if (space == nullptr) return;
  Arena& arena = space->arena;
  {
    const Lock lock(arena.mutex);
    arena.enough_known = true;
    arena.enough = enough;
    if (tell != nullptr) arena.tell_returned = tell;
    if (!arena_returns(arena)) return;
  }
  arena_start_returning(*space);
}

}  // namespace nvshare::interposer::moving::swap
