#include "daemon/serve/control_server.h"

#include <fmt/format.h>
#include <grp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nvshare::daemon {
namespace {

constexpr Duration kIdleLongEnough = 10s;  // to make room for somebody else

}  // namespace

ControlServer::~ControlServer() {
  if (listener_) reactor_.unwatch(listener_.get());
  for (const auto& [fd, connection] : connections_) reactor_.unwatch(fd);
}

Result<void> ControlServer::serve(UniqueFd listener) {
  listener_ = std::move(listener);
  return reactor_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept_some(); });
}

void ControlServer::accept_some() {
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (spare_.turned_away(listener_.get(), errno)) {
      log_.error("out_of_descriptors", {{"control_connections", connections_.size()}});
    }
    return;
  }
  if (connections_.size() >= kMostConnections && !make_room()) {
    log_.warn("too_many_control_connections", {{"connections", connections_.size()}});
    return;
  }
  const int fd = socket.get();
  const auto watched =
      reactor_.watch(fd, EPOLLIN, [this, fd](std::uint32_t events) { ready(fd, events); });
  if (!watched) return;
  Connection& connection = connections_[fd];
  connection.socket = std::move(socket);
  connection.last_used = reactor_.now();
}

// Whoever has been silent longest goes, if that is long enough.
bool ControlServer::make_room() {
  const auto oldest = std::min_element(
      connections_.begin(), connections_.end(),
      [](const auto& a, const auto& b) { return a.second.last_used < b.second.last_used; });
  if (reactor_.now() - oldest->second.last_used < kIdleLongEnough) return false;
  close(oldest->first);
  return true;
}

void ControlServer::close(int fd) {
  reactor_.unwatch(fd);
  connections_.erase(fd);
}

// One request a turn: a long line of them does not keep the others waiting.
void ControlServer::ready(int fd, std::uint32_t) {
  const auto at = connections_.find(fd);
  if (at == connections_.end()) return;
  Connection& connection = at->second;
  connection.last_used = reactor_.now();
  if (!connection.out.empty() && !write_some(connection)) return close(fd);
  if (connection.out.empty()) {
    if (connection.ends || !read_some(connection)) return close(fd);
    if (answer_next(connection) && !write_some(connection)) return close(fd);
    if (connection.ends && connection.out.empty()) return close(fd);
  }
  // While requests that have been read wait, writability is what brings us back.
  const bool waiting = !connection.out.empty() || connection.in.find('\n') != std::string::npos;
  reactor_.change(fd, waiting ? EPOLLOUT : EPOLLIN);
}

bool ControlServer::read_some(Connection& connection) {
  if (connection.in.find('\n') != std::string::npos) return true;
  char buffer[8192];
  const auto length = recv(connection.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
  if (length < 0) return errno == EAGAIN || errno == EINTR;
  if (length == 0) return false;
  connection.in.append(buffer, static_cast<std::size_t>(length));
  return true;
}

bool ControlServer::answer_next(Connection& connection) {
  const std::size_t end = connection.in.find('\n');
  if (end == std::string::npos || end > kLongestRequest) {
    if (connection.in.size() <= kLongestRequest) return false;
    connection.out = R"({"ok":false,"error":"a request has at most 65536 bytes"})"
                     "\n";
    connection.ends = true;
    connection.in.clear();
    return true;
  }
  connection.out = answer_(std::string_view(connection.in).substr(0, end)) + '\n';
  connection.in.erase(0, end + 1);
  return true;
}

bool ControlServer::write_some(Connection& connection) {
  const auto written = send(connection.socket.get(), connection.out.data(), connection.out.size(),
                            MSG_DONTWAIT | MSG_NOSIGNAL);
  if (written < 0) return errno == EAGAIN || errno == EINTR;
  connection.out.erase(0, static_cast<std::size_t>(written));
  return true;
}

Result<UniqueFd> listen_for_streams(const std::string& path, unsigned mode) {
  const auto failed = [&] { return Error{fmt::format("{}: {}", path, std::strerror(errno))}; };
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return Error{path + ": the path is too long"};
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed();
  unlink(path.c_str());
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) < 0) return failed();
  if (chmod(path.c_str(), mode) < 0 || listen(fd.get(), SOMAXCONN) < 0) return failed();
  return fd;
}

std::optional<gid_t> group_named(const std::string& name) {
  const ::group* found = name.empty() ? nullptr : getgrnam(name.c_str());
  return found == nullptr ? std::nullopt : std::optional(found->gr_gid);
}

Result<UniqueFd> listen_for_control(const std::string& path, const std::string& group) {
  auto fd = listen_for_streams(path, 0600);
  const auto found = group_named(group);
  if (!fd || !found) return fd;
  if (chown(path.c_str(), static_cast<uid_t>(-1), *found) == 0 && chmod(path.c_str(), 0660) < 0) {
    return Error{fmt::format("{}: {}", path, std::strerror(errno))};
  }
  return fd;
}

}  // namespace nvshare::daemon
