#pragma once

#include <functional>

#include "base/result.h"
#include "base/unique_fd.h"

// A process by a descriptor (pidfd): its number may become another process's, the descriptor never.
namespace nvshare::daemon {

// How the kernel is asked. Each answers a descriptor, or a negative errno. Handed in, so that tests
// can be other kernels.
struct ProcessCalls {
  std::function<int(int socket)> of_peer;  // SO_PEERPIDFD, from Linux 6.5 on
  std::function<int(int pid)> of_number;   // pidfd_open, from Linux 5.3 on

  static ProcessCalls of_kernel();
};

struct HeldProcess {
  UniqueFd descriptor;  // none: the kernel has no such descriptors, or the process is gone
  bool gone = false;
};

// The process at the other end of the socket, which has this number unless it is gone. An error
// when it lives and cannot be held now, for want of descriptors or memory.
Result<HeldProcess> hold_peer(const ProcessCalls& calls, int socket, int pid);
// The process that has this number now.
Result<HeldProcess> hold_process(const ProcessCalls& calls, int pid);

}  // namespace nvshare::daemon
