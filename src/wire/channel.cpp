#include "wire/channel.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace nvshare::wire {
namespace {

// Not through libc's functions, in which a thread may be cancelled: the interposer would die with
// its locks held.
int do_connect(int socket, const sockaddr_un& address) {
  return static_cast<int>(syscall(SYS_connect, socket, &address, sizeof address));
}
ssize_t do_send(int socket, const msghdr& packet, int flags) {
  return syscall(SYS_sendmsg, socket, &packet, flags);
}
ssize_t do_receive(int socket, msghdr& packet, int flags) {
  return syscall(SYS_recvmsg, socket, &packet, flags);
}
void do_close(int fd) {
  syscall(SYS_close, fd);
}

bool fill(sockaddr_un& address, const char* path) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = strnlen(path, sizeof address.sun_path);
  if (length == 0 || length == sizeof address.sun_path) return false;
  memcpy(address.sun_path, path, length);
  return true;
}

int new_socket(int flags) {
  return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
}

// Closes `fd` and says what went wrong before.
int give_up(int fd) {
  const int error = errno;
  do_close(fd);
  return -error;
}

union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr align;
};

// The room for one descriptor is, for the sake of alignment, room for two: whoever sends more than
// one must not be able to leave any here.
void keep_first(const cmsghdr* head, int* fd) {
  const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < count; ++i) {
    int received;
    memcpy(&received, CMSG_DATA(head) + i * sizeof received, sizeof received);
    if (*fd < 0) {
      *fd = received;
    } else {
      do_close(received);
    }
  }
}

}  // namespace

int connect_to(const char* path, int timeout) {
  sockaddr_un address;
  if (!fill(address, path)) return -ENAMETOOLONG;
  const int fd = new_socket(0);
  if (fd < 0) return -errno;
  const timeval limit{timeout, 0};
  if (timeout > 0) {
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
  int result;
  do {
    result = do_connect(fd, address);
  } while (result < 0 && errno == EINTR);
  return result < 0 ? give_up(fd) : fd;
}

int listen_at(const char* path, unsigned mode) {
  const int probe = connect_to(path);
  if (probe >= 0) {
    do_close(probe);
    return -EADDRINUSE;
  }
  // A link to nowhere is no file either, but keeps the place.
  if (probe == -ECONNREFUSED || probe == -ENOENT) unlink(path);
  sockaddr_un address;
  if (!fill(address, path)) return -ENAMETOOLONG;
  const int fd = new_socket(SOCK_NONBLOCK);
  if (fd < 0) return -errno;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) < 0) return give_up(fd);
  if (chmod(path, mode) < 0 || listen(fd, 128) < 0) return give_up(fd);
  return fd;
}

int send(int socket, const Header* message, bool wait, int fd) {
  iovec part{const_cast<Header*>(message), message->size};
  msghdr packet{};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  Control control{};
  if (fd >= 0) {
    packet.msg_control = control.bytes;
    packet.msg_controllen = sizeof control.bytes;
    cmsghdr* head = CMSG_FIRSTHDR(&packet);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
  }
  ssize_t sent;
  do {
    sent = do_send(socket, packet, MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? -errno : 0;
}

int receive(int socket, void* buffer, bool wait, int* fd) {
  if (fd != nullptr) *fd = -1;
  iovec part{buffer, kMaxMessage};
  msghdr packet{};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  Control control{};
  if (fd != nullptr) {
    packet.msg_control = control.bytes;
    packet.msg_controllen = sizeof control.bytes;
  }
  ssize_t length;
  do {
    length = do_receive(socket, packet, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
  } while (length < 0 && errno == EINTR);
  if (length < 0) return -errno;
  for (cmsghdr* head = CMSG_FIRSTHDR(&packet); head != nullptr; head = CMSG_NXTHDR(&packet, head)) {
    if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) keep_first(head, fd);
  }
  if ((packet.msg_flags & MSG_TRUNC) != 0) {
    if (fd != nullptr && *fd >= 0) do_close(*fd);
    if (fd != nullptr) *fd = -1;
    return -EMSGSIZE;
  }
  return static_cast<int>(length);
}

}  // namespace nvshare::wire
