#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/broker/broker.h"
#include "daemon/serve/identity.h"
#include "daemon/serve/reactor.h"
#include "daemon/serve/shared_page.h"
#include "daemon/serve/spare_descriptor.h"
#include "daemon/settings.h"

namespace nvshare::daemon {

// The programs' socket: connections of processes and of `nvshare run`. Who they are is asked from
// the kernel; what they say goes to the broker. Nothing here waits for anybody, and everything is
// bounded.
class ProgramServer final : public Outbox {
 public:
  // Everything handed in outlives the server.
  ProgramServer(Reactor& reactor, const Settings& settings, const Processes& processes, Log& log);
  ~ProgramServer() override;

  // Takes connections from `listener`, and gives them to `broker`, from now on.
  Result<void> serve(UniqueFd listener, Broker& broker);
  // At the end of each turn: lets go of those who are gone. When to be called again at the latest.
  std::optional<Time> end_of_turn();
  // Somebody is connected.
  bool busy() const { return !sessions_.empty(); }

  void send(ClientId client, const wire::Header& message) override;
  void hand_over(ClientId client, const wire::Header& message, int descriptor) override;
  void tell_run(TenantId tenant, const wire::Header& message) override;
  void disconnect(ClientId client, std::string_view why) override;
  void end(ClientId client) override;

  static constexpr Duration kHelloTimeout = 5s;
  // Programs of a scheduler before this one have come back by then.
  static constexpr Duration kAllAreBack = 5s;

 private:
  using SessionId = std::uint64_t;
  using IpcName = std::array<std::uint8_t, wire::kIpcNameLength>;
  // A program whose memory others may open: those of the same user, and in the same container.
  struct IpcOwner {
    IpcName name{};
    TenantName home;
  };
  struct Session {
    SessionId id = 0;
    UniqueFd socket;
    UniqueFd process;  // becomes readable when the process is gone
    Peer peer;
    SharedPage page;
    std::optional<ClientId> client;
    std::optional<TenantId> run;
    std::optional<IpcOwner> ipc;
    Time hello_due{};
    bool doomed = false;
  };

  void accept_some();
  void take(UniqueFd socket);
  void read_some(SessionId id);
  void greet(Session& session, const wire::Header* header);
  void hello(Session& session, const wire::Hello& message);
  void run_begin(Session& session, const wire::RunBegin& message);
  void look(Session& session, const wire::Look& message);
  void ipc_exports(Session& session, const wire::IpcExports& message);
  void ipc_open(Session& session, const wire::IpcOpen& message);
  Session* ipc_owner(const IpcName& name, const TenantName& home);
  bool ipc_connect(Session& owner, Session& asker, const wire::IpcMemory& memory);
  Result<TenantId> begin_run(const Session& session, const wire::RunBegin& message);
  const TenantRecord* tenant_outside_runs(const Peer& peer) const;
  core::Limits most_for_a_run(const Peer& peer) const;
  void call_back(TenantId run);
  Result<TenantId> tenant_of(const Session& session);
  // Of the first message of a connection.
  static Result<void> check_version(std::uint32_t magic, std::uint16_t major);
  void refuse(Session& session, const std::string& reason);
  void doom(Session& session);
  void close(SessionId id);
  Session* session_of(ClientId client);

  Reactor& reactor_;
  const Settings& settings_;
  const Processes& processes_;
  Log& log_;
  Broker* broker_ = nullptr;
  UniqueFd listener_;
  SpareDescriptor spare_;
  SessionId next_session_ = 1;
  std::map<SessionId, Session> sessions_;
  std::map<ClientId, SessionId> by_client_;
  std::map<int, TenantId> runs_;  // by the pid of `nvshare run`
  std::map<std::uint32_t, int> per_user_;
  std::set<std::pair<Time, SessionId>> greeting_;  // by when they must have said hello
  std::vector<SessionId> doomed_;
  Time started_{};
};

}  // namespace nvshare::daemon
