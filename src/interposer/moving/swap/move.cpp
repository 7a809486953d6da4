#include "interposer/moving/swap/move.h"

namespace nvshare::interposer::moving::swap {
namespace {

void begin_all(Move& move, const Direction& direction, Batch& batch, size_t parity) {
  const catching::Within within(batch.lane->context);
  if (!within) move.failed = true;
  for (size_t n = 0; n < batch.count && !move.failed; ++n) direction.begin(move, batch, n, parity);
}

void finish_all(Move& move, const Direction& direction, Batch& batch) {
  const catching::Within within(batch.lane->context);
  for (size_t n = 0; n < batch.count; ++n) {
    direction.finish(move, batch, n);
    move.report(false);
  }
}

void board_and_begin(Move& move, const Direction& direction, Batch& batch, size_t parity) {
  if (move.goes_on()) direction.next(move, batch);
  if (batch.count > 0) begin_all(move, direction, batch, parity);
}

template <typename Copy>
CUresult copy_pieces(const Chunk& chunk, Copy copy) {
  uint64_t at = chunk.address;
  for (const Extent* piece = chunk.copy.pieces; piece != nullptr; piece = piece->next) {
    const CUresult result = copy(reinterpret_cast<void*>(piece->address), at, piece->bytes);
    if (result != CUDA_SUCCESS) return result;
    at += piece->bytes;
  }
  return CUDA_SUCCESS;
}

}  // namespace

Move::Move(Space& its_space, uint64_t wanted, Progress progress, void* argument)
    : space(its_space), left(wanted), progress_(progress), argument_(argument), since_(now_ns()) {
  space.times = {};
}

void Move::count(uint64_t out, uint64_t in, bool copied) {
  moved_.out += out;
  moved_.in += in;
  if (copied) moved_.copied += out + in;
}

void Move::report(bool all) {
  const uint64_t bytes = moved_.out + moved_.in;
  if (bytes == 0 || (!all && bytes < kReportBytes)) return;
  const uint64_t now = now_ns();
  if (!all && moved_.copied < kReportBytes && now - since_ < kReportCheap) return;
  moved_.took = now - since_;
  tell();
  since_ = now;
}

void Move::tell() {
  const Timed timed(space.times.tell);
  if (!progress_(argument_, moved_)) stopped = true;
  if (moved_.wait > 0) sleep_ns(moved_.wait);
  left += moved_.more;
  moved_ = {};
}

void Move::ask_for_more() {
  if (moved_.out + moved_.in == 0) tell();
}

void Move::wait_for_news() {
  constexpr uint64_t kLittle = 1'000'000;
  moved_.wait = kLittle;
  space.arena.hurry = true;
  tell();
  space.arena.hurry = false;
}

bool board(Batch& batch, Chunk& chunk) {
  if (batch.lane == nullptr) batch.lane = chunk.region->lane;
  const bool fits = batch.count < kBatch && batch.lane == chunk.region->lane &&
                    (batch.count == 0 || batch.bytes + chunk.bytes <= kBatchBytes);
  if (!fits) return false;
  batch.passengers[batch.count] = {};
  batch.passengers[batch.count++].chunk = &chunk;
  batch.bytes += chunk.bytes;
  return true;
}

bool mark_end(Batch& batch, size_t n, size_t parity) {
  const CUevent event = event_of(*batch.lane, parity * kBatch + n);
  if (event == nullptr ||
      real<FunctionId::cuEventRecord>(event, batch.lane->copies) != CUDA_SUCCESS) {
    return false;
  }
  batch.passengers[n].event = event;
  return true;
}

bool wait_for_end(Move& move, const Passenger& passenger) {
  const Timed timed(move.space.times.copy);
  return passenger.event == nullptr ||
         real<FunctionId::cuEventSynchronize>(passenger.event) == CUDA_SUCCESS;
}

bool wait_for_lane(Lane& lane) {
  return lane.copies == nullptr ||
         real<FunctionId::cuStreamSynchronize>(lane.copies) == CUDA_SUCCESS;
}

CUresult copy_out(const Chunk& chunk, CUstream stream) {
  return copy_pieces(chunk, [stream](void* host, CUdeviceptr device, size_t bytes) {
    return real<FunctionId::cuMemcpyDtoHAsync_v2>(host, device, bytes, stream);
  });
}

CUresult copy_in(const Chunk& chunk, CUstream stream) {
  return copy_pieces(chunk, [stream](const void* host, CUdeviceptr device, size_t bytes) {
    return real<FunctionId::cuMemcpyHtoDAsync_v2>(device, host, bytes, stream);
  });
}

namespace {

// A chunk that is away, but not all of it; it is held as if it came.
Chunk* hold_remains(Space& space) {
  const Lock lock(space.mutex);
  for (Chunk* chunk = space.away.first(); chunk != nullptr; chunk = chunk->after) {
    if ((!chunk->mapped && chunk->handle == 0) || chunk->held) continue;
    set_where(*chunk, Where::kComing);
    return chunk;
  }
  return nullptr;
}

// What could not be undone when a chunk did not come after all.
void release_remains(Space& space) {
  bool gone = true;
  while (Chunk* chunk = gone ? hold_remains(space) : nullptr) {
    Lane* lane = chunk->region->lane;
    gone = (lane == nullptr || wait_for_lane(*lane)) && make_absent(*chunk);
    const Lock lock(space.mutex);
    set_where(*chunk, Where::kAway);
  }
}

}  // namespace

void run(Move& move, const Direction& direction) {
  release_remains(move.space);
  Batch batches[2];
  size_t parity = 0;
  board_and_begin(move, direction, batches[parity], parity);
  while (batches[parity].count > 0) {
    Batch& present = batches[parity];
    parity = 1 - parity;
    Batch& following = batches[parity];
    following = {};
    move.ask_for_more();
    board_and_begin(move, direction, following, parity);
    finish_all(move, direction, present);
    if (following.count == 0) board_and_begin(move, direction, following, parity);
  }
  move.report(true);
}

}  // namespace nvshare::interposer::moving::swap
