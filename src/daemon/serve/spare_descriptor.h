#pragma once

#include "base/unique_fd.h"

namespace nvshare::daemon {

// One descriptor in reserve. When there are no others, a connection that stays in a listener's
// queue would wake the loop for ever: it is taken with this one, and closed.
class SpareDescriptor {
 public:
  SpareDescriptor();
  // After accept() has failed: whether it was for want of descriptors; then the connection has been
  // closed.
  bool turned_away(int listener, int error);

 private:
  UniqueFd spare_;
};

}  // namespace nvshare::daemon
