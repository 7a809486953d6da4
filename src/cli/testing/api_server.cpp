#include "cli/testing/api_server.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cstdlib>
#include <utility>

namespace nvshare::cli::testing {
namespace {

constexpr std::string_view kLength = "Content-Length: ";

// False while some of the request is missing.
bool read_request(const std::string& bytes, ApiRequest& request) {
  const std::size_t end = bytes.find("\r\n\r\n");
  if (end == bytes.npos) return false;
  request.head = bytes.substr(0, end + 2);
  request.target = request.head.substr(0, request.head.find(" HTTP/1.1\r\n"));
  const std::size_t length = request.head.find(kLength);
  const auto size = length == request.head.npos
                        ? 0
                        : std::strtoul(request.head.c_str() + length + kLength.size(), nullptr, 10);
  request.body = bytes.substr(end + 4, size);
  return request.body.size() == size;
}

}  // namespace

ApiServer::ApiServer(std::function<std::string(const ApiRequest&)> answer)
    : answer_(std::move(answer)),
      server_("api.sock", [this](int connection) { talk(connection); }) {}

std::vector<ApiRequest> ApiServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::vector<std::string> ApiServer::targets() const {
  std::vector<std::string> all;
  for (const ApiRequest& one : requests()) all.push_back(one.target);
  return all;
}

int ApiServer::withdrawn() const {
  const std::lock_guard lock(mutex_);
  return withdrawn_;
}

void ApiServer::talk(int connection) {
  ucred peer{};
  socklen_t length = sizeof peer;
  ::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length);
  ApiRequest request;
  request.peer = peer.pid;
  std::string unread;
  do {
    if (!server_.read_more(connection, unread)) return;
  } while (!read_request(unread, request));
  request.came_at = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  const std::string answer = answer_(request);
  ::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
  if (!answer.empty()) return;
  while (server_.read_more(connection, unread)) {
  }
  const std::lock_guard lock(mutex_);
  ++withdrawn_;
}

std::string http(int status, const std::string& body) {
  return fmt::format(
      "HTTP/1.1 {} Said\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", status,
      body.size(), body);
}

}  // namespace nvshare::cli::testing
