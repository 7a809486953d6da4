#include "daemon/serve/reactor.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace nvshare::daemon {
namespace {

// A descriptor's number comes back with another file behind it; the generation tells them apart.
std::uint64_t tag_of(int fd, std::uint32_t generation) {
  return (static_cast<std::uint64_t>(generation) << 32) | static_cast<std::uint32_t>(fd);
}

Error errno_error(const char* what) {
  return Error{fmt::format("{}: {}", what, std::strerror(errno))};
}

}  // namespace

Time monotonic_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return Time{std::chrono::seconds{now.tv_sec} + Duration{now.tv_nsec}};
}

Reactor::Reactor(UniqueFd epoll, UniqueFd timer)
    : epoll_(std::move(epoll)), timer_(std::move(timer)), now_(monotonic_now()) {}

Result<Reactor> Reactor::make() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return errno_error("epoll");
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer) return errno_error("timer");
  Reactor reactor(std::move(epoll), std::move(timer));
  const int fd = reactor.timer_.get();
  const auto watched = reactor.watch(fd, EPOLLIN, [fd](std::uint32_t) {
    std::uint64_t expirations = 0;
    [[maybe_unused]] const auto got = read(fd, &expirations, sizeof expirations);
  });
  if (!watched) return watched.error();
  return reactor;
}

Result<void> Reactor::watch(int fd, std::uint32_t events, Handler handler) {
  const std::uint32_t generation = next_generation_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag_of(fd, generation);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) < 0) return errno_error("epoll");
  watched_[fd] = {generation, std::make_shared<Handler>(std::move(handler))};
  return {};
}

void Reactor::change(int fd, std::uint32_t events) {
  const auto at = watched_.find(fd);
  if (at == watched_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag_of(fd, at->second.generation);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Reactor::unwatch(int fd) {
  if (watched_.erase(fd) > 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Reactor::set_timer(std::optional<Time> due) {
  if (due == timer_due_) return;
  timer_due_ = due;
  itimerspec at{};
  if (due) {
    // All zero would switch it off.
    const auto count = std::max<Duration::rep>(1, due->time_since_epoch().count());
    at.it_value.tv_sec = count / 1'000'000'000;
    at.it_value.tv_nsec = count % 1'000'000'000;
  }
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr);
}

void Reactor::dispatch(std::uint64_t tag, std::uint32_t events) {
  const auto at = watched_.find(static_cast<int>(tag & 0xffffffffu));
  if (at == watched_.end() || at->second.generation != tag >> 32) return;
  const std::shared_ptr<Handler> handler = at->second.handler;  // it may unwatch itself
  (*handler)(events);
}

void Reactor::run(const EndOfTurn& end_of_turn) {
  std::array<epoll_event, 64> ready;
  while (!stopping_) {
    set_timer(end_of_turn());
    if (stopping_) return;
    const int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), -1);
    now_ = monotonic_now();
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = ready[static_cast<std::size_t>(i)];
      dispatch(event.data.u64, event.events);
    }
    if (timer_due_ && *timer_due_ <= now_) timer_due_.reset();  // it has fired: set it anew
  }
}

}  // namespace nvshare::daemon
