#include "cli/talk/control_client.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/talk/scheduler_socket.h"
#include "wire/channel.h"

namespace nvshare::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Far more than a status of thousands of tenants.
constexpr std::size_t kLongestAnswer = 64 << 20;

Result<Reply> read_reply(std::string line) {
  const auto answer = nlohmann::json::parse(line, nullptr, false);
  if (!answer.is_object() || !answer.contains("ok") || !answer["ok"].is_boolean()) {
    return answer_makes_no_sense();
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
  Connection made = connect_stream(*path, 5s);
  if (made.error == EACCES || made.error == EPERM) {
    return Error{"permission denied: control is for root and the group nvshare"};
  }
  if (made.error != 0) return cannot_connect(directory, made.error);
  return ControlClient(std::move(made.socket));
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
      return scheduler_has_closed();
    } else if (!wait_for(connection_.get(), POLLOUT, deadline)) {
      return scheduler_is_silent();
    }
  }
  for (;;) {
    if (const std::size_t end = unread_.find('\n'); end != unread_.npos) {
      std::string answer = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return read_reply(std::move(answer));
    }
    if (unread_.size() > kLongestAnswer) return Error{"the scheduler's answer does not end"};
    if (!wait_for(connection_.get(), POLLIN, deadline)) return scheduler_is_silent();
    char part[16384];
    const auto got = ::recv(connection_.get(), part, sizeof part, 0);
    if (got > 0) {
      unread_.append(part, static_cast<std::size_t>(got));
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return scheduler_has_closed();
    }
  }
}

}  // namespace nvshare::cli
