#pragma once

// A client of HTTP made of a plain socket, for tests.

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/unique_fd.h"

namespace nvshare::daemon {

// How long a test waits for what must happen.
inline constexpr auto kLongEnough = std::chrono::seconds(30);

class Client {
 public:
  struct Reply {
    int status = 0;
    std::map<std::string, std::string> headers;
    std::string body;
  };

  Client() = default;
  explicit Client(UniqueFd socket) : socket_(std::move(socket)) {
    const timeval patience{std::chrono::seconds(kLongEnough).count(), 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }

  bool connect(const sockaddr_storage& to, socklen_t length) {
    return ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), length) == 0;
  }

  int fd() const { return socket_.get(); }

  bool send(const std::string& text) {
    for (std::size_t sent = 0; sent < text.size();) {
      const auto some = ::send(socket_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (some <= 0) return false;
      sent += static_cast<std::size_t>(some);
    }
    return true;
  }
  void get(const std::string& path) {
    send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  void post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send(fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: {}\r\n\r\n{}", path,
                     headers, body.size(), body));
  }

  // The next event of a reply that goes on, behind its head, without the empty line at its end.
  // None when the connection has ended before.
  std::optional<std::string> event() {
    std::size_t end = 0;
    while ((end = events_.find("\n\n")) == std::string::npos) {
      const auto some = chunk();
      if (!some) return std::nullopt;
      events_ += *some;
    }
    std::string one = events_.substr(0, end);
    events_.erase(0, end + 2);
    return one;
  }

  // None when the connection has ended before.
  std::optional<Reply> read(bool has_body = true) {
    while (in_.find("\r\n\r\n") == std::string::npos) {
      if (!receive()) return std::nullopt;
    }
    Reply reply;
    std::size_t at = in_.find("\r\n");
    reply.status = std::stoi(in_.substr(in_.find(' ')));
    const std::size_t end = in_.find("\r\n\r\n");
    while (at < end) {
      const std::size_t next = in_.find("\r\n", at + 2);
      const std::string line = in_.substr(at + 2, next - at - 2);
      const std::size_t colon = line.find(": ");
      reply.headers[line.substr(0, colon)] = line.substr(colon + 2);
      at = next;
    }
    in_.erase(0, end + 4);
    chunks_ = reply.headers.contains("Transfer-Encoding");
    const auto length = reply.headers.find("Content-Length");
    if (!has_body || length == reply.headers.end()) return reply;
    const std::size_t size = std::stoul(length->second);
    while (in_.size() < size) {
      if (!receive()) return std::nullopt;
    }
    reply.body = in_.substr(0, size);
    in_.erase(0, size);
    return reply;
  }
  int status() {
    const auto reply = read();
    return reply ? reply->status : 0;
  }

  // Waits for the end of the connection; false when the server sends something instead, or nothing.
  bool ended() {
    if (receive()) return false;
    return errno != EAGAIN;
  }
  // The connection is there, and nothing has come.
  bool hears_nothing() {
    char byte;
    return recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
  }
  void half_close() { shutdown(socket_.get(), SHUT_WR); }
  void close() { socket_.reset(); }
  void reset() {
    const linger at_once{1, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    socket_.reset();
  }

 private:
  // Of a body in chunks. None at its end, too. To HTTP/1.0 a body goes as it is.
  std::optional<std::string> chunk() {
    if (!chunks_) {
      if (in_.empty() && !receive()) return std::nullopt;
      return std::exchange(in_, "");
    }
    std::size_t line = 0;
    while ((line = in_.find("\r\n")) == std::string::npos) {
      if (!receive()) return std::nullopt;
    }
    const std::size_t size = std::stoul(in_.substr(0, line), nullptr, 16);
    while (in_.size() < line + 2 + size + 2) {
      if (!receive()) return std::nullopt;
    }
    std::string bytes = in_.substr(line + 2, size);
    in_.erase(0, line + 2 + size + 2);
    if (bytes.empty()) return std::nullopt;
    return bytes;
  }

  bool receive() {
    char buffer[65536];
    errno = 0;
    const auto some = recv(socket_.get(), buffer, sizeof buffer, 0);
    if (some <= 0) return false;
    in_.append(buffer, static_cast<std::size_t>(some));
    return true;
  }

  UniqueFd socket_;
  std::string in_;
  bool chunks_ = false;  // of the last reply
  std::string events_;
};

}  // namespace nvshare::daemon
