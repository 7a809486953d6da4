#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/http/receiver_url.h"
#include "daemon/serve/reactor.h"

namespace nvshare::daemon {

// Posts JSON on the scheduler's own thread: one request at a time, each on a connection of its own.
class HttpPost {
 public:
  // The receiver has answered 2xx; or the reason why not, in one line. Not from within begin().
  using Done = std::function<void(const Result<void>&)>;

  // For the whole request. A longer time keeps a hanging receiver's next try away for longer.
  static constexpr Duration kPatience = 5s;
  // After the answer, for the receiver to close. A receiver that is cut off may call that an error.
  static constexpr Duration kFarewell = 200ms;

  HttpPost(Reactor& reactor, Done done) : reactor_(reactor), done_(std::move(done)) {}
  ~HttpPost() { cancel(); }
  HttpPost(const HttpPost&) = delete;
  HttpPost& operator=(const HttpPost&) = delete;

  // None is under way. An error: there will be no done().
  Result<void> begin(const ReceiverUrl& to, std::string_view body);
  bool under_way() const { return static_cast<bool>(socket_); }
  // Without done().
  void cancel();
  // Ends a request whose time is over. When to look again.
  std::optional<Time> end_of_turn();

 private:
  void look();
  bool sent_whole();
  void read_some();
  void read_status();
  void finish(const Result<void>& how);

  Reactor& reactor_;
  Done done_;
  UniqueFd socket_;
  Time deadline_{};
  std::string out_;
  std::size_t sent_ = 0;
  std::string head_;  // of the answer, as much as it needs
  std::optional<int> status_;
};

}  // namespace nvshare::daemon
