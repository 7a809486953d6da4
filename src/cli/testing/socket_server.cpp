#include "cli/testing/socket_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace nvshare::cli::testing {

SocketServer::SocketServer(const char* socket, std::function<void(int connection)> talk)
    : talk_(std::move(talk)) {
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
  std::strcpy(address.sun_path, (directory_ + "/" + socket).c_str());
  EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(listening_.get(), 8), 0);
  thread_ = std::thread([this] { serve(); });
}

SocketServer::~SocketServer() {
  stop_.reset();
  thread_.join();
  ::unsetenv("NVSHARE_RUN_DIR");
  std::filesystem::remove_all(directory_);
}

void SocketServer::serve() {
  for (;;) {
    pollfd waiting[2]{{listening_.get(), POLLIN, 0}, {stopped_.get(), POLLIN, 0}};
    ::poll(waiting, 2, -1);
    if (waiting[1].revents != 0) return;
    const UniqueFd connection(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection) talk_(connection.get());
  }
}

bool SocketServer::read_more(int connection, std::string& unread) const {
  pollfd waiting[2]{{connection, POLLIN, 0}, {stopped_.get(), POLLIN, 0}};
  ::poll(waiting, 2, -1);
  if (waiting[1].revents != 0) return false;
  char part[4096];
  const auto got = ::read(connection, part, sizeof part);
  if (got > 0) unread.append(part, static_cast<std::size_t>(got));
  return got > 0;
}

}  // namespace nvshare::cli::testing
