#include "cli/talk/http_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "cli/talk/scheduler_socket.h"
#include "wire/channel.h"

namespace nvshare::cli {
namespace {

using Clock = std::chrono::steady_clock;

// A scheduler takes connections many times a second. A smaller number fails beside a burst of
// requests.
constexpr Duration kConnectPatience = 5s;

std::string text_of(const HttpRequest& request) {
  std::string text = fmt::format(
      "{} {} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n",
      request.method, request.path);
  if (!request.body.empty()) text += "Content-Type: application/json\r\n";
  return text + fmt::format("Content-Length: {}\r\n\r\n{}", request.body.size(), request.body);
}

// A scheduler without HTTP answers on its other sockets.
Error no_http_socket(const RunDirectory& directory, int error) {
  if (error == EACCES || error == EPERM) {
    return Error{fmt::format("permission denied: {}/{}", directory.path, wire::kApiSocket)};
  }
  const bool is_missing = error == ENOENT || error == ECONNREFUSED;
  if (is_missing && scheduler_answers(directory.path)) {
    return Error{"this scheduler offers no leases"};
  }
  return cannot_connect(directory, error);
}

}  // namespace

Result<HttpExchange> HttpExchange::begin(const RunDirectory& directory, const HttpRequest& request,
                                         Duration patience) {
  const auto path = socket_path(directory.path, wire::kApiSocket);
  if (!path) return path.error();
  Connection made = connect_stream(*path, patience);
  if (made.error != 0) return no_http_socket(directory, made.error);
  return HttpExchange(std::move(made.socket), text_of(request));
}

short HttpExchange::events() const {
  return unsent_.empty() ? POLLIN : POLLIN | POLLOUT;
}

// A server may refuse a request before it has read all of it. Its answer is there to be read.
void HttpExchange::send_more() {
  while (!unsent_.empty()) {
    const auto sent =
        ::send(connection_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      unsent_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      unsent_.clear();
    }
  }
}

Result<bool> HttpExchange::go_on() {
  send_more();
  for (;;) {
    char part[16384];
    const auto got = ::recv(connection_.get(), part, sizeof part, MSG_DONTWAIT);
    if (got > 0) {
      auto done = reader_.take({part, static_cast<std::size_t>(got)});
      if (!done || *done) return done;
    } else if (got == 0) {
      if (const auto ended = reader_.end(); !ended) return ended.error();
      return true;
    } else if (errno == EAGAIN) {
      return false;
    } else if (errno != EINTR) {
      return scheduler_has_closed();
    }
  }
}

Result<HttpAnswer> ask_http(const RunDirectory& directory, const HttpRequest& request,
                            Duration timeout) {
  const auto deadline = Clock::now() + timeout;
  auto exchange = HttpExchange::begin(directory, request, std::min(timeout, kConnectPatience));
  if (!exchange) return exchange.error();
  for (;;) {
    const auto done = exchange->go_on();
    if (!done) return done.error();
    if (*done) return exchange->answer();
    if (!wait_for(exchange->socket(), exchange->events(), deadline)) return scheduler_is_silent();
  }
}

}  // namespace nvshare::cli
