#include "daemon/http/http_server.h"

#include <microhttpd.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "daemon/http/http_rules.h"
#include "daemon/http/peer.h"
#include "daemon/serve/spare_descriptor.h"

namespace nvshare::daemon {
namespace {

// Of libmicrohttpd for each connection: the request's lines and the reply's. A request with longer
// headers is answered 431.
constexpr std::size_t kConnectionMemory = 16 * 1024;
// Of a reply's body, in one piece.
constexpr std::size_t kReplyBlock = 16 * 1024;
// Of one listener in one turn, so that a flood of them leaves time for everything else.
constexpr int kAcceptedAtOnce = 16;

// None: all of TCP.
using User = std::optional<uid_t>;
User user_of(const std::optional<HttpPeer>& peer) {
  return peer ? User(peer->uid) : std::nullopt;
}

// A reply that goes on.
struct Stream {
  std::string piece;                  // leaves now
  std::size_t taken = 0;              // of it
  std::optional<std::string> next{};  // the newest one behind it
  bool ends = false;
};

class MicrohttpdServer;

struct Connection {
  enum class At { Headers, Body, Handler, Reply };

  MicrohttpdServer* server = nullptr;
  MHD_Connection* handle = nullptr;
  int fd = -1;
  bool over_tcp = false;
  std::optional<HttpPeer> peer;
  std::optional<Time> deadline;
  // Of the present request.
  At at = At::Headers;
  std::string body;
  bool too_long = false;
  HttpCall call{};
  bool suspended = false;
  bool postponed = false;  // until a turn in which it is its request's time
  std::optional<HttpReply> reply;
  std::optional<Stream> stream;
};

using Response = std::unique_ptr<MHD_Response, void (*)(MHD_Response*)>;

// Sockets are accepted here and given to one daemon of libmicrohttpd, because a maximum over all
// listeners, and turning away what is beyond it, is more than that library's own accepting does.
class MicrohttpdServer final : public HttpServer {
 public:
  MicrohttpdServer(Reactor& reactor, Log& log, Handler handler, Ended ended,
                   const HttpBounds& bounds)
      : reactor_(reactor),
        log_(log),
        handler_(std::move(handler)),
        ended_(std::move(ended)),
        bounds_(bounds) {}
  ~MicrohttpdServer() override;
  MicrohttpdServer(const MicrohttpdServer&) = delete;
  MicrohttpdServer& operator=(const MicrohttpdServer&) = delete;

  Result<void> open();
  Result<void> listen(UniqueFd listener) override;
  void reply(HttpCall call, const HttpReply& reply) override;
  void send(HttpCall call, std::string piece) override;
  std::optional<Time> end_of_turn() override;

 private:
  // What libmicrohttpd calls.
  static void on_connection(void* self, MHD_Connection* handle, void** context,
                            MHD_ConnectionNotificationCode what);
  static void* on_request_line(void* self, const char* uri, MHD_Connection* handle);
  static MHD_Result on_request(void* self, MHD_Connection* handle, const char* path,
                               const char* method, const char* version, const char* data,
                               std::size_t* size, void** context);
  static void on_completed(void* self, MHD_Connection* handle, void** context,
                           MHD_RequestTerminationCode how);
  static ssize_t on_more_room(void* connection, std::uint64_t at, char* into, std::size_t most);

  void accept_some(int listener);
  bool has_room_for(User user) const;
  void* begin(MHD_Connection* handle);
  MHD_Result check_headers(Connection& connection);
  MHD_Result ask(Connection& connection, const char* method, const char* path);
  MHD_Result wait(Connection& connection);
  Result<void> suspend(Connection& connection);
  ssize_t next_bytes(Connection& connection, char* into, std::size_t most);
  MHD_Result postpone(Connection& connection);
  void take_up_postponed();
  MHD_Result answer(Connection& connection, const HttpReply& reply);
  void wake(Connection& connection);
  void end_call(Connection& connection, bool sent);
  void set_deadline(Connection& connection, std::optional<Time> deadline);
  void end_overdue();
  void run() { MHD_run(daemon_); }

  Reactor& reactor_;
  Log& log_;
  Handler handler_;
  Ended ended_;
  HttpBounds bounds_;
  MHD_Daemon* daemon_ = nullptr;
  int epoll_ = -1;  // the daemon's
  std::vector<UniqueFd> listeners_;
  SpareDescriptor spare_;
  std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_;
  std::map<User, std::size_t> of_user_;  // connections
  uid_t own_ = geteuid();
  std::unordered_map<HttpCall, Connection*> calls_;  // without a whole reply
  std::set<std::pair<Time, Connection*>> deadlines_;
  std::deque<Connection*> postponed_;
  std::size_t calls_now_ = 0;  // of this turn
  HttpCall last_call_{};
  bool must_run_ = false;  // before the loop waits
};

MicrohttpdServer::~MicrohttpdServer() {
  for (const UniqueFd& listener : listeners_) reactor_.unwatch(listener.get());
  if (epoll_ >= 0) reactor_.unwatch(epoll_);
  if (daemon_ == nullptr) return;
  for (const auto& [call, connection] : calls_) {
    if (connection->stream) connection->stream->ends = true;
    wake(*connection);
  }
  for (const Connection* connection : postponed_) MHD_resume_connection(connection->handle);
  MHD_stop_daemon(daemon_);
}

Result<void> MicrohttpdServer::open() {
  daemon_ = MHD_start_daemon(
      MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, nullptr, nullptr,
      &on_request, this, MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(bounds_.connections),
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionMemory, MHD_OPTION_CONNECTION_TIMEOUT, 0u,
      MHD_OPTION_NOTIFY_CONNECTION, &on_connection, this, MHD_OPTION_URI_LOG_CALLBACK,
      &on_request_line, this, MHD_OPTION_NOTIFY_COMPLETED, &on_completed, this, MHD_OPTION_END);
  const MHD_DaemonInfo* info =
      daemon_ == nullptr ? nullptr : MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_EPOLL_FD);
  if (info == nullptr) return Error{"libmicrohttpd does not start"};
  epoll_ = info->epoll_fd;
  return reactor_.watch(epoll_, EPOLLIN, [this](std::uint32_t) { run(); });
}

Result<void> MicrohttpdServer::listen(UniqueFd listener) {
  const int fd = listener.get();
  const auto watched = reactor_.watch(fd, EPOLLIN, [this, fd](std::uint32_t) { accept_some(fd); });
  if (watched) listeners_.push_back(std::move(listener));
  return watched;
}

void MicrohttpdServer::accept_some(int listener) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    UniqueFd socket(accept4(listener, reinterpret_cast<sockaddr*>(&from), &length,
                            SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (spare_.turned_away(listener, errno)) {
        log_.error("out_of_descriptors", {{"http_connections", connections_.size()}});
      }
      return;
    }
    if (!has_room_for(user_of(peer_of(socket.get())))) {
      log_.warn("too_many_http_connections", {{"connections", connections_.size()}});
      continue;
    }
    // It is the library's in any case: it closes what it cannot take.
    MHD_add_connection(daemon_, socket.release(), reinterpret_cast<sockaddr*>(&from), length);
  }
}

// One user cannot keep all others out.
bool MicrohttpdServer::has_room_for(User user) const {
  constexpr std::size_t kKeptFree = 16;  // one part in so many
  if (user && (*user == 0 || *user == own_)) return connections_.size() < bounds_.connections;
  const auto theirs = of_user_.find(user);
  if (theirs != of_user_.end() && theirs->second >= bounds_.connections / 2) return false;
  return connections_.size() < bounds_.connections - bounds_.connections / kKeptFree;
}

void MicrohttpdServer::on_connection(void* self, MHD_Connection* handle, void** context,
                                     MHD_ConnectionNotificationCode what) {
  auto& server = *static_cast<MicrohttpdServer*>(self);
  if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
    auto* const ended = static_cast<Connection*>(*context);
    server.set_deadline(*ended, std::nullopt);
    const auto theirs = server.of_user_.find(user_of(ended->peer));
    if (--theirs->second == 0) server.of_user_.erase(theirs);
    server.connections_.erase(ended);
    return;
  }
  auto made = std::make_unique<Connection>();
  Connection& connection = *made;
  connection.server = &server;
  connection.handle = handle;
  connection.fd = MHD_get_connection_info(handle, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
  connection.over_tcp = is_over_tcp(connection.fd);
  connection.peer = peer_of(connection.fd);
  ++server.of_user_[user_of(connection.peer)];
  server.set_deadline(connection, server.reactor_.now() + server.bounds_.request);
  *context = &connection;
  server.connections_.emplace(&connection, std::move(made));
}

void* MicrohttpdServer::on_request_line(void* self, const char*, MHD_Connection* handle) {
  return static_cast<MicrohttpdServer*>(self)->begin(handle);
}

// The answer is what comes back as the context of on_request().
void* MicrohttpdServer::begin(MHD_Connection* handle) {
  const auto* info = MHD_get_connection_info(handle, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  auto* const connection = static_cast<Connection*>(info->socket_context);
  connection->at = Connection::At::Headers;
  connection->body.clear();
  connection->too_long = false;
  connection->call = {};
  connection->stream.reset();
  set_deadline(*connection, reactor_.now() + bounds_.request);
  return connection;
}

// Called once with the headers, then with each piece of the body, then without data; and again
// when a suspended connection has been resumed.
MHD_Result MicrohttpdServer::on_request(void* self, MHD_Connection*, const char* path,
                                        const char* method, const char*, const char* data,
                                        std::size_t* size, void** context) {
  auto& server = *static_cast<MicrohttpdServer*>(self);
  auto& connection = *static_cast<Connection*>(*context);
  switch (connection.at) {
    case Connection::At::Headers:
      return server.check_headers(connection);
    case Connection::At::Body:
      if (*size == 0) return server.ask(connection, method, path);
      // A body in chunks gets its 413 when it ends, because the library takes no reply before.
      // What is too long is not kept, and the request's deadline bounds it.
      connection.too_long |= connection.body.size() + *size > kLongestBody;
      if (!connection.too_long) connection.body.append(data, *size);
      *size = 0;
      return MHD_YES;
    case Connection::At::Handler:
      // The client may have gone since the reply was made. MHD_NO closes the connection.
      if (!connection.reply || has_hung_up(connection.fd)) return MHD_NO;
      return server.answer(connection, *connection.reply);
    case Connection::At::Reply:
      *size = 0;
      return MHD_YES;
  }
  return MHD_NO;
}

MHD_Result MicrohttpdServer::check_headers(Connection& connection) {
  std::vector<HttpHeader> headers;
  const auto add = [](void* to, MHD_ValueKind, const char* name, std::size_t name_size,
                      const char* value, std::size_t value_size) {
    static_cast<std::vector<HttpHeader>*>(to)->push_back(
        {{name, name_size}, {value == nullptr ? "" : value, value_size}});
    return MHD_YES;
  };
  MHD_get_connection_values_n(connection.handle, MHD_HEADER_KIND, add, &headers);
  if (const auto refusal = refusal_of(headers, connection.over_tcp)) {
    return answer(connection, *refusal);
  }
  connection.at = Connection::At::Body;
  return MHD_YES;
}

MHD_Result MicrohttpdServer::ask(Connection& connection, const char* method, const char* path) {
  if (connection.too_long) return answer(connection, body_too_long());
  const bool its_turn = std::exchange(connection.postponed, false);
  if (!its_turn && calls_now_ + postponed_.size() >= kCallsPerTurn) return postpone(connection);
  ++calls_now_;
  HttpRequest request;
  request.method = method;
  request.path = path;
  request.body = std::move(connection.body);
  request.peer = connection.peer;
  request.hung_up = has_hung_up(connection.fd);
  const auto add = [](void* to, MHD_ValueKind, const char* name, std::size_t name_size,
                      const char* value, std::size_t value_size) {
    static_cast<HttpRequest*>(to)->query.emplace(
        std::string(name, name_size), std::string(value == nullptr ? "" : value, value_size));
    return MHD_YES;
  };
  MHD_get_connection_values_n(connection.handle, MHD_GET_ARGUMENT_KIND, add, &request);

  connection.at = Connection::At::Handler;
  connection.call = last_call_ = HttpCall{last_call_.value + 1};
  calls_.emplace(connection.call, &connection);
  const std::optional<HttpReply> reply = handler_(connection.call, request);
  if (reply) {
    if (!reply->goes_on) calls_.erase(connection.call);
    return answer(connection, *reply);
  }
  if (connection.reply) return answer(connection, *connection.reply);  // from within the handler
  return wait(connection);
}

// A suspended connection is out of the library's sight, so its end is looked for here. EPOLLRDHUP
// means gone, although a client may have closed only its sending half and still read: over TCP a
// client that was killed looks the same until something is written to it. A lease for a dead client
// would block the GPU until its deadline; a client that half-closes loses one request, and knows.
Result<void> MicrohttpdServer::suspend(Connection& connection) {
  const auto watched =
      reactor_.watch(connection.fd, EPOLLRDHUP, [this, &connection](std::uint32_t) {
        if (connection.stream) connection.stream->ends = true;
        wake(connection);
        end_call(connection, false);
      });
  if (!watched) return watched;
  connection.suspended = true;
  set_deadline(connection, std::nullopt);
  MHD_suspend_connection(connection.handle);
  return {};
}

MHD_Result MicrohttpdServer::wait(Connection& connection) {
  const auto suspended = suspend(connection);
  if (suspended) return MHD_YES;
  end_call(connection, false);
  return answer(connection, http_error(503, suspended.error().message));
}

// It stays out of the library's sight for some turns. Its deadline bounds that, too.
MHD_Result MicrohttpdServer::postpone(Connection& connection) {
  connection.postponed = true;
  postponed_.push_back(&connection);
  MHD_suspend_connection(connection.handle);
  return MHD_YES;
}

void MicrohttpdServer::take_up_postponed() {
  for (std::size_t i = calls_now_; i < kCallsPerTurn && !postponed_.empty(); ++i) {
    MHD_resume_connection(postponed_.front()->handle);
    postponed_.pop_front();
    must_run_ = true;
  }
}

void MicrohttpdServer::wake(Connection& connection) {
  if (!connection.suspended) return;
  connection.suspended = false;
  reactor_.unwatch(connection.fd);
  MHD_resume_connection(connection.handle);
  must_run_ = true;
}

// Nothing for a request that the handler has not seen, and for one that has ended.
void MicrohttpdServer::end_call(Connection& connection, bool sent) {
  const HttpCall call = std::exchange(connection.call, HttpCall{});
  if (call == HttpCall{}) return;
  calls_.erase(call);
  ended_(call, sent);
}

void MicrohttpdServer::on_completed(void* self, MHD_Connection*, void** context,
                                    MHD_RequestTerminationCode how) {
  auto* const connection = static_cast<Connection*>(*context);
  if (connection == nullptr || how == MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN) return;
  static_cast<MicrohttpdServer*>(self)->end_call(*connection,
                                                 how == MHD_REQUEST_TERMINATED_COMPLETED_OK);
}

void MicrohttpdServer::reply(HttpCall call, const HttpReply& reply) {
  const auto at = calls_.find(call);
  if (at == calls_.end() || at->second->stream) return;
  Connection& connection = *at->second;
  if (!reply.goes_on) calls_.erase(at);
  connection.reply = reply;
  wake(connection);
}

void MicrohttpdServer::send(HttpCall call, std::string piece) {
  const auto at = calls_.find(call);
  if (at == calls_.end() || !at->second->stream) return;
  at->second->stream->next = std::move(piece);
  wake(*at->second);
}

// Called once what it gave the last time is with the kernel.
ssize_t MicrohttpdServer::on_more_room(void* of, std::uint64_t, char* into, std::size_t most) {
  auto& connection = *static_cast<Connection*>(of);
  return connection.server->next_bytes(connection, into, most);
}

ssize_t MicrohttpdServer::next_bytes(Connection& connection, char* into, std::size_t most) {
  Stream& stream = *connection.stream;
  if (stream.taken == stream.piece.size() && stream.next) {
    stream = {std::move(*stream.next), 0, std::nullopt, stream.ends};
  }
  if (stream.ends) return MHD_CONTENT_READER_END_WITH_ERROR;
  const std::size_t some = stream.piece.copy(into, most, stream.taken);
  stream.taken += some;
  if (some == 0) return suspend(connection) ? 0 : MHD_CONTENT_READER_END_WITH_ERROR;
  set_deadline(connection, reactor_.now() + bounds_.idle);
  return static_cast<ssize_t>(some);
}

// A body that the library has as a whole leaves with the headers, and the library counts it as sent
// only after its next look at the connection. A client that reads and closes at once would be gone.
ssize_t read_body(void* body, std::uint64_t at, char* into, std::size_t most) {
  return static_cast<ssize_t>(static_cast<std::string*>(body)->copy(into, most, at));
}

void free_body(void* body) {
  delete static_cast<std::string*>(body);
}

Response whole(const std::string& text) {
  auto body = std::make_unique<std::string>(text);
  Response response(MHD_create_response_from_callback(body->size(), kReplyBlock, &read_body,
                                                      body.get(), &free_body),
                    &MHD_destroy_response);
  if (response) static_cast<void>(body.release());  // the response's
  return response;
}

MHD_Result MicrohttpdServer::answer(Connection& connection, const HttpReply& reply) {
  if (reply.goes_on) connection.stream = Stream{reply.body};
  const Response response =
      !reply.goes_on
          ? whole(reply.body)
          : Response(MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kReplyBlock, &on_more_room,
                                                       &connection, nullptr),
                     &MHD_destroy_response);
  if (!response) return MHD_NO;
  MHD_add_response_header(response.get(), "Content-Type", reply.type.data());
  MHD_add_response_header(response.get(), "Cache-Control", "no-store");
  MHD_add_response_header(response.get(), "X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : reply.headers) {
    MHD_add_response_header(response.get(), name.c_str(), value.c_str());
  }
  const auto status = static_cast<unsigned>(reply.status);
  connection.at = Connection::At::Reply;
  connection.reply.reset();
  set_deadline(connection, reactor_.now() + bounds_.idle);
  return MHD_queue_response(connection.handle, status, response.get());
}

void MicrohttpdServer::set_deadline(Connection& connection, std::optional<Time> deadline) {
  if (connection.deadline) deadlines_.erase({*connection.deadline, &connection});
  connection.deadline = deadline;
  if (deadline) deadlines_.emplace(*deadline, &connection);
}

// The library notices the shutdown like any other end of a connection.
void MicrohttpdServer::end_overdue() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= reactor_.now()) {
    Connection& connection = *deadlines_.begin()->second;
    set_deadline(connection, std::nullopt);
    shutdown(connection.fd, SHUT_RDWR);
    must_run_ = true;
  }
}

std::optional<Time> MicrohttpdServer::end_of_turn() {
  end_overdue();
  take_up_postponed();
  if (must_run_) {
    must_run_ = false;
    run();
  }
  calls_now_ = 0;
  must_run_ |= !postponed_.empty();
  // Deadlines are ours, so the library's timeout is none, or zero for work that it has left.
  MHD_UNSIGNED_LONG_LONG left = 0;
  must_run_ |= MHD_get_timeout(daemon_, &left) == MHD_YES && left == 0;
  if (must_run_) return reactor_.now();
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(Reactor& reactor, Log& log, Handler handler,
                                                      Ended ended, const HttpBounds& bounds) {
  auto server = std::make_unique<MicrohttpdServer>(reactor, log, std::move(handler),
                                                   std::move(ended), bounds);
  const auto opened = server->open();
  if (!opened) return opened.error();
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace nvshare::daemon
