#pragma once

// A server with its loop in a thread, for tests.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "daemon/http/http_server.h"
#include "daemon/http/testing_client.h"

namespace nvshare::daemon {

// Listens on TCP and on a Unix socket. GET /now is answered at once, POST /echo with the body.
// /wait waits for answer(), and /stream goes on by send(). Further paths are the test's.
class Served {
 public:
  explicit Served(HttpBounds bounds = {}, HttpServer::Handler further = {})
      : further_(std::move(further)) {
    wakeup_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    EXPECT_TRUE(reactor_.watch(wakeup_.get(), EPOLLIN, [this](std::uint32_t) { take_tasks(); }));
    auto started = HttpServer::start(
        reactor_, log_,
        [this](HttpCall call, const HttpRequest& request) { return handle(call, request); },
        [this](HttpCall call, bool sent) { tell(sent ? sent_ : gone_, call); }, bounds);
    EXPECT_TRUE(started);
    server_ = std::move(*started);
    listen_on(listen_on_loopback("127.0.0.1:0"), tcp_, tcp_length_);
    listen_on(listen_on_unix(), unix_, unix_length_);
    loop_ = std::thread([this] {
      reactor_.run([this] {
        ++turns_;
        return server_ ? server_->end_of_turn() : std::nullopt;
      });
    });
  }
  ~Served() {
    in_loop([this] {
      server_.reset();
      reactor_.stop();
    });
    loop_.join();
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  // In the loop's thread; comes back when it is done.
  template <typename Task>
  void in_loop(Task task) {
    std::promise<void> done;
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back([&] {
        task();
        done.set_value();
      });
    }
    eventfd_write(wakeup_.get(), 1);
    done.get_future().wait();
  }

  Client tcp() { return connected(AF_INET, tcp_, tcp_length_); }
  Client local() { return connected(AF_UNIX, unix_, unix_length_); }
  std::array<Client, 2> both() { return {tcp(), local()}; }
  const sockaddr_storage& tcp_address() const { return tcp_; }

  // The first `count` calls of /wait, in their order, once there are that many.
  std::vector<HttpCall> waiting(std::size_t count) { return first(waiting_, count); }
  std::vector<HttpCall> streams(std::size_t count) { return first(streams_, count); }
  std::vector<HttpCall> gone(std::size_t count) { return first(gone_, count); }
  std::vector<HttpCall> sent(std::size_t count) { return first(sent_, count); }
  std::size_t gone_so_far() {
    const std::lock_guard lock(mutex_);
    return gone_.size();
  }
  std::size_t handled() const { return handled_; }
  long turns() const { return turns_; }
  std::string log() {
    const std::lock_guard lock(mutex_);
    return logged_;
  }

  void answer(HttpCall call, const std::string& body) {
    in_loop([&] { server_->reply(call, {200, body, {}}); });
  }
  void send(HttpCall call, const std::string& piece) {
    in_loop([&] { server_->send(call, piece); });
  }
  HttpServer& server() { return *server_; }
  // With a reply that has had no turn to leave.
  void end_server(HttpCall unsent) {
    in_loop([&] {
      server_->reply(unsent, {200, "{}", {}});
      server_.reset();
    });
  }

 private:
  std::optional<HttpReply> handle(HttpCall call, const HttpRequest& request) {
    ++handled_;
    if (request.path == "/now") return HttpReply{200, "{}", {}};
    if (request.path == "/echo") return HttpReply{200, request.body, {}};
    if (request.path == "/stream") {
      tell(streams_, call);
      return HttpReply{200, "first\n\n", {}, "text/event-stream", true};
    }
    if (request.path != "/wait" && further_) return further_(call, request);
    if (request.path != "/wait") return http_error(404, "unknown");
    tell(waiting_, call);
    return std::nullopt;
  }

  void tell(std::vector<HttpCall>& list, HttpCall call) {
    const std::lock_guard lock(mutex_);
    list.push_back(call);
    told_.notify_all();
  }
  std::vector<HttpCall> first(std::vector<HttpCall>& list, std::size_t count) {
    std::unique_lock lock(mutex_);
    const bool there = told_.wait_for(lock, kLongEnough, [&] { return list.size() >= count; });
    EXPECT_TRUE(there) << list.size() << " of " << count;
    if (!there) return std::vector<HttpCall>(count);
    return {list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  void take_tasks() {
    eventfd_t count = 0;
    eventfd_read(wakeup_.get(), &count);
    std::deque<std::function<void()>> tasks;
    {
      const std::lock_guard lock(mutex_);
      tasks.swap(tasks_);
    }
    for (const auto& task : tasks) task();
  }

  static Result<UniqueFd> listen_on_unix() {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un any{};  // a name of the kernel's choice, and no file
    any.sun_family = AF_UNIX;
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&any), sizeof any.sun_family), 0);
    EXPECT_EQ(::listen(fd.get(), SOMAXCONN), 0);
    return fd;
  }
  void listen_on(Result<UniqueFd> listener, sockaddr_storage& address, socklen_t& length) {
    ASSERT_TRUE(listener) << listener.error().message;
    length = sizeof address;
    getsockname(listener->get(), reinterpret_cast<sockaddr*>(&address), &length);
    EXPECT_TRUE(server_->listen(std::move(*listener)));
  }
  static Client connected(int family, const sockaddr_storage& to, socklen_t length) {
    Client client(UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)));
    EXPECT_TRUE(client.connect(to, length)) << std::strerror(errno);
    return client;
  }

  Reactor reactor_ = *Reactor::make();
  Log log_{Level::Info, [this](std::string_view line) {
             const std::lock_guard lock(mutex_);
             logged_ += line;
           }};
  HttpServer::Handler further_;
  UniqueFd wakeup_;
  std::unique_ptr<HttpServer> server_;
  sockaddr_storage tcp_{}, unix_{};
  socklen_t tcp_length_ = 0, unix_length_ = 0;
  std::atomic<long> turns_ = 0;
  std::atomic<std::size_t> handled_ = 0;
  std::mutex mutex_;
  std::condition_variable told_;
  std::deque<std::function<void()>> tasks_;
  std::vector<HttpCall> waiting_;
  std::vector<HttpCall> streams_;
  std::vector<HttpCall> gone_;
  std::vector<HttpCall> sent_;
  std::string logged_;
  std::thread loop_;
};

inline std::size_t entries(const char* folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

// Fails when a test leaves descriptors behind.
class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override { descriptors_ = entries("/proc/self/fd"); }
  void TearDown() override { EXPECT_EQ(entries("/proc/self/fd"), descriptors_); }

 private:
  std::size_t descriptors_ = 0;
};

}  // namespace nvshare::daemon
