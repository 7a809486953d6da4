#include "daemon/http/peer.h"

#include <poll.h>
#include <sys/socket.h>

namespace nvshare::daemon {
namespace {

std::vector<gid_t> groups_of(int fd, gid_t first) {
  socklen_t bytes = 0;
  getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, nullptr, &bytes);  // how many they are
  std::vector<gid_t> groups(bytes / sizeof(gid_t));
  if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) < 0) groups.clear();
  groups.push_back(first);
  return groups;
}

}  // namespace

bool has_hung_up(int fd) {
  pollfd look{fd, POLLRDHUP, 0};
  return poll(&look, 1, 0) > 0;
}

bool is_over_tcp(int fd) {
  int family = AF_UNSPEC;
  socklen_t length = sizeof family;
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length) < 0 || family != AF_UNIX;
}

std::optional<HttpPeer> peer_of(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (is_over_tcp(fd) || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0) {
    return std::nullopt;
  }
  return HttpPeer{peer.pid, peer.uid, groups_of(fd, peer.gid)};
}

}  // namespace nvshare::daemon
