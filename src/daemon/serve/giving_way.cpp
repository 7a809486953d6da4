#include "daemon/serve/giving_way.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/unique_fd.h"
#include "wire/channel.h"

namespace nvshare::daemon {

bool answers_in(const std::string& directory) {
  const std::string path = directory + "/" + wire::kProgramSocket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return fd && connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

Result<void> link_sockets(const std::string& own, const std::string& other) {
  for (const char* name : {wire::kControlSocket, wire::kProgramSocket}) {
    const std::string path = fmt::format("{}/{}", own, name);
    const std::string link = path + ".link";
    unlink(link.c_str());  // of a scheduler that was killed here
    if (symlink(fmt::format("{}/{}", other, name).c_str(), link.c_str()) < 0 ||
        rename(link.c_str(), path.c_str()) < 0) {
      return Error{fmt::format("{}: {}", path, std::strerror(errno))};
    }
  }
  return {};
}

}  // namespace nvshare::daemon
