#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/lease/held_lease.h"

namespace nvshare::cli {

struct LeasedProgram {
  std::vector<std::string> words;
  std::vector<std::string> environment;          // "NAME=VALUE", all of it
  std::function<void(const std::string&)> tell;  // one line for the user
};

// How the program ended.
struct LeasedEnd {
  int error = 0;            // of exec: it was not started
  int status = 0;           // of waitpid
  bool taken_away = false;  // the lease, while it ran
};

// Runs the program, renews the lease meanwhile, and gives it back at the end. Passes signals on.
// When the lease is taken away, the program gets SIGTERM. The call returns after the program's end.
// Signals stay blocked, because the caller is about to end.
LeasedEnd run_leased(const LeasedProgram& program, HeldLease& lease);

}  // namespace nvshare::cli
