#pragma once

#include <functional>
#include <map>
#include <optional>

#include "base/unique_fd.h"
#include "daemon/serve/identity.h"
#include "daemon/serve/reactor.h"

namespace nvshare::daemon {

// Tells when processes that own leases end. Each process is watched once, however many leases it
// has.
class OwnerWatch {
 public:
  using Ended = std::function<void(int pid)>;

  OwnerWatch(Reactor& reactor, const Processes& processes, Ended ended)
      : reactor_(reactor), processes_(processes), ended_(std::move(ended)) {}
  ~OwnerWatch();
  OwnerWatch(const OwnerWatch&) = delete;
  OwnerWatch& operator=(const OwnerWatch&) = delete;

  // False: there is no such process; or it is not the one that started then.
  bool add(int pid, std::optional<std::uint64_t> started = std::nullopt);
  // Nothing for a process that is not watched: it has ended, or owns no lease.
  std::optional<ProcessKey> key_of(int pid) const {
    const auto at = watched_.find(pid);
    return at == watched_.end() ? std::nullopt : std::optional(at->second.key);
  }
  void remove(int pid);
  bool lives(const ProcessKey& process) const { return processes_.key_of(process.pid) == process; }
  // About once a second: for kernels that do not tell by themselves.
  void look();

 private:
  struct Watched {
    int leases = 0;
    ProcessKey key;
    UniqueFd process;  // none where the kernel has no such descriptors
  };
  void ended(int pid);

  Reactor& reactor_;
  const Processes& processes_;
  Ended ended_;
  std::map<int, Watched> watched_;
};

}  // namespace nvshare::daemon
