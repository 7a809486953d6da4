#pragma once

#include <string>

#include "base/result.h"
#include "base/uuid.h"

namespace nvshare::daemon {

// Whether a scheduler answers a question about the GPU at the program socket of a run directory.
// Waits for a tenth of a second at most, and only where somebody listens.
bool answers_in(const std::string& directory, const Uuid& gpu);

// Replaces the sockets in `own` by links to those in `other`. Programs that come back to `own` then
// reach the scheduler of `other`. Each socket is replaced in one step: no path is ever missing.
Result<void> link_sockets(const std::string& own, const std::string& other);

}  // namespace nvshare::daemon
