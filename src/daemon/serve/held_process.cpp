#include "daemon/serve/held_process.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace nvshare::daemon {
namespace {

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

Error cannot_hold(int pid, int error) {
  return Error{fmt::format("the scheduler cannot hold process {}: {}", pid, std::strerror(error))};
}

}  // namespace

ProcessCalls ProcessCalls::of_kernel() {
  ProcessCalls calls;
  calls.of_peer = [](int socket) {
    int process = -1;
    socklen_t length = sizeof process;
    const int asked = getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &process, &length);
    return asked == 0 ? process : -errno;
  };
  calls.of_number = [](int pid) {
    const auto process = syscall(SYS_pidfd_open, pid, 0);
    return process >= 0 ? static_cast<int>(process) : -errno;
  };
  return calls;
}

Result<HeldProcess> hold_process(const ProcessCalls& calls, int pid) {
  const int process = calls.of_number(pid);
  if (process >= 0) return HeldProcess{UniqueFd(process)};
  switch (-process) {
    case ESRCH:
    case EINVAL:  // the number is a thread's now
      return HeldProcess{{}, true};
    case ENOSYS:
    case EPERM:  // a filter of a container, which does not know the call
      return HeldProcess{};
    default:
      return cannot_hold(pid, -process);
  }
}

Result<HeldProcess> hold_peer(const ProcessCalls& calls, int socket, int pid) {
  const int process = calls.of_peer(socket);
  if (process >= 0) return HeldProcess{UniqueFd(process)};
  switch (-process) {
    case ENOPROTOOPT:
      return hold_process(calls, pid);
    case ESRCH:
    case EINVAL:  // up to Linux 6.15, of a process that its parent has waited for
    case ENODATA:
      // Not by its number: that may be another process's by now.
      return HeldProcess{{}, true};
    default:
      return cannot_hold(pid, -process);
  }
}

}  // namespace nvshare::daemon
