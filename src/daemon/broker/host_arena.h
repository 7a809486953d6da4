#pragma once

#include <map>

#include "base/units.h"
#include "daemon/broker/records.h"

namespace nvshare::daemon {

// Host memory for what clients swap out, as the broker sees it.
class HostArena {
 public:
  virtual ~HostArena() = default;
  // How large it can be at most, as far as is known now, with what there is of it.
  virtual Bytes most() const = 0;
  // Makes a piece for the client, and hands it to Broker::arena_ready() a little later, whole or in
  // parts; or says Broker::arena_failed().
  virtual void make(ClientId client, Bytes bytes) = 0;
  // What processes still have of what was handed to them, by process id: also what its client has
  // given back by its own word only, or has kept beyond its connection.
  virtual const std::map<int, Bytes>& held() const = 0;
};

}  // namespace nvshare::daemon
