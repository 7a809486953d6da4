#include "interposer/moving/swap/state.h"

namespace nvshare::interposer::moving::swap {

constinit PerGate<Space> g_spaces{};

namespace {

ChunkList* list_of(Space& space, Where where) {
  switch (where) {
    case Where::kHere:
      return &space.here;
    case Where::kChosen:
      return &space.chosen;
    case Where::kAway:
      return &space.away;
    case Where::kLeaving:
    case Where::kComing:
    case Where::kPinned:
      break;
  }
  return nullptr;
}

bool is_moving(Where where) {
  return where == Where::kLeaving || where == Where::kComing;
}

// What is on its way counts as being where it comes from.
uint64_t& sum_of(Space& space, Where where) {
  return where == Where::kAway || where == Where::kComing ? space.absent : space.resident;
}

void leave_list(Chunk& chunk) {
  Space& space = *chunk.region->space;
  space.mutex.is_held();
  sum_of(space, chunk.where) -= chunk.asked;
  if (ChunkList* list = list_of(space, chunk.where)) list->remove(chunk);
  if (is_moving(chunk.where)) {
    chunk.region->moving -= 1;
    wake_waiters(space);
  }
}

void enter(Chunk& chunk, Where where) {
  Space& space = *chunk.region->space;
  chunk.where = where;
  sum_of(space, where) += chunk.asked;
  if (is_moving(where)) chunk.region->moving += 1;
}

}  // namespace

Space* space_of(const gate::Gate& gate) {
  return g_spaces.of(gate);
}

Space* make_space(gate::Gate& gate) {
  return g_spaces.make(gate);
}

Allocation* find_allocation(Space& space, CUdeviceptr address) {
  Allocation wanted;
  wanted.address = address;
  Allocation* found = space.allocations.at_or_before(wanted);
  return found != nullptr && address - found->address < found->bytes ? found : nullptr;
}

void count_asked(Chunk& chunk, uint64_t bytes) {
  chunk.asked += bytes;
  sum_of(*chunk.region->space, chunk.where) += bytes;
}

void uncount_asked(Chunk& chunk, uint64_t bytes) {
  chunk.asked -= bytes;
  sum_of(*chunk.region->space, chunk.where) -= bytes;
}

void set_where(Chunk& chunk, Where where) {
  leave_list(chunk);
  enter(chunk, where);
  if (ChunkList* list = list_of(*chunk.region->space, where)) list->append(chunk);
}

void put_back(Chunk& chunk) {
  chunk.region->space->mutex.is_held();
  leave_list(chunk);
  enter(chunk, Where::kHere);
  chunk.region->space->here.prepend(chunk);
}

void add_chunks(Region& region) {
  for (Chunk* chunk = region.chunks; chunk != nullptr; chunk = chunk->sibling) {
    enter(*chunk, chunk->where);
    list_of(*region.space, chunk->where)->append(*chunk);
  }
}

void remove_chunks(Region& region) {
  for (Chunk* chunk = region.chunks; chunk != nullptr; chunk = chunk->sibling) leave_list(*chunk);
}

void wake_waiters(Space& space) {
  space.finished.fetch_add(1);
  futex_wake(space.finished, kEveryone);
}

void wait_for_change(Space& space) {
  const uint32_t seen = space.finished.load();
  space.mutex.unlock();
  futex_wait(space.finished, seen);
  space.mutex.lock();
}

void wait_until_still(Region& region) {
  region.space->mutex.is_held();
  while (region.moving > 0) wait_for_change(*region.space);
}

uint64_t swap_absent(gate::Gate& gate) {
  Space* space = space_of(gate);
  if (space == nullptr) return 0;
  const Lock lock(space->mutex);
  return space->absent;
}

uint64_t swap_resident(gate::Gate& gate) {
  Space* space = space_of(gate);
  if (space == nullptr) return 0;
  const Lock lock(space->mutex);
  return space->resident;
}

namespace {

uint64_t rounding_with(const Space& space, uint64_t bytes) REQUIRES(space.mutex) {
  if (is_small(bytes) || space.granularity == 0) return space.rounding;
  return space.rounding + round_up(bytes, space.granularity) - bytes;
}

}  // namespace

uint64_t swap_in_pages(gate::Gate& gate, uint64_t bytes) {
  Space* space = make_space(gate);
  if (space == nullptr) return bytes;
  const Lock lock(space->mutex);
  return space->resident + space->absent + rounding_with(*space, bytes) + bytes;
}

uint64_t swap_rounding(gate::Gate& gate, uint64_t bytes) {
  Space* space = space_of(gate);
  if (space == nullptr) return 0;
  const Lock lock(space->mutex);
  return rounding_with(*space, bytes);
}

bool swap_has_any(gate::Gate& gate) {
  Space* space = space_of(gate);
  if (space == nullptr) return false;
  const Lock lock(space->mutex);
  return space->resident + space->absent != 0;
}

SwapTimes swap_times(gate::Gate& gate) {
  Space* space = space_of(gate);
  if (space == nullptr) return {};
  const Lock still(space->moves);
  return space->times;
}

void swap_reset_after_fork() {
  forget_backings();
  visit_spaces([](Space& space) {
    space.arena.mutex.reset_after_fork();
    arena_close_incoming(space.arena);
    return false;
  });
  g_spaces.reset_after_fork();
}

}  // namespace nvshare::interposer::moving::swap
