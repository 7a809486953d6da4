#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/result.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace nvshare::daemon {

// The event loop: one thread, epoll, and the time read once a turn.
class Reactor {
 public:
  using Handler = std::function<void(std::uint32_t events)>;
  // Called at the end of each turn; answers when the next turn is due at the latest.
  using EndOfTurn = std::function<std::optional<Time>()>;

  static Result<Reactor> make();

  // Calls `handler` whenever `fd` is ready for `events` (EPOLLIN, ...), until unwatch(). The
  // descriptor stays the caller's; it is unwatched before it is closed.
  Result<void> watch(int fd, std::uint32_t events, Handler handler);
  void change(int fd, std::uint32_t events);
  // Also from within handlers: one that is unwatched is not called any more in this turn.
  void unwatch(int fd);

  // The time of the present turn.
  Time now() const { return now_; }

  // Turns until stop(). Never comes back earlier.
  void run(const EndOfTurn& end_of_turn);
  void stop() { stopping_ = true; }

 private:
  struct Watched {
    std::uint32_t generation = 0;
    std::shared_ptr<Handler> handler;
  };

  Reactor(UniqueFd epoll, UniqueFd timer);
  void set_timer(std::optional<Time> due);
  void dispatch(std::uint64_t tag, std::uint32_t events);

  UniqueFd epoll_;
  UniqueFd timer_;
  std::optional<Time> timer_due_;
  std::unordered_map<int, Watched> watched_;
  std::uint32_t next_generation_ = 1;
  Time now_;
  bool stopping_ = false;
};

// CLOCK_MONOTONIC, for those who have no loop yet.
Time monotonic_now();

}  // namespace nvshare::daemon
