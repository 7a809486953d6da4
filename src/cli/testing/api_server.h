#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "cli/testing/socket_server.h"

namespace nvshare::cli::testing {

// A request as it came, and the process that the kernel names as its sender.
struct ApiRequest {
  std::string head;    // all of its lines
  std::string target;  // "GET /v1/leases"
  std::string body;
  pid_t peer = 0;
  std::chrono::steady_clock::time_point came_at{};
};

// A scheduler's HTTP socket for one test (SocketServer).
class ApiServer {
 public:
  // Answers with what `answer` makes of a request: the bytes of the whole answer. Without any the
  // connection stays open until the other end closes it.
  explicit ApiServer(std::function<std::string(const ApiRequest&)> answer);

  const std::string& directory() const { return server_.directory(); }
  std::vector<ApiRequest> requests() const;
  // Their targets alone.
  std::vector<std::string> targets() const;
  // Connections that the other end closed without an answer.
  int withdrawn() const;

 private:
  void talk(int connection);

  std::function<std::string(const ApiRequest&)> answer_;
  mutable std::mutex mutex_;
  std::vector<ApiRequest> requests_;
  int withdrawn_ = 0;
  SocketServer server_;  // the last: its thread uses the others
};

// The bytes of an answer.
std::string http(int status, const std::string& body);

}  // namespace nvshare::cli::testing
