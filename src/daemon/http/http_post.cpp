#include "daemon/http/http_post.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/units.h"

namespace nvshare::daemon {
namespace {

// "HTTP/1.1 200": what of an answer is looked at.
constexpr std::string_view kVersion = "HTTP/1.";
constexpr std::size_t kStatusAt = 9;
constexpr std::size_t kStatusEnds = kStatusAt + 3;
constexpr std::size_t kReadAtOnce = 16 * 1024;  // the rest waits for the next turn
constexpr std::size_t kSendAtOnce = 256 << 10;  // the loop has others to serve

bool would_block() {
  return errno == EAGAIN || errno == EINTR;
}

Error failed(int error) {
  return Error{std::strerror(error)};
}

}  // namespace

Result<void> HttpPost::begin(const ReceiverUrl& to, std::string_view body) {
  UniqueFd socket(::socket(to.at.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return failed(errno);
  const auto* address = reinterpret_cast<const sockaddr*>(&to.at.address);
  if (connect(socket.get(), address, to.at.length) < 0 && errno != EINPROGRESS) {
    return failed(errno);
  }
  const auto watched = reactor_.watch(socket.get(), EPOLLOUT, [this](std::uint32_t) { look(); });
  if (!watched) return watched;
  socket_ = std::move(socket);
  deadline_ = reactor_.now() + kPatience;
  out_ = fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: nvshare-scheduler\r\n"
      "Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      to.path, to.host, body.size(), body);
  sent_ = 0;
  head_.clear();
  status_.reset();
  return {};
}

void HttpPost::cancel() {
  if (!socket_) return;
  reactor_.unwatch(socket_.get());
  socket_.reset();
}

void HttpPost::finish(const Result<void>& how) {
  cancel();
  done_(how);
}

void HttpPost::look() {
  if (sent_ < out_.size()) {
    if (sent_whole()) reactor_.change(socket_.get(), EPOLLIN);
  } else {
    read_some();
  }
}

// A connection that was refused is told by the first send, too.
bool HttpPost::sent_whole() {
  const std::size_t bytes = std::min(out_.size() - sent_, kSendAtOnce);
  const auto some = ::send(socket_.get(), out_.data() + sent_, bytes, MSG_NOSIGNAL);
  if (some < 0 && !would_block()) {
    finish(failed(errno));
    return false;
  }
  sent_ += static_cast<std::size_t>(std::max<ssize_t>(some, 0));
  return sent_ == out_.size();
}

void HttpPost::read_some() {
  std::array<char, kReadAtOnce> bytes;
  const auto some = recv(socket_.get(), bytes.data(), bytes.size(), 0);
  if (some < 0 && would_block()) return;
  if (some > 0 && status_) return;  // the rest of the answer
  if (some > 0) {
    head_.append(bytes.data(), std::min(static_cast<std::size_t>(some), kStatusEnds));
    return read_status();
  }
  if (!status_) return finish(some < 0 ? failed(errno) : Error{"it closed before its answer"});
  finish({});
}

void HttpPost::read_status() {
  if (head_.size() < kStatusEnds) return;
  const auto status = parse_integer(head_.substr(kStatusAt, kStatusEnds - kStatusAt), 100, 999);
  if (!head_.starts_with(kVersion) || !status) return finish(Error{"its answer is no HTTP"});
  status_ = static_cast<int>(*status);
  if (*status / 100 != 2) return finish(Error{fmt::format("it answered {}", *status)});
  deadline_ = std::min(deadline_, reactor_.now() + kFarewell);
}

std::optional<Time> HttpPost::end_of_turn() {
  if (!socket_) return std::nullopt;
  if (deadline_ > reactor_.now()) return deadline_;
  finish(status_ ? Result<void>() : Error{fmt::format("no answer in {} s", kPatience / 1s)});
  return std::nullopt;
}

}  // namespace nvshare::daemon
