#include "daemon/serve/giving_way.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/unique_fd.h"
#include "wire/channel.h"

namespace nvshare::daemon {

namespace {

constexpr int kPatience = 100;  // milliseconds: the caller serves nobody meanwhile

}  // namespace

// A scheduler that only listens may hang, or refuse programs that this one serves.
bool answers_in(const std::string& directory, const Uuid& gpu) {
  const std::string path = directory + "/" + wire::kProgramSocket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return false;
  }
  auto look = wire::make<wire::Look>();
  look.magic = wire::kMagic;
  look.major = wire::kMajor;
  look.minor = wire::kMinor;
  std::memcpy(look.gpu, gpu.data(), gpu.size());
  if (wire::send(fd.get(), &look.header, false) < 0) return false;
  pollfd answer{fd.get(), POLLIN, 0};
  if (poll(&answer, 1, kPatience) <= 0) return false;
  alignas(8) char buffer[wire::kMaxMessage];
  const int length = wire::receive(fd.get(), buffer, false);
  if (length <= 0) return false;
  return wire::as<wire::View>(wire::look_at(buffer, static_cast<std::size_t>(length))) != nullptr;
}

Result<void> link_sockets(const std::string& own, const std::string& other) {
  for (const char* name : {wire::kApiSocket, wire::kControlSocket, wire::kProgramSocket}) {
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
