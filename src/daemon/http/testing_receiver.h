#pragma once

// A receiver of posts in a thread of its own, for tests.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/http/http_server.h"

namespace nvshare::daemon {

// Takes one connection after the other and answers each with the same bytes.
class Receiver {
 public:
  static constexpr const char* kGood = "HTTP/1.1 204 No Content\r\n\r\n";

  // `answer`: empty for none at all, until the sender gives up.
  explicit Receiver(std::string answer = kGood, const std::string& address = "127.0.0.1:0")
      : answer_(std::move(answer)), address_(address) {
    auto listener = listen_on_loopback(address);
    EXPECT_TRUE(listener) << listener.error().message;
    listener_ = std::move(*listener);
    sockaddr_in at{};
    socklen_t length = sizeof at;
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &length);
    if (address_.ends_with(":0")) address_.replace(address_.size() - 1, 1, port_text(at));
    thread_ = std::thread([this] { serve(); });
  }
  ~Receiver() {
    stopping_ = true;
    thread_.join();
  }
  Receiver(const Receiver&) = delete;

  std::string url(const std::string& path = "/status") const { return "http://" + address_ + path; }
  void set_answer(const std::string& answer) {
    const std::lock_guard lock(mutex_);
    answer_ = answer;
  }
  // Heads and bodies of all requests so far.
  std::vector<std::string> heads() const { return copy(heads_); }
  std::vector<std::string> bodies() const { return copy(bodies_); }
  // The most connections that it had at a time.
  int most() const { return most_; }

 private:
  static constexpr int kLook = 20;  // milliseconds between two looks for the end

  static std::string port_text(const sockaddr_in& at) { return std::to_string(ntohs(at.sin_port)); }
  std::vector<std::string> copy(const std::vector<std::string>& list) const {
    const std::lock_guard lock(mutex_);
    return list;
  }
  static bool readable(int fd) {
    pollfd look{fd, POLLIN, 0};
    return poll(&look, 1, kLook) > 0;
  }

  void serve() {
    while (!stopping_) {
      if (!readable(listener_.get())) continue;
      const UniqueFd one(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      take(one.get());
    }
  }

  void take(int fd) {
    std::string in;
    while (!stopping_) {
      if (!readable(fd)) continue;
      char buffer[65536];
      const auto some = recv(fd, buffer, sizeof buffer, 0);
      if (some <= 0) return;
      in.append(buffer, static_cast<std::size_t>(some));
      if (is_whole(in)) break;
    }
    if (!is_whole(in)) return;  // the test is over
    std::string answer;
    {
      const std::lock_guard lock(mutex_);
      const std::size_t body = in.find("\r\n\r\n") + 4;
      heads_.push_back(in.substr(0, body));
      bodies_.push_back(in.substr(body));
      answer = answer_;
    }
    if (!answer.empty()) {
      send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
      return;
    }
    // It hangs. Another connection at the same time would be one more than one.
    char byte;
    while (!stopping_ && !(readable(fd) && recv(fd, &byte, 1, 0) <= 0)) {
      if (readable(listener_.get())) most_ = 2;
    }
  }

  static bool is_whole(const std::string& in) {
    constexpr std::string_view kLength = "Content-Length: ";
    const std::size_t end = in.find("\r\n\r\n");
    const std::size_t length = in.find(kLength);
    return end != in.npos && length != in.npos &&
           in.size() >= end + 4 + std::strtoul(in.c_str() + length + kLength.size(), nullptr, 10);
  }

  mutable std::mutex mutex_;
  std::string answer_;
  std::vector<std::string> heads_;
  std::vector<std::string> bodies_;
  std::atomic<int> most_ = 1;
  std::atomic<bool> stopping_ = false;
  std::string address_;
  UniqueFd listener_;
  std::thread thread_;
};

}  // namespace nvshare::daemon
