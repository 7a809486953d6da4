#include "interposer/moving/swap/move.h"

// Out: what has changed since the host last saw it is copied there; then the memory is unmapped. At
// every step that fails the chunk is still where it was, and what it was.
namespace nvshare::interposer::moving::swap {
namespace {

constexpr uint64_t kLarge = uint64_t{32} << 20;
constexpr uint64_t kPatience = 30'000'000'000;      // with host memory that is on its way
constexpr uint64_t kShortPatience = 2'000'000'000;  // with host memory that should be
constexpr uint64_t kPage = 4096;

// --- which: with the space's mutex held

bool may_leave(const Chunk& chunk) {
  return chunk.asked > 0 && !chunk.held && lane_for(*chunk.region) != nullptr;
}

// Chooses among those that are `wanted` until there is enough, the oldest first.
template <typename Wanted>
void choose_if(Space& space, uint64_t& left, Wanted wanted) REQUIRES(space.mutex) {
  for (Chunk* chunk = space.here.first(); chunk != nullptr && left > 0;) {
    Chunk* next = chunk->after;
    if (may_leave(*chunk) && wanted(*chunk)) {
      left -= chunk->asked < left ? chunk->asked : left;
      set_where(*chunk, Where::kChosen);
    }
    chunk = next;
  }
}

// What the host probably has already costs least, and large chunks less than small ones.
void choose(Space& space, uint64_t bytes) REQUIRES(space.mutex) {
  choose_if(space, bytes, [](const Chunk& chunk) { return chunk.copy.valid; });
  choose_if(space, bytes, [](const Chunk& chunk) { return chunk.bytes >= kLarge; });
  choose_if(space, bytes, [](const Chunk&) { return true; });
}

void unchoose(Space& space) {
  const Lock lock(space.mutex);
  while (Chunk* chunk = space.chosen.last()) put_back(*chunk);
}

// What of the chunk is to be kept.
uint64_t length_of(const Chunk& chunk) {
  const Region& region = *chunk.region;
  if (!region.shared) return chunk.length;
  return (region.blocks.used_up_to() - region.address + kPage - 1) / kPage * kPage;
}

void fill(Move& move, Batch& batch) {
  Space& space = move.space;
  const Lock lock(space.mutex);
  if (space.chosen.first() == nullptr) choose(space, move.left);
  for (Chunk* chunk = space.chosen.first(); chunk != nullptr;) {
    Chunk* next = chunk->after;
    if (!may_leave(*chunk)) {
      put_back(*chunk);
    } else if (board(batch, *chunk)) {
      move.left -= chunk->asked < move.left ? chunk->asked : move.left;
      chunk->length = length_of(*chunk);
      set_where(*chunk, Where::kLeaving);
    }
    chunk = next;
  }
}

bool open_all(Move& move, Batch& batch) {
  const Timed timed(move.space.times.map);
  bool all = true;
  for (size_t n = 0; n < batch.count && all; ++n) {
    all = open_chunk(*batch.passengers[n].chunk, false);
  }
  return all;
}

// False when it may still be looking.
bool look_for_changes(Move& move, Batch& batch) {
  const Timed timed(move.space.times.hash);
  HashTask tasks[kBatch];
  Fingerprint results[kBatch];
  for (size_t n = 0; n < batch.count; ++n) {
    const Chunk& chunk = *batch.passengers[n].chunk;
    tasks[n] = {chunk.address, chunk.length};
  }
  const catching::Within within(batch.lane->context);
  if (!within) return false;
  if (!fingerprint(batch.lane->hasher, tasks, batch.count, results)) {
    return !batch.lane->hasher.busy;
  }
  for (size_t n = 0; n < batch.count; ++n) {
    batch.passengers[n].hashed = true;
    batch.passengers[n].fingerprint = results[n];
  }
  return true;
}

void next(Move& move, Batch& batch) {
  if (move.left == 0) return;
  fill(move, batch);
  if (batch.count > 0 && !(open_all(move, batch) && look_for_changes(move, batch)))
    move.failed = true;
}

// --- where to

// Host copies of chunks that are here are only there to save time: those that came last will
// probably leave last.
void drop_copies(Space& space, uint64_t bytes) {
  const Lock lock(space.mutex);
  for (Chunk* chunk = space.here.last(); chunk != nullptr; chunk = chunk->before) {
    if (arena_free(space.arena) >= bytes) return;
    if (!chunk->copy.in_doubt) arena_give(space.arena, chunk->copy);
  }
}

bool find_place(Move& move, Chunk& chunk) {
  Space& space = move.space;
  HostCopy& copy = chunk.copy;
  if (copy.pieces != nullptr && copy.bytes == chunk.length) return true;
  // Its own pieces, if they may still be written to, cannot be given away.
  if (copy.in_doubt && !wait_for_lane(*chunk.region->lane)) return false;
  arena_give(space.arena, copy);
  const Timed timed(space.times.place);
  const uint64_t begin = now_ns();
  for (;;) {
    const bool more_comes = space.arena.pending.load() > 0;
    if (arena_take(space.arena, chunk.length, copy)) return true;
    drop_copies(space, chunk.length);
    if (arena_take(space.arena, chunk.length, copy)) return true;
    // The scheduler promised enough; what it has not handed over yet it is about to, and who is
    // told of the progress takes it.
    if (now_ns() - begin > (more_comes ? kPatience : kShortPatience)) return false;
    move.report(true);
    move.wait_for_news();
    if (!move.goes_on()) return false;
  }
}

// --- how

bool is_unchanged(const Passenger& passenger) {
  const Chunk& chunk = *passenger.chunk;
  return passenger.hashed && chunk.copy.valid && chunk.copy.hashed &&
         chunk.copy.bytes == chunk.length && chunk.copy.fingerprint == passenger.fingerprint;
}

bool is_zero(const Passenger& passenger) {
  return passenger.hashed && passenger.fingerprint.any == 0;
}

// The copy is nothing. What the driver may still be writing to nobody else must get.
void abandon_copy(Move& move, Batch& batch, Chunk& chunk) {
  chunk.copy.valid = false;
  chunk.copy.in_doubt = !wait_for_lane(*batch.lane);
  if (!chunk.copy.in_doubt) arena_give(move.space.arena, chunk.copy);
}

bool begin_copy(Move& move, Batch& batch, size_t n, size_t parity) {
  Passenger& passenger = batch.passengers[n];
  Chunk& chunk = *passenger.chunk;
  const CUstream stream = copies_of(*batch.lane);
  if (stream == nullptr || !find_place(move, chunk)) return false;
  chunk.copy.valid = false;
  passenger.copied = true;
  {
    const Timed timed(move.space.times.submit);
    if (copy_out(chunk, stream) == CUDA_SUCCESS && mark_end(batch, n, parity)) return true;
  }
  abandon_copy(move, batch, chunk);
  return false;
}

void begin(Move& move, Batch& batch, size_t n, size_t parity) {
  Passenger& passenger = batch.passengers[n];
  passenger.begun =
      is_unchanged(passenger) || is_zero(passenger) || begin_copy(move, batch, n, parity);
  if (!passenger.begun) move.failed = true;
}

// All that it has is on the host now.
void settle(Move& move, Passenger& passenger) {
  Chunk& chunk = *passenger.chunk;
  chunk.content = is_zero(passenger) ? Content::kZeros : Content::kCopied;
  if (is_zero(passenger)) {
    arena_give(move.space.arena, chunk.copy);
  } else if (passenger.copied) {
    chunk.copy.valid = true;
    chunk.copy.in_doubt = false;
    chunk.copy.hashed = passenger.hashed;
    chunk.copy.fingerprint = passenger.fingerprint;
  }
}

bool reaches_the_end(Move& move, Batch& batch, Passenger& passenger) {
  if (!passenger.begun) return false;
  if (wait_for_end(move, passenger)) return true;
  abandon_copy(move, batch, *passenger.chunk);
  return false;
}

// Whether it has left, which it may also do when something has failed.
bool leave(Move& move, Batch& batch, Passenger& passenger) {
  Chunk& chunk = *passenger.chunk;
  if (!reaches_the_end(move, batch, passenger)) {
    move.failed = true;
    if (!batch.lane->hasher.busy && !chunk.copy.in_doubt) close_chunk(chunk);
    return false;
  }
  settle(move, passenger);
  const Timed timed(move.space.times.unmap);
  if (make_absent(chunk)) return true;
  move.failed = true;
  // Some of it may be gone: it is all put back, or away, whatever is left of it.
  return make_present(chunk) != CUDA_SUCCESS;
}

void finish(Move& move, Batch& batch, size_t n) {
  Passenger& passenger = batch.passengers[n];
  Chunk& chunk = *passenger.chunk;
  const bool left = leave(move, batch, passenger);
  const Lock lock(move.space.mutex);
  if (left) {
    move.count(chunk.asked, 0, passenger.copied);
    set_where(chunk, Where::kAway);
  } else {
    put_back(chunk);
  }
}

constexpr Direction kOut{next, begin, finish};

}  // namespace

bool swap_out(gate::Gate& gate, uint64_t bytes, Progress progress, void* argument) {
  const KeepErrno keep;
  Space* space = space_of(gate);
  if (space == nullptr) return true;
  const catching::Relaxed relaxed;
  tidy(*space);
  const Lock moving(space->moves);
  Move move(*space, bytes, progress, argument);
  run(move, kOut);
  unchoose(*space);
  return move.goes_on();
}

}  // namespace nvshare::interposer::moving::swap
