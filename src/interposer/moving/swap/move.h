#pragma once

#include "interposer/moving/swap/state.h"

// Moving, as out.cpp and in.cpp share it. Chunks move in batches, of which one is begun
// while the one before it is under way: the link to the host never waits for the driver's other
// work.
namespace nvshare::interposer::moving::swap {

inline constexpr uint64_t kBatchBytes = uint64_t{1} << 30;
inline constexpr uint64_t kReportBytes = uint64_t{256} << 20;
// What need not be copied is gone so fast that who comes in at once would only be in the way: the
// driver frees and makes memory one after the other.
inline constexpr uint64_t kReportCheap = 30'000'000;

// One chunk on its way.
struct Passenger {
  Chunk* chunk = nullptr;
  bool begun = false;
  CUevent event = nullptr;  // behind the last of its work on the GPU; null: there is none
  bool copied = false;
  bool hashed = false;
  Fingerprint fingerprint;
};

// Chunks of one context.
struct Batch {
  Lane* lane = nullptr;
  size_t count = 0;
  uint64_t bytes = 0;
  Passenger passengers[kBatch];
};

// Adds how long it lives.
class Timed {
 public:
  explicit Timed(uint64_t& sum) : sum_(sum), begin_(now_ns()) {}
  ~Timed() { sum_ += now_ns() - begin_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  uint64_t& sum_;
  const uint64_t begin_;
};

class Move {
 public:
  Move(Space& space, uint64_t wanted, Progress progress, void* argument);

  Space& space;
  uint64_t left;             // of what is wanted
  bool failed = false;       // something could not be moved: nothing more is begun
  bool stopped = false;      // by who is told of the progress
  bool passed_over = false;  // something that is held

  bool goes_on() const { return !failed && !stopped; }
  void count(uint64_t out, uint64_t in, bool copied);
  // Tells what has been moved since the last time, when it is enough, or `all` of it.
  void report(bool all);
  // More may have come to be wanted.
  void ask_for_more();
  // Nothing can be moved before something is told: waits a little for that.
  void wait_for_news();

 private:
  void tell();

  Progress progress_;
  void* argument_;
  Moved moved_;
  uint64_t since_;
};

// Puts a chunk into the batch, if it is one of the same context and not too much. With the space's
// mutex held.
bool board(Batch& batch, Chunk& chunk);

// The work of the n-th passenger is all in the stream of its lane, whose context is current: marks
// its end. `parity`: of two batches that are under way, which one.
bool mark_end(Batch& batch, size_t n, size_t parity);
// Waits for that.
bool wait_for_end(Move& move, const Passenger& passenger);
// Waits until nothing of ours is under way in the lane. False when that is not known.
bool wait_for_lane(Lane& lane);

// Copies the chunk to its host copy, or the other way.
CUresult copy_out(const Chunk& chunk, CUstream stream);
CUresult copy_in(const Chunk& chunk, CUstream stream);

// Runs batches until there are no more: `next` fills one, `begin` and `finish` are called for each
// of its passengers, with its context current.
struct Direction {
  void (*next)(Move& move, Batch& batch);
  void (*begin)(Move& move, Batch& batch, size_t n, size_t parity);
  void (*finish)(Move& move, Batch& batch, size_t n);
};
void run(Move& move, const Direction& direction);

}  // namespace nvshare::interposer::moving::swap
