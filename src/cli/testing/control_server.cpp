#include "cli/testing/control_server.h"

#include <sys/socket.h>

#include <utility>

namespace nvshare::cli::testing {

ControlServer::ControlServer(std::function<std::string(const std::string&)> answer)
    : answer_(std::move(answer)),
      server_("control.sock", [this](int connection) { talk(connection); }) {}

void ControlServer::talk(int connection) {
  std::string unread;
  while (server_.read_more(connection, unread)) {
    for (std::size_t end; (end = unread.find('\n')) != unread.npos; unread.erase(0, end + 1)) {
      requests_.push_back(unread.substr(0, end));
      const std::string text = answer_(requests_.back());
      if (text.empty()) continue;
      // In two parts, as the kernel may deliver it.
      const std::string line = text + "\n";
      ::send(connection, line.data(), line.size() / 2, MSG_NOSIGNAL);
      ::send(connection, line.data() + line.size() / 2, line.size() - line.size() / 2,
             MSG_NOSIGNAL);
    }
  }
}

}  // namespace nvshare::cli::testing
