#include "interposer/moving/managed/state.h"

// Out and in: the driver is asked to move pieces, a few at a time, and waited for.
namespace nvshare::interposer::moving::managed {
namespace {

constexpr size_t kBatch = 256;
constexpr CUdevice kHost = -1;  // as the driver calls it

// Pieces of one context.
struct Batch {
  Lane* lane = nullptr;
  size_t count = 0;
  uint64_t bytes = 0;
  Piece* pieces[kBatch];
};

struct Move {
  Space& space;
  bool out;
  uint64_t left;
};

// --- with the space's mutex held

bool may_move(const Move& move, const Batch& batch, const Piece& piece) {
  const Allocation& allocation = *piece.allocation;
  if (allocation.freeing || allocation.lane->leaving) return false;
  // In comes at most what is wanted.
  return move.out || piece.bytes <= move.left - batch.bytes;
}

bool fits(const Batch& batch, const Piece& piece) {
  if (batch.count == 0) return true;
  return batch.count < kBatch && batch.lane == piece.allocation->lane &&
         batch.bytes + piece.bytes <= kLargestPiece;
}

// In the order in which they came: what does not fit ends the batch.
void fill(const Move& move, Batch& batch) REQUIRES(move.space.mutex) {
  Piece* piece = (move.out ? move.space.here : move.space.away).first();
  while (piece != nullptr && batch.bytes < move.left) {
    Piece* next = piece->after;
    if (may_move(move, batch, *piece)) {
      if (!fits(batch, *piece)) return;
      batch.lane = piece->allocation->lane;
      batch.bytes += piece->bytes;
      batch.pieces[batch.count++] = piece;
      set_where(move.space, *piece, move.out ? Where::kLeaving : Where::kComing);
    }
    piece = next;
  }
}

// The first `done` are where they were to go, the others where they were. Answers the bytes moved.
uint64_t settle(const Move& move, const Batch& batch, size_t done) REQUIRES(move.space.mutex) {
  uint64_t moved = 0;
  for (size_t n = batch.count; n > done; --n) put_back(move.space, *batch.pieces[n - 1]);
  for (size_t n = 0; n < done; ++n) {
    moved += batch.pieces[n]->bytes;
    set_where(move.space, *batch.pieces[n], move.out ? Where::kAway : Where::kHere);
  }
  return moved;
}

// --- without

// How many of the batch, from the first on, have been moved.
size_t prefetch(const Move& move, const Batch& batch) {
  const catching::Within within(batch.lane->context);
  if (!within) return 0;
  const CUdevice target = move.out ? kHost : move.space.device.load();
  const CUstream stream = stream_of(move.space, *batch.lane);
  if (stream == nullptr) return 0;
  size_t begun = 0;
  for (; begun < batch.count; ++begun) {
    const Piece& piece = *batch.pieces[begun];
    const CUresult result =
        real<FunctionId::cuMemPrefetchAsync>(piece.address, piece.bytes, target, stream);
    if (result != CUDA_SUCCESS) break;
  }
  return real<FunctionId::cuStreamSynchronize>(stream) == CUDA_SUCCESS ? begun : 0;
}

// Answers whether there is more to do; `failed` when not all could be moved.
bool move_batch(Move& move, Progress progress, void* argument, bool& failed) {
  Batch batch;
  const uint64_t begin = now_ns();
  {
    const Lock lock(move.space.mutex);
    fill(move, batch);
  }
  if (batch.count == 0) return false;
  const size_t done = prefetch(move, batch);
  uint64_t bytes = 0;
  {
    const Lock lock(move.space.mutex);
    bytes = settle(move, batch, done);
  }
  move.left -= bytes < move.left ? bytes : move.left;
  failed = done < batch.count;
  if (bytes == 0) return false;
  // How much of it went over the link only the driver knows.
  Moved moved{move.out ? bytes : 0, move.out ? 0 : bytes, bytes, now_ns() - begin};
  if (!progress(argument, moved)) failed = true;
  move.left += moved.more;
  return !failed;
}

bool run(gate::Gate& gate, bool out, uint64_t bytes, Progress progress, void* argument) {
  const KeepErrno keep;
  Space* space = g_spaces.of(gate);
  if (space == nullptr) return true;
  const catching::Relaxed relaxed;
  const Lock moving(space->moves);
  Move move{*space, out, bytes};
  bool failed = false;
  while (move.left > 0 && move_batch(move, progress, argument, failed)) {
  }
  return !failed;
}

}  // namespace

bool managed_out(gate::Gate& gate, uint64_t bytes, Progress progress, void* argument) {
  return run(gate, true, bytes, progress, argument);
}

bool managed_in(gate::Gate& gate, uint64_t bytes, Progress progress, void* argument) {
  return run(gate, false, bytes, progress, argument);
}

}  // namespace nvshare::interposer::moving::managed
