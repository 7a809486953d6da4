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

#include "base/run_name.h"
#include "wire/channel.h"

namespace nvshare::daemon {
namespace {

constexpr int kAcceptsPerTurn = 32;
constexpr int kPacketsPerTurn = 8;  // of one connection: nobody fills a turn alone

Result<core::Limits> limits_of(const wire::RunBegin& message, const Settings& settings) {
  core::Limits limits;
  if (message.core_limit < 1 || message.core_limit > core::kNoCoreLimit) {
    return Error{fmt::format("core limit {} is not from 1 to 100", message.core_limit)};
  }
  if (message.memory_limit > static_cast<std::uint64_t>(core::kMostMemory.count)) {
    return Error{"the memory limit is more than any GPU has"};
  }
  if (message.priority < core::kLowestPriority || message.priority > core::kHighestPriority) {
    return Error{fmt::format("priority {} is not from {} to {}", message.priority,
                             core::kLowestPriority, core::kHighestPriority)};
  }
  limits.core_percent = std::min(message.core_limit, settings.run_cores_max);
  limits.priority = std::min(message.priority, settings.run_priority_max);
  if (message.memory_limit > 0) {
    limits.memory = Bytes{static_cast<std::int64_t>(message.memory_limit)};
  }
  return limits;
}

bool has_ended(const UniqueFd& process) {
  pollfd ended{process.get(), POLLIN, 0};
  return process && poll(&ended, 1, 0) != 0;
}

core::Limits lesser(core::Limits limits, const core::Limits& most) {
  limits.core_percent = std::min(limits.core_percent, most.core_percent);
  if (most.memory) limits.memory = std::min(limits.memory.value_or(*most.memory), *most.memory);
  limits.priority = std::min(limits.priority, most.priority);
  return limits;
}

}  // namespace

ProgramServer::ProgramServer(Reactor& reactor, const Settings& settings, const Processes& processes,
                             Log& log)
    : reactor_(reactor), settings_(settings), processes_(processes), log_(log) {}

ProgramServer::~ProgramServer() {
  if (listener_) reactor_.unwatch(listener_.get());
  for (auto& [id, session] : sessions_) {
    reactor_.unwatch(session.socket.get());
    if (session.process) reactor_.unwatch(session.process.get());
  }
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

void ProgramServer::take(UniqueFd socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0) return;
  const SessionId id = next_session_++;
  Session& session = sessions_[id];
  session.id = id;
  session.socket = std::move(socket);
  session.peer = {peer.pid, peer.uid};
  ++per_user_[peer.uid];
  if (static_cast<int>(sessions_.size()) > settings_.max_clients) {
    return refuse(session, "the scheduler serves as many programs as max_clients allows");
  }
  if (per_user_[peer.uid] > settings_.max_clients_per_user) {
    return refuse(session, "you have as many programs as max_clients_per_user allows");
  }
  if (peer.pid > 0) {
    session.process.reset(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
    if (!session.process && errno == ESRCH) return doom(session);
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
  if (--per_user_[session.peer.uid] == 0) per_user_.erase(session.peer.uid);
  if (session.client) {
    by_client_.erase(*session.client);
    broker_->leave(*session.client, reactor_.now());
  }
  if (session.run) {
    runs_.erase(session.peer.pid);
    broker_->end_run(*session.run, reactor_.now());
  }
}

std::optional<Time> ProgramServer::end_of_turn() {
  while (!greeting_.empty() && greeting_.begin()->first <= reactor_.now()) {
    Session& silent = sessions_.at(greeting_.begin()->second);
    greeting_.erase(greeting_.begin());
    log_.warn("no_hello", {{"pid", silent.peer.pid}, {"uid", silent.peer.uid}});
    doom(silent);
  }
  while (!doomed_.empty()) {  // closing one can doom another
    const SessionId id = doomed_.back();
    doomed_.pop_back();
    close(id);
  }
  return greeting_.empty() ? std::nullopt : std::optional(greeting_.begin()->first);
}

// --- what they say -----------------------------------------------------------------------------

void ProgramServer::read_some(SessionId id) {
  alignas(8) char buffer[wire::kMaxMessage];
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    const auto at = sessions_.find(id);
    if (at == sessions_.end() || at->second.doomed) return;
    Session& session = at->second;
    const int length = wire::receive(session.socket.get(), buffer, false);
    if (length == -EAGAIN) return;
    if (length == 0 || (length < 0 && length != -EMSGSIZE)) return doom(session);
    const wire::Header* header =
        length < 0 ? nullptr : wire::look_at(buffer, static_cast<std::size_t>(length));
    if (const auto* exports = wire::as<wire::IpcExports>(header); exports && session.client) {
      ipc_exports(session, *exports);
    } else if (session.client) {
      broker_->packet(*session.client, header, reactor_.now());
    } else {
      greet(session, header);
    }
  }
}

void ProgramServer::greet(Session& session, const wire::Header* header) {
  if (session.run) return doom(session);  // has nothing more to say
  greeting_.erase({session.hello_due, session.id});
  if (const auto* message = wire::as<wire::Hello>(header)) return hello(session, *message);
  if (const auto* message = wire::as<wire::RunBegin>(header)) return run_begin(session, *message);
  if (const auto* message = wire::as<wire::Look>(header)) return look(session, *message);
  if (const auto* message = wire::as<wire::IpcOpen>(header)) return ipc_open(session, *message);
  log_.warn("no_hello", {{"pid", session.peer.pid}, {"uid", session.peer.uid}});
  doom(session);
}

void ProgramServer::refuse(Session& session, const std::string& reason) {
  log_.warn("refused", {{"pid", session.peer.pid}, {"uid", session.peer.uid}, {"reason", reason}});
  auto message = wire::make<wire::Refused>();
  message.major = wire::kMajor;
  message.minor = wire::kMinor;
  wire::put_text(message.reason, sizeof message.reason, reason.c_str());
  (void)wire::send(session.socket.get(), &message.header, false);
  doom(session);
}

Result<void> ProgramServer::check_version(std::uint32_t magic, std::uint16_t major) {
  if (magic == wire::kMagic && major == wire::kMajor) return {};
  return Error{fmt::format("the scheduler speaks protocol {}.{}", wire::kMajor, wire::kMinor)};
}

Result<TenantId> ProgramServer::tenant_of(const Session& session) {
  const auto run = processes_.run_above(session.peer.pid, runs_);
  if (!run) return run.error();
  if (*run) return **run;
  return broker_->tenant_for(processes_.tenant_of(session.peer.pid, session.peer.uid),
                             settings_.default_limits(), reactor_.now());
}

void ProgramServer::hello(Session& session, const wire::Hello& message) {
  const auto tenant = tenant_of(session);
  if (!tenant) return refuse(session, tenant.error().message);
  auto page = SharedPage::make();
  if (!page) return refuse(session, page.error().message);
  session.page = std::move(*page);
  session.peer.home = processes_.home_of(session.peer.pid, session.peer.uid);
  // The number may be another process's by now.
  if (has_ended(session.process)) session.peer.home.clear();
  const auto greet = [&](wire::Welcome welcome) {
    session.client = ClientId{welcome.client};
    by_client_[*session.client] = session.id;
    welcome.when_lost = settings_.when_lost;
    if (wire::send(session.socket.get(), &welcome.header, false, session.page.fd()) < 0) {
      doom(session);
    }
  };
  const auto known =
      broker_->hello(message, session.peer, *tenant, *session.page, reactor_.now(), greet);
  if (!known) return refuse(session, known.error().message);
  session.page.close_fd();
}

Result<TenantId> ProgramServer::begin_run(const Session& session, const wire::RunBegin& message) {
  if (const auto spoken = check_version(message.magic, message.major); !spoken)
    return spoken.error();
  if (session.peer.pid <= 0) return Error{"the scheduler cannot see your process"};
  const auto outer = processes_.run_above(session.peer.pid, runs_);
  if (!outer) return outer.error();
  if (*outer) {
    return Error{fmt::format("already inside the run '{}': its limits hold for all below it",
                             broker_->tenants().at(**outer).is.name)};
  }
  const std::string name(message.name, wire::text_length(message.name, sizeof message.name));
  if (const auto good = check_run_name(name); !good) return good.error();
  const auto limits = limits_of(message, settings_);
  if (!limits) return limits.error();
  if (message.backend > wire::Backend::Managed) {
    return Error{
        fmt::format("there is no memory backend {}", static_cast<std::uint32_t>(message.backend))};
  }
  const bool oversubscribes = (message.flags & wire::kOversubscribeSelf) != 0;
  if (oversubscribes && message.backend != wire::Backend::Managed) {
    return Error{"a program can only be larger than its GPU with the backend 'managed'"};
  }
  return broker_->begin_run({TenantKind::Run, name, session.peer.uid},
                            lesser(*limits, most_for_a_run(session.peer)), reactor_.now(),
                            message.backend, oversubscribes);
}

// The tenant that the process belongs to beside any run; null when nobody of it has come yet.
const TenantRecord* ProgramServer::tenant_outside_runs(const Peer& peer) const {
  const TenantName name = processes_.tenant_of(peer.pid, peer.uid);
  const TenantRecord* record = broker_->find_tenant(name.name);
  return record != nullptr && record->is.kind == name.kind ? record : nullptr;
}

// What the process has without the run, which one run does not raise (several add up).
core::Limits ProgramServer::most_for_a_run(const Peer& peer) const {
  const TenantRecord* record = tenant_outside_runs(peer);
  core::Limits most = record != nullptr ? record->limits : settings_.default_limits();
  // Nobody has chosen the priority that everyone begins with: there the settings' cap is the one.
  if (record == nullptr || !record->kept) most.priority = settings_.run_priority_max;
  return most;
}

// Who only looks is no client, and makes no tenant.
void ProgramServer::look(Session& session, const wire::Look& message) {
  if (const auto spoken = check_version(message.magic, message.major); !spoken) {
    return refuse(session, spoken.error().message);
  }
  const auto run = processes_.run_above(session.peer.pid, runs_);
  if (!run) return refuse(session, run.error().message);
  const TenantRecord* tenant =
      *run ? &broker_->tenants().at(**run) : tenant_outside_runs(session.peer);
  const core::Limits limits = tenant != nullptr ? tenant->limits : settings_.default_limits();
  const GpuRecord* gpu = broker_->find_gpu(std::to_array(message.gpu));
  auto view = wire::make<wire::View>();
  if (limits.memory) view.memory_limit = static_cast<std::uint64_t>(limits.memory->count);
  if (tenant != nullptr && gpu != nullptr) {
    broker_->settle(reactor_.now());
    view.allocated = static_cast<std::uint64_t>(broker_->allocated_by(*tenant, gpu->id).count);
  }
  (void)wire::send(session.socket.get(), &view.header, false);
  doom(session);
}

// After the scheduler was away, programs may have come back before their run: they come again.
void ProgramServer::call_back(TenantId run) {
  for (auto& [id, session] : sessions_) {
    if (!session.client || session.doomed) continue;
    const TenantId tenant = broker_->clients().at(*session.client).tenant;
    if (broker_->tenants().at(tenant).open) continue;  // it is in a run already
    const auto above = processes_.run_above(session.peer.pid, runs_);
    if (above && *above == run) doom(session);
  }
}

void ProgramServer::run_begin(Session& session, const wire::RunBegin& message) {
  const auto tenant = begin_run(session, message);
  if (!tenant) return refuse(session, tenant.error().message);
  session.run = *tenant;
  runs_[session.peer.pid] = *tenant;
  auto welcome = wire::make<wire::Welcome>();
  welcome.magic = wire::kMagic;
  welcome.major = wire::kMajor;
  welcome.minor = wire::kMinor;
  welcome.client = tenant->value;
  welcome.when_lost = settings_.when_lost;
  welcome.backend =
      message.backend == wire::Backend::Default ? settings_.memory_backend : message.backend;
  welcome.flags = message.flags & wire::kOversubscribeSelf;
  wire::put_text(welcome.tenant, sizeof welcome.tenant,
                 broker_->tenants().at(*tenant).is.name.c_str());
  if (wire::send(session.socket.get(), &welcome.header, false) < 0) return doom(session);
  call_back(*tenant);
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
