#include "daemon/serve/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "base/unique_fd.h"

namespace nvshare::daemon {

void notify_manager(const char* state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(path);
  if (length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = 0;
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return;
  (void)sendto(fd.get(), state, std::strlen(state), MSG_NOSIGNAL,
               reinterpret_cast<sockaddr*>(&address),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
}

std::optional<Duration> watchdog_period() {
  const char* pid = std::getenv("WATCHDOG_PID");
  if (pid != nullptr && std::to_string(getpid()) != pid) return std::nullopt;
  const char* text = std::getenv("WATCHDOG_USEC");
  if (text == nullptr) return std::nullopt;
  const auto period = parse_integer(text, 1, std::numeric_limits<std::int32_t>::max());
  if (!period) return std::nullopt;
  return std::chrono::microseconds(*period) / 2;
}

}  // namespace nvshare::daemon
