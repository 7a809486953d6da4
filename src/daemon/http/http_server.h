#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/strong_id.h"
#include "base/unique_fd.h"
#include "daemon/log.h"
#include "daemon/serve/reactor.h"

namespace nvshare::daemon {

// One request that has no answer yet.
using HttpCall = StrongId<struct HttpCallTag>;

// The process at the other end of a Unix socket, by the kernel's word.
struct HttpPeer {
  pid_t pid = 0;
  uid_t uid = 0;
  std::vector<gid_t> groups{};  // all of them, as they were when it connected
};

struct HttpRequest {
  std::string method;
  std::string path;                          // decoded, without the query
  std::map<std::string, std::string> query;  // decoded
  std::string body;
  std::optional<HttpPeer> peer;  // none over TCP
  // The client has closed the connection, or its sending half: it may be there for this answer, and
  // it is not for a later one.
  bool hung_up = false;
};

struct HttpReply {
  int status = 200;
  std::string body;  // JSON
  std::vector<std::pair<std::string, std::string>> headers;
  std::string_view type = "application/json";  // a literal
  // The body is the first piece of a reply without an end. send() has the further ones.
  bool goes_on = false;
};
// A reply with one line of text for people, as JSON.
HttpReply http_error(int status, const std::string& line);

// What one client can take from the others.
struct HttpBounds {
  // Over all listeners; the next one is closed at once. One user has no more than a half, and all
  // of TCP counts as one user. A 16th is for root and the scheduler's own user alone.
  std::size_t connections = 2048;
  // From the connection, or the request's first line, to the request's end. A longer time keeps
  // half-sent requests longer in memory.
  Duration request = 10s;
  // From a reply to the next request's first line. A client that polls less often connects anew.
  // Also for taking a piece of a reply that goes on.
  Duration idle = 60s;
};

// The one door for HTTP: JSON requests in, replies out, on the scheduler's own thread. Bounded in
// connections and in bytes of each; a slow client delays no other. Requests from browsers' pages
// are refused: they carry an Origin header, or the name of a host that is no loopback name.
class HttpServer {
 public:
  // No reply means: reply() comes later.
  using Handler = std::function<std::optional<HttpReply>(HttpCall, const HttpRequest&)>;
  // The end of a call: the reply is with the kernel whole, or the connection ended before. What the
  // kernel of a client that died has taken counts as sent. A reply that goes on is never sent
  // whole. Once for each call, not from within reply(), send() or the handler, and not by the end
  // of the server.
  using Ended = std::function<void(HttpCall, bool sent)>;

  static constexpr std::size_t kLongestBody = 64 * 1024;
  // The others wait for the next turn, so that a flood of them leaves time for everything else.
  static constexpr std::size_t kCallsPerTurn = 16;

  // An error in a build without libmicrohttpd.
  static Result<std::unique_ptr<HttpServer>> start(Reactor& reactor, Log& log, Handler handler,
                                                   Ended ended, const HttpBounds& bounds = {});
  virtual ~HttpServer() = default;

  // Takes connections from this listening socket (Unix or TCP, non-blocking) from now on.
  virtual Result<void> listen(UniqueFd listener) = 0;
  // The answer to a call that the handler left open. Nothing happens when the call has ended.
  virtual void reply(HttpCall call, const HttpReply& reply) = 0;
  // The next piece of a reply that goes on. A slow client gets the newest piece alone after the one
  // that it takes now, because its memory would grow otherwise. Nothing happens when the call has
  // ended.
  virtual void send(HttpCall call, std::string piece) = 0;
  // Sends what reply() and send() were given, and does what is due by time; the answer is when to
  // look again. Called once a turn. It may call the handler.
  virtual std::optional<Time> end_of_turn() = 0;
};

// A listening TCP socket at `address` ("127.0.0.1:9402", "[::1]:9402"). Only loopback addresses.
Result<UniqueFd> listen_on_loopback(const std::string& address);

}  // namespace nvshare::daemon
