#pragma once

#include <map>
#include <string_view>

#include "base/unique_fd.h"
#include "base/units.h"
#include "daemon/broker/records.h"
#include "daemon/broker/shared_arena.h"

namespace nvshare::daemon {

// Host memory for what clients swap out, as the broker sees it.
class HostArena {
 public:
  virtual ~HostArena() = default;
  // How large it can be at most, as far as is known now, with what there is of it.
  virtual Bytes most() const = 0;
  // What most() is bounded by: the setting "arena_limit", a "cgroup" or the "machine".
  virtual std::string_view limited_by() const = 0;
  // Makes a piece for the client, and hands it to Places::ready() a little later, whole or in
  // parts; or says Places::failed().
  virtual void make(ClientId client, Bytes bytes) = 0;
  // What processes still have of what was handed to them, by process id: also what its client has
  // given back by its own word only, or has kept beyond its connection.
  virtual const std::map<int, Bytes>& held() const = 0;

  // --- memory that several clients have, by the segment that Places::ready() named
  // Nobody counts as its holder: the broker keeps a book of it (SharedArena).
  virtual void share(SegmentId segment) = 0;
  // Another descriptor of it; none when it is gone.
  virtual UniqueFd reopen(SegmentId segment) = 0;
  // The pages of these slabs go back to the machine.
  virtual void release(SegmentId segment, Slabs slabs) = 0;
  // Whether the process may still have what it had.
  virtual bool lives(int pid) = 0;
  // Slabs that no process has any more, or that a process has emptied itself.
  virtual Slabs let_go(SegmentId segment) = 0;
};

}  // namespace nvshare::daemon
