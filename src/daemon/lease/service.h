#pragma once

#include <memory>
#include <optional>
#include <string>

#include "daemon/http/http_server.h"
#include "daemon/kept.h"
#include "daemon/lease/api.h"
#include "daemon/lease/leases.h"
#include "daemon/lease/lender.h"
#include "daemon/lease/notes.h"
#include "daemon/lease/status_push.h"

namespace nvshare::daemon {

// Leases over HTTP: the arbiter, its requests and the sockets. All that is handed in outlives it.
class LeaseService {
 public:
  LeaseService(Reactor& reactor, Broker& broker, const Settings& settings,
               const Processes& processes, Log& log, LeaseApi::Change change,
               LeaseNotes::TenantOf tenant_of);

  // Listens at the Unix socket. A system scheduler also listens where the settings say. Without
  // HTTP in this build, or without the port, the rest of the scheduler goes on: that is logged.
  void serve(const std::string& unix_socket, bool is_private);

  Leases& leases() { return leases_; }
  // For people at the control socket; as long as this is there.
  LeaseFacts facts() const;
  // Leases or requests are there.
  bool busy() const { return !leases_.empty(); }
  // Leases of a scheduler before this one, and all changes from now on, are kept by `kept`.
  void restore(Kept& kept);
  // GPUs that the broker has found since.
  void follow_gpus();
  void follow_settings();
  std::optional<Time> end_of_turn();
  // About once a second.
  void look();

 private:
  Reactor& reactor_;
  Broker& broker_;
  const Settings& settings_;
  Log& log_;
  Leases leases_;
  Lender lender_;
  LeaseNotes notes_;
  LeaseApi api_;
  StatusPush push_;
  std::unique_ptr<HttpServer> http_;
  std::size_t gpus_ = 0;
  std::vector<KeptLease> awaiting_;  // restored ones whose GPU is not there yet
};

}  // namespace nvshare::daemon
