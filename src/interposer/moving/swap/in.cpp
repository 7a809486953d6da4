#include "interposer/moving/swap/move.h"

// In: memory is created and mapped where it was, and what the host has of it copied there. The host
// keeps its copy. At every step that fails the chunk is still away, and what it was.
namespace nvshare::interposer::moving::swap {
namespace {

void next(Move& move, Batch& batch) {
  const Lock lock(move.space.mutex);
  for (Chunk* chunk = move.space.away.first(); chunk != nullptr && batch.count < kBatch;) {
    Chunk* following = chunk->after;
    const bool may_come =
        chunk->asked > 0 && chunk->asked <= move.left && lane_for(*chunk->region) != nullptr;
    if (may_come && chunk->held) {
      move.passed_over = true;
    } else if (may_come && board(batch, *chunk)) {
      move.left -= chunk->asked;
      set_where(*chunk, Where::kComing);
    }
    chunk = following;
  }
}

CUresult begin_content(Passenger& passenger, CUstream stream) {
  const Chunk& chunk = *passenger.chunk;
  if (chunk.content == Content::kZeros) {
    return real<FunctionId::cuMemsetD8Async>(chunk.address, static_cast<unsigned char>(0),
                                             chunk.length, stream);
  }
  passenger.copied = true;
  return copy_in(chunk, stream);
}

// Nothing may still be written to memory that is unmapped; when that is not known it stays mapped,
// and the next time begins with it.
void undo(Batch& batch, Chunk& chunk) {
  if (wait_for_lane(*batch.lane)) make_absent(chunk);
}

CUresult create(Move& move, Chunk& chunk) {
  const Timed timed(move.space.times.map);
  return make_present(chunk);
}

bool come(Move& move, Batch& batch, size_t n, size_t parity) {
  Passenger& passenger = batch.passengers[n];
  Chunk& chunk = *passenger.chunk;
  if (create(move, chunk) != CUDA_SUCCESS) return false;
  const Timed timed(move.space.times.submit);
  if (chunk.content == Content::kNothing) return true;
  const CUstream stream = copies_of(*batch.lane);
  if (stream != nullptr && open_chunk(chunk, true) &&
      begin_content(passenger, stream) == CUDA_SUCCESS && mark_end(batch, n, parity)) {
    return true;
  }
  undo(batch, chunk);
  return false;
}

void begin(Move& move, Batch& batch, size_t n, size_t parity) {
  batch.passengers[n].begun = come(move, batch, n, parity);
  if (!batch.passengers[n].begun) move.failed = true;
}

void finish(Move& move, Batch& batch, size_t n) {
  Passenger& passenger = batch.passengers[n];
  Chunk& chunk = *passenger.chunk;
  bool here = passenger.begun;
  if (here && !wait_for_end(move, passenger)) {
    undo(batch, chunk);
    here = false;
  }
  if (!here) move.failed = true;
  if (here) close_chunk(chunk);
  const Lock lock(move.space.mutex);
  if (here) move.count(0, chunk.asked, passenger.copied);
  set_where(chunk, here ? Where::kHere : Where::kAway);
}

constexpr Direction kIn{next, begin, finish};

}  // namespace

bool swap_in(gate::Gate& gate, uint64_t bytes, Progress progress, void* argument) {
  const KeepErrno keep;
  Space* space = space_of(gate);
  if (space == nullptr) return true;
  const catching::Relaxed relaxed;
  tidy(*space);
  const Lock moving(space->moves);
  Move move(*space, bytes, progress, argument);
  for (;;) {
    const uint32_t seen = space->finished.load();
    move.passed_over = false;
    run(move, kIn);
    if (!move.goes_on() || !move.passed_over) break;
    // Who holds it only has a call of the driver to make.
    futex_wait(space->finished, seen);
  }
  return move.goes_on();
}

}  // namespace nvshare::interposer::moving::swap
