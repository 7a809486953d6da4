#pragma once

#include <string>

#include "daemon/broker/testing.h"
#include "daemon/kept.h"
#include "daemon/serve/changes.h"
#include "daemon/serve/programs.h"
#include "daemon/serve/runs.h"
#include "daemon/state.h"
#include "process_tree.h"

namespace nvshare::properties {

// One life of the scheduler, from its start to kill -9. The same parts as in main.cpp, without
// sockets: the test says what would come over them. Time is virtual from the start on.
struct Life {
  // `written`: the state file. What an earlier life has left is taken from there.
  Life(const ProcessTree& tree, std::string& written);

  daemon::Broker& broker() { return t.broker; }
  const daemon::TenantRecord* find(const std::string& name) { return t.broker.find_tenant(name); }

  daemon::Processes processes;
  daemon::Reactor reactor;
  daemon::Settings settings;
  daemon::TestBroker t;
  daemon::Kept kept;
  daemon::Changes changes;
  daemon::ProgramServer programs;
  daemon::Runs runs;  // as `programs` has them
};

}  // namespace nvshare::properties
