#include "daemon/lease/owner_watch.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

namespace nvshare::daemon {

OwnerWatch::~OwnerWatch() {
  for (const auto& [pid, one] : watched_) {
    if (one.process) reactor_.unwatch(one.process.get());
  }
}

bool OwnerWatch::add(int pid, std::optional<std::uint64_t> started) {
  const auto at = watched_.find(pid);
  if (at != watched_.end()) {
    if (started && at->second.key.started != *started) return false;
    ++at->second.leases;
    return true;
  }
  Watched one;
  one.leases = 1;
  one.process.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  // After the descriptor: the number now stands for the process that the descriptor is of.
  const auto key = processes_.key_of(pid);
  if (!key || (started && key->started != *started)) return false;
  one.key = *key;
  if (one.process) {
    const auto watched =
        reactor_.watch(one.process.get(), EPOLLIN, [this, pid](std::uint32_t) { ended(pid); });
    if (!watched) one.process.reset();
  }
  watched_.emplace(pid, std::move(one));
  return true;
}

void OwnerWatch::remove(int pid) {
  const auto at = watched_.find(pid);
  if (at == watched_.end() || --at->second.leases > 0) return;
  if (at->second.process) reactor_.unwatch(at->second.process.get());
  watched_.erase(at);
}

void OwnerWatch::ended(int pid) {
  const auto at = watched_.find(pid);
  if (at == watched_.end()) return;
  if (at->second.process) reactor_.unwatch(at->second.process.get());
  watched_.erase(at);
  ended_(pid);
}

void OwnerWatch::look() {
  std::vector<int> gone;
  for (const auto& [pid, one] : watched_) {
    if (!one.process && processes_.key_of(pid) != one.key) gone.push_back(pid);
  }
  for (const int pid : gone) ended(pid);
}

}  // namespace nvshare::daemon
