#include "daemon/serve/programs.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

constexpr int kAcceptsPerTurn = 32;
constexpr int kPacketsPerTurn = 8;  // of one connection: nobody fills a turn alone

}  // namespace

ProgramServer::ProgramServer(Reactor& reactor, const Settings& settings, Kept& kept,
                             const Processes& processes, Log& log)
    : reactor_(reactor),
      settings_(settings),
      kept_(kept),
      processes_(processes),
      log_(log),
      runs_(processes) {}

ProgramServer::~ProgramServer() {
  if (listener_) reactor_.unwatch(listener_.get());
  for (auto& [id, session] : sessions_) {
    reactor_.unwatch(session.socket.get());
    if (session.process) reactor_.unwatch(session.process.get());
  }
  for (auto& [pid, run] : restored_) reactor_.unwatch(run.process.get());
}

Result<void> ProgramServer::serve(UniqueFd listener, Broker& broker) {
  broker_ = &broker;
  started_ = reactor_.now();
  listener_ = std::move(listener);
  return reactor_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept_some(); });
}

// --- connections -------------------------------------------------------------------------------

void ProgramServer::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      take(std::move(socket));
    } else if (spare_.turned_away(listener_.get(), errno)) {
      return log_.error("out_of_descriptors", {{"connections", sessions_.size()}});
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

bool ProgramServer::has_ended(const Session& session) {
  pollfd ended{session.process.get(), POLLIN, 0};
  return session.process && poll(&ended, 1, 0) != 0;
}

// The connection counts as one of that tenant's from now on; as nobody's when the name is empty.
void ProgramServer::count_for(Session& session, const std::string& tenant) {
  const auto known = connections_.find(session.counts_for);
  if (known != connections_.end()) {
    --programs_connected_;
    if (--known->second == 0) connections_.erase(known);
  }
  session.counts_for = tenant;
  if (tenant.empty()) return;
  ++connections_[tenant];
  ++programs_connected_;
}

void ProgramServer::take(UniqueFd socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0) return;
  const SessionId id = next_session_++;
  Session& session = sessions_[id];
  session.id = id;
  session.socket = std::move(socket);
  session.peer = {peer.pid, peer.uid};
  if (peer.pid > 0) {
    auto held = processes_.hold_peer(session.socket.get(), peer.pid);
    if (!held) return refuse(session, held.error().message);
    if (held->gone) return doom(session);
    session.process = std::move(held->descriptor);
    if (!session.process) no_descriptor();
    session.key = processes_.key_of(peer.pid);
    // What was read may be of another process, which has the number now.
    if (has_ended(session)) return doom(session);
  }
  const auto levels = processes_.tenants_of(peer.pid, peer.uid);
  // Not for good: the next answer may be another, as of a user directory that was away.
  if (!levels) return refuse(session, levels.error().message);
  const std::string& top = levels->front().name;
  count_for(session, top);
  if (programs_connected_ > settings_.max_clients) {
    return refuse(session, "the scheduler serves as many programs as max_clients allows");
  }
  if (connections_.at(top) > settings_.max_clients_per_user) {
    return refuse(session,
                  fmt::format("'{}' has {} programs, as many as max_clients_per_user allows", top,
                              settings_.max_clients_per_user));
  }
  const auto watched =
      reactor_.watch(session.socket.get(), EPOLLIN, [this, id](std::uint32_t) { read_some(id); });
  if (!watched) return refuse(session, watched.error().message);
  session.hello_due = reactor_.now() + kHelloTimeout;
  greeting_.emplace(session.hello_due, id);
  if (!session.process) return;
  // A forked child may hold the socket open long after the process itself has ended.
  (void)reactor_.watch(session.process.get(), EPOLLIN, [this, id](std::uint32_t) {
    const auto at = sessions_.find(id);
    if (at != sessions_.end()) doom(at->second);
  });
}

// One line for all: on such a kernel it is so for each process.
void ProgramServer::no_descriptor(const std::string& reason) {
  if (std::exchange(told_of_descriptors_, true)) return;
  log_.warn("no_pidfd", {{"reason", reason},
                         {"effect",
                          "the end of a process is noticed by its connection, the end of "
                          "a kept run within a second"}});
}

void ProgramServer::doom(Session& session) {
  if (session.doomed) return;
  session.doomed = true;
  reactor_.unwatch(session.socket.get());
  if (session.process) reactor_.unwatch(session.process.get());
  doomed_.push_back(session.id);
}

void ProgramServer::close(SessionId id) {
  const auto at = sessions_.find(id);
  if (at == sessions_.end()) return;
  // Out of the tables first: what the broker does about it no longer reaches this connection.
  Session session = std::move(at->second);
  sessions_.erase(at);
  greeting_.erase({session.hello_due, id});
  leave_look_again(session);
  count_for(session, "");
  if (session.client) {
    by_client_.erase(*session.client);
    if (session.joined) runs_.left(*session.key);
    broker_->leave(*session.client, reactor_.now());
  }
  if (session.run) keeper_gone(*session.run);
}

std::optional<Time> ProgramServer::end_of_turn() {
  reads_.clear();
  while (!greeting_.empty() && greeting_.begin()->first <= reactor_.now()) {
    Session& silent = sessions_.at(greeting_.begin()->second);
    greeting_.erase(greeting_.begin());
    log_.warn("no_hello", {{"pid", silent.peer.pid}, {"uid", silent.peer.uid}});
    doom(silent);
  }
  const std::optional<Time> look_again_due = look_again();
  while (!doomed_.empty()) {  // closing one can doom another
    const SessionId id = doomed_.back();
    doomed_.pop_back();
    close(id);
  }
  std::optional<Time> next = look_at_ending();
  if (look_again_due) next = std::min(next.value_or(Time::max()), *look_again_due);
  if (!greeting_.empty()) next = std::min(next.value_or(Time::max()), greeting_.begin()->first);
  return next;
}

// --- what they say -----------------------------------------------------------------------------

void ProgramServer::read_some(SessionId id) {
  alignas(8) char buffer[wire::kMaxMessage];
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    const auto at = sessions_.find(id);
    if (at == sessions_.end() || at->second.doomed) return;
    Session& session = at->second;
    const bool is_new = !session.client && !session.run;
    // The message stays in the socket, and the next turn comes at once.
    if (is_new && reads_[session.counts_for] >= kReadsPerTurn) return;
    const int length = wire::receive(session.socket.get(), buffer, false);
    if (length == -EAGAIN) return;
    if (length == 0 || (length < 0 && length != -EMSGSIZE)) return doom(session);
    const wire::Header* header =
        length < 0 ? nullptr : wire::look_at(buffer, static_cast<std::size_t>(length));
    if (const auto* exports = wire::as<wire::IpcExports>(header); exports && session.client) {
      ipc_exports(session, *exports);
    } else if (session.client) {
      broker_->packet(*session.client, header, reactor_.now());
    } else if (is_new) {
      greet_and_count(session, header);
    } else {
      return doom(session);  // a run has nothing more to say
    }
  }
}

// A first message costs a walk through the process table, and a run a cgroup as well: of one user
// one run begins in a turn.
void ProgramServer::greet_and_count(Session& session, const wire::Header* header) {
  const std::string user = session.counts_for;
  const std::uint64_t before = processes_.reads();
  greet(session, header);
  reads_[user] += session.run ? kReadsPerTurn : processes_.reads() - before;
}

void ProgramServer::greet(Session& session, const wire::Header* header) {
  greeting_.erase({session.hello_due, session.id});
  if (const auto* message = wire::as<wire::Hello>(header)) return hello(session, *message);
  if (const auto* message = wire::as<wire::RunBegin>(header)) {
    return run_begin(session, wire::whole(*message));
  }
  if (const auto* message = wire::as<wire::Look>(header)) return look(session, *message);
  if (const auto* message = wire::as<wire::IpcOpen>(header)) return ipc_open(session, *message);
  log_.warn("no_hello", {{"pid", session.peer.pid}, {"uid", session.peer.uid}});
  doom(session);
}

void ProgramServer::refuse(Session& session, const std::string& reason, std::uint32_t flags) {
  log_.warn("refused", {{"pid", session.peer.pid}, {"uid", session.peer.uid}, {"reason", reason}});
  auto message = wire::make<wire::Refused>();
  message.major = wire::kMajor;
  message.minor = wire::kMinor;
  message.flags = flags;
  wire::put_text(message.reason, sizeof message.reason, reason.c_str());
  (void)wire::send(session.socket.get(), &message.header, false);
  doom(session);
}

Result<void> ProgramServer::check_version(std::uint32_t magic, std::uint16_t major) {
  if (magic == wire::kMagic && major == wire::kMajor) return {};
  return Error{fmt::format("the scheduler speaks protocol {}.{}", wire::kMajor, wire::kMinor)};
}

void ProgramServer::hello(Session& session, const wire::Hello& message) {
  // What the process is does not change while it waits, and a place may become free.
  constexpr std::uint32_t kForGood = wire::kRefusedForGood;
  const auto run = run_of(session.peer.pid);
  if (!run) return refuse(session, run.error().message, kForGood);
  const auto tenant = *run ? Result<TenantId>(**run) : tenant_outside_runs(session.peer);
  if (!tenant) return refuse(session, tenant.error().message);
  auto page = SharedPage::make();
  if (!page) return refuse(session, page.error().message);
  session.page = std::move(*page);
  session.peer.home = processes_.home_of(session.peer.pid, session.peer.uid);
  // The number may be another process's by now.
  if (has_ended(session)) session.peer.home.clear();
  const auto greet = [&](wire::Welcome welcome) {
    session.client = ClientId{welcome.client};
    by_client_[*session.client] = session.id;
    // A program above it may be one of those, and has told in which run it is.
    if (!look_again_.empty()) look_again_later(session);
    if (broker_->tenants().at(*tenant).is.kind == TenantKind::Run && session.key) {
      runs_.joined(*tenant, *session.key);
      session.joined = true;
    }
    welcome.when_lost = settings_.when_lost;
    if (wire::send(session.socket.get(), &welcome.header, false, session.page.fd()) < 0) {
      doom(session);
    }
  };
  const auto known =
      broker_->hello(message, session.peer, *tenant, *session.page, reactor_.now(), greet);
  if (!known) return refuse(session, known.error().message, kForGood);
  session.page.close_fd();
}

core::Limits ProgramServer::limits_for_new(const TenantName& name) const {
  return kept_.limits_of(name, settings_.default_limits()).limits;
}

Result<TenantId> ProgramServer::make_tenants(const std::vector<TenantName>& names) {
  std::optional<TenantId> innermost;
  for (const TenantName& name : names) {
    const bool is_new = broker_->find_tenant(name.name) == nullptr;
    if (is_new) kept_.begins(name);
    const core::Limits limits = is_new ? limits_for_new(name) : core::Limits{};
    const auto tenant = broker_->tenant_for(name, limits, reactor_.now(), innermost);
    if (!tenant) return tenant.error();
    innermost = *tenant;
    if (!is_new) continue;
    broker_->keep(*tenant, kept_.limited_live(name));
    if (kept_.paused(name)) (void)broker_->set_paused(*tenant, true, reactor_.now());
  }
  return *innermost;
}

// The tenant that the process belongs to beside any run. Made when none of its processes has come.
Result<TenantId> ProgramServer::tenant_outside_runs(const Peer& peer) {
  const auto levels = processes_.tenants_of(peer.pid, peer.uid);
  return levels ? make_tenants(*levels) : Result<TenantId>(levels.error());
}

std::string ProgramServer::tenant_name(int pid, std::uint32_t uid) {
  const auto run = run_of(pid);
  if (!run) return "";
  if (*run) return broker_->tenants().at(**run).is.name;
  const auto outside = processes_.tenants_of(pid, uid);
  return outside ? outside->back().name : "";
}

// A process that only looks is no client, and makes no tenant.
void ProgramServer::look(Session& session, const wire::Look& message) {
  if (const auto spoken = check_version(message.magic, message.major); !spoken) {
    return refuse(session, spoken.error().message);
  }
  const auto run = run_of(session.peer.pid);
  if (!run) return refuse(session, run.error().message);
  const auto outside = processes_.tenants_of(session.peer.pid, session.peer.uid);
  if (!outside) return refuse(session, outside.error().message);
  const TenantRecord* tenant =
      *run ? &broker_->tenants().at(**run) : broker_->find_tenant(outside->back().name);
  core::Limits limits;
  if (tenant != nullptr) {
    limits = tightest_limits(broker_->tenants(), tenant->id);
  } else {
    for (const TenantName& level : *outside) limits = tightest(limits, limits_for_new(level));
  }
  const GpuRecord* gpu = broker_->find_gpu(std::to_array(message.gpu));
  auto view = wire::make<wire::View>();
  if (limits.memory) view.memory_limit = static_cast<std::uint64_t>(limits.memory->count);
  if (tenant != nullptr && gpu != nullptr) {
    broker_->settle(reactor_.now());
    const auto shown = broker_->memory_shown(tenant->id, gpu->id);
    view.allocated = static_cast<std::uint64_t>(shown.allocated.count);
  }
  (void)wire::send(session.socket.get(), &view.header, false);
  doom(session);
}

// --- what they are told ------------------------------------------------------------------------

ProgramServer::Session* ProgramServer::session_of(ClientId client) {
  const auto at = by_client_.find(client);
  if (at == by_client_.end()) return nullptr;
  Session& session = sessions_.at(at->second);
  return session.doomed ? nullptr : &session;
}

void ProgramServer::send(ClientId client, const wire::Header& message) {
  hand_over(client, message, -1);
}

void ProgramServer::hand_over(ClientId client, const wire::Header& message, int descriptor) {
  Session* session = session_of(client);
  if (session == nullptr) return;
  // Whoever waits for a grant finds it in the page: one process less to wake on its way.
  if (wire::as<wire::Grant>(&message) != nullptr) wire::ring(*session->page);
  const int result = wire::send(session->socket.get(), &message, false, descriptor);
  if (result == 0) return;
  if (result == -EAGAIN) log_.warn("client_does_not_read", {{"client", client.value}});
  doom(*session);
}

// One that does not read keeps its tenant all the same.
void ProgramServer::tell_run(TenantId tenant, const wire::Header& message) {
  for (const auto& [id, session] : sessions_) {
    if (session.run != tenant || session.doomed) continue;
    (void)wire::send(session.socket.get(), &message, false);
  }
}

void ProgramServer::disconnect(ClientId client, std::string_view) {
  if (Session* session = session_of(client)) doom(*session);
}

void ProgramServer::end(ClientId client) {
  const Session* session = session_of(client);
  if (session == nullptr || !session->process) return;
  if (syscall(SYS_pidfd_send_signal, session->process.get(), SIGKILL, nullptr, 0) < 0) {
    log_.error("cannot_end", {{"pid", session->peer.pid}, {"reason", std::strerror(errno)}});
  }
}

}  // namespace nvshare::daemon
