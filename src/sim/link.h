#pragma once

#include <deque>
#include <optional>

#include "sim/process.h"

namespace nvshare::sim {

// One direction of a GPU's link. Moves are made one after the other, in pieces, so that progress
// can be reported. What a process still has to move is kept in the process: it may free it.
class Lane {
 public:
  enum class Direction { In, Out };
  struct Piece {
    Process* process = nullptr;
    Bytes bytes;  // none, when the process has freed it meanwhile or is gone
    Duration took{};
  };

  Lane(Direction direction, Bytes per_second) : direction_(direction), per_second_(per_second) {}

  // The process, which outlives the lane, has `bytes` more to move.
  void add(Process& process, Bytes bytes, Time now);
  // When the piece that is on its way arrives.
  std::optional<Time> next() const { return done_; }
  // The piece that has arrived by now, entered in the process's books. The next one leaves when
  // start() is called.
  std::optional<Piece> finish(Time now);
  void start(Time now);

 private:
  Bytes& left(Process& process) const {
    return direction_ == Direction::In ? process.in_left : process.out_left;
  }

  Direction direction_;
  Bytes per_second_;
  std::deque<Process*> queue_;
  std::optional<Time> done_;
  Bytes piece_{};
  Duration took_{};
};

}  // namespace nvshare::sim
