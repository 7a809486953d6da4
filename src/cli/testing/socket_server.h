#pragma once

#include <functional>
#include <string>
#include <thread>

#include "base/unique_fd.h"

namespace nvshare::cli::testing {

// One of the scheduler's stream sockets for one test, in a run directory of its own that
// NVSHARE_RUN_DIR names while it lives.
class SocketServer {
 public:
  // Calls `talk` for one connection after the other, on a thread of its own.
  SocketServer(const char* socket, std::function<void(int connection)> talk);
  ~SocketServer();
  SocketServer(const SocketServer&) = delete;
  SocketServer& operator=(const SocketServer&) = delete;

  const std::string& directory() const { return directory_; }
  // For `talk`: more of what the other end says. False when that has gone, or the test is over.
  bool read_more(int connection, std::string& unread) const;

 private:
  void serve();

  std::function<void(int)> talk_;
  std::string directory_;
  UniqueFd listening_;
  UniqueFd stop_;
  UniqueFd stopped_;
  std::thread thread_;
};

}  // namespace nvshare::cli::testing
