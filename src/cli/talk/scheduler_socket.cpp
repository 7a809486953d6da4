#include "cli/talk/scheduler_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nvshare::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kLookEvery = 20;  // milliseconds

}  // namespace

Connection connect_stream(const std::string& path, Duration patience) {
  const auto deadline = Clock::now() + patience;
  for (;;) {
    Connection made = connect_at_once(path, SOCK_STREAM);
    // The scheduler empties its queue of connections when it is well.
    if (made.error != EAGAIN || Clock::now() >= deadline) return made;
    ::poll(nullptr, 0, kLookEvery);
  }
}

Error cannot_connect(const RunDirectory& directory, int error) {
  switch (error) {
    case ENOENT:
    case ECONNREFUSED:
    case ENOTDIR:
      if (!directory.silent.empty()) {
        return Error{
            fmt::format("the scheduler in {} does not answer: start it again", directory.silent)};
      }
      return Error{fmt::format("no scheduler is running in {}: start {}", directory.path,
                               directory.path == surroundings().system
                                   ? "nvshare-scheduler"
                                   : "a program with nvshare run")};
    case EAGAIN:
      return scheduler_is_silent();
    default:
      return Error{fmt::format("{}: {}", directory.path, std::strerror(error))};
  }
}

Error scheduler_is_silent() {
  return Error{"the scheduler does not answer: see its log, or end it and start it again"};
}

bool wait_for(int socket, short events, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd waiting{socket, events, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::max<long>(left.count(), 0)));
    if (ready >= 0) return ready > 0;
    if (errno != EINTR) return false;
  }
}

Error scheduler_has_closed() {
  return Error{"the scheduler closed the connection"};
}

Error answer_makes_no_sense() {
  return Error{"the scheduler's answer makes no sense: is it of another version?"};
}

}  // namespace nvshare::cli
