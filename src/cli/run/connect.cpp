#include "cli/run/connect.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <utility>

namespace nvshare::cli {

Connection connect_at_once(const std::string& path, int type) {
  sockaddr_un address{};
  if (path.size() >= sizeof address.sun_path) return {UniqueFd(), ENAMETOOLONG};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  UniqueFd connection(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* where = reinterpret_cast<const sockaddr*>(&address);
  if (!connection || ::connect(connection.get(), where, sizeof address) != 0) {
    return {UniqueFd(), errno};
  }
  return {std::move(connection), 0};
}

}  // namespace nvshare::cli
