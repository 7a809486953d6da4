#pragma once

#include <chrono>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "cli/run/connect.h"
#include "cli/run/run_directory.h"

// Stream sockets in the scheduler's run directory.
namespace nvshare::cli {

// EAGAIN: the scheduler's queue of connections stayed full for `patience`.
Connection connect_stream(const std::string& path, Duration patience);

// Why there is no connection, and what to do next.
Error cannot_connect(const RunDirectory& directory, int error);
Error scheduler_is_silent();
Error scheduler_has_closed();
Error answer_makes_no_sense();

// True when the socket is ready for `events` before the deadline.
bool wait_for(int socket, short events, std::chrono::steady_clock::time_point deadline);

}  // namespace nvshare::cli
