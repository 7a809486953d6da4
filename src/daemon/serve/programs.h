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
#include "daemon/kept.h"
#include "daemon/serve/identity.h"
#include "daemon/serve/reactor.h"
#include "daemon/serve/run_groups.h"
#include "daemon/serve/runs.h"
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
  ProgramServer(Reactor& reactor, const Settings& settings, Kept& kept, const Processes& processes,
                Log& log);
  ~ProgramServer() override;

  // Whether its keeper lives, or a process in its cgroup.
  bool has_processes(const KeptRun& run) const;
  // Opens the kept runs again, until their keepers come back or end. Before serve().
  void restore_runs(Broker& broker);

  // Takes connections from `listener`, and gives them to `broker`, from now on.
  Result<void> serve(UniqueFd listener, Broker& broker);
  // Runs get a cgroup each from now on. Those that an earlier scheduler left are removed.
  void use_groups(RunGroups groups);
  // The scheduler ends: removes the groups of runs that have ended with it.
  void remove_groups();
  // Whether a process is in that cgroup of a run.
  bool is_populated(const std::string& group) const;
  // About once a second: looks whether runs without a keeper have processes left.
  void look_after_runs();
  // At the end of each turn: lets go of those who are gone. When to be called again at the latest.
  std::optional<Time> end_of_turn();
  // The tenant of programs that this process starts. Empty where that cannot be told now.
  std::string tenant_name(int pid, std::uint32_t uid);
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
  // Files of /proc that are read in one turn of the loop for the first messages of one user, and
  // for programs that came before their run. They take about 2 ms. With more of them all others
  // wait longer; with less of them a user with many programs waits longer.
  static constexpr std::uint64_t kReadsPerTurn = 256;

 private:
  using SessionId = std::uint64_t;
  using IpcName = std::array<std::uint8_t, wire::kIpcNameLength>;
  // A program whose memory others may open: those of the same user, and in the same container.
  struct IpcOwner {
    IpcName name{};
    std::string home;
  };
  // A run whose keeper has not come back yet.
  struct RestoredRun {
    ProcessKey keeper;
    UniqueFd process;  // becomes readable when the keeper is gone; none: look_after_restored()
  };
  struct Session {
    SessionId id = 0;
    UniqueFd socket;
    UniqueFd process;  // becomes readable when the process is gone
    Peer peer;
    std::string
        counts_for;  // name of the top tenant whose connections it is one of; empty: of none
    std::optional<ProcessKey> key;  // none: the kernel does not show the process
    SharedPage page;
    std::optional<ClientId> client;
    std::optional<TenantId> run;
    bool joined = false;  // runs_ knows it as a client
    std::optional<IpcOwner> ipc;
    Time hello_due{};
    std::uint64_t look_again = 0;  // its place in look_again_; 0: none
    bool doomed = false;
  };

  void accept_some();
  void take(UniqueFd socket);
  void read_some(SessionId id);
  void greet(Session& session, const wire::Header* header);
  void greet_and_count(Session& session, const wire::Header* header);
  void hello(Session& session, const wire::Hello& message);
  void run_begin(Session& session, const wire::RunBegin& message);
  void look(Session& session, const wire::Look& message);
  void ipc_exports(Session& session, const wire::IpcExports& message);
  void ipc_open(Session& session, const wire::IpcOpen& message);
  Session* ipc_owner(const IpcName& name, const std::string& home);
  bool ipc_connect(Session& owner, Session& asker, const wire::IpcMemory& memory);
  // The tenant of a keeper that comes back; nothing when it is none.
  std::optional<TenantId> take_restored(const Session& session, const std::string& name);
  bool is_keeper(const KeptRun& run) const;
  void restore(const KeptRun& run);
  void end_restored(TenantId tenant);
  void look_after_restored();
  void no_descriptor(const std::string& reason = "the kernel has none (pidfd_open)");
  std::optional<TenantId> run_around(const KeptRun& run) const;
  Result<std::optional<TenantId>> restored_parent(const KeptRun& run);
  void count_for(Session& session, const std::string& tenant);
  core::Limits limits_for_new(const TenantName& name) const;
  // The innermost of the tenants, the outermost first; those are made that are not there.
  Result<TenantId> make_tenants(const std::vector<TenantName>& names);
  void keep_run(const Session& session, TenantId run, const wire::RunBegin& message);
  Result<TenantId> tenant_outside_runs(const Peer& peer);

  // --- runs (program_runs.cpp)
  Result<TenantId> begin_run(const Session& session, const wire::RunBegin& message);
  Result<void> check_run_count(TenantId parent) const;
  Error name_taken(const TenantRecord& known, std::uint32_t uid, const Error& error) const;
  Result<std::optional<TenantId>> run_of(int pid, Runs::Asked asked = {});
  Result<std::optional<TenantId>> parent_for(const Session& session, const std::string& name,
                                             std::optional<TenantId> inside);
  std::string group_for(const Session& session, TenantId run);
  void call_back(TenantId run);
  std::optional<TenantId> taken_for(const Session& session) const;
  void look_again_later(Session& session);
  void leave_look_again(Session& session);
  bool is_in_an_inner_run(const Session& session);
  std::optional<Time> look_again();
  void give_up(TenantId run);
  void keeper_gone(TenantId run);
  void forget_ended_runs();
  void look_after(const std::set<TenantId>& runs);
  std::optional<Time> look_at_ending();

  // Of the first message of a connection.
  static Result<void> check_version(std::uint32_t magic, std::uint16_t major);
  void refuse(Session& session, const std::string& reason, std::uint32_t flags = 0);
  void doom(Session& session);
  // Whether the process that has connected is gone, and its number may be another's.
  static bool has_ended(const Session& session);
  void close(SessionId id);
  Session* session_of(ClientId client);

  Reactor& reactor_;
  const Settings& settings_;
  Kept& kept_;
  const Processes& processes_;
  Log& log_;
  Broker* broker_ = nullptr;
  UniqueFd listener_;
  SpareDescriptor spare_;
  SessionId next_session_ = 1;
  std::map<SessionId, Session> sessions_;
  std::map<ClientId, SessionId> by_client_;
  Runs runs_;
  std::optional<RunGroups> groups_;   // none: runs are known by their keepers alone
  std::set<std::string> old_groups_;  // of runs that are gone, to be removed
  std::set<TenantId> ending_;         // their keepers have just gone: their processes follow
  Time look_closely_until_{};
  Time look_closely_next_{};
  bool told_of_groups_ = false;       // that one could not be made
  bool told_of_descriptors_ = false;  // that there is none for a process
  std::map<TenantId, RestoredRun> restored_;
  std::map<std::string, int> connections_;         // of programs, by the name of their top tenant
  int programs_connected_ = 0;                     // all of them; runs are not among them
  std::set<std::pair<Time, SessionId>> greeting_;  // by when they must have said hello
  std::map<std::string, std::uint64_t> reads_;     // of this turn, by the name of the top tenant
  // Those that may be in a run that began after they came, in the order in which they are looked
  // at. Each is there once, whatever number of runs begins.
  std::set<std::pair<std::uint64_t, SessionId>> look_again_;
  std::uint64_t last_place_ = 0;
  Time look_again_due_{};
  std::vector<SessionId> doomed_;
  Time started_{};
};

}  // namespace nvshare::daemon
