#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/testing/socket_server.h"

namespace nvshare::cli::testing {

// A scheduler's control socket for one test (SocketServer).
class ControlServer {
 public:
  // Answers each line with what `answer` makes of it; one that says nothing is not answered.
  explicit ControlServer(std::function<std::string(const std::string&)> answer);

  const std::string& directory() const { return server_.directory(); }
  // The lines that came; to be asked when nobody is connected any more.
  const std::vector<std::string>& requests() const { return requests_; }

 private:
  void talk(int connection);

  std::function<std::string(const std::string&)> answer_;
  std::vector<std::string> requests_;
  SocketServer server_;  // the last: its thread uses the others
};

}  // namespace nvshare::cli::testing
