#pragma once

#include <string>

#include "base/result.h"

namespace nvshare::daemon {

// Whether a scheduler answers at the program socket of a run directory. Never waits.
bool answers_in(const std::string& directory);

// Replaces the sockets in `own` by links to those in `other`. Programs that come back to `own` then
// reach the scheduler of `other`. Each socket is replaced in one step: no path is ever missing.
Result<void> link_sockets(const std::string& own, const std::string& other);

}  // namespace nvshare::daemon
