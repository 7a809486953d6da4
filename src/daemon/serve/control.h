#pragma once

#include <string>
#include <string_view>

#include "daemon/broker/broker.h"
#include "daemon/host/gpus.h"
#include "daemon/serve/changes.h"
#include "daemon/serve/identity.h"
#include "daemon/serve/lease_facts.h"
#include "daemon/settings.h"

namespace nvshare::daemon {

// What people ask and change through the control socket; docs/protocol.md has the requests. All
// that is handed in outlives it.
class Control {
 public:
  struct About {
    Time started{};
    bool is_private = false;
  };

  Control(Broker& broker, const Settings& settings, Changes& changes, const Processes& processes,
          About about)
      : broker_(broker),
        settings_(settings),
        changes_(changes),
        processes_(processes),
        about_(about) {}

  // Where foreign processes are known from; without it there are none to show.
  void set_monitor(const GpuMonitor* monitor) { monitor_ = monitor; }

  // What is told of leases; without it there are none.
  void set_leases(LeaseFacts leases) { leases_ = std::move(leases); }

  // The answer to one line, without its end. Any line has an answer.
  std::string answer(std::string_view line, Time now);

 private:
  struct Json;  // keeps the JSON library out of this header

  Broker& broker_;
  const Settings& settings_;
  Changes& changes_;
  const Processes& processes_;
  About about_;
  const GpuMonitor* monitor_ = nullptr;
  LeaseFacts leases_;
};

}  // namespace nvshare::daemon
