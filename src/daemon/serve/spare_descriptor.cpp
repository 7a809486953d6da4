#include "daemon/serve/spare_descriptor.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

namespace nvshare::daemon {
namespace {

int open_spare() {
  return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

}  // namespace

SpareDescriptor::SpareDescriptor() : spare_(open_spare()) {}

bool SpareDescriptor::turned_away(int listener, int error) {
  if (error != EMFILE && error != ENFILE) return false;
  spare_.reset();
  UniqueFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)).reset();
  spare_.reset(open_spare());
  return true;
}

}  // namespace nvshare::daemon
