#include "cli/testing/control_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace nvshare::cli::testing {

ControlServer::ControlServer(std::function<std::string(const std::string&)> answer)
    : answer_(std::move(answer)) {
  char name[] = "/tmp/nvshare-control-XXXXXX";
  directory_ = ::mkdtemp(name);
  ::setenv("NVSHARE_RUN_DIR", directory_.c_str(), 1);
  int pair[2];
  EXPECT_EQ(::pipe2(pair, O_CLOEXEC), 0);
  stopped_.reset(pair[0]);
  stop_.reset(pair[1]);
  listening_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (directory_ + "/control.sock").c_str());
  EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(listening_.get(), 8), 0);
  thread_ = std::thread([this] { serve(); });
}

ControlServer::~ControlServer() {
  stop_.reset();
  thread_.join();
  ::unsetenv("NVSHARE_RUN_DIR");
  std::filesystem::remove_all(directory_);
}

void ControlServer::serve() {
  for (;;) {
    pollfd waiting[2]{{listening_.get(), POLLIN, 0}, {stopped_.get(), POLLIN, 0}};
    ::poll(waiting, 2, -1);
    if (waiting[1].revents != 0) return;
    const UniqueFd connection(::accept(listening_.get(), nullptr, nullptr));
    if (connection) talk(connection.get());
  }
}

void ControlServer::talk(int connection) {
  std::string unread;
  for (;;) {
    pollfd waiting[2]{{connection, POLLIN, 0}, {stopped_.get(), POLLIN, 0}};
    ::poll(waiting, 2, -1);
    if (waiting[1].revents != 0) return;
    char part[4096];
    const auto got = ::read(connection, part, sizeof part);
    if (got <= 0) return;
    unread.append(part, static_cast<std::size_t>(got));
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
