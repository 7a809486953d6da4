#include "sim/link.h"

#include <algorithm>

namespace nvshare::sim {
namespace {

constexpr Bytes kPiece = gib(1);

}  // namespace

void Lane::add(Process& process, Bytes bytes, Time now) {
  left(process) += bytes;
  queue_.push_back(&process);
  start(now);
}

void Lane::start(Time now) {
  while (!done_ && !queue_.empty()) {
    const Bytes to_move = left(*queue_.front());
    if (to_move.count <= 0) {
      queue_.pop_front();
      continue;
    }
    piece_ = std::min(to_move, kPiece);
    const double seconds =
        static_cast<double>(piece_.count) / static_cast<double>(per_second_.count);
    took_ = Duration{static_cast<Duration::rep>(seconds * 1e9)};
    done_ = now + took_;
  }
}

std::optional<Lane::Piece> Lane::finish(Time now) {
  if (!done_ || *done_ > now) return std::nullopt;
  done_.reset();
  Process& process = *queue_.front();
  const Bytes bytes = process.present ? std::min(piece_, left(process)) : Bytes{};
  if (bytes.count <= 0) return Piece{&process, Bytes{}, took_};
  left(process) -= bytes;
  (direction_ == Direction::In ? process.report.moved_in : process.report.moved_out) += bytes;
  return Piece{&process, bytes, took_};
}

}  // namespace nvshare::sim
