#include "cli/commands/control_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "wire/channel.h"

namespace nvshare::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Far more than a status of thousands of tenants.
constexpr std::size_t kLongestAnswer = 64 << 20;

Error cannot_connect(const RunDirectory& directory, int error) {
  switch (error) {
    case ENOENT:
    case ECONNREFUSED:
    case ENOTDIR:
      if (!directory.silent.empty()) {
        return Error{
            fmt::format("the scheduler in {} does not answer: start it again", directory.silent)};
      }
      return Error{fmt::format("no scheduler is running in {}: start {}", directory.path,
                               directory.path == surroundings().system
                                   ? "nvshare-scheduler"
                                   : "a program with nvshare run")};
    case EACCES:
    case EPERM:
      return Error{"permission denied: control is for root and the group nvshare"};
    default:
      return Error{fmt::format("{}: {}", directory.path, std::strerror(error))};
  }
}

Error silent() {
  return Error{"the scheduler does not answer: see its log, or end it and start it again"};
}

// True when the socket is ready for `events` before the deadline.
bool wait_for(int socket, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd waiting{socket, events, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::max<long>(left.count(), 0)));
    if (ready >= 0) return ready > 0;
    if (errno != EINTR) return false;
  }
}

Result<Reply> read_reply(std::string line) {
  const auto answer = nlohmann::json::parse(line, nullptr, false);
  if (!answer.is_object() || !answer.contains("ok") || !answer["ok"].is_boolean()) {
    return Error{"the scheduler's answer makes no sense: is it of another version?"};
  }
  Reply reply;
  reply.accepted = answer["ok"].get<bool>();
  if (answer.contains("error") && answer["error"].is_string()) {
    reply.error = answer["error"].get<std::string>();
  }
  if (!reply.accepted && reply.error.empty()) reply.error = "refused by the scheduler";
  reply.json = std::move(line);
  return reply;
}

}  // namespace

Result<ControlClient> ControlClient::connect(const RunDirectory& directory) {
  const auto path = socket_path(directory.path, wire::kControlSocket);
  if (!path) return path.error();
  UniqueFd connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection) return Error{fmt::format("socket: {}", std::strerror(errno))};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path->c_str(), path->size());
  const auto* where = reinterpret_cast<const sockaddr*>(&address);
  const auto deadline = Clock::now() + 5s;
  // EAGAIN: its queue of connections is full, which it empties when it is well.
  while (::connect(connection.get(), where, sizeof address) != 0) {
    if (errno == EAGAIN && Clock::now() < deadline) {
      ::poll(nullptr, 0, 20);
      continue;
    }
    if (errno == EAGAIN) return silent();
    if (errno != EINTR) return cannot_connect(directory, errno);
  }
  return ControlClient(std::move(connection));
}

Result<Reply> ControlClient::ask(const std::string& request, Duration timeout) {
  const auto deadline = Clock::now() + timeout;
  const std::string line = request + "\n";
  for (std::size_t sent = 0; sent < line.size();) {
    const auto part =
        ::send(connection_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (part >= 0) {
      sent += static_cast<std::size_t>(part);
    } else if (errno != EAGAIN && errno != EINTR) {
      return Error{"the scheduler closed the connection"};
    } else if (!wait_for(connection_.get(), POLLOUT, deadline)) {
      return silent();
    }
  }
  for (;;) {
    if (const std::size_t end = unread_.find('\n'); end != unread_.npos) {
      std::string answer = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return read_reply(std::move(answer));
    }
    if (unread_.size() > kLongestAnswer) return Error{"the scheduler's answer does not end"};
    if (!wait_for(connection_.get(), POLLIN, deadline)) return silent();
    char part[16384];
    const auto got = ::recv(connection_.get(), part, sizeof part, 0);
    if (got > 0) {
      unread_.append(part, static_cast<std::size_t>(got));
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return Error{"the scheduler closed the connection"};
    }
  }
}

}  // namespace nvshare::cli
